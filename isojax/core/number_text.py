"""Numbers as people and spreadsheets of several languages write them, none of which is read.

1,234 is 1234 to one of them and 1.234 to another. What to write instead is said where one is
refused.
"""

import re

# What stands between thousands, besides commas and points: spaces of several widths, apostrophes.
_DIGIT_MARKS = re.compile(r"(?<=\d)[ \u00a0\u2007\u2009\u202f'\u2019_](?=\d{3}(?!\d))")
_ENGLISH_GROUPS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{2,3})*,\d{3}(\.\d+)?")  # of two digits: Indian
_GERMAN_GROUPS = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+(,\d+)?")
_ONE_COMMA = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?")
_EITHER = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")  # one comma before three digits: 1,234
_PLAIN = re.compile(r"[+-]?\d+(\.\d+)?")
_SCALED = re.compile(r"([+-]?\d+(?:\.\d+)?) ?([kKMB%])")
_WITH_ERROR = re.compile(r"([+-]?\d*\.?\d+) ?(?:±|\+/-|\+-|\().*")  # "0.12 ± 0.01", "0.12 (0.01)"
# A minus and a dash become a hyphen; the decimal marks of Britain and of Arabic, a point.
_SIGNS = str.maketrans("\u2212\u2013\u00b7\u2219\u066b", "--...")
_SCALES = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "%": 1e-2}

_EXPORT = "export with decimal points and without thousands separators"


def number_advice(text: str, is_whole: bool = False) -> str:
    """What to write for a text that a person may take for a number; "" where nobody would.

    A sentence for a message, such as "Write 1234, or export with ..." of "1 234". `text` is one
    that `parse_number` (core/columns.py) does not read. `is_whole`: it is a count, in which a comma
    before three digits divides thousands.

    The first form that fits decides: signs that no keyboard has, a number with its error, 1,234
    (which may mean two numbers), a scaled number such as 12k or 5%, and then marks between digits.
    """
    text = text.strip()
    with_ascii_signs = text.translate(_SIGNS)
    if with_ascii_signs != text and _PLAIN.fullmatch(with_ascii_signs):
        return f"Write {with_ascii_signs}, with the signs of a keyboard."

    with_error = _WITH_ERROR.fullmatch(text)
    if with_error:
        return f"Write {with_error[1]} alone, and what is beside it in a column of its own."

    if _EITHER.fullmatch(text) and not is_whole:
        thousands = text.replace(",", "")
        decimals = text.replace(",", ".")
        return (
            f"Where the comma divides thousands, write {thousands}, "
            f"where decimals, {decimals}: {_EXPORT}."
        )

    # A percentage is a number of which nobody writes thousands, so that its comma is decimal.
    scaled = _SCALED.fullmatch(text.replace(",", ".") if text.endswith("%") else text)
    if scaled:
        number = float(scaled[1]) * _SCALES[scaled[2]]
        form = "percent as a part of 1" if scaled[2] == "%" else "it in full"
        return f"Write {form} ({number:.12g})."

    return _advice_on_marks(text)


def _advice_on_marks(text: str) -> str:
    """What to write for a number with marks between thousands, or with a decimal comma; "" for any
    other text. Such as "1 234", "1,234,567.8", "1.234.567,8" or "0,5"."""
    without_marks = _DIGIT_MARKS.sub("", text)
    if _ENGLISH_GROUPS.fullmatch(without_marks):
        plain = without_marks.replace(",", "")
    elif _GERMAN_GROUPS.fullmatch(without_marks):
        plain = without_marks.replace(".", "").replace(",", ".")
    elif _ONE_COMMA.fullmatch(without_marks):
        plain = without_marks.replace(",", ".")
        if without_marks == text:
            return f"Write a decimal comma as a point ({plain}), or export with decimal points."
    elif _PLAIN.fullmatch(without_marks) and without_marks != text:
        plain = without_marks
    else:
        return ""
    return f"Write {plain}, or {_EXPORT}."
