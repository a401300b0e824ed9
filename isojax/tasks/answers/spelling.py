"""The spelling of an answer: what two texts may differ in and still say the same, letter by
letter."""

import re

from isojax.tasks.answers.latex_style import plain_style, without_ordinal

MAX_ANSWER_LENGTH = 200  # characters of a number, and of words that are an answer
MAX_DOLLARS = 4  # pairs around an answer

INLINE_MATH = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
# As in pandoc: $5 and $6 are money, $5$ and $6$ math; what has a LaTeX command is math, too.
MATH_IN_TEXT = re.compile(
    r"\$\$([^$]+)\$\$|(?<!\\)\$((?!\s)[^$]*[^$\s\\])\$(?![0-9])|(?<!\\)\$([^$]*\\[A-Za-z][^$]*)(?<!\\)\$(?![0-9])"
    r"|\\\((.+?)\\\)|\\\[(.+?)\\\]"
)
_LATEX_TEXT = re.compile(
    r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mbox)\s*\{([^{}]*)\}"
)
_INTEGER = re.compile(r"-?[0-9]{1,3}(?:,[0-9]{3})+|-?[0-9]+")
# ~42 is about 42, where ~ is no space of LaTeX as in 42~cm.
_ABOUT = re.compile(r"^\s*~(?=\s*[-$\\]*[0-9.])(?!.*~\s*$)", re.DOTALL)
_SPACES = re.compile(r"(?<!\\)\\[,;: ]|~|\\q?quad|[\u00a0\u2009\u202f]")
_TAGS = re.compile(r"</?(?:answer|final_answer|final|b|strong|boxed)>", re.IGNORECASE)
# A space that keeps two numbers, or two words, apart.
CJK = "\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3"
_CJK_CHARACTER = re.compile(rf"[{CJK}\u3000-\u303f\uff01-\uff5e]")
_NUMBER_NEXT_TO_CJK = re.compile(rf"(?<=[{CJK}])(?=[-+]?[0-9$])|(?<=[0-9$%])(?=[{CJK}])")
_ASCII_PUNCTUATION = {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)} | str.maketrans(
    {
        "。": ". ",
        "、": ", ",
        "，": ", ",
        "；": "; ",
        "：": ": ",
        "？": "? ",
        "！": "! ",
        "\u3000": " ",
    }
)
# 2k\\pi \\ (k \\in \\mathbb{Z})
_CONDITION_IN_BRACKETS = re.compile(
    r"[\s,]*\(\s*([a-z](?:\s*,\s*[a-z])*\s*\\in\s*\\mathbb\s*(?:\{\s*[ZNQR]\s*\}|[ZNQR])[^()]*)\)$"
)
_DOTS = re.compile(r"\\[lc]?dots(?![A-Za-z])|\.\.\.")
_IDLE_SPACE = re.compile(
    r"(?<![0-9A-Za-z])\s+|\s+(?![0-9A-Za-z])|(?<=[0-9])\s+(?=[A-Za-z])|(?<=[A-Za-z])\s+(?=[0-9])"
)


def with_spaces_around_cjk(text: str) -> str:
    """A text with the digits and punctuation of ASCII, and spaces between its numbers and Chinese,
    Japanese or Korean: these write none."""
    if text.isascii() or not _CJK_CHARACTER.search(text):
        return text
    return _NUMBER_NEXT_TO_CJK.sub(" ", text.translate(_ASCII_PUNCTUATION))


def normalize_answer(text: str) -> str:
    """An answer without spacing, dollars around it and a full stop; minus signs and fractions in
    one spelling."""
    if _INTEGER.fullmatch(text):
        return text
    text = _TAGS.sub("", text) if "<" in text else text
    text = re.sub(r"[\u2212\u2013\ufe63\uff0d]", "-", text.replace("{,}", ",").replace("{:}", ":"))
    if "\\\\" in text and "\\begin" not in text:  # escaped once too often, as in some data sets
        text = re.sub(r"\\\\(?=[A-Za-z{}%$])", r"\\", text)
    text = plain_style(text) if "\\" in text else text
    text = _ABOUT.sub(r"\\approx ", text) if "~" in text else text
    text = _SPACES.sub(" ", re.sub(r"\\!\s*", "", text))
    text = re.sub(
        r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|limits|textstyle)(?![A-Za-z])", "", text
    )
    text = re.sub(r"\\[dtc]frac", r"\\frac", text).replace("\\%", "%")
    text = text.strip()
    is_endless = text.endswith("...") or (text.endswith("..") and re.search(r"\.[0-9]+\.\.$", text))
    text = without_emphasis(text if is_endless else text.removesuffix("."))
    for _ in range(MAX_DOLLARS):
        math_match = INLINE_MATH.fullmatch(text)
        if math_match is None:
            break
        text = (
            next(group for group in math_match.groups() if group is not None)
            .strip()
            .removesuffix(".")
        )
    text = _CONDITION_IN_BRACKETS.sub(r", \1", text) if "\\in" in text else text
    return without_ordinal(text.strip())


def without_emphasis(text: str) -> str:
    """A text without the asterisks around it, or before it; one that only follows it may be a
    product cut off."""
    text = text.strip()
    while text.startswith("*") or text.endswith("**"):
        if text.startswith("*") and text.endswith("*") and not text.endswith("**"):
            text = text[:-1]
        text = text.removesuffix("**").removeprefix("*").strip()
    return text


def canonical_text(text: str) -> str:
    """A normalized text without the spacing, and the LaTeX around words, that make no
    difference."""
    text = _DOTS.sub("…", _LATEX_TEXT.sub(r"\1", text).strip())
    return _IDLE_SPACE.sub("", text).removesuffix(".")


def is_matchable(reference: str) -> bool:
    """Whether a response can say what a reference is: it is no missing value, and no list of
    answers as data."""
    is_missing = re.fullmatch(r"|N/A|n/a|<NA>|NaN|nan|null|None", reference) is not None
    return not is_missing and re.match(r"""[\[({]\s*['"]""", reference) is None


def is_prose(reference: str) -> bool:
    """Whether a reference is a text, such as a proof, that no response repeats."""
    return len(reference) > MAX_ANSWER_LENGTH and has_words(reference)


def has_words(text: str) -> bool:
    """Whether plain words stand in it, outside LaTeX's commands and their text."""
    return re.search(r"(?<![\\A-Za-z])[A-Za-z]{3,}", _LATEX_TEXT.sub("", text)) is not None


def as_words(text: str) -> str | None:
    """A normalized text as words in small letters, where it is nothing else: `\\text{Evelyn}`,
    `(B)`, "no solution"."""
    plain = " ".join(_LATEX_TEXT.sub(r"\1", text).split()).strip("().' ")
    if re.fullmatch(r"[A-Z]|[Nn][Oo]|(?=.*[A-Za-z]{3})[A-Za-z][A-Za-z ,.'-]*", plain):
        return plain.casefold()
    return None
