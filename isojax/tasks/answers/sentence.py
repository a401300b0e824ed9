"""The value that a sentence states: "so Ann has 20 - 3 = 17 birds left" states 17 birds.

A sentence that denies, bounds, guesses or lists states no single value: "not 42", "at least 42", "41 or 42".
"""

import re

from isojax.tasks.answers.spelling import INLINE_MATH

MAX_SENTENCE_LENGTH = 1000

_NUMBER = r"[-+]?(?:\\?[$€£¥]\s*)?-?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
_MATH = r"\$\$?[^$]+\$\$?|\\\(.+?\\\)|\\\[.+?\\\]"
# A number with a fraction, an exponent or a percent sign behind it, or math between dollars.
_VALUE = re.compile(
    rf"{_MATH}|(?<![\w.]){_NUMBER}(?:\s+[0-9]+/[0-9]+|\s*/\s*[0-9]+|[eE][-+]?[0-9]+|\s?:\s?[0-9]+)?(?:\s?\\?%)?"
)

# Words that take a value back, or leave it open, wherever they stand in the sentence.
_OPEN = re.compile(
    r"\b(?:not|never|cannot|neither|nor|isn|aren|wasn|doesn|don|won|wrong|incorrect|incorrectly|false|mistaken|untrue"
    r"|doubt|doubtful|unlikely|impossible|than|at\s+(?:the\s+)?(?:least|most|minimum|maximum)|between|either|or|maybe"
    r"|perhaps|possibly|might|could|may\s+be|guess\w*|range[sd]?|any(?:thing|where|one)?|something|somewhere|except"
    r"|excluding|one\s+of|some\s+of|among|options?|candidates?|possib\w+|not|unless|whether|unknown|unclear|unsure"
    r"|minus|multipl\w+|divided|squared|cubed|exceed\w*|instead\s+of|no\s+(?:longer|more|less|fewer)|far\s+from"
    r"|anything\s+but|up\s+to|contrary|n't)\b|n['’]t\b|[<>≤≥≠]|\\(?:leq?|geq?|neq?|lt|gt)(?![A-Za-z])",
    re.IGNORECASE,
)
# "half of 42", "the square of 42"
_FUNCTION_OF = re.compile(
    r"\b(?:half|halves|thirds?|quarters?|fourths?|fifths?|tenths?|hundredths?|square|cube|root|factorial|multiples?"
    r"|factors?|divisors?|percent|per\s?cent|%|percentage|twice|double|triple|opposite|negative|inverse|reciprocal|fraction"
    r"|part|portion|power|log\w*|sine|cosine|successor|predecessor|digits?|multiplicative|neighbou?rs?|remainder)"
    r"(?:\s+\w+)?\s+(?:of|to|from)\b",
    re.IGNORECASE,
)
# What may not stand right before a value.
_BAD_PRECURSOR = re.compile(
    r"(?:\b(?:from|to|under|below|over|above|beyond|past|within|twice|double|triple|thrice|half|times|plus|without"
    r"|until|till|nearly|almost|near|nearing|but|square|cube|cubed|root|of\s+the|by|per|approaching|versus|vs|log|ln"
    r"|sin|cos|tan|sqrt|close|around\s+about|just\s+shy\s+of|short\s+of|every|prime|after|before|since|except|like"
    r"|step|question|problem|example|exercise|case|part|line|option|page|chapter|equation|figure|table|note)"
    r"|[-+*/^_=]\s*[a-z]|[*/^(_])\s*$",
    re.IGNORECASE,
)
_GOOD_TO = re.compile(
    r"\b(?:equals?|equal|comes?|came|amounts?|adds?\s+up|sums?|evaluates?|simplifies|reduces|leads)\s+(?:out\s+)?to\s*$",
    re.IGNORECASE,
)
_BETWEEN_LISTED = re.compile(
    r"\s*(?:,|;|/|&|-|–|to|and|or|,\s*(?:and|or)|vs\.?|versus|through)?\s*(?:\w+ly\s*)?", re.IGNORECASE
)
_NEGATIVE = re.compile(r"(?<![0-9$)\]])(^|\s)(?:negative|minus)\s+(?=\\?[$€£¥]?[0-9.]|\$)", re.IGNORECASE)
_RETRACTION = re.compile(
    r",?\s+(?:but|actually|wait|no|sorry|rather|however|hmm|I mean)\b(?=[^\n]*[0-9])", re.IGNORECASE
)
_ARITHMETIC = re.compile(r"[-+*/×÷·^−]|\\(?:times|cdot|div|frac|sqrt)(?![A-Za-z])")
_SCALE_BEHIND = re.compile(
    r"\s*\**\s*[-~]?\s*(?:and\s+)?(?:(?:an?|one|two|three)\s+)?(?:halves|half|thirds?|quarters?|fifths?|tenths?|score|gross"
    r"|dozens?|hundreds?|thousands?|[mbtr]+illions?|squared|cubed|times|factorial|pi)\b|\s*\**\s*(?:[-+*/×÷^!_]|\\)",
    re.IGNORECASE,
)


def value_in_sentence(sentence: str, *, is_statement: bool) -> str | None:
    """The text of the value, with what may be its unit; None where the sentence states no single one.

    `is_statement`: it is what follows "the answer is", so that a value at its beginning is the one.
    """
    sentence = " ".join(sentence[-MAX_SENTENCE_LENGTH:].split())
    if re.search(r"\b(?:any|no|every)thing\s+but\b|\ball\s+but\b", sentence, re.IGNORECASE):
        return None
    for retraction in _RETRACTION.finditer(sentence):  # "5, but actually 7"
        sentence = sentence[retraction.end() :] if _VALUE.search(sentence, retraction.end()) else sentence
        break
    sentence = _NEGATIVE.sub(r"\1-", _without_remark(sentence).replace("**", "").replace("__", ""))
    if _OPEN.search(sentence) or _FUNCTION_OF.search(sentence):
        return None
    values = list(_VALUE.finditer(sentence))
    if not values:
        return None
    if (equation := _right_side(sentence)) is not None:
        return equation
    is_first = is_statement and re.fullmatch(
        r"[\s:*]*(?:\w+ly\s+|just\s+|about\s+|around\s+)?", sentence[: values[0].start()]
    )
    index = 0 if is_first else len(values) - 1
    return _single_value(sentence, values, index)


def _without_remark(sentence: str) -> str:
    """A sentence without a remark in parentheses that corrects nothing: 74 (not 73)."""
    remark = re.search(r"\s+\(([^()]*[A-Za-z]{2}[^()]*)\)\s*[.!]?$", sentence)
    if remark is None or re.search(
        r"\b(?:or|maybe|perhaps|possibly|wrong|incorrect|false|mod)\b", remark[1], re.IGNORECASE
    ):
        return sentence
    return sentence[: remark.start()]


def _right_side(sentence: str) -> str | None:
    """What follows the last equals sign outside math; of 9 * 2 = 18 dollars, 18 dollars."""
    outside_math = re.sub(_MATH, lambda match: "m" * len(match[0]), sentence)
    start = outside_math.rfind("=") + 1
    value = _VALUE.search(sentence, start) if start else None
    if value is None or sentence[start : value.start()].strip(" *"):
        return None
    others = list(_VALUE.finditer(sentence, value.end()))
    if _ARITHMETIC.match(sentence[value.end() :].lstrip(" *")) or _SCALE_BEHIND.match(sentence, value.end()):
        return sentence[start:].strip()
    return _with_unit(sentence, value) if not others or not _is_listed(sentence, value, others[0]) else None


def _single_value(sentence: str, values: list[re.Match[str]], index: int) -> str | None:
    value = values[index]
    before = sentence[: value.start()]
    if _BAD_PRECURSOR.search(before) and not _GOOD_TO.search(before):
        return None
    if index > 0 and _is_listed(sentence, values[index - 1], value):
        return None
    if index + 1 < len(values) and _is_listed(sentence, value, values[index + 1]):
        return None
    if _SCALE_BEHIND.match(sentence, value.end()):
        # 5 million, 5 and a half, 42 - 1: to be read whole or not at all
        return f"{_content(value[0])}{sentence[value.end() :]}".strip()
    return _with_unit(sentence, value)


def _content(value: str) -> str:
    """A value without the dollars around it."""
    math = INLINE_MATH.fullmatch(value.strip())
    content = next(group for group in math.groups() if group is not None) if math else value
    return content.strip()


def _is_listed(sentence: str, one: re.Match[str], other: re.Match[str]) -> bool:
    return _BETWEEN_LISTED.fullmatch(sentence[one.end() : other.start()]) is not None


def _with_unit(sentence: str, value: re.Match[str]) -> str:
    """The value and the words behind it, which are a unit if they can be read as one."""
    content = _content(value[0])
    words = re.match(r"\s*(?:[a-zA-Z°²³¢][a-zA-Z°²³¢./^ -]*)?", sentence[value.end() :])
    return f"{content} {words[0].strip() if words else ''}".strip()
