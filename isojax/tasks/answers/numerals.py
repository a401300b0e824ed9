r"""Numbers as they are written: 1,234.5 and 6e23, 1 1/2, 0.\overline{3}, 52_8, 2:30."""

import re
from fractions import Fraction

from isojax.tasks.answers.cursor import Cursor, Unreadable
from isojax.tasks.answers.tree import BaseNumeral, Colon, Number
from isojax.tasks.answers.vocabulary import TEXT

MAX_EXPONENT = 10_000  # of ten, in a number as it is written: 1e9999
_THOUSANDS = re.compile(
    r"[0-9]{1,3}(?:(?:,[0-9]{3})+|(?: [0-9]{3})+|(?:['’][0-9]{3})+)(?![0-9])(?:\.[0-9]+)?"
)
_PLAIN_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+")
_EXPONENT = re.compile(r"[eE]([+-]?[0-9]+)(?![0-9.])")
_REPEATING = re.compile(
    r"([0-9]*)\.([0-9]*)(?:\\(?:overline|bar)\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))|\\dot\s*\{?([0-9])\}?"
    r"(?:([0-9]*)\\dot\s*\{?([0-9])\}?)?|\(([0-9]+)\))"
)
# Of 0.333... the last dot may have ended the sentence.
_ENDLESS = re.compile(
    r"([0-9]{0,20})\.([0-9]{0,20}?)(?:([0-9])\3{2,40}|([0-9]{2,12}?)\4{1,20})(?:\\[lc]?dots(?![A-Za-z])|\.\.\.?)"
)
_MIXED = re.compile(
    r"\s*\\frac\s*(?:\{\s*([0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}|([0-9])\s*([0-9]))|\s+([0-9]+)\s*/\s*([0-9]+)(?![0-9.])"
)
_COLON = re.compile(
    r"([0-9]+(?:\.[0-9]+)?)((?:\s*(?::|\\colon(?![A-Za-z]))\s*[0-9]+(?:\.[0-9]+)?)+)(?![0-9.])"
)
_BASE_NUMERAL = re.compile(
    r"(?:\\text\{)?([0-9A-F]*[0-9A-F])\}?_\s*(?:\{\s*(?:\\text\s*\{\s*)?([0-9]+)\s*\}?\s*\}|([0-9]+))"
)
_BASES_TEXT = (
    "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
)
_BASES = {word: value for value, word in enumerate(_BASES_TEXT.split(), start=2)} | {
    "binary": 2, "octal": 8, "decimal": 10, "hexadecimal": 16,
}  # fmt: skip
_BASE = rf"([0-9]+|{'|'.join(_BASES)})"
# Of a whole answer: (2516)_7, 52_{\text{eight}}, 52 (base 8), 101 in binary
_WHOLE_BASE_NUMERAL = re.compile(
    rf"(\(\s*[0-9A-F]+\s*\)|[0-9A-F]+)\s*(?:_\s*(?:\{{\s*(?:base\s*)?{_BASE}\s*\}}|{_BASE})"
    rf"|,?\s*\(?\s*(?:in\s+)?base[\s-]*{_BASE}\s*\)?|\(?\s*in\s+(binary|octal|decimal|hexadecimal)\s*\)?)"
)


def whole_base_numeral(text: str) -> Number | BaseNumeral | None:
    """An answer that is nothing but digits in a base, which may be letters: A3_{16}."""
    if "_" not in text and "bas" not in text and " in " not in text:
        return None
    match = _WHOLE_BASE_NUMERAL.fullmatch(" ".join(TEXT.sub(r" \1 ", text).split()))
    if match is None:
        return None
    base = next(group for group in match.groups()[1:] if group is not None)
    return _base_numeral(match[1].strip("() "), int(base) if base.isdigit() else _BASES[base])


def take_colon(cursor: Cursor) -> Colon | None:
    """The time or the ratio that stands here."""
    match = cursor.take(_COLON)
    return None if match is None else _colon(match)


def take_number(cursor: Cursor) -> Number | BaseNumeral:
    """The number that stands here, with its fraction or exponent."""
    if (numeral := _BASE_NUMERAL.match(cursor.text, cursor.position)) and numeral[1].isdigit():
        cursor.position = numeral.end()
        return _base_numeral(numeral[1], int(numeral[2] or numeral[3]))
    if match := cursor.take(_REPEATING):
        whole, fixed = match[1], match[2]
        first, middle, last = match[5] or "", match[6] or "", match[7] or ""
        return _repeating(whole, fixed, match[3] or match[4] or match[8] or first + middle + last)
    if match := cursor.take(_ENDLESS):
        return _repeating(match[1], match[2], match[3] or match[4])
    match = None if cursor.in_brackets else cursor.take(_THOUSANDS)
    match = match or cursor.take(_PLAIN_NUMBER)
    if match is None:
        raise Unreadable(cursor.text[cursor.position :])
    literal = re.sub("[, '’]", "", match[0])
    if literal.count(".") and cursor.text.startswith((".", r"\ldots", r"\dots"), cursor.position):
        raise Unreadable("dots")
    decimals = len(literal.partition(".")[2]) if "." in literal else None
    value = Fraction(literal.rstrip(".") if literal != "." else "x")
    exponent = _EXPONENT.match(cursor.text, cursor.position)
    if exponent and (cursor.with_exponents or exponent[1][0] != "-"):
        cursor.position = exponent.end()
        if abs(int(exponent[1])) > MAX_EXPONENT:
            raise Unreadable("exponent")
        return Number(value * Fraction(10) ** int(exponent[1]))
    if decimals is None and (mixed := _MIXED.match(cursor.text, cursor.position)):
        numerator = int(mixed[1] or mixed[3] or mixed[5])
        denominator = int(mixed[2] or mixed[4] or mixed[6])
        if denominator == 0:
            raise Unreadable("/0")
        cursor.position = mixed.end()
        return Number(value + Fraction(numerator, denominator))
    return Number(value, decimals)


def _base_numeral(digits: str, base: int) -> Number | BaseNumeral:
    if not 2 <= base <= 36:
        raise Unreadable("no base")
    if base == 10 and digits.isdigit():
        return Number(Fraction(int(digits)))
    return BaseNumeral(digits.lstrip("0") or "0", base)


def _repeating(whole: str, fixed: str, period: str) -> Number:
    if len(whole) + len(fixed) + len(period) > 1000:
        raise Unreadable("digits")
    start = Fraction(int(whole + fixed or "0"), 10 ** len(fixed))
    return Number(start + Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(fixed)))


def _colon(match: re.Match[str]) -> Colon:
    texts = re.findall(r"[0-9.]+", match[0])
    return Colon(tuple(texts), tuple(Fraction(text) for text in texts))
