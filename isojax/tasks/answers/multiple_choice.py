"""Multiple choice: an option's letter, with or without the option's value, and lists of letters."""

import re

from isojax.tasks.answers.vocabulary import TEXT

_LETTER = r"(?:\(\s*([A-J])\s*\)|([A-J]))"
# "the correct option is: ", or nothing
_NOUN = (
    r"(?:(?:the\s+)?(?:correct\s+|right\s+)?(?:options?|choices?|answers?|letters?|statements?)"
    r"\s*(?:is|are)?\s*:?\s*)?"
)
_ALONE = re.compile(rf"{_NOUN}{_LETTER}", re.IGNORECASE)
# (C) 12, C) 12, C. 12, C: 12
_WITH_VALUE = re.compile(
    rf"{_NOUN}(?:\(\s*([A-J])\s*\)\s*[.:]?|([A-J])\s*[).:])\s*(?=\S)(.+)", re.DOTALL
)
# What in an option's value names another option, or takes it back: "12 or (D)"
_ANOTHER_OPTION = re.compile(
    r"""
      \(\s*[A-Z]\s*\)|(?<![A-Za-z\\])[A-J](?:[).:]|(?![A-Za-z0-9_=({]))
    | \b(?:or|and|not|wrong|incorrect|false|maybe|nor|but)\b
    """,
    re.VERBOSE,
)
# "The correct option is: (C) 12": the first group is what stands before it in its sentence, the
# second the option.
_STATED = re.compile(
    r"(?:^|(?<=[.!?] ))([^.!?]*)\b(?:correct|right)\s+(?:option|choice)\s+is:?\s*([^?]*)$"
)
_DENIED = re.compile(
    r"\b(?:not|never|doubt|wrong|false|if|whether|unless|think|guess|maybe|perhaps)\b|n['’]t\b"
)
# "I choose (C) 12": the group is the option.
_CHOSEN = re.compile(
    r"""
    \bI(?:['’]d|['’]ll|\s+would|\s+will|\s+must)?\s+
    (?:choose|chose|pick|picked|select|selected|go\s+with)\s+([^?]*)$
    """,
    re.VERBOSE,
)
# "so option C is correct": the letter is one of the two groups of _LETTER.
_CORRECT = re.compile(
    rf"""
    (?:^|[.:,]\s+|\b(?:so|thus|hence|therefore|that|only)[,\s]+)(?:only\s+)?
    (?:(?:[Oo]ption|[Cc]hoice|[Aa]nswer)\s+)?{_LETTER}\s+is\s+(?:the\s+)?(?:only\s+)?
    (?:correct|right)(?:\s+(?:answer|option|choice|one))?$
    """,
    re.IGNORECASE | re.VERBOSE,
)
_CALLED_CORRECT = re.compile(
    r"\b[A-J]\b\W{0,4}\s+(?:is|are)\s+(?:\w+\s+){0,2}(?:correct|right|true)\b"
)
_SEPARATOR = re.compile(r"\s*(?:[,;、和与與及]|,?\s*\band\b)\s*")
_CIRCLED = re.compile(r"[①-⑳](?:[\s,、和与與及]*[①-⑳])*")


def option_alone(text: str) -> str | None:
    """The letter of an answer that is nothing but an option: C, (C), option C."""
    alone = _ALONE.fullmatch(_plain(text))
    letter = (alone[1] or alone[2]) if alone else ""
    return letter if letter.isupper() else None


def option_with_value(text: str) -> str | None:
    """The letter of an answer that is an option, which may have its value: C. 12; None where it is
    none, or several."""
    letter = option_alone(text)
    if letter is not None:
        return letter
    match = _match_with_value(text)
    return None if match is None else match[1] or match[2]


def stated_option(text: str) -> str | None:
    """The letter of the option that the end of a text calls correct, or chooses: "C" for "the
    correct option is (C) 12", "I choose C", "so option C is correct". None where there is none,
    where the sentence denies or doubts it, or where several are called correct."""
    plain = _plain(text)
    last_sentence = re.split(r"[.!?]\s", plain)[-1]
    if _DENIED.search(last_sentence):
        return None

    # "The correct option is C", "I choose C", "so C is correct", in this order.
    stated = _STATED.search(plain)
    if stated:
        return None if _DENIED.search(stated[1]) else option_with_value(stated[2])
    choice = _CHOSEN.search(last_sentence)
    if choice:
        return option_with_value(choice[1])
    correct = _CORRECT.search(last_sentence)
    if correct and len(_CALLED_CORRECT.findall(plain)) <= 1:
        return correct[1] or correct[2]
    return None


def is_same_letter(reference: str, answer: str) -> bool:
    """Whether both are one of the first letters, which name options, capital or not: B and b."""
    is_letter = len(reference) == 1 and reference in "ABCDEabcde"
    return is_letter and reference.casefold() == answer.casefold()


def value_of_option(text: str) -> str | None:
    r"""What an option says, without its letter: \frac{1}{6} of (E) \frac{1}{6}."""
    match = _match_with_value(text)
    return None if match is None else match[3]


def _match_with_value(text: str) -> re.Match[str] | None:
    """The match of C. 12, with the letter in its first group or its second, and 12 in its third."""
    match = _WITH_VALUE.fullmatch(_plain(text))
    return None if match is None or _ANOTHER_OPTION.search(match[3]) else match


def option_letters(text: str) -> frozenset[str] | None:
    """The letters of an answer that is a list of options: {"A", "C"} for "A, C", "(A) and (C)" or
    "AC"; or circled numbers, ①③. None for any other answer, a single letter included
    (`option_alone` reads these)."""
    plain = re.sub(rf"^{_NOUN}", "", _plain(text), flags=re.IGNORECASE)
    if _CIRCLED.fullmatch(plain):
        return frozenset(re.findall("[①-⑳]", plain))
    if re.fullmatch("[A-H]{2,8}", plain) and list(plain) == sorted(set(plain)):
        return frozenset(plain)  # ACD; but BED is a word

    items = _SEPARATOR.split(plain)
    if len(items) < 2:
        return None
    letters: set[str] = set()
    for item in items:
        match = re.fullmatch(_LETTER, item)
        if match is None:
            return None
        letters.add(match[1] or match[2])
    return frozenset(letters)


def _plain(text: str) -> str:
    """A text without dollars, asterisks, LaTeX's \\text{} and the full stop around it."""
    text = text.replace("\\ ", " ").replace("**", "").replace("$", " ")
    text = TEXT.sub(r" \1 ", text)
    return " ".join(text.split()).strip(". ")
