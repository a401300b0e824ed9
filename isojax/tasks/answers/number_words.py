"""Numbers in English words: twenty-five, five and a half, one hundred and two, two thirds, 5 out of
8."""

import re
from fractions import Fraction

MAX_LENGTH = 100  # characters

_ONES_TEXT = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    " eighteen nineteen"
)
_TENS_TEXT = "twenty thirty forty fifty sixty seventy eighty ninety"
_PARTS_TEXT = "half third quarter fifth sixth seventh eighth ninth tenth"
_ONES = {word: value for value, word in enumerate(_ONES_TEXT.split())}
_TENS = {word: 10 * value for value, word in enumerate(_TENS_TEXT.split(), start=2)}
_SCALES = {"thousand": 1000, "million": 10**6, "billion": 10**9}
_PARTS = {word: value for value, word in enumerate(_PARTS_TEXT.split(), start=2)} | {
    "fourth": 4,
    "halve": 2,
}

_OUT_OF = re.compile(r"([0-9]+)\s+(?:out\s+of|over)\s+([1-9][0-9]*)")
_AND_A_PART = re.compile(
    r"(.+?)\s+and\s+(an?|one|two|three|four|five|six|seven|eight)\s+([a-z]+?)s?"
)
_DOZENS = re.compile(r"(an?|[a-z]+)\s+dozens?")
_PARTS_ONLY = re.compile(r"(an?|[a-z]+)[\s-]+([a-z]+?)s?")


def number_in_words(text: str) -> Fraction | None:
    """The number that a text says in words, with or without digits; None where it says none, or
    more than one."""
    if len(text) > MAX_LENGTH:
        return None
    text = " ".join(text.casefold().split()).strip(". ")
    if text[:1] == "-":
        inner = number_in_words(text[1:])
        return None if inner is None else -inner
    if text.startswith(("negative ", "minus ")):
        inner = number_in_words(text.partition(" ")[2])
        return None if inner is None else -inner

    if match := _OUT_OF.fullmatch(text):
        return Fraction(int(match[1]), int(match[2]))
    if (whole := _whole_number(text)) is not None:
        return Fraction(whole)
    if match := _AND_A_PART.fullmatch(text):
        number = Fraction(match[1]) if re.fullmatch("[0-9]+", match[1]) else _whole_number(match[1])
        part = _part(match[2], match[3])
        return None if number is None or part is None or part >= 1 else number + part
    if match := _DOZENS.fullmatch(text):
        count = 1 if match[1] in ("a", "an") else _ONES.get(match[1])
        return None if count is None else Fraction(12 * count)
    match = _PARTS_ONLY.fullmatch(text)
    return _part(match[1], match[2]) if match else None


def _part(count: str, name: str) -> Fraction | None:
    number = 1 if count in ("a", "an") else _ONES.get(count)
    return None if number is None or name not in _PARTS else Fraction(number, _PARTS[name])


def _whole_number(text: str) -> int | None:
    """Of "two thousand one hundred and five": 2105."""
    total = below_thousand = 0
    last = ""  # ones, tens, hundred or scale: what may follow depends on it
    for word in re.split(r"[\s-]+", text):
        if word == "and" and last in ("hundred", "scale"):
            continue
        if word in _ONES and (
            last in ("", "hundred", "scale") or (last == "tens" and 0 < _ONES[word] < 10)
        ):
            below_thousand += _ONES[word]
            last = "ones"
        elif word in _TENS and last in ("", "hundred", "scale"):
            below_thousand += _TENS[word]
            last = "tens"
        elif word == "hundred" and last == "ones" and 0 < below_thousand < 100:
            below_thousand *= 100
            last = "hundred"
        elif word in _SCALES and last not in ("", "scale"):
            total += below_thousand * _SCALES[word]
            below_thousand = 0
            last = "scale"
        else:
            return None
    return total + below_thousand if last else None
