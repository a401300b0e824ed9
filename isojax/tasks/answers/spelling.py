"""The spelling of an answer: brings texts that mean the same to one spelling, such as "$ \\dfrac12
$." and "\\frac12"."""

import re

from isojax.tasks.answers.latex_style import plain_style, without_ordinal

MAX_ANSWER_LENGTH = 200  # characters of a number, and of words that are an answer
MAX_DOLLARS = 4  # pairs around an answer

INLINE_MATH = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
# As in pandoc: $5 and $6 are money, $5$ and $6$ math; what has a LaTeX command is math, too.
MATH_IN_TEXT = re.compile(
    r"""
      \$\$([^$]+)\$\$
    | (?<!\\)\$ ((?!\s)[^$]*[^$\s\\]) \$(?![0-9])                    # $5$
    | (?<!\\)\$ ([^$]*\\[A-Za-z][^$]*) (?<!\\)\$(?![0-9])            # $ \frac{1}{2} $
    | \\\((.+?)\\\)
    | \\\[(.+?)\\\]
    """,
    re.VERBOSE,
)
_LATEX_TEXT = re.compile(
    r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mbox)\s*\{([^{}]*)\}"
)
_INTEGER = re.compile(r"-?[0-9]{1,3}(?:,[0-9]{3})+|-?[0-9]+")
# ~42 is about 42, where ~ is no space of LaTeX as in 42~cm.
_ABOUT = re.compile(r"^\s*~(?=\s*[-$\\]*[0-9.])(?!.*~\s*$)", re.DOTALL)
_SPACES = re.compile(r"(?<!\\)\\[,;: ]|~|\\q?quad|[\u00a0\u2009\u202f]")
_TAGS = re.compile(r"</?(?:answer|final_answer|final|b|strong|boxed)>", re.IGNORECASE)
CJK = "\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3"
# Characters of Chinese, Japanese or Korean, or their punctuation and wide digits.
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
# The end of 2k\pi \ (k \in \mathbb{Z})
_CONDITION_IN_BRACKETS = re.compile(
    r"""
    [\s,]*
    \(\s*( [a-z](?:\s*,\s*[a-z])*\s*\\in\s*\\mathbb\s*(?:\{\s*[ZNQR]\s*\}|[ZNQR])[^()]* )\)$
    """,
    re.VERBOSE,
)
_DOTS = re.compile(r"\\[lc]?dots(?![A-Za-z])|\.\.\.")
# Spaces, but not one that keeps two numbers, or two words, apart.
_IDLE_SPACE = re.compile(
    r"(?<![0-9A-Za-z])\s+|\s+(?![0-9A-Za-z])|(?<=[0-9])\s+(?=[A-Za-z])|(?<=[A-Za-z])\s+(?=[0-9])"
)
_MINUS_SIGNS = re.compile(r"[\u2212\u2013\ufe63\uff0d]")
_DOUBLED_BACKSLASH = re.compile(r"\\\\(?=[A-Za-z{}%$])")
_NEGATIVE_SPACE = re.compile(r"\\!\s*")
_SIZES = re.compile(r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|limits|textstyle)(?![A-Za-z])")
_FRACTION_STYLE = re.compile(r"\\[dtc]frac")
_ENDS_IN_TWO_DOTS = re.compile(r"\.[0-9]+\.\.$")  # 0.33.., and the end of its sentence


def with_spaces_around_cjk(text: str) -> str:
    """A text with the digits and punctuation of ASCII, and spaces between its numbers and Chinese,
    Japanese or Korean: these write none."""
    if text.isascii() or not _CJK_CHARACTER.search(text):
        return text
    return _NUMBER_NEXT_TO_CJK.sub(" ", text.translate(_ASCII_PUNCTUATION))


def normalize_answer(text: str) -> str:
    r"""An answer in one spelling: without dollars around it, tags, sizes, fonts, spaces of LaTeX
    and a full stop, and with one kind of minus sign and fraction. "\frac{1}{2}" for
    "$\dfrac{1}{2}$.". The order of the steps matters: commands first, then spaces, then what is
    around the answer."""
    if _INTEGER.fullmatch(text):
        return text

    # Characters and commands that mean the same, and tags.
    if "<" in text:
        text = _TAGS.sub("", text)
    text = text.replace("{,}", ",").replace("{:}", ":")
    text = _MINUS_SIGNS.sub("-", text)
    if "\\\\" in text and "\\begin" not in text:  # escaped once too often, as in some data sets
        text = _DOUBLED_BACKSLASH.sub(r"\\", text)
    if "\\" in text:
        text = plain_style(text)

    # Spaces and sizes; "~42", about 42, before ~ becomes a space.
    if "~" in text:
        text = _ABOUT.sub(r"\\approx ", text)
    text = _NEGATIVE_SPACE.sub("", text)  # \!
    text = _SPACES.sub(" ", text)  # \, \quad ~
    text = _SIZES.sub("", text)  # \left, \big
    text = _FRACTION_STYLE.sub(r"\\frac", text).replace("\\%", "%")
    text = text.strip()

    # The full stop, and dollars around the answer.
    text = without_emphasis(_without_full_stop(text))
    for _ in range(MAX_DOLLARS):
        inline_math = INLINE_MATH.fullmatch(text)
        if inline_math is None:
            break
        formula = next(group for group in inline_math.groups() if group is not None)
        text = _without_full_stop(formula.strip())

    # "2k\pi (k \in \mathbb{Z})" becomes "2k\pi, k \in \mathbb{Z}".
    text = _CONDITION_IN_BRACKETS.sub(r", \1", text) if "\\in" in text else text
    return without_ordinal(text.strip())


def _without_full_stop(text: str) -> str:
    """The text without a full stop at its end, which is not the last dot of 0.333..."""
    has_digits_without_end = text.endswith("...") or _ENDS_IN_TWO_DOTS.search(text)
    return text if has_digits_without_end else text.removesuffix(".")


def without_emphasis(text: str) -> str:
    """A text without the asterisks around it, or before it; one that only follows it, as in 3*, may
    be a product cut off."""
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
    """Whether a response can be equal to a reference at all: the reference is no missing value such
    as N/A, and no list of answers in the syntax of a program, such as ["3", "4"]."""
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
