"""Numbers in English words: twenty-five, five and a half, one hundred and two, two thirds, 5 out of
8."""

import re
from fractions import Fraction

MAX_LENGTH = 100  # characters

_ONES_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    " sixteen seventeen eighteen nineteen"
)
_TENS_WORDS = "twenty thirty forty fifty sixty seventy eighty ninety"
_PARTS_WORDS = "half third quarter fifth sixth seventh eighth ninth tenth"
_ONES = {word: value for value, word in enumerate(_ONES_WORDS.split())}
_TENS = {word: 10 * value for value, word in enumerate(_TENS_WORDS.split(), start=2)}
_SCALES = {"thousand": 1000, "million": 10**6, "billion": 10**9}
_PARTS = {word: value for value, word in enumerate(_PARTS_WORDS.split(), start=2)} | {
    "fourth": 4,
    "halve": 2,
}

_OUT_OF = re.compile(r"([0-9]+)\s+(?:out\s+of|over)\s+([1-9][0-9]*)")  # 5 out of 8
_AND_A_PART = re.compile(  # five and a half, 5 and two thirds
    r"(.+?)\s+and\s+(an?|one|two|three|four|five|six|seven|eight)\s+([a-z]+?)s?"
)
_DOZENS = re.compile(r"(an?|[a-z]+)\s+dozens?")  # two dozen
_PARTS_ONLY = re.compile(r"(an?|[a-z]+)[\s-]+([a-z]+?)s?")  # two-thirds


def number_in_words(text: str) -> Fraction | None:
    """The number that a text states in English words, or in words and digits: 25 for "twenty-five",
    11/2 for "5 and a half", 5/8 for "5 out of 8". None where the whole text is no such number, and
    for digits alone, "25". Each pattern below is matched against the whole text."""
    if len(text) > MAX_LENGTH:
        return None

    text = " ".join(text.casefold().split()).strip(". ")

    for sign in ("-", "negative ", "minus "):
        if text.startswith(sign):
            number = number_in_words(text.removeprefix(sign))
            return None if number is None else -number

    out_of = _OUT_OF.fullmatch(text)
    if out_of:
        return Fraction(int(out_of[1]), int(out_of[2]))
    whole = _whole_number(text)
    if whole is not None:
        return Fraction(whole)

    and_a_part = _AND_A_PART.fullmatch(text)
    if and_a_part:
        digits_or_words = and_a_part[1]
        is_in_digits = re.fullmatch("[0-9]+", digits_or_words)
        number = Fraction(digits_or_words) if is_in_digits else _whole_number(digits_or_words)
        part = _part(and_a_part[2], and_a_part[3])  # 1/2 of "a" and "half"
        if number is None or part is None or part >= 1:
            return None
        return number + part

    dozens = _DOZENS.fullmatch(text)
    if dozens:
        count = _count(dozens[1])
        return None if count is None else Fraction(12 * count)
    parts = _PARTS_ONLY.fullmatch(text)
    return _part(parts[1], parts[2]) if parts else None


def _count(word: str) -> int | None:
    return 1 if word in ("a", "an") else _ONES.get(word)


def _part(count_word: str, part_name: str) -> Fraction | None:
    """2/3 of "two" and "third"."""
    count = _count(count_word)
    if count is None or part_name not in _PARTS:
        return None
    return Fraction(count, _PARTS[part_name])


def _whole_number(text: str) -> int | None:
    """The whole number that words state: 2105 for "two thousand one hundred and five". None where
    the words do not form one, as "five twenty". text: in small letters, words apart by spaces or
    hyphens. _ONES has the words for 0 to 19, _TENS those for 20 to 90."""
    total = 0  # of the scales before: 2000 at "hundred"
    below_thousand = 0  # what the words since then say
    last = ""  # ones, tens, hundred or scale: what may follow depends on it

    for word in re.split(r"[\s-]+", text):
        # A group is the words up to "hundred", and those after it: at most one of tens and ones.
        is_first_of_group = last in ("", "hundred", "scale")
        if word == "and" and last in ("hundred", "scale"):
            continue
        if word in _ONES and (is_first_of_group or (last == "tens" and 0 < _ONES[word] < 10)):
            below_thousand += _ONES[word]
            last = "ones"
        elif word in _TENS and is_first_of_group:
            below_thousand += _TENS[word]
            last = "tens"
        elif word == "hundred" and last == "ones" and 0 < below_thousand < 100:
            below_thousand *= 100
            last = "hundred"
        elif word in _SCALES and last not in ("", "scale"):  # thousand, million; not alone
            total += below_thousand * _SCALES[word]
            below_thousand = 0
            last = "scale"
        else:
            return None
    return total + below_thousand if last else None
