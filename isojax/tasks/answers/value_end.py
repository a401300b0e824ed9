"""Whether a value in a sentence ends where it seems to: nothing follows it, or punctuation, or words that leave it what
it is.

"5 apples in 3 bags" is 5. "5 out of 8", "5 feet 3 inches", "5 (base 8)", "5 times x" and an unfinished "5/" are not.
"""

import re

from isojax.tasks.answers.other_languages import SCALES

_CLOSING_MARKS = re.compile(r"""[`"'”’)\]$]*(?![0-9])|\*\*(?![0-9(\\])""")
# Of "as many as 4" no part begins a clause of its own.
_WORDS_BEFORE_AS = "times many much few long old high tall often far big large heavy fast same such well"
AS_OF_A_CLAUSE = "".join(f"(?<!{word})" for word in _WORDS_BEFORE_AS.split()) + r"\s+as\b"
_CLAUSE_END = re.compile(
    rf"[.!?;:…]+(?=[\s*\"')\]]|$)|,(?=\s|$)|\n|\s[–—-]{{1,2}}\s(?![-$\\(]*[0-9])|{AS_OF_A_CLAUSE}"
    r"|\s(?:because|since|which|who|where|when|while|so|but|although|though|if|that|i\.e\.)(?![A-Za-z])"
    r"|\s(?:and|or)\s+(?=(?!an?\s|half\b|one\b|two\b|three\b)[A-Za-z]{2,}\s)",
    re.IGNORECASE,
)
_REMARK = re.compile(r"\([^()]*\)")
CHANGING_REMARK = re.compile(
    r"\b(?:base|mod|modulo|or|maybe|perhaps|possibly|wrong|incorrect|false|binary|octal|hexadecimal|hex|in|mill?ions?"
    r"|thousands?|hundreds?|dozens?|billions?|percent|times|approx\w*|about|roughly|estimated?)\b|^\(\s*[-+*/^\d.]",
    re.IGNORECASE,
)
_MODULUS = re.compile(r"\(\s*mod(?:ulo)?\b[^()]*\)$", re.IGNORECASE)
# Words that make another number of the one before them.
_CHANGES = re.compile(
    r"\b(?:choose|base|added\s+to|plus|minus|multiplied|divided|modulo|mod|raised|power|out\s+of|in\s+(?:binary|octal"
    r"|hexadecimal|hex)|factorial|squared|cubed|(?:below|under)\s+(?:zero|0)|(?:short|shy)\s+of|subtracted"
    r"|increased|decreased|reduced|and\s+(?:a|one|two|three)\s+(?:half|third|quarter|fifth|tenth|eighth)s?)\b"
    r"|^\s*(?:halves|thirds|quarters|fourths|fifths|sixths|sevenths|eighths|ninths|tenths|twelfths"
    r"|(?:hundred|thousand|[mbtr]+illion)ths)\b|^ths\b|^\s*over\b|\b(?:times|over|per|by|to)\s+(?:\S*[0-9]|[b-zB-Z](?![\w'’]))"
    rf"|^\s*(?:{SCALES})(?!\w)",
    re.IGNORECASE,
)
# Nothing ends with these.
_LEFT_OPEN = re.compile(r"\b(?:and|or|to|plus|minus|per|of|the|by|point)\s*$", re.IGNORECASE)
_NO_WORDS = re.compile(r"(?<![A-Za-z])/|/(?![A-Za-z])|[\\*+=<>|~#@&×÷·∙⋅√^_{}]|[-–](?![A-Za-z])")
_POWER_OF_A_UNIT = re.compile(r"(?<=[A-Za-z])(?:\^\{?-?[1-4]\}?|[²³])")
_NUMBER_LATER = re.compile(r"[$€£¥\\({-]*[0-9]|\$")
_PREPOSITION_TEXT = (
    "in for on at from after before with within during the these those all each every his her their its my our your"
    " of until around inside into both only this last first next"
)
_LINK_WORD_TEXT = "a an to by per is are and or more less left"
_PREPOSITIONS = frozenset(_PREPOSITION_TEXT.split())
_LINK_WORDS = _PREPOSITIONS | frozenset(_LINK_WORD_TEXT.split())
MAX_CLAUSE_LENGTH = 1000


def value_ends_at(text: str, end: int) -> bool:
    """Whether what follows `end`, up to the end of the clause, leaves a value before it what it is."""
    closing = _CLOSING_MARKS.match(text, end)
    start = closing.end() if closing else end
    rest = text[start : start + MAX_CLAUSE_LENGTH]
    if not rest.strip():
        return True

    if remark := re.match(r"\s*(\([^()]*\))", rest):
        if CHANGING_REMARK.search(remark[1]) and not _MODULUS.match(remark[1]):
            return False
        rest = rest[remark.end() :]

    clause_end = _CLAUSE_END.search(rest)
    clause = rest[: clause_end.start()] if clause_end else rest
    clause = _REMARK.sub(" ", _POWER_OF_A_UNIT.sub("", clause))
    if not clause.strip(" *"):
        return clause.count("*") != 1

    number = _NUMBER_LATER.search(clause)
    words = clause[: number.start()] if number else clause
    if _CHANGES.search(clause) or _NO_WORDS.search(words.replace("**", "")):
        return False
    if number is None:
        return _LEFT_OPEN.search(clause) is None
    return _is_a_phrase_of_its_own(words)


def _is_a_phrase_of_its_own(words_between: str) -> bool:
    """Whether words between two numbers part them: "apples in", but not "feet", "hours and", "of" or "in"."""
    without_name = re.sub(r"(?<=\s)[A-Z][a-z]+\s*$", "", words_between)  # after May 3
    words = [word.casefold() for word in re.findall(r"[^\W\d_]+", without_name)]
    if not words or words[-1] not in _PREPOSITIONS:
        return False
    has_noun = any(word not in _LINK_WORDS for word in words)
    return has_noun and "times" not in words
