"""The words and commands of LaTeX that stand in answers, and what single letters are."""

import re

from isojax.tasks.answers.tree import EULER, IMAGINARY, Symbol

# Characters, and the commands that say the same.
UNICODE = {
    "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "÷": r"\div ",
    "√": r"\sqrt ", "π": r"\pi ", "∞": r"\infty ",
    "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ",
    "≠": r"\ne ", "≈": r"\approx ", "≡": r"\equiv ",
    "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∖": r"\setminus ",
    "∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "°": r"^\circ ", "±": r"\pm ",
    "²": "^2", "³": "^3", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
    "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "λ": r"\lambda ", "…": r"\ldots ",
}  # fmt: skip
_FUNCTION_WORDS = (
    "sin cos tan sec csc cot arcsin arccos arctan sinh cosh tanh ln log lg exp asin acos atan"
)
FUNCTIONS = frozenset(_FUNCTION_WORDS.split())
FUNCTION_NAMES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log"}
_GREEK_LETTERS = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi"
    " rho sigma tau upsilon phi varphi chi psi omega"
    " Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell"
)
GREEK = frozenset(_GREEK_LETTERS.split())
# Letters in a row that are no product of variables: "to" is not t times o.
_SHORT_WORDS = (
    "am and are as at be but by do for he if is it me my no not of on or so than the to up us we"
)
WORDS = frozenset(_SHORT_WORDS.split())
# Words in a formula: \text{apples}, \mathrm{cm}
TEXT = re.compile(
    r"""
    \\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mbox|operatorname)
    \s*\{([^{}]*)\}
    """,
    re.VERBOSE,
)


def plain_name(text: str) -> str | None:
    r"""The variable, constant or function that stands between the braces of \mathrm{...}; None of
    other text."""
    name = text.strip()
    return name if re.fullmatch("[A-Za-z]", name) or name in FUNCTIONS else None


def letter_symbol(letter: str) -> Symbol:
    """A variable, or one of the constants e and i."""
    if letter == "e":
        return EULER
    if letter == "i":
        return IMAGINARY
    return Symbol(letter)
