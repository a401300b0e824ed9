"""The value that a sentence states: "so Ann has 20 - 3 = 17 birds left" states 17 birds.

A sentence that denies, bounds, guesses or lists states no single value: "not 42", "at least 42", "41 or 42".
"""

import re

from isojax.tasks.answers.spelling import CJK, MATH_IN_TEXT

MAX_SENTENCE_LENGTH = 1000

# What makes a guess of the value before it: "42, give or take".
HEDGES = (
    r"give\s+or\s+take|more\s+or\s+less|or\s+so|or\s+thereabouts|roughly|approximately|approx"
    r"|for\s+(?:example|instance)"
)

_NUMBER = r"[-+]?(?:\\?[$€£¥]\s*)?-?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
# A number with a fraction, an exponent or a percent sign behind it, or math between dollars.
_VALUE = re.compile(
    rf"{MATH_IN_TEXT.pattern}|(?<![\w.]){_NUMBER}(?:\s+[0-9]+/[0-9]+|\s*/\s*[0-9]+|[eE][-+]?[0-9]+|\s?:\s?[0-9]+)?(?:\s?\\?%)?"
)

# Words that take a value back, or leave it open, in its clause.
_DENIED = re.compile(
    r"\b(?:not|never|cannot|neither|nor|wrong|incorrect|incorrectly|false|mistaken|untrue|doubt|doubtful|unlikely"
    r"|impossible|either|or|maybe|perhaps|possibly|guess|whether|unknown|unclear|unsure"
    r"|candidates?|options?|instead\s+of|far\s+from|contrary|hardly|scarcely"
    r"|(?:fail(?:s|ed)?|ceases?)\s+to\s+(?:be|equal|reach|match)|answer\s+(?:has(?!\s+(?:to|the|a)\b)|contains?))\b|n['’]t\b",
    re.IGNORECASE,
)
# Words that make a bound, a range or another number of it.
_BOUNDED = re.compile(
    r"\b(?:than|at\s+(?:the\s+)?(?:least|most|minimum|maximum)|between|range[sd]?|any(?:thing|where|one)?|something"
    r"|somewhere|except|excluding|one\s+of|some\s+of|among|possib\w+|unless|minus|multipl\w+|divided|squared|cubed"
    r"|exceed\w*|no\s+(?:longer|more|less|fewer)|up\s+to)\b|[<>≤≥≠]|\\(?:leq?|geq?|neq?|lt|gt)(?![A-Za-z])",
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
    r"|(?:might|could|may)(?:\s+\w+)?\s+be"
    r"|until|till|nearly|almost|near|nearing|but|square|cube|cubed|root|of\s+the|per|approaching|versus|vs|log|ln"
    r"|sin|cos|tan|sqrt|close|around\s+about|just\s+shy\s+of|short\s+of|every|prime|after|before|since|except|like"
    r"|step|question|problem|example|exercise|case|part|line|option|page|chapter|equation|figure|table|note)"
    r"|[-+*/^_=]\s*[a-z]|[*/^(_])\s*$",
    re.IGNORECASE,
)
_AS_AN_EXAMPLE = re.compile(r"(?:\b(?:for\s+(?:example|instance)|such\s+as)|\be\.g\.)[\s,:]*$", re.IGNORECASE)
# "The point is (3, 4)", "The roots are 2 and 3"
_SEVERAL_AT_END = re.compile(
    r"\b(?:is|are|equals?|at)\s+(\(\s*-?[0-9./]+(?:\s*,\s*-?[0-9./]+)+\s*\))$"
    r"|\bare\s+(-?[0-9./]+(?:,\s+-?[0-9./]+)*,?\s+and\s+-?[0-9./]+)$"
)
# "about 42" guesses; a decimal, as in "about 33.3", may be rounded because that was asked for.
_APPROXIMATE = re.compile(
    r"(?:\b(?:about|around|roughly|approximately|approx\.?|circa|or\s+so)|[~≈≃]|\\(?:approx|simeq|sim))[\s:*$]*$",
    re.IGNORECASE,
)
_HEDGED_BEHIND = re.compile(
    rf"\s*-?ish\b|(?:\s+[a-z]+){{0,2}}[\s,(*$]*(?:{HEDGES})(?=[\s)*$]*(?:[.,;!]|$))"
    r"|\s+point\s+(?:[0-9]|zero|one|two|three|four|five|six|seven|eight|nine)"
    r"|\s+and\s+(?:some|change|a\s+bit|a\s+little)(?=\s*(?:more|change)?\s*(?:[.,;!]|$))",
    re.IGNORECASE,
)
# "42 if it rains and 43 otherwise"
_IF = re.compile(r"[0-9$)}][^0-9]*\bif\b", re.IGNORECASE)
_OTHER_CASE = re.compile(
    r"(?:\b(?:and|or|but)|[,;])\s+(?:it\s+is\s+)?[-$\\]*[0-9][^\s,]*,?(?:\s+\w+)?\s+(?:otherwise|else|if)\b"
    r"|\b(?:otherwise|else),?\s+(?:it\s+is\s+)?[-$\\]*[0-9]",
    re.IGNORECASE,
)
# The same in Chinese, Japanese and Korean: not, or, at least, about, between ...
_CJK_DENIED = re.compile(
    "不(?!同)|非|没|沒|无|無|或|错|錯|误|誤|如果|若|可能|也许|也許|大概|大约|大約|[约約](?![翰瑟])|左右|上下|接近|几乎|至少|至多"
    "|最[多少]|以上|以下|以内|超(?!市)|[大小多少高低]于|[大小多少]於|之间|之間|例如|比如|ない|ません|じゃ|違|または|もしくは|およそ|ほど"
    "|くらい|ぐらい|未満|かも|たぶん|아[니닙닌]|않|없|또는|이상|이하|미만|초과|정도|대략|아마|약 "
)
_CJK_BEFORE = re.compile(r"(?:[第负負除乘加减減近]|(?<!所)以|マイナス)\s*[$]?$")
_HAS_CJK = re.compile(f"[{CJK}]")
_CJK_LISTED = re.compile(r"[0-9$]\s*(?:[和与與及到至と]|から|과|와)\s*$")
_CJK_BEHIND = re.compile(
    r"\s*[个個]?(?:[万亿萬億百十多余餘几幾半又点點双雙对打倍割的の의만억천백반배번]|千(?![克米瓦焦卡])|分之|分の|次方|平方(?![米厘公千分毫])"
    r"|[加减減乘除])|\s*(?:[和与與及到至と]|から|과|와)\s*[-$]*[0-9]"
)
_GOOD_TO = re.compile(
    r"\b(?:equals?|equal|comes?|came|amounts?|adds?\s+up|sums?|evaluates?|simplifies|reduces|leads)\s+(?:out\s+)?to\s*$",
    re.IGNORECASE,
)
_BETWEEN_LISTED = re.compile(
    r"\s*(?:,|;|/|\\?\||&|-|–|to|and|or|,\s*(?:and|or)|vs\.?|versus|through)?\s*(?:\w+ly\s*)?", re.IGNORECASE
)
_NEGATIVE = re.compile(r"(?<![0-9$)\]])(^|\s)(?:negative|minus)\s+(?=\\?[$€£¥]?[0-9.]|\$)", re.IGNORECASE)
_RETRACTION = re.compile(
    r",?\s+(?:but|actually|wait|no|sorry|rather|however|hmm|I mean)\b(?=[^\n]*[0-9])", re.IGNORECASE
)
_ANYTHING_BUT = re.compile(r"\b(?:any|no|every)thing\s+but\b|\ball\s+but\b", re.IGNORECASE)
_BEFORE_A_STATED_VALUE = re.compile(r"[\s:*]*(?:\w+ly\s+|just\s+|about\s+|around\s+)?")
_CLAUSES = re.compile(r"[,;:](?=\s)")
_TAKEN_BACK_BEHIND = re.compile(r"[\s,]*(?:is|was)\s+(?:not|wrong|incorrect|false)\b", re.IGNORECASE)
_SCALE_BEHIND = re.compile(
    r"\s*\**\s*[-~]?\s*(?:and\s+)?(?:(?:an?|one|two|three)\s+)?(?:halves|half|thirds?|quarters?|fifths?|tenths?|score|gross"
    r"|dozens?|hundreds?|thousands?|[mbtr]+illions?|squared|cubed|times\s+(?=\S*[0-9])|factorial|pi|plus|minus)\b|\s*\**\s*(?:[-+*×÷^!_]|/(?=\s*[-0-9$(])|\\)",
    re.IGNORECASE,
)


def values_in_sentence(sentence: str, *, is_statement: bool) -> list[str]:
    """The text of the value with the words behind it, which may be its unit, and without them; empty where the
    sentence states no single value.

    `is_statement`: it is what follows "the answer is", so that a value at its beginning is the one.
    """
    sentence = " ".join(sentence[-MAX_SENTENCE_LENGTH:].split())
    condition = _IF.search(sentence)
    if _ANYTHING_BUT.search(sentence) or (condition and _OTHER_CASE.search(sentence, condition.end())):
        return []
    retraction = _RETRACTION.search(sentence)  # "5, but actually 7"
    is_corrected = retraction is not None and _VALUE.search(sentence[: retraction.start()]) is not None
    if retraction and is_corrected and _VALUE.search(sentence, retraction.end()):
        sentence = sentence[retraction.end() :]
    sentence = _NEGATIVE.sub(r"\1-", _without_emphasis(_without_remark(sentence)))
    values = list(_VALUE.finditer(sentence))
    if not values:
        return []
    if (equation := _right_side(sentence)) is not None:
        return equation
    words = MATH_IN_TEXT.sub(" ", sentence)
    if _DENIED.search(words) or _BOUNDED.search(words) or _FUNCTION_OF.search(words):
        return []
    if several := _SEVERAL_AT_END.search(sentence):
        return [several[1] or several[2]]
    is_first = is_statement and _BEFORE_A_STATED_VALUE.fullmatch(sentence[: values[0].start()])
    return _single_value(sentence, values, 0 if is_first else len(values) - 1)


def _without_emphasis(sentence: str) -> str:
    return re.sub(r"(?<!\w)_([^_]+)_(?!\w)", r"\1", sentence.replace("**", "").replace("__", ""))


def _without_remark(sentence: str) -> str:
    """A sentence without a remark in parentheses that corrects nothing: 74 (not 73)."""
    remark = re.search(r"\s+\(([^()]*[A-Za-z]{2}[^()]*)\)\s*[.!]?$", sentence)
    if remark is None or re.search(
        r"\b(?:or|maybe|perhaps|possibly|wrong|incorrect|false|mod)\b", remark[1], re.IGNORECASE
    ):
        return sentence
    return sentence[: remark.start()]


def _right_side(sentence: str) -> list[str] | None:
    """What follows the last equals sign outside math: of 9 * 2 = 18 dollars, 18 dollars. None where there is none."""
    outside_math = MATH_IN_TEXT.sub(lambda match: "m" * len(match[0]), sentence)
    equals = outside_math.rfind("=")
    value = _VALUE.search(sentence, equals + 1) if equals >= 0 else None
    if value is None or sentence[equals + 1 : value.start()].strip(" *"):
        return None
    if outside_math[max(0, equals - 1)] in "<>!":
        return []
    if _is_guess(sentence, value):
        return []
    clause = _CLAUSES.split(sentence[: value.start()])[-1] + sentence[value.start() :]
    if _DENIED.search(clause) or _TAKEN_BACK_BEHIND.match(sentence, value.end()):
        return []
    others = list(_VALUE.finditer(sentence, value.end()))
    if others and _is_listed(sentence, value, others[0]):
        return []
    if _SCALE_BEHIND.match(sentence, value.end()):
        return [sentence[equals + 1 :].strip()]
    return _with_and_without_words(sentence, value)


def _single_value(sentence: str, values: list[re.Match[str]], index: int) -> list[str]:
    value = values[index]
    before = sentence[: value.start()]
    if _BAD_PRECURSOR.search(before) and not _GOOD_TO.search(before):
        return []
    if _AS_AN_EXAMPLE.search(before) or _is_guess(sentence, value):
        return []
    if index > 0 and _is_listed(sentence, values[index - 1], value):
        return []
    if index + 1 < len(values) and _is_listed(sentence, value, values[index + 1]):
        return []
    if _SCALE_BEHIND.match(sentence, value.end()):
        # 5 million, 5 and a half, 42 - 1: to be read whole or not at all
        return [f"{_content(value[0])}{sentence[value.end() :]}".strip()]
    return _with_and_without_words(sentence, value)


def _is_guess(sentence: str, value: re.Match[str]) -> bool:
    """Whether a sentence says a value only about: roughly 42, 42ish, 42 and some."""
    if _HEDGED_BEHIND.match(sentence, value.end()):
        return True
    if _HAS_CJK.search(sentence):
        clause = _CLAUSES.split(sentence[: value.start()])[-1]
        if _CJK_DENIED.search(clause + sentence[value.start() :]) or _CJK_BEFORE.search(clause):
            return True
        if _CJK_BEHIND.match(sentence, value.end()) or _CJK_LISTED.search(sentence[: value.start()]):
            return True
    return "." not in value[0] and _APPROXIMATE.search(sentence[: value.start()]) is not None


def _content(value: str) -> str:
    """A value without the dollars around it."""
    math = MATH_IN_TEXT.fullmatch(value.strip())
    content = next(group for group in math.groups() if group is not None) if math else value
    return content.strip()


def _is_listed(sentence: str, one: re.Match[str], other: re.Match[str]) -> bool:
    return _BETWEEN_LISTED.fullmatch(sentence[one.end() : other.start()]) is not None


def _with_and_without_words(sentence: str, value: re.Match[str]) -> list[str]:
    content = _content(value[0])
    words = re.match(r"\s*(?:[a-zA-Z°²³¢][a-zA-Z°²³¢./^ -]*)?", sentence[value.end() :])
    return [f"{content} {words[0].strip() if words else ''}".strip(), content]
