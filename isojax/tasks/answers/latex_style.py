r"""Removes LaTeX that changes only how an answer looks, such as fonts, sizes, colours and spaces,
and replaces old spellings of commands, such as {a \over b}."""

import re

MAX_NESTED = 4  # fonts in fonts
MAX_ORDINAL_LENGTH = 50  # characters

_SWITCHES = (
    r"bf|it|rm|tt|sf|sc|sl|em|cal|[a-z]+(?:series|shape|family)|normalfont|tiny"
    r"|(?:script|footnote|normal)size|small"
    r"|[lL]arge|LARGE|[hH]uge|boldmath|scriptstyle|scriptscriptstyle|nolimits|strut|hfill"
)
# A text without any of these has nothing to be taken out.
_STYLED = re.compile(
    rf"""
    \\
    (?:
          {_SWITCHES}|(?:text)?color|f?colorbox|[hv]space|[hv]?phantom|mspace|text[a-z]{{2}}
        | textnormal|textsuperscript|emph|underline
        | math(?:sf|tt|normal|scr|rm|bf|it)|bm|pmb|hbox|text|choose|over|boldsymbol|mbox
    )(?![a-zA-Z])
    """,
    re.VERBOSE,
)
_SWITCH = re.compile(rf"\\(?:{_SWITCHES})(?![A-Za-z])\s*")
# {\bf Evelyn}, \bf{Evelyn}
_SWITCHED_WORDS = re.compile(
    r"""
      \{\s*\\(?:bf|it|rm|tt|sf|sc|sl|em)(?:\s+|\\[ ,;])([A-Za-z][A-Za-z. ]+)\}
    | \\(?:bf|it|rm|tt|sf|sc)\s*\{\s*([A-Za-z][A-Za-z. ]+)\}
    """,
    re.VERBOSE,
)
_COLOUR = re.compile(
    r"\\(?:color|textcolor|colorbox|fcolorbox\s*\{[^{}]*\})\s*(?:\[[^\]]*\])?\s*\{[^{}]*\}\s*"
)
_SPACE = re.compile(r"\\(?:[hv]space\*?|[hv]?phantom|mspace)\s*\{[^{}]*\}")
_TEXT_FONT = re.compile(r"\\(?:text(?:sf|tt|sc|sl|up|md)|emph)(?=\s*\{)")
_MATH_FONT = re.compile(r"\\(?:math(?:sf|tt|normal|scr)|bm|pmb)(?=\s*\{)")
_OF_ONE_LETTER = re.compile(
    r"\\(?:math(?:rm|bf|it|sf|tt)|text|bm|boldsymbol)\s+([A-Za-z0-9])(?![A-Za-z])"
)
_FONT = r"\\(?:text[a-z]*|math(?:rm|bf|it)|mbox)\s*\{"
_TEXT_IN_TEXT = re.compile(rf"{_FONT}\s*({_FONT}[^{{}}]*\}})\s*\}}")
# {n \choose k}, 1 \over 2
_INFIX = re.compile(
    r"\{([^{}]*)\\(choose|over)(?![A-Za-z])([^{}]*)\}|^([^{}]*)\\(choose|over)(?![A-Za-z])([^{}]*)$"
)
# 5th, 5^{\text{th}}
_ORDINAL = re.compile(
    r"""
    ([0-9]+)\s*\^?\s*\{?\s*(?:\\(?:text|mathrm|textrm|mbox|textsuperscript)\s*\{\s*)?
    (?:st|nd|rd|th)\s*\}?\s*\}?
    """,
    re.VERBOSE,
)
# The \mathbf of \mathbf{42}, not of the 2 in 4\mathbf{2}
_FONT_OF_A_NUMBER = re.compile(
    r"""
    (?<![0-9.,}])(?<![0-9.,}]\s)\\
    (?:math(?:rm|bf|it|sf|tt|normal)|text(?:bf|it|rm|normal)|bm|pmb|boldsymbol|underline)\s*
    (\{\s*-?(?:[0-9]+(?:[.,][0-9]+)*|\\[dt]?frac\s*(?:\{[^{}]*\}\s*){2})\s*\})
    """,
    re.VERBOSE,
)
_GROUP = re.compile(r"\{([^{}]*[^{}\\])\}")


def plain_style(text: str) -> str:
    r"""An answer without fonts, sizes, colours and spaces, and with new spellings of old commands:
    "\frac{1}{2}" for "{\bf {1 \over 2}}". The order of the steps matters: switches such as \bf are
    removed before the group that they stand in is looked at."""
    if not _STYLED.search(text):
        return text

    text = _SPACE.sub(" ", text)  # \hspace{1cm}
    text = _SWITCHED_WORDS.sub(lambda match: f"\\text{{{match[1] or match[2]}}}", text)
    text = _SWITCH.sub("", text)  # \bf, \large
    text = _COLOUR.sub("", text)  # \color{red}

    # One name for fonts that mean the same to the reader of expressions.
    text = text.replace("\\hbox", "\\mbox")
    text = _MATH_FONT.sub(r"\\boldsymbol", _TEXT_FONT.sub(r"\\text", text))
    text = _OF_ONE_LETTER.sub(r"\\mathrm{\1}", text)  # \mathbf x
    for _ in range(MAX_NESTED):
        inner = _TEXT_IN_TEXT.sub(r"\1", text)  # \text{\mathbf{x}} becomes \mathbf{x}
        if inner == text:
            break
        text = inner

    text = _FONT_OF_A_NUMBER.sub(r"\1", text)
    text = _INFIX.sub(_prefix, text)  # {1 \over 2}
    # Braces around the whole answer.
    group = _GROUP.fullmatch(text.strip())
    return group[1] if group else text


def without_ordinal(text: str) -> str:
    r"""5 of 5th and 5^{\text{th}}; other texts as they are."""
    match = _ORDINAL.fullmatch(text) if len(text) < MAX_ORDINAL_LENGTH else None
    return match[1] if match else text


def _prefix(match: re.Match[str]) -> str:
    r"""\binom{a}{b} of {a \choose b}, \frac{a}{b} of {a \over b}."""
    # Two alternatives of three groups, of which one is filled.
    first, command, last = (group for group in match.groups() if group is not None)
    name = "binom" if command == "choose" else "frac"
    return f"\\{name}{{{first.strip()}}}{{{last.strip()}}}"
