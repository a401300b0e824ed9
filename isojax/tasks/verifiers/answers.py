"""Answers to maths problems as text: where a solution states its own, and what can be said of two without algebra. No verifier itself.

GSM8K's solutions end in `#### 18`, MATH's hold `\\boxed{18}`; models write either, or "The answer is 18."
"""

import re
from fractions import Fraction
from typing import NamedTuple

LONGEST = 200  # characters of a number; longer ones are left to algebra

_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?=\{)|\\boxed\s+(?=[^\s{$])")
_BRACE = re.compile(r"(?<!\\)[{}]")
_ANSWER_IS = re.compile(r"\banswer\s*(?:\\?\*\*)?\s*(?:is|:|=)(?:\s*:)?(?:\s*\*\*)?\s*", re.IGNORECASE)
_MATHS = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_VALUE_WORDS = r"half|halves|thirds?|quarters?|fifths?|tenths?|dozens?|hundreds?|thousands?|[mbtr]+illions?|or"
_SCALED = re.compile(rf"\b(?:{_VALUE_WORDS})\b", re.IGNORECASE)
_SCALE = rf"[\s-]*(?:and\s+)?(?:(?:an?|one|two|three)[\s-]+)?(?:{_VALUE_WORDS})\b"
# "5, but actually 7", where another number follows in the sentence: what is stated then is not 5
_TAKEN_BACK = r"\s+(?:but|actually|wait|no|sorry|rather|however|hmm|I mean)\b(?=[^\n.;!?]{0,80}?[0-9])"
_GOES_ON = re.compile(f"{_SCALE}|,?{_TAKEN_BACK}", re.IGNORECASE)
_SENTENCE_END = re.compile(
    rf"[.!?]?\*\*(?!{_SCALE})|[.!?](?=\s|$)|\n|;|,(?!{_TAKEN_BACK})\s+(?!and\b|or\b)(?=[A-Za-z]{{2,}})"
    r"|(?<!\s)\s+(?=(?:because|since|which|where|so|as)\b)",
    re.IGNORECASE,
)
_WRAPPED = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_SPACES = re.compile(r"(?<!\\)\\[,;: ]|~|\\quad|[\u00a0\u2009\u202f]")
_UNIT = re.compile(
    r"(?:\s*\^\{?\\circ\}?|\s*°|\\degree)|\s*\\(?:text|mathrm|mbox)\s*\{([^{}0-9]*)\}(?:\^\{?[23]\}?)?|\s+([A-Za-z][A-Za-z./ -]+[23²³]?)"
)
# Other words of one or two letters may be variables: 12 xy. Beside a longer one the links count too: 12 a day, 5 of them.
_SHORT_UNITS = re.compile(
    r"[mdckn]?m|[mk]?g|[mdc]?[lL]|[kM]?[WVJNK]|[kKMGT][Bb]|m?s|h|hr|Hz|lb|oz|ft|yd|mi|in|sq|cu|pt|qt|cc|ha|Pa|[ap]m|C|F"
)
_LINKS = frozenset(["a", "an", "of", "in", "at", "on", "by", "to", "is", "no"])
_NUMBER_WORDS = re.compile(rf"\b(?:{_VALUE_WORDS}|and|to|pi|plus|minus|times|over|squared|cubed)\b", re.IGNORECASE)
_DIGITS = r"(?:[0-9]{1,3}(?:[, ][0-9]{3})+|[0-9]+)"
_TIMES_VARIABLES = re.compile(rf"[+-]?\s*{_DIGITS}(?:\.[0-9]*)?\s*([A-Za-z]{{1,2}})")
_DECIMAL = re.compile(rf"{_DIGITS}(?:\.[0-9]*)?|\.[0-9]+")
_FRACTION = re.compile(
    rf"(?P<whole>{_DIGITS})?\s*\\frac\s*(?:\{{\s*(?P<a>[0-9]+)\s*\}}\s*\{{\s*(?P<b>[0-9]+)\s*\}}|(?P<c>[0-9])(?P<d>[0-9]))"
)
_SLASH = re.compile(rf"(?:(?P<whole>{_DIGITS})\s+)?(?P<a>[0-9]+)\s*/\s*(?P<b>[0-9]+)")


class Number(NamedTuple):
    """A rational number as it was written: with a percent sign or not, as a decimal (or an integer) or as a fraction."""

    value: Fraction
    percent: bool
    decimal: bool


def gold(answer: str) -> str:
    """The answer that a reference solution states: after its last ####, else in its last \\boxed{}, else all of it."""
    if "####" in answer:
        return tidy(answer.rpartition("####")[2])
    box = boxed(answer)
    return tidy(answer if box is None else box)


def final(response: str) -> str | None:
    """The answer that a response states: in its last \\boxed{}, else after its last ####, else after "answer is"; None without any."""
    box = boxed(response)
    if box is not None:
        return tidy(box)
    if "####" in response:
        return tidy(response.rpartition("####")[2].strip().partition("\n")[0])
    stated = [match.end() for match in _ANSWER_IS.finditer(response)]
    if not stated:
        return None
    rest = response[stated[-1] :]
    maths = _MATHS.match(rest)
    if maths and not worded(content := next(group for group in maths.groups() if group is not None)):
        if not _GOES_ON.match(rest, maths.end()):
            return tidy(content)
        rest = content + rest[maths.end() :]
    return tidy(_SENTENCE_END.split(rest, maxsplit=1)[0])


def boxed(text: str) -> str | None:
    """What the last \\boxed{...} with balanced braces holds."""
    opened: list[int] = []
    boxes = {match.end() for match in _BOX.finditer(text)}
    start, end = max(((at, at + LONGEST) for at in boxes if text[at] != "{"), default=(-1, -1))
    for brace in _BRACE.finditer(text):  # one pass, whatever the response repeats
        if brace[0] == "{":
            opened.append(brace.start())
        elif opened and (at := opened.pop()) in boxes and at > start:
            start, end = at, brace.start()
    if start < 0:
        return None
    return text[start + 1 : end] if text[start] == "{" else re.split(r"[\s$]", text[start:end], maxsplit=1)[0]


def tidy(text: str) -> str:
    """An answer without what means nothing: spacing, dollars around it, a full stop; minus signs and fractions in one spelling."""
    text = re.sub(r"[\u2212\u2013]", "-", text.replace("{,}", ","))
    text = _SPACES.sub(" ", re.sub(r"\\!\s*", "", text))
    text = re.sub(r"\\(?:left|right)(?![A-Za-z])", "", text)
    text = re.sub(r"\\[dt]frac", r"\\frac", text).replace("\\%", "%")
    text = text.strip().removesuffix(".").strip("* \t\n")
    while (maths := _MATHS.fullmatch(text)) and (inner := next(g for g in maths.groups() if g is not None)) != text:
        text = inner.strip().removesuffix(".")
    return text.strip()


def worded(text: str) -> bool:
    """Whether plain words stand in it, outside LaTeX's commands and their text."""
    return re.search(r"(?<![\\A-Za-z])[A-Za-z]{3,}", _WRAPPED.sub("", text)) is not None


def number(text: str) -> Number | None:
    """The number that a tidy text is, but for a currency sign and a unit: 72.0, $1,234, 50%, 30^\\circ, 12\\text{ cm}, 2 1/2, 7 apples."""
    if len(text) > LONGEST:
        return None
    body = text.replace("\\$", "$")
    percent = re.search(r"\s*(?:%|\bper ?cent\b)\s*$", body)
    body = body[: percent.start()] if percent else body
    for unit in _UNIT.finditer(body):
        if unit.end() == len(body) and not _NUMBER_WORDS.search(unit[1] or unit[2] or "") and _known(unit[2] or ""):
            body = body[: unit.start()]
            break
    signed = re.fullmatch(r"([+-]?)\s*[$€£¥]?\s*([+-]?)\s*(.+)", body.strip(), re.DOTALL)
    if not signed or (signed[1] and signed[2]):
        return None
    value, decimal = _magnitude(signed[3])
    if value is None:
        return None
    return Number(-value if "-" in (signed[1], signed[2]) else value, percent is not None, decimal)


def _known(unit: str) -> bool:
    """Whether each word written after a number is a unit's: one of three letters or more, a known short one, or a link between such."""
    found = re.findall(r"[A-Za-z]+", unit.replace(".", ""))
    long = [len(word) >= 3 or _SHORT_UNITS.fullmatch(word) is not None for word in found]
    return not found or (any(long) and all(ok or word in _LINKS for ok, word in zip(long, found, strict=True)))


def _magnitude(text: str) -> tuple[Fraction | None, bool]:
    """(value, whether it is a decimal) of an unsigned number."""
    if _DECIMAL.fullmatch(text):
        return Fraction(re.sub("[, ]", "", text).rstrip(".")), True
    found = _FRACTION.fullmatch(text) or _SLASH.fullmatch(text)
    if not found:
        return None, False
    parts = found.groupdict()
    above, below = int(parts["a"] or parts["c"]), int(parts["b"] or parts["d"])
    if not below:
        return None, False
    return int(re.sub("[, ]", "", parts["whole"] or "0")) + Fraction(above, below), False


def words(text: str) -> str | None:
    """A tidy text as words in small letters, where it is nothing else: `\\text{Evelyn}`, `(B)`, "no solution"."""
    plain = " ".join(_WRAPPED.sub(r"\1", text).split()).strip("().' ")
    if re.fullmatch(r"[A-Z]|(?=.*[A-Za-z]{3})[A-Za-z][A-Za-z ,.'-]*", plain):
        return plain.casefold()
    return None


def same(right: str, given: str) -> bool | None:
    """Whether two tidy answers are the same, where that can be told without algebra; None where it cannot."""
    if _bare(right) == _bare(given):
        return True
    a, b = number(right), number(given)
    if a and b:
        values = {a.value / 100 if a.percent and not b.percent else a.value, a.value}
        others = {b.value / 100 if b.percent and not a.percent else b.value, b.value}
        if values & others:
            return True
        return False if a.decimal and b.decimal else None
    if a and a.decimal and _SCALED.search(given):
        return False  # "5 or 6", "5 and a half": algebra would find 5 in them, or 6
    variables = _TIMES_VARIABLES.fullmatch(given)
    if a and a.decimal and variables and not _known(variables[1]):
        return False  # "12 ab": math-verify takes some letters for a unit
    expected = words(right)
    if expected is not None and len(expected) > 1:
        return expected == words(given)
    return True if expected is not None and expected == words(given) else None


def _bare(text: str) -> str:
    return "".join(_WRAPPED.sub(r"\1", text).split()).rstrip(".")
