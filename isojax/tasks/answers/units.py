"""The unit that stands behind a number: `cm^2`, `dollars per day`, `apples`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from isojax.tasks.answers.other_languages import SCALES as _SCALES

# Name -> (dimension, how many of that dimension's own unit), plural forms apart.
_LENGTHS = {
    "mm": "1/1000", "millimeter": "1/1000", "millimetre": "1/1000", "cm": "1/100", "centimeter": "1/100",
    "centimetre": "1/100", "dm": "1/10", "m": "1", "meter": "1", "metre": "1", "km": "1000", "kilometer": "1000",
    "kilometre": "1000", "in": "0.0254", "inch": "0.0254", "inche": "0.0254", "ft": "0.3048", "feet": "0.3048",
    "foot": "0.3048", "yd": "0.9144", "yard": "0.9144", "mi": "1609.344", "mile": "1609.344",
}  # fmt: skip
_TIMES = {
    "ms": "1/1000", "millisecond": "1/1000", "s": "1", "sec": "1", "second": "1", "min": "60", "minute": "60",
    "h": "3600", "hr": "3600", "hour": "3600", "day": "86400", "week": "604800",
}  # fmt: skip
_MASSES = {
    "mg": "1/1000", "milligram": "1/1000", "g": "1", "gram": "1", "kg": "1000", "kilogram": "1000", "kilo": "1000",
    "tonne": "1000000", "lb": "453.59237", "pound": "453.59237", "oz": "28.349523125", "ounce": "28.349523125",
}  # fmt: skip
_VOLUMES = {
    "ml": "1/1000000", "mL": "1/1000000", "milliliter": "1/1000000", "millilitre": "1/1000000", "cc": "1/1000000",
    "l": "1/1000", "L": "1/1000", "liter": "1/1000", "litre": "1/1000",
}  # fmt: skip
_OF_ONE_DIMENSION = {
    "dollar": ("dollar", "1"), "USD": ("dollar", "1"), "buck": ("dollar", "1"), "cent": ("dollar", "1/100"),
    "¢": ("dollar", "1/100"), "euro": ("euro", "1"), "rupee": ("rupee", "1"), "yen": ("yen", "1"),
    "degree": ("degree", "1"), "deg": ("degree", "1"), "month": ("month", "1"), "year": ("month", "12"),
    "yr": ("month", "12"), "unit": ("unit", "1"), "W": ("watt", "1"), "kW": ("watt", "1000"), "J": ("joule", "1"),
    "kJ": ("joule", "1000"), "V": ("volt", "1"), "N": ("newton", "1"), "Pa": ("pascal", "1"), "K": ("kelvin", "1"),
    "Hz": ("hertz", "1"), "C": ("celsius", "1"), "F": ("fahrenheit", "1"), "gallon": ("gallon", "1"),
    "gal": ("gallon", "1"), "qt": ("gallon", "1/4"), "quart": ("gallon", "1/4"), "pt": ("gallon", "1/8"),
    "pint": ("gallon", "1/8"), "acre": ("acre", "1"), "ha": ("hectare", "1"), "hectare": ("hectare", "1"),
    "KB": ("byte", "1000"), "MB": ("byte", "1000000"), "GB": ("byte", "1000000000"),
}  # fmt: skip
_SPEEDS = {"mph": ("mi", "h"), "kmh": ("km", "h"), "kmph": ("km", "h"), "kph": ("km", "h")}
_CURRENCY_SIGNS = {"$": "dollar", "€": "euro", "£": "sterling", "¥": "yen", "₹": "rupee"}

_LINK_WORD_TEXT = (
    "a an the of in at on by to is for and per with each every total altogether all left more less fewer remaining"
    " now long old tall wide high deep away late early longer taller older them us it"
)
_LINK_WORDS = frozenset(_LINK_WORD_TEXT.split())
# Words that change the value, or take it back: what holds one is no unit.
_NOT_UNITS = re.compile(
    r"\b(?:not|no|nor|never|cannot|or|wrong|incorrect|false|half|halves|thirds?|quarters?|fourths?|fifths?|tenths?"
    r"|pi|plus|minus|over|squared|cubed|than|least|most|maybe|perhaps|possibly|but|except|if|unless|mod|modulo|ish"
    r"|hundreds?|thousands?|[mbtr]+illions?|dozens?|exclusive|smaller|larger|bigger|greater|divided|multiplied"
    r"|between|through|isn|doesn|point|factorial|percent|score|gross|pairs?|power|root|base"
    r"|tens|something|odd|probably|presumably|supposedly|allegedly|hopefully|likely|itself|followed|fails|resp|respectively|ths|\w*(?:tie|een)ths|(?:hundred|thousand|[mbtr]+illion|sixth|seventh|eighth|ninth|twelfth)ths?|sixths|sevenths|eighths|ninths"
    rf"|binary|octal|hexadecimal|(?:below|under)\s+zero|choose|(?:added|raised)\s+to|subtracted|(?:shy|short)\s+of"
    rf"|{_SCALES})\b|n't",
    re.IGNORECASE,
)
_CJK_UNITS = {
    "毫米": "mm", "厘米": "cm", "米": "m", "千米": "km", "公里": "km", "克": "g", "千克": "kg",
    "公斤": "kg", "吨": "tonne", "秒": "s", "分钟": "min", "小时": "hour", "天": "day", "周": "week", "月": "month",
    "年": "year", "度": "degree", "毫升": "mL", "升": "L", "平方米": "m^2", "平方厘米": "cm^2",
    "立方米": "m^3", "立方厘米": "cm^3", "円": "yen", "美元": "dollar", "日元": "yen", "欧元": "euro",
}  # fmt: skip
_CJK_PER = re.compile(r"([\u4e00-\u9fff]+\s*)\s*[/每]\s*([\u4e00-\u9fff]+)")  # 千米/时, 元每千克
# behind "per"; elsewhere they are other things, too
_TIMES_IN_CJK = {"时": "小时", "分": "分钟", "時": "小时"}
# Of any other, a word that counts or names things, and changes no value: 个苹果 (apples), but not 万
# (ten thousand).
_CJK_UNIT = re.compile(
    "|".join(_CJK_UNITS)
    + "|[元块圆円圓个個つ只隻支枝本册冊张張枚人名位岁歳次回条條件头頭匹辆輛台棵颗顆朵杯瓶箱盒袋页頁题題道间間원개명]"
    r"(?:(?![半多余餘几幾万萬亿億千百十不或又点點倍零以约約的])[\u4e00-\u9fff\u3040-\u30ff\uac00-\ud7a3]){0,5}"
)
# Other words of one or two letters may be variables: 12 xy. Next to a longer word link words count
# too: 5 of them.
_SHORT_UNITS = re.compile(
    r"[mdckn]?m|[mk]?g|[mdc]?[lL]|[kM]?[WVJNK]|[kKMGT][Bb]|m?s|h|hr|Hz|lbs?|oz|ft|yd|mi|in|sq|cu|pt|qt|cc|ha|Pa|[ap]m"
    r"|C|F|°|¢"
)
_SHORT_LINK_WORDS = frozenset(["a", "an", "of", "in", "at", "on", "by", "to"])
_UNIT_TOKEN = re.compile(r"[A-Za-z°¢]+|\^\{?(-?[1-4])\}?|([²³])|/|[.,*·-]|\\cdot|\s+")


@dataclass(frozen=True)
class Unit:
    """`scale` times a product of dimensions, and words that no table knows: `apple`."""

    dimensions: tuple[tuple[str, int], ...] = ()
    scale: Fraction = Fraction(1)
    numerator_scale: Fraction = Fraction(1)  # of what is not behind "per"
    words: frozenset[str] = frozenset()


def currency(sign: str) -> Unit:
    """The unit of a currency sign."""
    return Unit(((_CURRENCY_SIGNS[sign], 1),))


def product(first: Unit, second: Unit) -> Unit:
    """`$` and `per day` are `$ per day`."""
    powers = dict(first.dimensions)
    for dimension, power in second.dimensions:
        powers[dimension] = powers.get(dimension, 0) + power
    dimensions = tuple(sorted((name, power) for name, power in powers.items() if power))
    return Unit(
        dimensions=dimensions,
        scale=first.scale * second.scale,
        numerator_scale=first.numerator_scale * second.numerator_scale,
        words=first.words | second.words,
    )


def inverse(unit: Unit) -> Unit:
    """`per day` of `day`."""
    dimensions = tuple((name, -power) for name, power in unit.dimensions)
    return Unit(dimensions=dimensions, scale=1 / unit.scale, words=unit.words)


def is_unit_name(word: str) -> bool:
    """Whether a table has this name: cm, kg, hours."""
    return _dimension_of(word) is not None


@lru_cache(4096)
def read_unit(text: str) -> Unit | None:
    """The unit that a text without LaTeX commands is, None where it is none; an empty text is a
    unit without any dimension."""
    if _NOT_UNITS.search(text):
        return None
    if (parts := _CJK_PER.fullmatch(text)) is not None:
        numerator = read_unit(parts[1].strip())
        denominator = read_unit(_TIMES_IN_CJK.get(parts[2], parts[2]))
        return (
            None
            if numerator is None or denominator is None
            else product(numerator, inverse(denominator))
        )
    if cjk := _CJK_UNIT.fullmatch(text):
        return (
            read_unit(_CJK_UNITS[text]) if text in _CJK_UNITS else Unit(words=frozenset([cjk[0]]))
        )
    text = re.sub(r"(?<![A-Za-z])([A-Za-z])\.\s?([A-Za-z])\.?(?![A-Za-z])", r"\1\2", text)  # p.m.
    text = re.sub(r"(?<![A-Za-z])([AP]M)(?![A-Za-z])", lambda match: match[1].lower(), text)
    tokens = [match for match in _UNIT_TOKEN.finditer(text) if match[0].strip()]
    if sum(len(match[0]) for match in _UNIT_TOKEN.finditer(text)) != len(text):
        return None
    words = [match[0] for match in re.finditer(r"[A-Za-z°¢]+", text)]
    is_known = [len(word) >= 3 or _SHORT_UNITS.fullmatch(word) is not None for word in words]
    if not any(is_known):
        if not text:
            return Unit()
        return None
    if not all(
        known or word in _SHORT_LINK_WORDS for known, word in zip(is_known, words, strict=True)
    ):
        return None
    return _read_tokens([match[0] for match in tokens])


def _read_tokens(tokens: list[str]) -> Unit:
    powers: dict[str, int] = {}
    scale = numerator_scale = Fraction(1)
    unknown_words = set[str]()
    sign, next_power, last_known = 1, 1, ""

    def multiply(name: str, power: int) -> None:
        nonlocal scale, numerator_scale
        known = _dimension_of(name)
        assert known is not None
        for dimension, factor, own_power in known:
            powers[dimension] = powers.get(dimension, 0) + own_power * power
            scale *= factor ** (own_power * power)
            if sign > 0:
                numerator_scale *= factor ** (own_power * power)

    for position, token in enumerate(tokens):
        following = tokens[position + 1] if position + 1 < len(tokens) else ""
        exponent = re.fullmatch(r"\^\{?(-?[1-4])\}?", token)
        if token in ("/", "per") or (token in ("a", "an", "each", "every") and last_known):
            sign = -1
        elif token in ("square", "sq"):
            next_power = 2
        elif token in ("cubic", "cu"):
            next_power = 3
        elif exponent or token in "²³":
            power = int(exponent[1]) if exponent else {"²": 2, "³": 3}[token]
            if last_known:  # it has been counted once
                multiply(last_known, sign * (power - 1))
        elif token in _LINK_WORDS and not (token == "in" and not powers and not following):
            continue
        elif _dimension_of(token) is not None:
            multiply(token, sign * next_power)
            last_known, next_power = token, 1
        elif token[0].isalpha():
            unknown_words.add(_singular(token.casefold()))
    if {"celsius", "fahrenheit"} & powers.keys():
        powers.pop("degree", None)
    dimensions = tuple(sorted((name, power) for name, power in powers.items() if power))
    return Unit(dimensions, scale, numerator_scale, frozenset(unknown_words))


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _table() -> Mapping[str, tuple[tuple[str, Fraction, int], ...]]:
    table: dict[str, tuple[tuple[str, Fraction, int], ...]] = {}
    for dimension, names in (("metre", _LENGTHS), ("second", _TIMES), ("gram", _MASSES)):
        table |= {name: ((dimension, Fraction(factor), 1),) for name, factor in names.items()}
    # A litre is a thousandth of a cubic metre.
    cube_roots = {"1/1000000": "1/100", "1/1000": "1/10"}
    table |= {
        name: (("metre", Fraction(cube_roots[factor]), 3),) for name, factor in _VOLUMES.items()
    }
    table |= {
        name: ((dimension, Fraction(factor), 1),)
        for name, (dimension, factor) in _OF_ONE_DIMENSION.items()
    }
    for name, (length, time) in _SPEEDS.items():
        speed = (("metre", Fraction(_LENGTHS[length]), 1), ("second", Fraction(_TIMES[time]), -1))
        table[name] = speed
    table["°"] = table["degree"]
    return table


_UNITS = _table()


def _dimension_of(word: str) -> tuple[tuple[str, Fraction, int], ...] | None:
    """(dimension, factor, power) of a known unit, in any number; capital letters matter in names of
    one or two."""
    for name in (word, word.lower() if len(word) > 2 else word):
        if name in _UNITS:
            return _UNITS[name]
        if len(name) > 2 and _singular_known(name) in _UNITS:
            return _UNITS[_singular_known(name)]
    return None


def _singular_known(name: str) -> str:
    return name[:-1] if name.endswith("s") else name


def conversion(reference: Unit | None, response: Unit | None) -> Fraction | None:
    """What a response's number is multiplied by to be in the reference's unit; None where they
    measure other things.

    A unit that one of them leaves out is no mistake: 25 for 25 cm, 42 apples for 42.
    """
    if reference is None or response is None or reference == response:
        return Fraction(1)
    if reference.dimensions and response.dimensions:
        if reference.dimensions == response.dimensions:
            return response.scale / reference.scale
        # $18 and $18 per day
        is_money = all(dict(unit.dimensions).get("dollar") == 1 for unit in (reference, response))
        is_rate_left_out = min(len(reference.dimensions), len(response.dimensions)) == 1
        return (
            response.numerator_scale / reference.numerator_scale
            if is_money and is_rate_left_out
            else None
        )
    if not reference.dimensions and not response.dimensions:
        if not reference.words or not response.words or reference.words & response.words:
            return Fraction(1)
        return None
    has_nothing = [not (unit.dimensions or unit.words) for unit in (reference, response)]
    return Fraction(1) if any(has_nothing) else None
