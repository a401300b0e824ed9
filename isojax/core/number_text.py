"""Numbers as people and spreadsheets of several languages write them, none of which is read: 1,234
is 1234 to one of them and 1.234 to another. What to write instead is said where one is refused."""

import re

# between thousands
_DIGIT_MARKS = re.compile(r"(?<=\d)[ \u00a0\u2007\u2009\u202f'\u2019_](?=\d{3}(?!\d))")
_ENGLISH_GROUPS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{2,3})*,\d{3}(\.\d+)?")  # of two digits: Indian
_GERMAN_GROUPS = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+(,\d+)?")
_ONE_COMMA = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?")
_EITHER = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")  # one comma before three digits: 1,234
_PLAIN = re.compile(r"[+-]?\d+(\.\d+)?")
_SCALED = re.compile(r"([+-]?\d+(?:\.\d+)?) ?([kKMB%])")
_WITH_ERROR = re.compile(r"([+-]?\d*\.?\d+) ?(?:±|\+/-|\+-|\().*")  # "0.12 ± 0.01", "0.12 (0.01)"
# a minus, a dash; points of Britain and of Arabic
_SIGNS = str.maketrans("\u2212\u2013\u00b7\u2219\u066b", "--...")
_SCALES = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "%": 1e-2}

_EXPORT = "export with decimal points and without thousands separators"


def number_advice(text: str, is_whole: bool = False) -> str:
    """What to write for a text that a person may take for a number; "" where nobody would.
    `is_whole`: a count, in which a comma before three digits divides thousands."""
    text = text.strip()
    if _PLAIN.fullmatch(with_signs := text.translate(_SIGNS)) and with_signs != text:
        return f" Write {with_signs}, with the signs of a keyboard."
    if with_error := _WITH_ERROR.fullmatch(text):
        return f" Write {with_error[1]} alone, and what is beside it in a column of its own."
    if _EITHER.fullmatch(text) and not is_whole:
        thousands, decimals = text.replace(",", ""), text.replace(",", ".")
        return f" Where the comma divides thousands, write {thousands}, where decimals, {decimals}: {_EXPORT}."

    scaled = _SCALED.fullmatch(text.replace(",", ".") if text.endswith("%") else text)
    if scaled:
        number = float(scaled[1]) * _SCALES[scaled[2]]
        kind = "percent as a part of 1" if scaled[2] == "%" else "it in full"
        return f" Write {kind} ({number:.12g})."

    without_marks = _DIGIT_MARKS.sub("", text)
    if _ENGLISH_GROUPS.fullmatch(without_marks):
        plain = without_marks.replace(",", "")
    elif _GERMAN_GROUPS.fullmatch(without_marks):
        plain = without_marks.replace(".", "").replace(",", ".")
    elif _ONE_COMMA.fullmatch(without_marks):
        plain = without_marks.replace(",", ".")
        if without_marks == text:
            return f" Write a decimal comma as a point ({plain}), or export with decimal points."
    elif _PLAIN.fullmatch(without_marks) and without_marks != text:
        plain = without_marks
    else:
        return ""
    return f" Write {plain}, or {_EXPORT}."
