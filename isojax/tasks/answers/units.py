"""Reads and compares the units of answers: `cm^2`, `dollars per day`, `apples`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from isojax.tasks.answers.other_languages import SCALES as _SCALES

# Name -> the factor of its dimension's base unit. Plurals are found by dropping their s.
_LENGTHS = {  # in metres
    "mm": "1/1000", "millimeter": "1/1000", "millimetre": "1/1000",
    "cm": "1/100", "centimeter": "1/100", "centimetre": "1/100", "dm": "1/10",
    "m": "1", "meter": "1", "metre": "1", "km": "1000", "kilometer": "1000", "kilometre": "1000",
    "in": "0.0254", "inch": "0.0254", "inche": "0.0254",
    "ft": "0.3048", "feet": "0.3048", "foot": "0.3048",
    "yd": "0.9144", "yard": "0.9144", "mi": "1609.344", "mile": "1609.344",
}  # fmt: skip
_TIMES = {  # in seconds
    "ms": "1/1000", "millisecond": "1/1000", "s": "1", "sec": "1", "second": "1",
    "min": "60", "minute": "60", "h": "3600", "hr": "3600", "hour": "3600",
    "day": "86400", "week": "604800",
}  # fmt: skip
_MASSES = {  # in grams
    "mg": "1/1000", "milligram": "1/1000", "g": "1", "gram": "1",
    "kg": "1000", "kilogram": "1000", "kilo": "1000", "tonne": "1000000",
    "lb": "453.59237", "pound": "453.59237", "oz": "28.349523125", "ounce": "28.349523125",
}  # fmt: skip
_CUBE_EDGES = {  # volumes, by the edge in metres of the cube that holds one: a litre is (1/10 m)^3
    "ml": "1/100", "mL": "1/100", "milliliter": "1/100", "millilitre": "1/100", "cc": "1/100",
    "l": "1/10", "L": "1/10", "liter": "1/10", "litre": "1/10",
}  # fmt: skip
_OTHERS = {  # (dimension, factor)
    "dollar": ("dollar", "1"), "USD": ("dollar", "1"), "buck": ("dollar", "1"),
    "cent": ("dollar", "1/100"), "¢": ("dollar", "1/100"),
    "euro": ("euro", "1"), "rupee": ("rupee", "1"), "yen": ("yen", "1"),
    "degree": ("degree", "1"), "deg": ("degree", "1"), "°": ("degree", "1"),
    "C": ("celsius", "1"), "F": ("fahrenheit", "1"), "K": ("kelvin", "1"),
    "month": ("month", "1"), "year": ("month", "12"), "yr": ("month", "12"),
    "unit": ("unit", "1"), "W": ("watt", "1"), "kW": ("watt", "1000"),
    "J": ("joule", "1"), "kJ": ("joule", "1000"), "V": ("volt", "1"), "N": ("newton", "1"),
    "Pa": ("pascal", "1"), "Hz": ("hertz", "1"),
    "gallon": ("gallon", "1"), "gal": ("gallon", "1"), "qt": ("gallon", "1/4"),
    "quart": ("gallon", "1/4"), "pt": ("gallon", "1/8"), "pint": ("gallon", "1/8"),
    "acre": ("acre", "1"), "ha": ("hectare", "1"), "hectare": ("hectare", "1"),
    "KB": ("byte", "1000"), "MB": ("byte", "1000000"), "GB": ("byte", "1000000000"),
}  # fmt: skip
_SPEEDS = {"mph": ("mi", "h"), "kmh": ("km", "h"), "kmph": ("km", "h"), "kph": ("km", "h")}
_CURRENCY_SIGNS = {"$": "dollar", "€": "euro", "£": "sterling", "¥": "yen", "₹": "rupee"}

# Words beside a unit that do not change it: "5 meters tall", "42 apples in all".
_LINK_WORD_TEXT = (
    "a an the of in at on by to is for and per with each every total altogether all left more less"
    " fewer remaining now long old tall wide high deep away late early longer taller older them us"
    " it"
)
_LINK_WORDS = frozenset(_LINK_WORD_TEXT.split())

# Words that change the value, or take it back: what holds one is no unit.
_NOT_UNITS = re.compile(
    rf"""
    \b(?:
        not|no|nor|never|cannot|or|wrong|incorrect|false
      | half|halves|thirds?|quarters?|fourths?|fifths?|tenths?
      | pi|plus|minus|over|squared|cubed|than|least|most
      | maybe|perhaps|possibly|but|except|if|unless|mod|modulo|ish
      | hundreds?|thousands?|[mbtr]+illions?|dozens?
      | exclusive|smaller|larger|bigger|greater|divided|multiplied
      | between|through|isn|doesn|point|factorial|percent|score|gross|pairs?|power|root|base
      | tens|something|odd|probably|presumably|supposedly|allegedly|hopefully|likely|itself
      | followed|fails|resp|respectively
      | ths|\w*(?:tie|een)ths  # 17 ths, twentieths
      | (?:hundred|thousand|[mbtr]+illion|sixth|seventh|eighth|ninth|twelfth)ths?
      | sixths|sevenths|eighths|ninths
      | binary|octal|hexadecimal
      | (?:below|under)\s+zero|choose|(?:added|raised)\s+to|subtracted|(?:shy|short)\s+of
      | {_SCALES}
    )\b
    | n't
    """,
    re.IGNORECASE | re.VERBOSE,
)
_CJK_UNITS = {
    "毫米": "mm", "厘米": "cm", "米": "m", "千米": "km", "公里": "km",
    "克": "g", "千克": "kg", "公斤": "kg", "吨": "tonne",
    "秒": "s", "分钟": "min", "小时": "hour", "天": "day", "周": "week",
    "月": "month", "年": "year",
    "度": "degree", "毫升": "mL", "升": "L",
    "平方米": "m^2", "平方厘米": "cm^2", "立方米": "m^3", "立方厘米": "cm^3",
    "円": "yen", "美元": "dollar", "日元": "yen", "欧元": "euro",
}  # fmt: skip
_CJK_PER = re.compile(r"([\u4e00-\u9fff]+\s*)\s*[/每]\s*([\u4e00-\u9fff]+)")  # 千米/时, 元每千克
# Behind "per" only; elsewhere these characters mean other things, too.
_TIMES_IN_CJK = {"时": "小时", "分": "分钟", "時": "小时"}
# A known unit, or a word that counts or names things: 个苹果 (apples). A word with a character that
# changes the value, such as 万 (ten thousand), is none.
_CJK_COUNTER = (
    "[元块圆円圓个個つ只隻支枝本册冊张張枚人名位岁歳次回条條件头頭匹辆輛台棵颗顆朵杯瓶箱盒袋页頁题題道"
    "间間원개명]"
)
_CHANGES_THE_VALUE_IN_CJK = "[半多余餘几幾万萬亿億千百十不或又点點倍零以约約的]"
_CJK_UNIT = re.compile(
    "|".join(_CJK_UNITS)
    + rf"""
    | {_CJK_COUNTER}
      (?:(?!{_CHANGES_THE_VALUE_IN_CJK})[\u4e00-\u9fff\u3040-\u30ff\uac00-\ud7a3]){{0,5}}
    """,
    re.VERBOSE,
)

# Other words of one or two letters may be variables: 12 xy.
_SHORT_UNITS = re.compile(
    r"""
    [mdckn]?m | [mk]?g | [mdc]?[lL]
    | [kM]?[WVJNK] | [kKMGT][Bb]
    | m?s | h | hr | Hz | lbs? | oz | ft | yd | mi | in | sq | cu | pt | qt | cc | ha | Pa
    | [ap]m  # 5 pm
    | C | F | ° | ¢
    """,
    re.VERBOSE,
)
# Short words that are no variables next to a longer one: 5 of them.
_SHORT_LINK_WORDS = frozenset(["a", "an", "of", "in", "at", "on", "by", "to"])
_UNIT_TOKEN = re.compile(r"[A-Za-z°¢]+|\^\{?(-?[1-4])\}?|([²³])|/|[.,*·-]|\\cdot|\s+")
_EXPONENT = re.compile(r"\^\{?(-?[1-4])\}?")
_RAISED_DIGITS = {"²": 2, "³": 3}
_WORD = re.compile(r"[A-Za-z°¢]+")
_INITIALS = re.compile(r"(?<![A-Za-z])([A-Za-z])\.\s?([A-Za-z])\.?(?![A-Za-z])")  # p.m.
_HALF_DAY = re.compile(r"(?<![A-Za-z])([AP]M)(?![A-Za-z])")


@dataclass(frozen=True)
class Unit:
    """`scale` times a product of dimensions, and words that no table knows: `apple`.

    km per hour is 1000/3600 times metre^1 second^-1: its dimensions are (("metre", 1),
    ("second", -1)). The dimensions' base units are those of the tables above.
    """

    dimensions: tuple[tuple[str, int], ...] = ()  # (name, power), by name; no power is 0
    scale: Fraction = Fraction(1)
    numerator_scale: Fraction = Fraction(1)  # the part of `scale` that is not behind "per"
    words: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Factor:
    """(scale base units of a dimension)^power: a litre is (1/10 metre)^3."""

    dimension: str
    scale: Fraction
    power: int


def currency(sign: str) -> Unit:
    """The unit of a currency sign: one of $ € £ ¥ ₹."""
    return Unit(((_CURRENCY_SIGNS[sign], 1),))


def product(first: Unit, second: Unit) -> Unit:
    """`$` and `per day` are `$ per day`."""
    powers = dict(first.dimensions)
    for dimension, power in second.dimensions:
        powers[dimension] = powers.get(dimension, 0) + power
    return Unit(
        dimensions=_without_zeros(powers),
        scale=first.scale * second.scale,
        numerator_scale=first.numerator_scale * second.numerator_scale,
        words=first.words | second.words,
    )


def inverse(unit: Unit) -> Unit:
    """`per day` of `day`."""
    dimensions = tuple((name, -power) for name, power in unit.dimensions)
    return Unit(dimensions=dimensions, scale=1 / unit.scale, words=unit.words)


def _without_zeros(powers: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, power) for name, power in powers.items() if power))


def is_unit_name(word: str) -> bool:
    """Whether a table has this name: cm, kg, hours."""
    return _factors_of(word) is not None


# --- reading


@lru_cache(4096)
def read_unit(text: str) -> Unit | None:
    """The unit that a text without LaTeX commands names, such as "cm^2" or "dollars per day"; None
    where it is no unit.

    Words that no table knows, such as "apples", are a unit too. An empty text is a unit without
    dimension.
    """
    if _NOT_UNITS.search(text):  # words that change the value or take it back: half, not, squared
        return None

    # A rate in Chinese: 千米/时 (kilometres per hour).
    rate = _CJK_PER.fullmatch(text)
    if rate is not None:
        numerator = read_unit(rate[1].strip())
        denominator = read_unit(_TIMES_IN_CJK.get(rate[2], rate[2]))
        if numerator is None or denominator is None:
            return None
        return product(numerator, inverse(denominator))

    if text in _CJK_UNITS:
        return read_unit(_CJK_UNITS[text])
    if _CJK_UNIT.fullmatch(text):
        return Unit(words=frozenset([text]))
    return _read_in_latin_letters(text)


def _read_in_latin_letters(text: str) -> Unit | None:
    """The unit of a text in Latin letters, such as "cm^2" or "apples per day", read token by token;
    None where something in it cannot be part of a unit."""
    if not text:
        return Unit()

    text = _INITIALS.sub(r"\1\2", text)  # p.m. becomes pm
    text = _HALF_DAY.sub(lambda match: match[1].lower(), text)
    tokens = [match[0] for match in _UNIT_TOKEN.finditer(text)]
    if sum(map(len, tokens)) != len(text):
        return None  # there is something between two tokens

    # xy is a product of variables rather than a unit, and "of" is a unit only beside another word.
    has_unit = False
    for word in _WORD.findall(text):
        if len(word) >= 3 or _SHORT_UNITS.fullmatch(word):
            has_unit = True
        elif word not in _SHORT_LINK_WORDS:
            return None
    if not has_unit:
        return None
    return _read_tokens([token for token in tokens if token.strip()])


def _read_tokens(tokens: list[str]) -> Unit:
    """The unit that tokens name from left to right: cm^2 s^-1 for ["square", "cm", "per", "s"].
    tokens: words, exponents such as "^2" or "²", "/" and other signs, none of them blank. Signs and
    link words that mean nothing here are passed over."""
    unit = _UnitProduct()
    sign = 1  # of the powers of what follows; -1 after "per"
    next_power = 1  # of the next unit; 2 after "square"
    last_unit = ""  # the unit to which an exponent belongs

    for position, token in enumerate(tokens):
        is_last = position + 1 == len(tokens)
        # "in" is the inch where it is the last token and no unit came before it.
        is_inch = token == "in" and is_last and not unit.powers  # in "5 in", not in "5 in all"
        exponent = _exponent(token)

        if token in ("/", "per") or (token in ("a", "an", "each", "every") and last_unit):
            sign = -1
        elif token in ("square", "sq"):
            next_power = 2
        elif token in ("cubic", "cu"):
            next_power = 3
        elif exponent is not None:
            # The exponent belongs to the unit before, which has been multiplied in once already.
            if last_unit:
                unit.multiply(last_unit, sign * (exponent - 1), is_behind_per=sign < 0)
        elif token in _LINK_WORDS and not is_inch:
            continue
        elif is_unit_name(token):
            unit.multiply(token, sign * next_power, is_behind_per=sign < 0)
            last_unit = token
            next_power = 1
        elif token[0].isalpha():
            unit.words.add(_singular(token.casefold()))

    return unit.result()


class _UnitProduct:
    """A unit while it is read; `words` are those that no table knows."""

    def __init__(self) -> None:
        self.powers: dict[str, int] = {}
        self.scale = Fraction(1)
        self.numerator_scale = Fraction(1)
        self.words: set[str] = set()

    def multiply(self, name: str, power: int, *, is_behind_per: bool) -> None:
        """Multiply by a known unit to the given power."""
        factors = _factors_of(name)
        assert factors is not None

        for factor in factors:
            total_power = factor.power * power
            self.powers[factor.dimension] = self.powers.get(factor.dimension, 0) + total_power
            self.scale *= factor.scale**total_power
            if not is_behind_per:
                self.numerator_scale *= factor.scale**total_power

    def result(self) -> Unit:
        """The unit that has been read."""
        powers = dict(self.powers)
        if "celsius" in powers or "fahrenheit" in powers:
            powers.pop("degree", None)  # degrees F and F are one unit
        return Unit(
            dimensions=_without_zeros(powers),
            scale=self.scale,
            numerator_scale=self.numerator_scale,
            words=frozenset(self.words),
        )


def _exponent(token: str) -> int | None:
    """2 of ^2, ^{2} and ²; None of any other token."""
    if token in _RAISED_DIGITS:
        return _RAISED_DIGITS[token]
    match = _EXPONENT.fullmatch(token)
    return None if match is None else int(match[1])


def _singular(word: str) -> str:
    is_plural = len(word) > 3 and word.endswith("s") and not word.endswith("ss")
    return word[:-1] if is_plural else word


# --- known units


def _known_units() -> Mapping[str, tuple[_Factor, ...]]:
    """The factors of each unit in the tables, by its name: two for a speed, else one."""
    units: dict[str, tuple[_Factor, ...]] = {}
    for dimension, scales in (("metre", _LENGTHS), ("second", _TIMES), ("gram", _MASSES)):
        for name, scale in scales.items():
            units[name] = (_Factor(dimension, Fraction(scale), 1),)
    for name, edge in _CUBE_EDGES.items():
        units[name] = (_Factor("metre", Fraction(edge), 3),)
    for name, (dimension, scale) in _OTHERS.items():
        units[name] = (_Factor(dimension, Fraction(scale), 1),)
    for name, (length, time) in _SPEEDS.items():
        distance = _Factor("metre", Fraction(_LENGTHS[length]), 1)
        duration = _Factor("second", Fraction(_TIMES[time]), -1)
        units[name] = (distance, duration)
    return units


_UNITS = _known_units()


def _factors_of(word: str) -> tuple[_Factor, ...] | None:
    """The factors of a known unit, which may be in the plural; None where no table has it.

    Capital letters matter in names of one or two: mm and MM, but not cm and Centimeters.
    """
    if len(word) <= 2:
        return _UNITS.get(word)
    for name in (word, word.lower()):
        for singular in (name, name.removesuffix("s")):
            if singular in _UNITS:
                return _UNITS[singular]
    return None


# --- comparing


def conversion(reference: Unit | None, response: Unit | None) -> Fraction | None:
    """The factor that converts a response's number to the unit of the reference: 1/100 from cm to
    m. None where the two units do not measure the same.

    A unit that one of them leaves out is no mistake, and the factor is 1: 25 for 25 cm, 42 apples
    for 42. None as an argument: no unit. Units without dimensions are mere words, such as apples;
    those of both sides must have one in common.
    """
    if reference is None or response is None or reference == response:
        return Fraction(1)

    if reference.dimensions and response.dimensions:
        if reference.dimensions == response.dimensions:
            return response.scale / reference.scale
        # "per day" may be left out where money is asked for: $18 for $18 per day. Then one of them
        # has dollars as its only dimension, and what is behind "per" does not count.
        are_dollars = _is_of_dollars(reference) and _is_of_dollars(response)
        is_rate_left_out = min(len(reference.dimensions), len(response.dimensions)) == 1
        if are_dollars and is_rate_left_out:
            return response.numerator_scale / reference.numerator_scale
        return None

    if not reference.dimensions and not response.dimensions:
        has_no_words = not reference.words or not response.words
        return Fraction(1) if has_no_words or reference.words & response.words else None

    # One has dimensions: the other has no unit at all, or words that name something else.
    has_empty_unit = any(not (unit.dimensions or unit.words) for unit in (reference, response))
    return Fraction(1) if has_empty_unit else None


def _is_of_dollars(unit: Unit) -> bool:
    return dict(unit.dimensions).get("dollar") == 1
