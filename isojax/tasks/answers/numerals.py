r"""Reads numbers in all ways in which they are written: 1,234.5 and 6e23, 1 1/2, 0.\overline{3},
52_8, 2:30. Functions with a cursor read at its position and move it behind the number."""

import re
from fractions import Fraction

from isojax.tasks.answers.cursor import Cursor, Unreadable
from isojax.tasks.answers.tree import BaseNumeral, Colon, Number
from isojax.tasks.answers.vocabulary import TEXT

MAX_EXPONENT = 10_000  # of ten, in a number as it is written: 1e9999
MAX_REPEATING_DIGITS = 1000

# 1,234.5 and 1 234.5 and 1'234
_THOUSANDS = re.compile(
    r"[0-9]{1,3}(?:(?:,[0-9]{3})+|(?: [0-9]{3})+|(?:['’][0-9]{3})+)(?![0-9])(?:\.[0-9]+)?"
)
_THOUSANDS_MARKS = re.compile("[, '’]")
_PLAIN_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+")  # 12, 1.5, 5., .5
_EXPONENT = re.compile(r"[eE]([+-]?[0-9]+)(?![0-9.])")

# 0.1\overline{6}, 0.\bar 3, 0.\dot{1}4\dot{2}, 0.(3)
_REPEATING = re.compile(
    r"""
    (?P<whole>[0-9]*) \. (?P<fixed>[0-9]*)
    (?: \\(?:overline|bar)\s* (?: \{\s*(?P<braced>[0-9]+)\s*\} | (?P<digit>[0-9]) )
      | \\dot\s*\{?(?P<first>[0-9])\}?
        (?: (?P<middle>[0-9]*) \\dot\s*\{?(?P<last>[0-9])\}? )?
      | \((?P<bracketed>[0-9]+)\)
    )
    """,
    re.VERBOSE,
)
# 0.333..., 0.1666\ldots, 0.142857142857...: of three dots the last may have ended the sentence.
_ENDLESS = re.compile(
    r"""
    (?P<whole>[0-9]{0,20}) \. (?P<fixed>[0-9]{0,20}?)
    (?: (?P<digit>[0-9])(?P=digit){2,40} | (?P<period>[0-9]{2,12}?)(?P=period){1,20} )
    (?: \\[lc]?dots(?![A-Za-z]) | \.\.\.? )
    """,
    re.VERBOSE,
)
# What follows the 1 of 1\frac{1}{2}, 1\frac12 and 1 1/2. One of the pairs of groups is filled.
_MIXED = re.compile(
    r"""
      \s*\\frac\s*
      (?: \{\s*([0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\} | ([0-9])\s*([0-9]) )
    | \s+([0-9]+)\s*/\s*([0-9]+)(?![0-9.])
    """,
    re.VERBOSE,
)
# 2:30, 1 : 2.5 : 3
_COLON = re.compile(
    r"([0-9]+(?:\.[0-9]+)?)((?:\s*(?::|\\colon(?![A-Za-z]))\s*[0-9]+(?:\.[0-9]+)?)+)(?![0-9.])"
)

# 52_8, 52_{8}, 52_{\text{8}}, \text{A3}_{16}
_BASE_NUMERAL = re.compile(
    r"""
    (?:\\text\{)? (?P<digits>[0-9A-F]*[0-9A-F]) \}?
    _\s*
    (?: \{\s*(?:\\text\s*\{\s*)? (?P<braced_base>[0-9]+) \s*\}?\s*\} | (?P<base>[0-9]+) )
    """,
    re.VERBOSE,
)
_BASE_WORDS = (
    "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
)
_BASES = {word: value for value, word in enumerate(_BASE_WORDS.split(), start=2)} | {
    "binary": 2, "octal": 8, "decimal": 10, "hexadecimal": 16,
}  # fmt: skip
_BASE = rf"([0-9]+|{'|'.join(_BASES)})"
# A whole answer: (2516)_7, 52_{\text{eight}}, 52 (base 8), 101 in binary. One of the groups behind
# the first is filled.
_WHOLE_BASE_NUMERAL = re.compile(
    rf"""
    (\(\s*[0-9A-F]+\s*\)|[0-9A-F]+) \s*
    (?: _\s*(?:\{{\s*(?:base\s*)?{_BASE}\s*\}}|{_BASE})
      | ,?\s*\(?\s*(?:in\s+)?base[\s-]*{_BASE}\s*\)?
      | \(?\s*in\s+(binary|octal|decimal|hexadecimal)\s*\)?
    )
    """,
    re.VERBOSE,
)


def whole_base_numeral(text: str) -> Number | BaseNumeral | None:
    """An answer that is nothing but digits in a base, which may be letters: A3_{16}."""
    if "_" not in text and "bas" not in text and " in " not in text:
        return None  # most answers

    plain = " ".join(TEXT.sub(r" \1 ", text).split())
    match = _WHOLE_BASE_NUMERAL.fullmatch(plain)
    if match is None:
        return None
    digits = match[1].strip("() ")
    base = next(group for group in match.groups()[1:] if group is not None)
    return _base_numeral(digits, int(base) if base.isdigit() else _BASES[base])


def take_colon(cursor: Cursor) -> Colon | None:
    """The time or the ratio that stands here."""
    match = cursor.take(_COLON)
    if match is None:
        return None
    texts = re.findall(r"[0-9.]+", match[0])
    return Colon(tuple(texts), tuple(Fraction(text) for text in texts))


def take_number(cursor: Cursor) -> Number | BaseNumeral:
    r"""The number at the cursor, with its fraction or exponent: 1,234.5, 0.\overline{3}, 52_8.
    Unreadable where there is none, or where it is too long. Longer forms are tried first, since
    each begins as a plain number does: with a base, with a period, then any other."""
    base_numeral = _BASE_NUMERAL.match(cursor.text, cursor.position)
    if base_numeral and base_numeral["digits"].isdigit():  # A3 may be a product of variables
        cursor.position = base_numeral.end()
        base = base_numeral["braced_base"] or base_numeral["base"]
        return _base_numeral(base_numeral["digits"], int(base))

    repeating = cursor.take(_REPEATING)
    if repeating:
        # 0.\overline{6}, 0.\bar 6 or 0.(6); else \dot{1}4\dot{2}, whose dots are on the first and
        # the last digit of the period.
        period = repeating["braced"] or repeating["digit"] or repeating["bracketed"]
        if period is None:
            dotted = (repeating["first"], repeating["middle"], repeating["last"])
            period = "".join(digits or "" for digits in dotted)
        return _repeating(repeating["whole"], repeating["fixed"], period)

    endless = cursor.take(_ENDLESS)  # 0.333...
    if endless:
        return _repeating(endless["whole"], endless["fixed"], endless["digit"] or endless["period"])
    return _take_decimal(cursor)


def _take_decimal(cursor: Cursor) -> Number:
    """A decimal number at the cursor, also with an exponent or a fraction: 1,234.5, 6e23, 1 1/2.
    Unreadable where there is none. `decimals` of what is returned is None without a decimal point,
    and after an exponent, which moves the point."""
    # In brackets a comma separates items: (1,234) has two.
    match = None if cursor.commas_separate else cursor.take(_THOUSANDS)
    if match is None:
        match = cursor.take(_PLAIN_NUMBER)
    if match is None:
        raise Unreadable(cursor.text[cursor.position :])

    literal = _THOUSANDS_MARKS.sub("", match[0])
    has_point = "." in literal
    if has_point and cursor.text.startswith((".", r"\ldots", r"\dots"), cursor.position):
        raise Unreadable("dots")  # without a period that _ENDLESS sees: 3.14...
    value = Fraction(literal.rstrip("."))

    # 3e-1 may be 3 e - 1 in a formula: a negative exponent only counts where the cursor allows it.
    exponent = _EXPONENT.match(cursor.text, cursor.position)
    if exponent and (cursor.with_exponents or exponent[1][0] != "-"):
        cursor.position = exponent.end()
        if abs(int(exponent[1])) > MAX_EXPONENT:
            raise Unreadable("exponent")
        return Number(value * Fraction(10) ** int(exponent[1]))

    mixed = None if has_point else _MIXED.match(cursor.text, cursor.position)
    if mixed:
        numerator, denominator = (int(group) for group in mixed.groups() if group is not None)
        if denominator == 0:
            raise Unreadable("/0")
        cursor.position = mixed.end()
        return Number(value + Fraction(numerator, denominator))

    decimals = len(literal.partition(".")[2]) if has_point else None
    return Number(value, decimals)


def _base_numeral(digits: str, base: int) -> Number | BaseNumeral:
    """Digits in a base, those of base 10 as a Number; Unreadable for a base outside 2..36."""
    if not 2 <= base <= 36:
        raise Unreadable("no base")
    if base == 10 and digits.isdigit():
        return Number(Fraction(int(digits)))
    return BaseNumeral(digits.lstrip("0") or "0", base)


def _repeating(whole: str, fixed: str, period: str) -> Number:
    """whole.fixed, then the period again and again: 0.1666... has 0, 1 and 6."""
    if len(whole) + len(fixed) + len(period) > MAX_REPEATING_DIGITS:
        raise Unreadable("digits")
    shift = 10 ** len(fixed)
    start = Fraction(int(whole + fixed or "0"), shift)
    return Number(start + Fraction(int(period), (10 ** len(period) - 1) * shift))
