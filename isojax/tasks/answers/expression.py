"""A whole answer in LaTeX, or as people type it, as a tree: numbers, algebra, lists, sets, intervals, equations.

What cannot be read to its last character is `Unreadable`, so that no part of an answer passes for the whole.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction

from isojax.tasks.answers.spelling import MATH_IN_TEXT
from isojax.tasks.answers.tree import (
    EMPTY_SET,
    EULER,
    IMAGINARY,
    INFINITY,
    PI,
    REALS,
    Apply,
    BaseNumeral,
    Colon,
    Group,
    Matrix,
    Node,
    Number,
    Quantity,
    Relation,
    Residue,
    Series,
    SetOperation,
    Symbol,
)
from isojax.tasks.answers.units import Unit, currency, is_unit_name, product, read_unit

MAX_DEPTH = 60  # of brackets in brackets
MAX_LENGTH = 2000  # characters of an answer
MAX_EXPONENT = 10_000  # of ten, in a number as it is written: 1e9999


class Unreadable(Exception):
    """A text that is no answer this module knows."""


_UNICODE = {
    "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "÷": r"\div ", "√": r"\sqrt ", "π": r"\pi ",
    "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ", "≠": r"\ne ", "≈": r"\approx ",
    "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "°": r"^\circ ",
    "±": r"\pm ", "²": "^2", "³": "^3", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
    "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "λ": r"\lambda ", "∖": r"\setminus ", "…": r"\ldots ",
}  # fmt: skip
_FUNCTION_WORDS = "sin cos tan sec csc cot arcsin arccos arctan sinh cosh tanh ln log lg exp asin acos atan"
_FUNCTIONS = frozenset(_FUNCTION_WORDS.split())
_FUNCTION_NAMES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log"}
_GREEK_LETTERS = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau"
    " upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell"
)
_GREEK = frozenset(_GREEK_LETTERS.split())
_RELATIONS = {
    r"\leq": "<=", r"\le": "<=", r"\leqslant": "<=", r"\geq": ">=", r"\ge": ">=", r"\geqslant": ">=", r"\neq": "!=",
    r"\ne": "!=", r"\in": "in", r"\lt": "<", r"\gt": ">", r"\approx": "~", r"\simeq": "~", "<=": "<=", ">=": ">=",
    "!=": "!=", "==": "=", "=": "=", "<": "<", ">": ">",
}  # fmt: skip
_RELATION = re.compile(
    r"\s*(\\(?:leqslant|leq|le|geqslant|geq|ge|neq|ne|in|lt|gt|approx|simeq)(?![A-Za-z])|[<>!=]=|[=<>])"
)
_ABOUT = re.compile(r"\s*\\(?:approx|simeq)(?![A-Za-z])")
_SET_OPERATION = re.compile(r"\s*(\\(?:cup|cap|setminus|backslash)(?![A-Za-z]))")
_SET_OPERATORS = {r"\cup": "|", r"\cap": "&", r"\setminus": "-", r"\backslash": "-"}
_PRODUCT = re.compile(r"\s*(\*\*|\*|/|\\(?:cdot|times|div|ast)(?![A-Za-z]))")
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mbox|operatorname)\s*\{([^{}]*)\}")
_NUMBER_IN_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mbox)\s*\{\s*(-?\\?[$€£]?-?[0-9][^{}]*|\\?[$€£]|-)\s*\}")
_AND = r"(?:and|or)"
_SEPARATOR = re.compile(
    rf"\s*(?:[,;]\s*(?:\\(?:text|mathrm|mbox)\s*\{{\s*{_AND}\s*\}}|{_AND}\b|\\(?:vee|wedge|lor|land)(?![A-Za-z]))?"
    rf"|\\(?:text|mathrm|mbox)\s*\{{\s*,?\s*{_AND}\s*\}}|\b{_AND}\b|\\(?:vee|wedge|lor|land)(?![A-Za-z]))"
)
_THOUSANDS = re.compile(
    r"[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]{1,3}(?: [0-9]{3})+(?![0-9])(?:\.[0-9]+)?"
)
_PLAIN_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+")
_EXPONENT = re.compile(r"[eE]([+-]?[0-9]+)(?![0-9.])")
_REPEATING = re.compile(
    r"([0-9]*)\.([0-9]*)(?:\\(?:overline|bar)\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))|\\dot\s*\{?([0-9])\}?"
    r"(?:([0-9]*)\\dot\s*\{?([0-9])\}?)?|\(([0-9]+)\))"
)
# Of 0.333... the last dot may have ended the sentence.
_ENDLESS = re.compile(
    r"([0-9]{0,20})\.([0-9]{0,20}?)(?:([0-9])\3{2,40}|([0-9]{2,12}?)\4{1,20})(?:\\[lc]?dots(?![A-Za-z])|\.\.\.?)"
)
_MIXED = re.compile(
    r"\s*\\frac\s*(?:\{\s*([0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}|([0-9])\s*([0-9]))|\s+([0-9]+)\s*/\s*([0-9]+)(?![0-9.])"
)
_COLON = re.compile(r"([0-9]+(?:\.[0-9]+)?)((?:\s*(?::|\\colon(?![A-Za-z]))\s*[0-9]+(?:\.[0-9]+)?)+)(?![0-9.])")
_BASE_NUMERAL = re.compile(
    r"(?:\\text\{)?([0-9A-F]*[0-9A-F])\}?_\s*(?:\{\s*(?:\\text\s*\{\s*)?([0-9]+)\s*\}?\s*\}|([0-9]+))"
)
_MODULUS = re.compile(
    r"\s*(?:\\pmod\s*(\{)|\\pmod\s*([0-9a-z])|\(?\s*(?:\\[bp]?mod|\\(?:text|mathrm|operatorname)\{\s*mod\s*\}|mod\b)\s*)"
)
_CURRENCY = re.compile(r"\s*(-?)\s*\\?([$€£¥₹])\s*(?=[-0-9.\\])")
_SCALE = re.compile(
    r"[\s~-]*(?:\\(?:text|mathrm|mbox)\s*\{[\s-]*)?\b(hundred|thousand|million|billion|trillion|dozen)s?\b\s*(\}?)",
    re.IGNORECASE,
)
_SCALES = {
    "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12,
}  # fmt: skip
_PER_CENT = re.compile(r"\s*(?:%|\\(?:text|mathrm|mbox)\s*\{\s*(?:%|per ?cent)\s*\}|per ?cent\b)", re.IGNORECASE)
_UNIT_END = re.compile(r"[,;=<>(){}\[\]|]|\\(?!text|mathrm|mbox|cdot)|(?<![A-Za-z])(?:and|or)(?![A-Za-z])")
_NAME_BEFORE_EQUALS = re.compile(
    r"\s*(\\(?:text|mathrm|mbox|textbf)\s*\{[^{}]*\}(?:_\{?\w+\}?)?|[A-Za-z][A-Za-z ]*[A-Za-z]{3}[A-Za-z ]*"
    r"|[A-Za-z](?:_\{?\w+\}?)?\s*:\s*[A-Za-z](?:_\{?\w+\}?)?)\s*=(?!=)"
)
_FUNCTION_BEFORE_EQUALS = re.compile(
    r"\s*([A-Za-z](?:_\{?\w+\}?)?(?:\^\{-1\})?)\s*\(\s*[a-z](?:\s*,\s*[a-z])*\s*\)\s*=(?!=)"
)
# Letters in a row that are no product of variables.
_SHORT_WORDS = "am and are as at be but by do for he if is it me my no not of on or so than the to up us we"
_WORDS = frozenset(_SHORT_WORDS.split())


def read_answer(text: str, *, with_exponents: bool = True) -> Node:
    """The tree of a normalized answer, all of it; Unreadable where some of it has no meaning here.

    `with_exponents`: 3e-1 is .3 rather than 3 e - 1.
    """
    if len(text) > MAX_LENGTH:
        raise Unreadable("too long")
    text = MATH_IN_TEXT.sub(_math_content, text) if "$" in text else text
    text = _NUMBER_IN_TEXT.sub(r" \1 ", text)
    for character, command in _UNICODE.items():
        text = text.replace(character, command)
    text = re.sub(r"(?<=[0-9]),\\!\s*(?=[0-9]{3})", ",", text).strip()
    if numeral := _BASE_NUMERAL.fullmatch(text):
        return _base_numeral(numeral)
    return _Reader(text, with_exponents).read_all()


def is_decimal(node: Node) -> bool:
    """Whether a number, with its sign and unit, is written with a decimal point."""
    if isinstance(node, Quantity):
        return is_decimal(node.value)
    if isinstance(node, Apply):
        return is_decimal(node.arguments[0])
    return isinstance(node, Number) and node.decimals is not None


def _math_content(match: re.Match[str]) -> str:
    return f" {next(group for group in match.groups() if group is not None).strip()} "


def _base_numeral(match: re.Match[str]) -> Number | BaseNumeral:
    digits, base = match[1], int(match[2] or match[3])
    if not 2 <= base <= 36:
        raise Unreadable("no base")
    if base == 10 and digits.isdigit():
        return Number(Fraction(int(digits)))
    return BaseNumeral(digits.lstrip("0") or "0", base)


class _Reader:
    """Reads a text from left to right; each method leaves `position` behind what it has read."""

    def __init__(self, text: str, with_exponents: bool) -> None:
        self.text, self.position, self.depth = text, 0, 0
        self.with_exponents = with_exponents
        self.in_brackets = False  # where 1,234 are two numbers
        self.bars = 0  # open |

    # --- places in the text

    def at_end(self) -> bool:
        self.skip_space()
        return self.position == len(self.text)

    def skip_space(self) -> None:
        while self.position < len(self.text) and self.text[self.position].isspace():
            self.position += 1

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        if match := pattern.match(self.text, self.position):
            self.position = match.end()
        return match

    def next_is(self, *texts: str) -> bool:
        self.skip_space()
        return self.text.startswith(texts, self.position)

    def take_text(self, expected: str) -> bool:
        if self.next_is(expected):
            self.position += len(expected)
            return True
        return False

    def expect(self, expected: str) -> None:
        if not self.take_text(expected):
            raise Unreadable(f"{expected} missing")

    def command(self) -> str:
        """The LaTeX command here, "" where there is none; it is not taken."""
        self.skip_space()
        match = re.compile(r"\\(?:[A-Za-z]+|[^A-Za-z])").match(self.text, self.position)
        return match[0] if match else ""

    @contextmanager
    def inside(self, *, brackets: bool) -> Iterator[None]:
        """What is between brackets; where `brackets`, a comma parts items."""
        saved = self.in_brackets, self.bars
        self.in_brackets, self.bars = self.in_brackets or brackets, 0
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable("too deep")
        yield
        self.depth -= 1
        self.in_brackets, self.bars = saved

    # --- lists, relations, sets

    def read_all(self) -> Node:
        items = self.items()
        if not self.at_end():
            raise Unreadable(self.text[self.position :])
        return items[0] if len(items) == 1 else Group("", tuple(items))

    def items(self) -> list[Node]:
        items = [self.relation()]
        while self.take(_SEPARATOR):
            items.append(self.relation())
        return items

    def relation(self) -> Node:
        is_about = self.take(_ABOUT) is not None
        operators: list[str] = []
        sides: list[Node] = [self.name_of_a_value() or self.set_expression()]
        while match := self.take(_RELATION):
            operators.append(_RELATIONS[match[1]])
            sides.append(self.set_expression())
        if is_about and not (len(sides) == 1 and is_decimal(sides[0])):
            raise Unreadable("about")  # of 7, a guess; 33.3 may be rounded because that was asked for
        return Relation(tuple(operators), tuple(sides)) if operators else sides[0]

    def name_of_a_value(self) -> Symbol | None:
        """The left side of `\\text{Area} = 42` or `f(x) = 2x`."""
        match = _NAME_BEFORE_EQUALS.match(self.text, self.position)
        match = match or _FUNCTION_BEFORE_EQUALS.match(self.text, self.position)
        if not match:
            return None
        words = match[1].split()
        if set(words) & _WORDS or words[0] in _FUNCTIONS:
            raise Unreadable(match[1])
        self.position = match.end() - 1
        return Symbol(match[1])

    def set_expression(self) -> Node:
        node = self.quantity()
        while match := self.take(_SET_OPERATION):
            node = SetOperation(_SET_OPERATORS[match[1]], node, self.quantity())
        return node

    # --- a number and its unit

    def quantity(self) -> Node:
        if colon := self.take(_COLON):
            return self.with_unit(_colon(colon), None)
        money = self.take(_CURRENCY)
        node = self.sum()
        if money and money[1]:
            node = Apply("negate", (node,))
        modulus = self.modulus()
        if modulus is not None:
            return Residue(node, modulus)
        while scale := self.take_scale():
            node = Apply("*", (node, Number(Fraction(scale))))
        if self.take(_PER_CENT):
            node = Apply("percent", (node,))
        return self.with_unit(node, currency(money[2]) if money else None)

    def take_scale(self) -> int | None:
        match = _SCALE.match(self.text, self.position)
        if match is None:
            return None
        is_in_text = "{" in match[0]
        self.position = match.end()
        if is_in_text and not match[2]:  # \text{ million dollars}: its rest is a unit
            self.text = self.text[: self.position] + r"\text{" + self.text[self.position :]
        return _SCALES[match[1].lower()]

    def with_unit(self, node: Node, money: Unit | None) -> Node:
        if isinstance(node, Apply) and node.function == "degree":
            node, money = node.arguments[0], _DEGREE
        unit = self.unit()
        if unit is not None and money is not None:
            own, named = dict(money.dimensions), dict(unit.dimensions)
            is_named_again = bool(own.keys() & named.keys()) or (
                money is _DEGREE and bool({"celsius", "fahrenheit"} & named.keys())
            )
            unit = unit if is_named_again else product(money, unit)
        unit = unit or money
        return node if unit is None else Quantity(node, unit)

    def unit(self) -> Unit | None:
        """The unit that stands here, up to what ends the item."""
        start = self.position
        end_match = None
        for end_match in _UNIT_END.finditer(self.text, start):
            if end_match[0] not in "{}" or not self._in_text_command(start, end_match.start()):
                break
        else:
            end_match = None
        end = end_match.start() if end_match else len(self.text)
        source = self.text[start:end]
        if not source.strip():
            return None
        plain = _TEXT.sub(lambda match: f" {match[1]} ", source)
        plain = re.sub(r"\^\s*\{\s*(-?[0-9])\s*\}", r"^\1", plain)
        if "\\" in plain.replace(r"\cdot", "") or "{" in plain or re.search(r"[0-9]", re.sub(r"\^-?[1-4]", "", plain)):
            return None
        unit = read_unit(" ".join(plain.split()))
        if unit is not None:
            self.position = end
        return unit

    def _in_text_command(self, start: int, brace: int) -> bool:
        """Whether a brace belongs to \\text{...} or ^{2} behind `start`."""
        opening = self.text.rfind("{", start, brace + 1)
        if opening < 0:
            return False
        before = self.text[start:opening]
        return re.search(r"(?:\\(?:text[a-z]*|mathrm|mathbf|mbox)\s*|\^\s*)$", before) is not None

    def modulus(self) -> Node | None:
        start = self.position
        match = self.take(_MODULUS)
        if match is None:
            return None
        if match[1]:
            with self.inside(brackets=False):
                node = self.sum()
            self.expect("}")
            return node
        if match[2]:
            self.position -= 1
            return self.power()
        node = self.sum()
        if "(" in self.text[start : match.end()]:
            self.expect(")")
        return node

    # --- arithmetic

    def sum(self) -> Node:
        terms = [self.term()]
        while True:
            self.skip_space()
            if self.text.startswith(("+", "-"), self.position):
                sign = self.text[self.position]
                self.position += 1
                term = self.term()
                terms.append(term if sign == "+" else Apply("negate", (term,)))
            elif self.command() in (r"\pm", r"\mp"):
                function = self.command()[1:]
                self.position += 3
                terms.append(Apply(function, (self.term(),)))
            else:
                return terms[0] if len(terms) == 1 else Apply("+", tuple(terms))

    def term(self) -> Node:
        self.skip_space()
        if self.take_text("+"):
            return self.term()
        if self.take_text("-"):
            return Apply("negate", (self.term(),))
        if self.command() in (r"\pm", r"\mp"):
            function = self.command()[1:]
            self.position += 3
            return Apply(function, (self.term(),))
        node = self.power()
        while True:
            if match := self.take(_PRODUCT):
                if match[1] == "**":
                    raise Unreadable("**")
                sign = self.take_text("-")
                factor = self.power()
                factor = Apply("negate", (factor,)) if sign else factor
                node = Apply("/" if match[1] in ("/", r"\div") else "*", (node, factor))
            elif self.starts_a_factor(node):
                node = Apply("*", (node, self.power()))
            else:
                return node

    def starts_a_factor(self, previous: Node) -> bool:
        """Whether a factor follows without a sign: 2x, 3\\pi, (x+1)(x-1)."""
        before = self.position
        self.skip_space()
        rest = self.text[self.position :]
        is_apart = self.position > before
        if not rest or re.match(r"\(?\s*(?:mod\b|\\[bp]?mod(?![A-Za-z])|\\text\{\s*mod)", rest):
            return False
        if rest[0] in "([":
            return not isinstance(previous, Group) and rest[0] == "("
        if rest[0].isdigit() or rest[0] == ".":
            return False
        if run := re.match(r"[A-Za-z]+", rest):
            if isinstance(previous, Apply) and previous.function == "degree" and run[0] in ("C", "F"):
                return False
            return self.is_algebra(run[0]) and not (is_apart and isinstance(previous, Number) and self.is_unit_next())
        if rest[0] == "|":
            return self.bars == 0
        if rest[0] != "\\":
            return rest[0] == "{"
        command = self.command()
        if text := _TEXT.match(rest):
            return _plain_name(text[1]) is not None and not is_unit_name(text[1].strip())
        is_factor = command in (r"\frac", r"\sqrt", r"\binom", r"\dbinom", r"\pi", r"\lfloor", r"\lceil", r"\lvert")
        is_factor = is_factor or command in (r"\sum", r"\prod", r"\begin", r"\infty")
        return is_factor or command[1:] in _GREEK or command[1:] in _FUNCTIONS

    def is_unit_next(self) -> bool:
        """Whether the rest of the item is a unit: 25 m, 3 m/s, 12 sq. ft."""
        start = self.position
        unit = self.unit()
        self.position = start
        return unit is not None

    def is_algebra(self, letters: str) -> bool:
        """Whether letters in a row are a function or a product of variables, rather than a word or a unit."""
        if letters in _FUNCTIONS or letters in ("pi", "sqrt"):
            return True
        is_scale = _SCALE.match(letters) is not None
        return (
            len(letters) <= 2
            and not is_unit_name(letters) * (len(letters) > 1)
            and not is_scale
            and letters not in _WORDS
        )

    def power(self) -> Node:
        node = self.primary()
        while True:
            if degree := self.take(re.compile(r"\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])")):
                assert degree
                node = Apply("degree", (node,))
            elif self.take(re.compile(r"\s*(?:\^|\*\*)")):
                node = Apply("^", (node, self.exponent()))
            elif self.take(re.compile(r"\s*!(?![=!])")):
                node = Apply("!", (node,))
            elif self.take(re.compile(r"\s*%")):
                node = Apply("percent", (node,))
            else:
                return node

    def exponent(self) -> Node:
        self.skip_space()
        if self.next_is("{"):
            return self.braces()
        if self.take_text("-"):
            return Apply("negate", (self.primary(),))
        return self.primary()

    def braces(self) -> Node:
        self.expect("{")
        with self.inside(brackets=False):
            node = self.sum()
        self.expect("}")
        return node

    def braced_items(self) -> Node:
        """A group, or a list: {1, 2} without its backslashes."""
        self.expect("{")
        with self.inside(brackets=self.depth == 0):
            items = self.items()
        self.expect("}")
        if len(items) > 1 and self.depth == 0:
            return Group("", tuple(items))
        if len(items) > 1 or isinstance(items[0], Relation):
            raise Unreadable("list")
        return items[0]

    def argument(self) -> Node:
        """What \\frac takes: a group, a digit, a letter or a command."""
        self.skip_space()
        if self.next_is("{"):
            return self.braces()
        if digit := self.take(re.compile(r"[0-9]")):
            return Number(Fraction(int(digit[0])))
        if letter := self.take(re.compile(r"[A-Za-z]")):
            return _letter(letter[0])
        if self.command()[1:] in _GREEK | {"pi", "sqrt"}:
            return self.primary()
        raise Unreadable("argument")

    def primary(self) -> Node:
        self.skip_space()
        if self.position == len(self.text):
            raise Unreadable("end")
        character = self.text[self.position]
        if character.isdigit() or character == ".":
            return self.number()
        if character in "([":
            return self.bracketed(character)
        if character == "{":
            return self.braced_items()
        if character == "|":
            return self.bar()
        if character == "\\":
            return self.command_node()
        if character.isascii() and character.isalpha():
            return self.letters()
        raise Unreadable(character)

    def number(self) -> Number | BaseNumeral:
        if (numeral := _BASE_NUMERAL.match(self.text, self.position)) and numeral[1].isdigit():
            self.position = numeral.end()
            return _base_numeral(numeral)
        if match := self.take(_REPEATING):
            whole, fixed = match[1], match[2]
            first, middle, last = match[5] or "", match[6] or "", match[7] or ""
            return _repeating(whole, fixed, match[3] or match[4] or match[8] or first + middle + last)
        if match := self.take(_ENDLESS):
            return _repeating(match[1], match[2], match[3] or match[4])
        match = None if self.in_brackets else self.take(_THOUSANDS)
        match = match or self.take(_PLAIN_NUMBER)
        if match is None:
            raise Unreadable(self.text[self.position :])
        literal = re.sub("[, ]", "", match[0])
        if literal.count(".") and self.text.startswith((".", r"\ldots", r"\dots"), self.position):
            raise Unreadable("dots")
        decimals = len(literal.partition(".")[2]) if "." in literal else None
        value = Fraction(literal.rstrip(".") if literal != "." else "x")
        exponent = _EXPONENT.match(self.text, self.position)
        if exponent and (self.with_exponents or exponent[1][0] != "-"):
            self.position = exponent.end()
            if abs(int(exponent[1])) > MAX_EXPONENT:
                raise Unreadable("exponent")
            return Number(value * Fraction(10) ** int(exponent[1]))
        if decimals is None and (mixed := _MIXED.match(self.text, self.position)):
            numerator, denominator = int(mixed[1] or mixed[3] or mixed[5]), int(mixed[2] or mixed[4] or mixed[6])
            if denominator == 0:
                raise Unreadable("/0")
            self.position = mixed.end()
            return Number(value + Fraction(numerator, denominator))
        return Number(value, decimals)

    def bracketed(self, opening: str) -> Node:
        """( or [: an expression, a tuple or an interval."""
        self.position += 1
        if self.depth == 0 and self.text.startswith(")", self.position):
            raise Unreadable("()")
        with self.inside(brackets=True):
            items = self.items()
            self.skip_space()
            closing = self.text[self.position : self.position + 1]
        if closing not in (")", "]") or not closing:
            raise Unreadable("bracket")
        self.position += 1
        if len(items) > 1:
            return Group(opening + closing, tuple(items))
        if opening + closing not in ("()", "[]") or isinstance(items[0], Relation):
            raise Unreadable("bracket")
        return items[0]

    def bar(self) -> Node:
        self.position += 1
        self.bars += 1
        node = self.sum()
        self.expect("|")
        self.bars -= 1
        return Apply("abs", (node,))

    def letters(self) -> Node:
        match = re.compile(r"[A-Za-z]+").match(self.text, self.position)
        assert match is not None
        run = match[0]
        if run in _FUNCTIONS:
            self.position = match.end()
            return self.function(run)
        if run in ("pi", "infinity", "inf", "sqrt"):
            self.position = match.end()
            return self.root() if run == "sqrt" else PI if run == "pi" else INFINITY
        if len(run) > 2 or run in _WORDS:
            raise Unreadable(run)
        self.position += 1
        return self.with_subscript(_letter(run[0]))

    def with_subscript(self, node: Node) -> Node:
        subscript = self.take(re.compile(r"_\s*(?:\{\s*(?:\\(?:text|mathrm)\s*\{)?([\w ,+-]+)\}?\s*\}|([0-9A-Za-z]))"))
        if not subscript:
            return node
        if not isinstance(node, Symbol):
            raise Unreadable(subscript[0])
        return Symbol(f"{node.name}_{(subscript[1] or subscript[2]).strip()}")

    # --- LaTeX commands

    def command_node(self) -> Node:
        if text := self.take(_TEXT):
            name = _plain_name(text[1])
            if name is None:
                raise Unreadable(text[0])
            return self.function(name) if name in _FUNCTIONS else self.with_subscript(_letter(name))
        command = self.command()
        self.position += len(command)
        name = command[1:]
        if name in _GREEK:
            return self.with_subscript(Symbol(name))
        if name in _FUNCTIONS:
            return self.function(name)
        if name not in _COMMANDS:
            raise Unreadable(command)
        return _COMMANDS[name](self)

    def function(self, name: str) -> Node:
        """A function's argument, behind a power of the function, which may be -1: \\sin^2 x."""
        name = _FUNCTION_NAMES.get(name, name)
        base: Node | None = None
        power: Node | None = None
        if name == "log" and self.take(re.compile(r"\s*_")):
            base = self.braces() if self.next_is("{") else self.argument_number()
        if self.take(re.compile(r"\s*\^")):
            power = self.exponent()
        has_brackets = self.next_is("(", "{")
        argument = self.power_without_exponent() if has_brackets else self.function_product()
        if power == Apply("negate", (Number(Fraction(1)),)):
            name, power = f"arc{name}", None
            if name not in ("arcsin", "arccos", "arctan"):
                raise Unreadable(name)
        arguments = (argument,) if base is None else (argument, base)
        node = Apply(name, arguments)
        return node if power is None else Apply("^", (node, power))

    def argument_number(self) -> Node:
        """The base of \\log_2, or of \\log_{10} without its braces."""
        if digits := self.take(re.compile(r"[0-9]")):
            return Number(Fraction(int(digits[0])))
        return self.argument()

    def power_without_exponent(self) -> Node:
        node = self.primary()
        if isinstance(node, Group):
            raise Unreadable("arguments")
        return node

    def function_product(self) -> Node:
        """The argument of \\sin 2x \\cos x is 2x."""
        node = self.power()
        while not self.next_is("\\s", "\\c", "\\t", "\\l", "\\a", "\\e", "(") and self.starts_a_factor(node):
            run = re.compile(r"[A-Za-z]+").match(self.text, self.position)
            if run and run[0] in _FUNCTIONS:
                break
            node = Apply("*", (node, self.power()))
        if self.next_is("/"):
            self.position += 1
            node = Apply("/", (node, self.power()))
        return node

    def root(self) -> Node:
        index: Node = Number(Fraction(2))
        if self.take_text("["):
            with self.inside(brackets=False):
                index = self.sum()
            self.expect("]")
        self.skip_space()
        radicand = self.braces() if self.next_is("{") else self.primary()
        if isinstance(radicand, Group):
            raise Unreadable("root")
        return Apply("root", (radicand, index))

    def fraction(self) -> Node:
        numerator = self.argument()
        return Apply("/", (numerator, self.argument()))

    def binomial(self) -> Node:
        top = self.argument()
        return Apply("binom", (top, self.argument()))

    def between(self, function: str, closing: str) -> Node:
        with self.inside(brackets=False):
            node = self.sum()
        self.expect(closing)
        return Apply(function, (node,))

    def set_of(self, closing: str) -> Node:
        if self.take_text(closing):
            return EMPTY_SET
        with self.inside(brackets=True):
            items = self.items()
        self.expect(closing)
        return Group("{}", tuple(items))

    def number_set(self) -> Node:
        match = self.take(re.compile(r"\s*\{\s*([A-Z])\s*\}|\s*([A-Z])"))
        if match is None:
            raise Unreadable("number set")
        letter = match[1] or match[2]
        return REALS if letter == "R" else Symbol(rf"\mathbb{{{letter}}}")

    def series(self, is_sum: bool) -> Node:
        start = self.take(re.compile(r"\s*_\s*\{\s*([A-Za-z])\s*="))
        if start is None:
            raise Unreadable("series")
        with self.inside(brackets=False):
            low = self.sum()
        self.expect("}")
        self.expect("^")
        high = self.exponent()
        if INFINITY in (low, high) or Apply("negate", (INFINITY,)) in (low, high):
            raise Unreadable("endless")
        return Series(is_sum=is_sum, index=start[1], low=low, high=high, term=self.term())

    def matrix(self) -> Node:
        environment = self.take(re.compile(r"\s*\{([pbB]?(?:small)?matrix|array)\}(?:\{[lcr| ]+\})?"))
        if environment is None:
            raise Unreadable("environment")
        rows: list[tuple[Node, ...]] = []
        with self.inside(brackets=True):
            while not self.next_is(r"\end"):
                row = [self.relation()]
                while self.take_text("&"):
                    row.append(self.relation())
                rows.append(tuple(row))
                if not self.take_text("\\\\"):
                    break
        self.expect(f"\\end{{{environment[1]}}}")
        if len({len(row) for row in rows}) != 1:
            raise Unreadable("rows")
        return Matrix(tuple(rows))


_COMMANDS: dict[str, Callable[[_Reader], Node]] = {
    "pi": lambda reader: PI,
    "infty": lambda reader: INFINITY,
    "imath": lambda reader: IMAGINARY,
    "emptyset": lambda reader: EMPTY_SET,
    "varnothing": lambda reader: EMPTY_SET,
    "R": lambda reader: REALS,
    "frac": _Reader.fraction,
    "sqrt": _Reader.root,
    "binom": _Reader.binomial,
    "dbinom": _Reader.binomial,
    "tbinom": _Reader.binomial,
    "mathbb": _Reader.number_set,
    "begin": _Reader.matrix,
    "lvert": lambda reader: reader.between("abs", r"\rvert"),
    "lfloor": lambda reader: reader.between("floor", r"\rfloor"),
    "lceil": lambda reader: reader.between("ceil", r"\rceil"),
    "{": lambda reader: reader.set_of(r"\}"),
    "lbrace": lambda reader: reader.set_of(r"\rbrace"),
    "sum": lambda reader: reader.series(is_sum=True),
    "prod": lambda reader: reader.series(is_sum=False),
    "boxed": _Reader.braces,
    "fbox": _Reader.braces,
    "underline": _Reader.braces,
    "boldsymbol": _Reader.braces,
}
_DEGREE = Unit((("degree", 1),))


def _plain_name(text: str) -> str | None:
    """A variable, a constant or a function between the braces of \\mathrm{...}."""
    name = text.strip()
    return name if re.fullmatch("[A-Za-z]", name) or name in _FUNCTIONS else None


def _letter(letter: str) -> Symbol:
    return {"e": EULER, "i": IMAGINARY}.get(letter) or Symbol(letter)


def _repeating(whole: str, fixed: str, period: str) -> Number:
    if len(whole) + len(fixed) + len(period) > 1000:
        raise Unreadable("digits")
    start = Fraction(int(whole + fixed or "0"), 10 ** len(fixed))
    return Number(start + Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(fixed)))


def _colon(match: re.Match[str]) -> Colon:
    texts = re.findall(r"[0-9.]+", match[0])
    return Colon(tuple(texts), tuple(Fraction(text) for text in texts))
