"""Reference answers that say there is none: `N/A`, `Not available`, `See solution`.

No response says so, and the policy would be rewarded for it if one did. Words such as `unknown` may
be labels too, beside others: True, False, Unknown.
"""

import re
from collections.abc import Iterable

_WORDS = frozenset([
    "n/a", "na", "n.a", "#n/a", "<na>", "nan", "nat", "none", "null", "nil",
    "undefined", "missing", "omitted", "unavailable", "unanswered",
    "tbd", "tba", "todo", "to be determined",
    "-", "--", "?", "??", "???", "...", "…", "___", "略",
    "#ref", "#value", "#name", "#div/0",  # of a spreadsheet, without their exclamation marks
    "proof omitted", "answer omitted", "coming soon",
])  # fmt: skip
_WORDS_OR_LABELS = frozenset({"unknown", "no answer", "not given", "not applicable", "not known"})
MAX_LABELS = 8  # of a set of problems whose answers are labels

_WHERE_TO_LOOK = (
    "solutions?|answers?|explanations?|proofs?|works?|working|text|figures?|images?|pictures?"
    "|diagrams?|graphs?|tables?"
    "|above|below|attached|attachment|details?|notes?|book|page|steps?|link|appendix|analysis|video"
)
# "See the attached solution", 见解析
_POINTER = re.compile(
    r"(?:please )?(?:see|refer to|check|look at|cf\.?) "
    r"(?:(?:the|our|my|full|attached|next|official|detailed) )*"
    rf"(?:{_WHERE_TO_LOOK})(?: (?:above|below|for details|for (?:the )?(?:solution|answer|proof)))?"
    r"|(?:证明)?(?:详)?[见看](?:解析|解答|答案|证明|分析|上文?|下文?|图)"
)
# "The answer is not available", "no reference answer given", "answers may vary"
_NOTHING_GIVEN = re.compile(
    r"(?:the )?(?:(?:final )?(?:answer|solution|value|result|data)s? )?"
    r"(?:is |was |are )?(?:currently )?"
    r"not (?:yet )?"
    r"(?:available|provided|found|specified|present|included|supplied|recorded)(?: yet)?"
    r"|no (?:final |reference |correct )?(?:answer|data|value|reference)s? (?:is |was )?"
    r"(?:available|provided|given|found|specified|yet)"
    r"|no (?:solution|result) (?:is |was )?(?:available|provided|given)"
    r"|(?:the )?(?:answer|solution) (?:is )?(?:missing|unknown|unavailable|omitted|pending)"
    r"|answers? (?:may |will |can )?(?:vary|varies)"
)


def is_missing_answer(answer: str, are_labels: bool = False) -> bool:
    """Whether a text, such as "N/A" or "See solution", says that there is no answer. are_labels:
    whether the answers of its set are labels (`are_word_labels`), of which "unknown" may be one."""
    text = _plain(answer)
    if text in _WORDS_OR_LABELS:
        return not are_labels
    return text in _WORDS or bool(_POINTER.fullmatch(text) or _NOTHING_GIVEN.fullmatch(text))


def are_word_labels(answers: Iterable[str]) -> bool:
    """Whether most answers of a set, those left out that may be missing, are a few words that come
    again and again."""
    others = [text for text in map(_plain, answers) if not is_missing_answer(text)]
    words = [text for text in others if text.replace(" ", "").isalpha()]
    num_distinct = len(set(words))
    are_most = len(words) > len(others) / 2
    come_again = len(words) > num_distinct
    return are_most and come_again and num_distinct <= MAX_LABELS


def _plain(answer: str) -> str:
    """The text in small letters, without \\text{}, brackets around it, and a full stop."""
    text = " ".join(answer.split()).lower()
    command = re.fullmatch(r"\$?\\(?:text|mathrm|textbf)\{([^{}]*)\}\$?", text)
    if command:
        text = command[1].strip()
    in_brackets = re.fullmatch(r"[(\[](.+)[)\]]", text)
    if in_brackets:
        text = in_brackets[1].strip()
    is_dots_alone = re.fullmatch(r"\.+", text)
    return text if is_dots_alone else text.rstrip(".!")
