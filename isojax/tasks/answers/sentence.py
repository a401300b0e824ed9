"""The value that a sentence states: "so Ann has 20 - 3 = 17 birds left" states 17 birds.

A sentence that denies, bounds, guesses or lists states no single value: "not 42", "at least 42",
"41 or 42".
"""

import re

from isojax.tasks.answers.glosses import find_gloss
from isojax.tasks.answers.other_languages import (
    AND_OR,
    leaves_value_open,
    supposes_in_other_languages,
)
from isojax.tasks.answers.spelling import MATH_IN_TEXT
from isojax.tasks.answers.suppositions import (
    GUESSED,
    GUESSED_BEHIND,
    PLACES,
    is_counterfactual,
    is_supposed,
)
from isojax.tasks.answers.units import is_unit_name
from isojax.tasks.answers.value_end import CHANGING_REMARK, value_ends_at

MAX_SENTENCE_LENGTH = 1000

# What makes a guess of the value before it: "42, give or take".
HEDGES = (
    r"give\s+or\s+take|more\s+or\s+less|or\s+so|or\s+thereabouts|roughly|approximately|approx"
    rf"|for\s+(?:example|instance)|{GUESSED_BEHIND}"
)

# -$1,234.50, 12.5, .5
_NUMBER = (
    r"[-+]?(?:\\?[$€£¥]\s*)?-?"
    r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
)
# A number with a fraction, an exponent or a percent sign behind it, or math between dollars.
_VALUE = re.compile(
    rf"""
      {MATH_IN_TEXT.pattern}
    | (?<![\w.]){_NUMBER}(?:\s+[0-9]+/[0-9]+|\s*/\s*[0-9]+|[eE][-+]?[0-9]+|\s?:\s?[0-9]+)?
      (?:\s?\\?%)?
    """,
    re.VERBOSE,
)

# Words that take a value back, or leave it open, in its clause.
_DENIED = re.compile(
    r"""
      \b
      (?:
            not|never|cannot|neither|nor|wrong|incorrect|incorrectly|false|mistaken|untrue|doubt
          | doubtful|unlikely
          | impossible|either|or|maybe|perhaps|possibly|guess|whether|unknown|unclear|unsure
          | candidates?|options?|instead\s+of|far\s+from|contrary|hardly|scarcely
          | none|excludes?d?|exclude|rejects?|rejected|discard(?:ed|s)?|eliminated?
          | too\s+(?:small|large|big|low|high)
          | no\s+(?:way|chance|reason|evidence|proof)|by\s+no\s+means|in\s+no\s+(?:way|case)
          | out\s+of\s+the\s+question
          | ruled?\s+out|rules\s+out|refute[sd]?|disprove[sdn]?|debunked|nonsense|absurd
          | untenable
          | (?:thought|believed|supposed|assumed|said|claimed|alleged|rumou?red)\s+to\s+
            (?:be|equal)
          | (?:fail(?:s|ed)?|ceases?)\s+to\s+(?:be|equal|reach|match)
          | answer\s+(?:has(?!\s+(?:to|the|a)\b)|contains?)
      )\b
    | n['’]t\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
# "The largest possible value is 42" states a value; "a possible value is 42" does not.
_SUPERLATIVES = (
    "largest smallest greatest least maximum minimum most fewest lowest highest best only of"
)
_OF_NONE_LARGER = "".join(f"(?<!{word}[ ])" for word in _SUPERLATIVES.split())
# Words that make a bound, a range or another number of a value: "more than 42", "up to 42".
_BOUNDED = re.compile(
    rf"""
      \b
      (?:
            than|at\s+(?:the\s+)?(?:least|most|minimum|maximum)|between|range[sd]?
          | any(?:thing|where|one)?|something
          | somewhere|except|excluding|one\s+of|some\s+of|among|{_OF_NONE_LARGER}possib\w+
          | unless|minus|multipl\w+|divided|squared|cubed
          | an?\s+(?:minimum|maximum)\s+of|(?:lower|upper)\s+bound|bounded
          | (?:divisible|capped|limited|preceded|followed)\s+by
          | (?:answer|number|result|value|it)\s+(?:ends|starts|begins)\s+(?:in|with)
          | exceed\w*|no\s+(?:longer|more|less|fewer)|up\s+to
      )\b
    | [<>≤≥≠]|\\(?:leq?|geq?|neq?|lt|gt)(?![A-Za-z])
    """,
    re.IGNORECASE | re.VERBOSE,
)
# "half of 42", "the square of 42"
_FUNCTION_OF = re.compile(
    r"""
    \b
    (?:
          half|halves|thirds?|quarters?|fourths?|fifths?|tenths?|hundredths?|square|cube|root
        | factorial|multiples?
        | factors?|divisors?|percent|per\s?cent|%|percentage|twice|double|triple|opposite
        | negative|inverse|reciprocal|fraction
        | part|portion|power|log\w*|sine|cosine|negation|complement|conjugate|successor
        | predecessor|digits?|multiplicative|neighbou?rs?|remainder
    )(?:\s+\w+)?\s+(?:of|to|from)\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
# What may not stand right before a value.
_BAD_PRECURSOR = re.compile(
    rf"""
    (?:
          \b
          (?:
                from|to|under|below|over|above|beyond|past|within|twice|double|triple|thrice
              | half|times|plus|without
              | (?:might|could|may|can)(?:\s+\w+)?\s+be
              | until|till
              | (?:many|much|few|long|old|high|tall|often|far|big|large|heavy|fast)\s+as
              | nearly|almost|near|nearing|but|square|cube|cubed|root|of\s+the|per|approaching
              | versus|vs|log|ln
              | sin|cos|tan|sqrt|close|around\s+about|just\s+shy\s+of|short\s+of|every|prime
              | after|before|since|except|like
              | step|question|problem|example|exercise|case|part|line|option|page|chapter
              | equation|figure|table|note|{PLACES}
          )
        | [-+*/^_=]\s*[a-z]|[*/^(_{{[&#@¬×÷√∛±∓]
        | \\(?!(?:therefore|q?quad|implies|[Rr]ightarrow|Longrightarrow)\b)[A-Za-z]+
    )\s*$
    """,
    re.IGNORECASE | re.VERBOSE,
)
# "The answer is within 3 of 42", "ends in 42", "larger by 42"; but "a total of 42"
_PART_OF_A_PHRASE = re.compile(
    r"""
    \b
    (?:
          in|with|by|within|unlike|through
        | (?<!total[ ])(?<!sum[ ])(?<!value[ ])(?<!amount[ ])(?<!number[ ])(?<!cost[ ])
          (?<!price[ ])(?<!profit[ ])(?<!average[ ])(?<!area[ ])(?<!length[ ])of
    )(?:\s+the)?[\s$]*$
    """,
    re.IGNORECASE | re.VERBOSE,
)
_AS_AN_EXAMPLE = re.compile(
    r"(?:\b(?:for\s+(?:example|instance)|such\s+as)|\be\.g\.)[\s,:]*$", re.IGNORECASE
)
# "The point is (3, 4)", "The roots are 2 and 3"
_SEVERAL_AT_END = re.compile(
    r"""
      \b(?:is|are|equals?|at)\s+(\(\s*-?[0-9./]+(?:\s*,\s*-?[0-9./]+)+\s*\))$
    | \bare\s+(-?[0-9./]+(?:,\s+-?[0-9./]+)*,?\s+and\s+-?[0-9./]+)$
    """,
    re.VERBOSE,
)
# "The solutions are $x = -1$ and $x = 3$"
_ROOT = r"(?:\$[^$]+\$|\\\([^()]*\\\)|[a-z]\s*=\s*-?[0-9./]+)"
_ROOTS = re.compile(rf"\bare\s+({_ROOT}(?:,\s+{_ROOT})*,?\s+and\s+{_ROOT})$")
# "about 42" guesses; a decimal, as in "about 33.3", may be rounded because that was asked for.
_APPROXIMATE = re.compile(
    r"""
    (?:
          \b(?:about|around|roughly|approximately|approx\.?|circa|ca\.|c\.|or\s+so)|[~≈≃]
        | \\(?:approx|simeq|sim)
    )[\s:*$]*$
    """,
    re.IGNORECASE | re.VERBOSE,
)
# "42ish", "42 apples, give or take", "42 point five", "42 and some"
_HEDGED_BEHIND = re.compile(
    rf"""
      \s*-?ish\b|(?:\s+[a-z]+){{0,2}}[\s,(*$]*(?:{HEDGES})(?=[\s)*$]*(?:[.,;!]|$))
    | \s+point\s+(?:[0-9]|zero|one|two|three|four|five|six|seven|eight|nine)
    | \s+and\s+(?:some|change|a\s+bit|a\s+little)(?=\s*(?:more|change)?\s*(?:[.,;!]|$))
    """,
    re.IGNORECASE | re.VERBOSE,
)
# "42 if it rains and 43 otherwise"
_IF = re.compile(r"[0-9$)}][^0-9]*\bif\b", re.IGNORECASE)
# ", and 43 otherwise", "or 43 if", "otherwise it is 43"
_OTHER_CASE = re.compile(
    r"""
      (?:\b(?:and|or|but)|[,;])\s+(?:it\s+is\s+)?[-$\\]*[0-9][^\s,]*,?(?:\s+\w+)?\s+
      (?:otherwise|else|if)\b
    | \b(?:otherwise|else),?\s+(?:it\s+is\s+)?[-$\\]*[0-9]
    """,
    re.IGNORECASE | re.VERBOSE,
)
# Before a value, where "to" alone may not stand: "comes to 42"
_GOOD_TO = re.compile(
    r"""
    \b
    (?:equals?|equal|comes?|came|amounts?|adds?\s+up|sums?|evaluates?|simplifies|reduces|leads)
    \s+(?:out\s+)?to\s*$
    """,
    re.IGNORECASE | re.VERBOSE,
)
# What joins two values: "41 or 42", "41, 42", "41 - 42"
_BETWEEN_LISTED = re.compile(
    rf"""
    \s*(?:,|;|/|\\?\||&|-|–|to|and|or|,\s*(?:and|or)|vs\.?|versus|through|{AND_OR})?\s*
    (?:\w+ly\s*)?
    """,
    re.IGNORECASE | re.VERBOSE,
)
_NEGATIVE = re.compile(
    r"(?<![0-9$)\]])(^|\s)(?:negative|minus)\s+(?=\\?[$€£¥]?[0-9.]|\$)", re.IGNORECASE
)
_RETRACTION = re.compile(
    r",?\s+(?:but|actually|wait|no|sorry|rather|however|hmm|I[ ]mean)\b(?=[^\n]*[0-9])",
    re.IGNORECASE,
)
_ANYTHING_BUT = re.compile(r"\b(?:any|no|every)thing\s+but\b|\ball\s+but\b", re.IGNORECASE)
_BEFORE_A_STATED_VALUE = re.compile(r"[\s:*]*(?:\w+ly\s+|just\s+|about\s+|around\s+)?")
_ARROW = re.compile(r"^(?:=>|->|→|⇒|⟹|∴|\\therefore|\\(?:R|Longr|r)ightarrow|\\implies)\s*")
# "5 fewer apples than Ann" and "5 when divided by 7" say 5.
_MORE_THAN_OTHERS = re.compile(
    r"""
    ([0-9]\$?)
    (?:
          \s+(?:more|fewer|less)\b[^0-9.,;]*?\bthan\s+[A-Z][^0-9]*$
        | \s+when(?:\s+\w+)?\s+divided\s+by\s+\$?[0-9]+\$?
    )
    """,
    re.VERBOSE,
)
# The feet of "5 feet 3", the \text{hours} of "2 \text{hours and} 30"
_UNIT_BETWEEN = re.compile(
    r"""
    [\s$]*(?:\\(?:text|mathrm|mbox)\s*\{\s*)?([A-Za-z]+)\.?\s*,?\s*(?:and)?\s*\}?[\s$]*(?:and)?
    [\s$]*
    """,
    re.IGNORECASE | re.VERBOSE,
)
_ARITHMETIC_BEFORE_EQUALS = re.compile(
    r"[0-9][0-9.,)}\s$]*(?:[-+*/×÷·]|\\(?:times|cdot|div))[^=]*$"
)
_CLAUSES = re.compile(r"[,;:](?=\s)")
# "42 - no", "42 is wrong", "42 would contradict"
_TAKEN_BACK_BEHIND = re.compile(
    r"""
    [\s,]*
    (?:
          [–—-]+\s*(?:no|nope|not|wrong|incorrect|false)
        | (?:is|was)\s+(?:not|wrong|incorrect|false)|fails
        | (?:leads?|would\s+lead)\s+(?:us\s+)?to\s+a\s+contradiction
        | (?:would\s+)?contradicts?
        | would\s+(?:also\s+)?be\s+(?:too|an?\s+contradiction|wrong|impossible|absurd)
    )\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
# "42 million", "5 and a half", "42 - 1", "42!"
_SCALE_BEHIND = re.compile(
    r"""
      \s*\**\s*[-~]?\s*(?:and\s+)?(?:(?:an?|one|two|three)\s+)?
      (?:
            halves|half|thirds?|quarters?|fifths?|tenths?|score|gross
          | dozens?|hundreds?|thousands?|[mbtr]+illions?|squared|cubed|times\s+(?=\S*[0-9])
          | factorial|pi|plus|minus
      )\b
    | \s*\**\s*(?:-(?!-{0,2}\s+[A-Za-z]{2})|[+*×÷^!_]|/(?=\s*[-0-9$(])|\\)
    """,
    re.IGNORECASE | re.VERBOSE,
)


_ORDINAL_ENDING = re.compile(r"^(?:st|nd|rd|th)\b")  # behind the 5 of 5th
# The words behind a value, which may be its unit; but not the M of Möglichkeiten
_UNIT_WORDS = re.compile(r"\s*(?:[a-zA-Z°²³¢][a-zA-Z°²³¢./^ -]*)?(?![^\W\d_])")


def values_in_sentence(sentence: str, *, is_statement: bool) -> list[str]:
    """The value that a sentence states, as texts to be read: with the words after it, which may be
    its unit, and without them, ["17 birds", "17"]. [] where the sentence states no single value.
    The first text that can be read as an answer is to be taken.

    is_statement: the sentence is what follows "the answer is", so that a value at its beginning is
    the answer; False: it is the last sentence of a text that marks no answer. The order of the
    tests below matters: an equation is looked for before words of denial, which may be in another
    clause than the equation.
    """
    sentence = " ".join(sentence[-MAX_SENTENCE_LENGTH:].split())

    # A remark may restate the value: 160 minutes (2 hours and 40 minutes). If it is about the value
    # that the rest of the sentence states, both must be the same, which the equation checks.
    gloss = find_gloss(sentence)
    if gloss is not None:
        explained = values_in_sentence(gloss.sentence, is_statement=is_statement)
        return [f"{gloss.remark} = {gloss.value}"] if gloss.is_about(explained) else explained

    # Without an arrow at its beginning, and "5 fewer apples than Ann" as 5.
    sentence = _MORE_THAN_OTHERS.sub(r"\1", _ARROW.sub("", sentence))
    if _ANYTHING_BUT.search(sentence) or _has_two_cases(sentence):
        return []
    # The sentence as it would be without corrections, remarks and emphasis, and its values.
    sentence = _corrected(sentence)
    sentence = _NEGATIVE.sub(r"\1-", _without_emphasis(_without_remark(sentence)))
    values = list(_VALUE.finditer(sentence))
    if not values:
        return []

    words = MATH_IN_TEXT.sub(" ", sentence)
    # "The solutions are $x = -1$ and $x = 3$", without the dollars.
    roots = _ROOTS.search(sentence)
    if roots and not _DENIED.search(words):
        return [re.sub(r"\$|\\[()]", "", roots[1])]
    equation = _right_side(sentence)  # [] where it states no single value, None: no equation
    if equation is not None:
        return equation
    # "not 42", "at least 42", "half of 42".
    if _DENIED.search(words) or _BOUNDED.search(words) or _FUNCTION_OF.search(words):
        return []
    several = _SEVERAL_AT_END.search(sentence)  # "The point is (3, 4)", "The roots are 2 and 3"
    if several:
        return [several[1] or several[2]]

    # "(The answer is) 42 apples in 3 bags" states its first value, other sentences their last.
    is_first = is_statement and _BEFORE_A_STATED_VALUE.fullmatch(sentence[: values[0].start()])
    index = 0 if is_first else len(values) - 1
    return _single_value(sentence, values, index, is_statement=is_statement)


def _has_two_cases(sentence: str) -> bool:
    """Whether a sentence says one value for one case and another for the other: "42 if it rains and
    43 otherwise"."""
    condition = _IF.search(sentence)
    return condition is not None and _OTHER_CASE.search(sentence, condition.end()) is not None


def _corrected(sentence: str) -> str:
    """What follows the correction in "5, but actually 7"; other sentences as they are."""
    retraction = _RETRACTION.search(sentence)
    if retraction is None:
        return sentence
    has_value_before = _VALUE.search(sentence[: retraction.start()])
    has_value_behind = _VALUE.search(sentence, retraction.end())
    return sentence[retraction.end() :] if has_value_before and has_value_behind else sentence


def _without_emphasis(sentence: str) -> str:
    sentence = sentence.replace("**", "").replace("__", "")
    return re.sub(r"(?<!\w)_([^_]+)_(?!\w)|^\*([^*]+)\*$", r"\1\2", sentence)


def _without_remark(sentence: str) -> str:
    """A sentence without a remark in parentheses that corrects nothing: 74 (not 73)."""
    remark = re.search(r"\s+\(([^()]*[A-Za-z]{2}[^()]*)\)\s*[.!]?$", sentence)
    if remark is None or CHANGING_REMARK.search(remark[1]):
        return sentence
    return sentence[: remark.start()]


def _right_side(sentence: str) -> list[str] | None:
    """The value after the last equals sign of a sentence, outside of math, as `values_in_sentence`
    gives it: ["18 dollars", "18"] for "9 * 2 = 18 dollars".

    [] where the value is denied, guessed, bounded or listed with another; None where there is no
    such sign, or where it belongs to a supposition ("if x = 6").
    """
    # Math is replaced by as many letters, so that positions stay.
    outside_math = MATH_IN_TEXT.sub(lambda match: "m" * len(match[0]), sentence)
    equals = outside_math.rfind("=")
    value = _VALUE.search(sentence, equals + 1) if equals >= 0 else None
    # The value must come right after the sign, but for spaces and emphasis.
    if value is None or sentence[equals + 1 : value.start()].strip(" *"):
        return None

    before = sentence[: value.start()]
    if outside_math[max(0, equals - 1)] in "<>!":  # <=, >=, !=
        return []
    is_calculation = _ARITHMETIC_BEFORE_EQUALS.search(sentence, 0, equals) is not None
    if not is_calculation and supposes(before):
        return None  # "If x = 6, she has 42"
    if _is_guess(sentence, value):
        return []
    clause = _CLAUSES.split(before)[-1] + sentence[value.start() :]
    if _DENIED.search(clause) or _TAKEN_BACK_BEHIND.match(sentence, value.end()):
        return []

    next_value = _VALUE.search(sentence, value.end())
    if next_value and _is_listed(sentence, value, next_value):
        return []
    # 5 million, 5 out of 8: more belongs to the value, which is to be read whole or not at all.
    if _SCALE_BEHIND.match(sentence, value.end()) or not value_ends_at(sentence, value.end()):
        return [sentence[equals + 1 :].strip()]
    return _with_and_without_words(sentence, value)


def _single_value(
    sentence: str, values: list[re.Match[str]], index: int, *, is_statement: bool
) -> list[str]:
    """The value values[index] of a sentence, as `values_in_sentence` gives it: with and without the
    words after it. [] where the words around it deny, suppose or guess it, or list it with another
    value. values: the matches of _VALUE in the sentence, all of them, from left to right;
    is_statement: as in `values_in_sentence`."""
    value = values[index]
    previous = values[index - 1] if index > 0 else None
    following = values[index + 1] if index + 1 < len(values) else None
    before = sentence[: value.start()]
    behind = sentence[value.end() :]

    # Words right before the value that make another value of it: "from 42", "twice 42"; but "comes
    # to 42" states it. Behind "the answer is", also "within 3 of 42".
    if _BAD_PRECURSOR.search(before) and not _GOOD_TO.search(before):
        return []
    if is_statement and _PART_OF_A_PHRASE.search(before):
        return []
    if supposes(before) or is_counterfactual(sentence):
        return []
    if _TAKEN_BACK_BEHIND.match(sentence, value.end()):
        return []
    if _AS_AN_EXAMPLE.search(before) or _is_guess(sentence, value):
        return []

    if previous and _is_listed(sentence, previous, value):
        return []
    if following and _is_listed(sentence, value, following):
        return []
    if previous and _is_compound(sentence[previous.end() : value.start()]):
        # 5 feet 3 inches
        return [f"{_content(previous[0])}{sentence[previous.end() :]}".strip()]
    if _SCALE_BEHIND.match(sentence, value.end()) or not value_ends_at(sentence, value.end()):
        # 5 million, 5 and a half, 42 - 1, 5 out of 8: to be read whole or not at all
        return [f"{_content(value[0])}{behind}".strip()]
    return _with_and_without_words(sentence, value)


def supposes(before: str) -> bool:
    """Whether the words before a value, in its sentence, suppose it, in one of the languages known
    here."""
    return is_supposed(before) or supposes_in_other_languages(before)


def _is_guess(sentence: str, value: re.Match[str]) -> bool:
    """Whether a sentence states a value (a match in it) only roughly: roughly 42, 42ish, 42 and
    some. A decimal may have "about" before it, since rounding may be asked for: about 33.3."""
    if _HEDGED_BEHIND.match(sentence, value.end()) or GUESSED.search(sentence):
        return True
    if leaves_value_open(sentence, value.start(), value.end()):
        return True
    return "." not in value[0] and _APPROXIMATE.search(sentence[: value.start()]) is not None


def _content(value: str) -> str:
    """A value without the dollars around it."""
    math = MATH_IN_TEXT.fullmatch(value.strip())
    if math is None:
        return value.strip()
    return next(group for group in math.groups() if group is not None).strip()


def _is_listed(sentence: str, one: re.Match[str], other: re.Match[str]) -> bool:
    """Whether two values, the second after the first, are joined to a list: 41 or 42; 41, 42."""
    return _BETWEEN_LISTED.fullmatch(sentence[one.end() : other.start()]) is not None


def _is_compound(between: str) -> bool:
    """Whether nothing but a unit stands between two values: 5 feet 3, 2 hours and 30."""
    match = _UNIT_BETWEEN.fullmatch(between)
    return match is not None and is_unit_name(match[1])


def _with_and_without_words(sentence: str, value: re.Match[str]) -> list[str]:
    """The texts of a value (a match in the sentence) with the words after it, which may be its
    unit, and without them: ["17 birds", "17"]."""
    content = _content(value[0])
    behind = _ORDINAL_ENDING.sub("", sentence[value.end() :])
    words = _UNIT_WORDS.match(behind)
    return [f"{content} {words[0].strip() if words else ''}".strip(), content]
