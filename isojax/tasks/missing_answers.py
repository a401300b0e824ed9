"""Reference answers that say there is none: `N/A`, `Not available`, `See solution`. No response
says so, and the policy would be rewarded for it if one did. Words such as `unknown` may be labels
too, beside others: True, False, Unknown."""

import re
from collections.abc import Iterable

_WORDS = frozenset(
    [
        *("n/a", "na", "n.a", "#n/a", "<na>", "nan", "nat", "none", "null", "nil"),
        *(
            "undefined",
            "missing",
            "omitted",
            "unavailable",
            "unanswered",
            "tbd",
            "tba",
            "todo",
            "to be determined",
        ),
        *("-", "--", "?", "??", "???", "...", "…", "___", "略"),
        *("#ref", "#value", "#name", "#div/0"),  # of a spreadsheet, without their exclamation marks
        *("proof omitted", "answer omitted", "coming soon"),
    ]
)
_WORDS_OR_LABELS = frozenset({"unknown", "no answer", "not given", "not applicable", "not known"})
MAX_LABELS = 8  # of a set of problems whose answers are labels

_WHERE_TO_LOOK = (
    "solutions?|answers?|explanations?|proofs?|works?|working|text|figures?|images?|pictures?|diagrams?|graphs?|tables?"
    "|above|below|attached|attachment|details?|notes?|book|page|steps?|link|appendix|analysis|video"
)
_POINTER = re.compile(
    rf"(?:please )?(?:see|refer to|check|look at|cf\.?) (?:(?:the|our|my|full|attached|next|official|detailed) )*"
    rf"(?:{_WHERE_TO_LOOK})(?: (?:above|below|for details|for (?:the )?(?:solution|answer|proof)))?"
    r"|(?:证明)?(?:详)?[见看](?:解析|解答|答案|证明|分析|上文?|下文?|图)"
)
_NOTHING_GIVEN = re.compile(
    r"(?:the )?(?:(?:final )?(?:answer|solution|value|result|data)s? )?(?:is |was |are )?(?:currently )?"
    r"not (?:yet )?(?:available|provided|found|specified|present|included|supplied|recorded)(?: yet)?"
    r"|no (?:final |reference |correct )?(?:answer|data|value|reference)s? (?:is |was )?"
    r"(?:available|provided|given|found|specified|yet)"
    r"|no (?:solution|result) (?:is |was )?(?:available|provided|given)"
    r"|(?:the )?(?:answer|solution) (?:is )?(?:missing|unknown|unavailable|omitted|pending)"
    r"|answers? (?:may |will |can )?(?:vary|varies)"
)


def is_missing_answer(answer: str, are_labels: bool = False) -> bool:
    """Whether a text says that there is no answer; `are_labels`: of the set that it belongs to
    (`are_word_labels`)."""
    text = _plain(answer)
    if text in _WORDS_OR_LABELS:
        return not are_labels
    return text in _WORDS or bool(_POINTER.fullmatch(text) or _NOTHING_GIVEN.fullmatch(text))


def are_word_labels(answers: Iterable[str]) -> bool:
    """Whether most answers of a set, those left out that may be missing, are a few words that come
    again and again."""
    others = [text for text in map(_plain, answers) if not is_missing_answer(text)]
    words = [text for text in others if text.replace(" ", "").isalpha()]
    return len(words) > len(others) / 2 and len(words) > len(set(words)) <= MAX_LABELS


def _plain(answer: str) -> str:
    """The text in small letters, without \\text{}, brackets around it, and a full stop."""
    text = " ".join(answer.split()).lower()
    if command := re.fullmatch(r"\$?\\(?:text|mathrm|textbf)\{([^{}]*)\}\$?", text):
        text = command[1].strip()
    if bracketed := re.fullmatch(r"[(\[](.+)[)\]]", text):
        text = bracketed[1].strip()
    return text if re.fullmatch(r"\.+", text) else text.rstrip(".!")
