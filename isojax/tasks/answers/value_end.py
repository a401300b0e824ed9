"""Whether a number in a sentence is the whole value: nothing follows it, or punctuation, or words
that do not change its value.

In "5 apples in 3 bags" the 5 is the value. In "5 out of 8", "5 feet 3 inches", "5 (base 8)", "5
times x" and an unfinished "5/" it is only a part of it.
"""

import re

from isojax.tasks.answers.other_languages import SCALES
from isojax.tasks.answers.spelling import CJK
from isojax.tasks.answers.suppositions import PLACES
from isojax.tasks.answers.units import is_unit_name

_CLOSING_MARKS = re.compile(r"""[`"'”’)\]$]*(?![0-9])|\*\*(?![0-9(\\])""")
# Of "as many as 4" no part begins a clause of its own.
_WORDS_BEFORE_AS = (
    "times many much few long old high tall often far big large heavy fast same such well"
)
AS_OF_A_CLAUSE = (
    "".join(f"(?<!{word})" for word in _WORDS_BEFORE_AS.split()) + r"\s+as\b(?!\s+well\s+as\b)"
)
# ". ", ", ", " - ", " because ", " and she "; but not the comma of 1,000, or the minus of " - 5"
_CLAUSE_END = re.compile(
    rf"""
      [.!?;:…]+(?=[\s*\"')\]]|$)|,(?=\s|$)|\n|\s[–—-]{{1,3}}\s(?![-$\\(]*[0-9])|{AS_OF_A_CLAUSE}
    | \s(?:because|since|which|who|where|when|while|so|but|although|though|if|that|i\.e\.)
      (?![A-Za-z])
    | \s(?:and|or)\s+(?=(?!an?\s|half\b|one\b|two\b|three\b)[A-Za-z]{{2,}}\s)
    """,
    re.IGNORECASE | re.VERBOSE,
)
_REMARK = re.compile(r"\([^()]*\)")
_LEADING_REMARK = re.compile(r"\s*(\([^()]*\))")
# Remarks that change the value before them: (base 8), (approximately), (in millions), (+ 3)
CHANGING_REMARK = re.compile(
    r"""
      \b
      (?:
            base|mod|modulo|or|maybe|perhaps|possibly|wrong|incorrect|false|binary|octal
          | hexadecimal|hex|in|mill?ions?
          | thousands?|hundreds?|dozens?|billions?|percent|times|approx\w*|about|roughly
          | estimated?|probably|presumably|likely|guess(?:ed|ing)?|not\s+sure|unsure|assum\w+
      )\b
    | ^\(\s*[-+*/^\d.]
    """,
    re.IGNORECASE | re.VERBOSE,
)
_MODULUS = re.compile(r"\(\s*mod(?:ulo)?\b[^()]*\)$", re.IGNORECASE)
# Words that make another number of the one before them.
_CHANGES = re.compile(
    rf"""
      \b
      (?:
            choose|(?<!the[ ])base|added\s+to\s+\S*[0-9]|plus|minus|multiplied|divided|modulo
          | mod|raised
          | to\s+the\s+(?:\w+\s+)?power|in\s+(?:binary|octal|hexadecimal|hex)|factorial|squared
          | cubed|(?:below|under)\s+(?:zero|0)|(?:short|shy)\s+of\s+\S*[0-9]|subtracted
          | increased|decreased|reduced
          | and\s+(?:a|one|two|three)\s+(?:half|third|quarter|fifth|tenth|eighth)s?
          | followed\s+by|as\s+well\s+as\s+\S*[0-9]
          | with\s+an?\s+(?:\w+\s+)?(?:error|margin|tolerance|uncertainty)|parts?\s+(?:in|per)
          | times\s+(?:itself|that|this)
          | and\s+(?:up|above|over|beyond|below|under|more|counting)
      )\b
    | ^\s*
      (?:
            halves|thirds|quarters|fourths
          | \w*(?:fif|six|seven|eigh|nin|ten|twelf|eleven|een|tie|illion|hundred|thousand)ths
          | tens|something|odd
      )\b
    | ^(?:ths\b|(?:st|nd|rd|th)\s+[a-z])|^\s*over(?=\s*$|\s+\S*[0-9])
    | \b(?:times|per|by)\s+(?:\S*[0-9]|[b-zB-Z](?![\w'’]))
    | ^\s*(?:\w+\s+)?(?:to|out\s+of)\s+\S*[0-9]|^\s*out\s+of\b
    | ^\s*(?:{SCALES})(?!\w)
    """,
    re.IGNORECASE | re.VERBOSE,
)
NEW_READING = r"(?:in\s+)?(?:base|[mb]illions|thousands|hundreds|dozens|binary|octal|hexadecimal)\b"
_CHANGES_BEHIND_COMMA = re.compile(rf"\s*,\s*{NEW_READING}", re.IGNORECASE)
# "42 by Theorem 3", "42 (see equation 5)"
_REFERENCE = re.compile(
    rf"""
    \s*(?:by|from|in|see|using|via|due\s+to|with|as\s+in)\s+(?:the\s+)?
    (?:{PLACES}|step|part|equation|example|figure|table)\s*
    """,
    re.IGNORECASE | re.VERBOSE,
)
# What no clause ends with
_LEFT_OPEN = re.compile(
    r"\b(?:and|or|resp|respectively|to|plus|minus|per|of|the|by|point)\s*$", re.IGNORECASE
)
_NO_WORDS = re.compile(r"(?<![A-Za-z])/|/(?![A-Za-z])|[\\*+=<>|~#@&×÷·∙⋅√^_{}]|[-–](?![A-Za-z])")
_PER = re.compile(r"^/(?=[A-Za-z]{3}|(?:kg|km|hr|cm|mm|lb|oz|mi|gal)\b)")  # $30/hour
_PER_UNIT_OF_MONEY = re.compile(r"^/(?=[A-Za-z]{1,2}\b)")  # $3/m
_PER_IN_CJK = re.compile(rf"(?<=[{CJK}])\s*/\s*(?=[{CJK}])")  # 千米/时
_POWER_OF_A_UNIT = re.compile(r"(?<=[A-Za-z])(?:\^\{?-?[1-4]\}?|[²³])")
# "$12 for 5 apples", "$80 in 3 days"
_MONEY_BEFORE = re.compile(r"[$€£¥]\s*[0-9][0-9.,]*\s*$")
_FOR_SO_MANY = re.compile(
    r"\s+(?:in|for|after|over|during|within)(?:\s+(?:the|those|these|all|his|her|their))?\s+"
)
_NUMBER_LATER = re.compile(r"[$€£¥\\({-]*[0-9]|\$")
_LINK_WORD_TEXT = (
    "in for on at from after before with within during the these those all each every his her their"
    " its my our your of until around inside into both only this last first next a an to by per is"
    " are and or more less left"
)
_LINK_WORDS = frozenset(_LINK_WORD_TEXT.split())
_JOINING_WORDS = frozenset(["and", "or", "per", "times", "over", "plus", "minus"])
MAX_CLAUSE_LENGTH = 1000


def value_ends_at(text: str, end: int) -> bool:
    """Whether a value that ends at text[:end] is complete: what follows, up to the end of the
    clause, does not change it. True for "5| apples", False for "5| out of 8" and for an unfinished
    "5| and". end: an index of `text`, right behind the value's last character."""
    closing = _CLOSING_MARKS.match(text, end)  # quotes, brackets, dollars, **
    start = closing.end() if closing else end
    rest = text[start : start + MAX_CLAUSE_LENGTH]
    if not rest.strip():
        return True

    # A remark in brackets right after the value.
    remark = _LEADING_REMARK.match(rest)
    if remark:
        if CHANGING_REMARK.search(remark[1]) and not _MODULUS.match(remark[1]):
            return False
        rest = rest[remark.end() :]

    # The clause, without remarks and powers of units: their numbers do not change the value.
    if _CHANGES_BEHIND_COMMA.match(rest):  # 52, base 8
        return False
    clause_end = _CLAUSE_END.search(rest)
    clause = rest[: clause_end.start()] if clause_end else rest
    clause = _REMARK.sub(" ", _POWER_OF_A_UNIT.sub("", clause))
    if not clause.strip(" *"):
        return clause.count("*") != 1  # one asterisk is a product cut off, two are emphasis

    # The words up to the next number, without the slash of 30/hour and $3/m, which is no division.
    number = _NUMBER_LATER.search(clause)
    is_money = _MONEY_BEFORE.search(text[max(0, end - 20) : end]) is not None  # the value is $5
    words = clause[: number.start()] if number else clause
    words = _PER_IN_CJK.sub(" ", _PER.sub(" ", words))
    if is_money:
        words = _PER_UNIT_OF_MONEY.sub(" ", words)
    # "5 squared", "5 out of 8"; signs of arithmetic in place of words.
    if _CHANGES.search(clause) or _NO_WORDS.search(words.replace("**", "")):
        return False
    if number is None:
        is_cut_off = clause_end is None and _LEFT_OPEN.search(clause) is not None
        return not is_cut_off

    # Another number follows in the clause, which may belong to the value; not in "42 by Theorem 3"
    # or "$12 for 5 apples".
    if _REFERENCE.fullmatch(words) or (is_money and _FOR_SO_MANY.fullmatch(words)):
        return True
    return _is_a_phrase_of_its_own(words)


def _is_a_phrase_of_its_own(words_between: str) -> bool:
    """Whether words between two numbers separate them, so that the second does not belong to the
    first: "apples in" does; "feet", "hours and", "of" and "in" do not."""
    without_name = re.sub(r"(?<=\s)[A-Z][a-z]+\s*$", "", words_between)  # after May 3
    words = [word.casefold() for word in re.findall(r"[^\W\d_]+", without_name)]
    if len(words) < 2 or "times" in words:
        return False
    last = words[-1]
    if last in _JOINING_WORDS or (is_unit_name(last) and last != "in"):
        return False
    has_noun = any(word not in _LINK_WORDS for word in words)
    return has_noun
