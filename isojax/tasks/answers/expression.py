"""A whole answer in LaTeX, or as people type it, as a tree: numbers, algebra, lists, sets,
intervals, equations.

What cannot be read to its last character is `Unreadable`, so that no part of an answer passes for
the whole.
"""

import re
from fractions import Fraction

from isojax.tasks.answers.commands import COMMANDS, take_function, take_root
from isojax.tasks.answers.compound import compound_quantity
from isojax.tasks.answers.cursor import Cursor, Unreadable
from isojax.tasks.answers.measures import (
    is_scale,
    is_unit_next,
    take_money,
    take_per_cent,
    take_scale,
    take_unit,
)
from isojax.tasks.answers.number_words import number_in_words
from isojax.tasks.answers.numerals import take_colon, take_number, whole_base_numeral
from isojax.tasks.answers.sentence import supposes
from isojax.tasks.answers.spelling import MATH_IN_TEXT
from isojax.tasks.answers.suppositions import GUESSED
from isojax.tasks.answers.tree import (
    INFINITY,
    PI,
    Apply,
    Group,
    Node,
    Number,
    Quantity,
    Relation,
    Residue,
    SetOperation,
    Symbol,
)
from isojax.tasks.answers.units import Unit, is_unit_name, product
from isojax.tasks.answers.vocabulary import (
    FUNCTIONS,
    GREEK,
    TEXT,
    UNICODE,
    WORDS,
    letter_symbol,
    plain_name,
)

MAX_LENGTH = 2000  # characters of an answer
_RELATIONS = {
    r"\leq": "<=", r"\le": "<=", r"\leqslant": "<=", r"\geq": ">=", r"\ge": ">=", r"\geqslant": ">=", r"\neq": "!=",
    r"\ne": "!=", r"\in": "in", r"\lt": "<", r"\gt": ">", r"\approx": "~", r"\simeq": "~", "<=": "<=", ">=": ">=",
    r"\equiv": "=", "!=": "!=", "==": "=", "=": "=", "<": "<", ">": ">",
}  # fmt: skip
_RELATION = re.compile(
    r"""
    \s*
    (
          \\(?:leqslant|leq|le|geqslant|geq|ge|neq|ne|in|lt|gt|approx|simeq|equiv)(?![A-Za-z])
        | [<>!=]=|[=<>]
    )
    """,
    re.VERBOSE,
)
_ABOUT = re.compile(r"\s*\\(?:approx|simeq)(?![A-Za-z])")
_SET_OPERATION = re.compile(r"\s*(\\(?:cup|cap|setminus|backslash)(?![A-Za-z]))")
_SET_OPERATORS = {r"\cup": "|", r"\cap": "&", r"\setminus": "-", r"\backslash": "-"}
_CONDITIONS = frozenset(["se", "si"])  # if, in some languages: "Se x = 5"
_PRODUCT = re.compile(r"\s*(\*\*|\*|/|\\(?:cdot|times|div|ast)(?![A-Za-z]))")
_NUMBER_IN_TEXT = re.compile(
    r"\\(?:text|textbf|mathrm|mbox)\s*\{\s*(-?\\?[$€£]?-?[0-9][^{}]*|\\?[$€£]|-)\s*\}"
)
_AND_IN_CJK = "(?:或者?|以?及|[和与與]|または|もしくは|또는|와|과)"
_AND = rf"(?:and\b|or\b|{_AND_IN_CJK})"
_AND_IN_TEXT = rf"(?:and|or|{_AND_IN_CJK}|oder|und|ou|et|o|y|u|e|или|и)"
_SEPARATOR = re.compile(
    rf"""
    \s*
    (?:
          [,;]\s*
          (?:
                \\(?:text|mathrm|mbox)\s*\{{\s*{_AND_IN_TEXT}\s*\}}|{_AND}
              | \\(?:vee|wedge|lor|land)(?![A-Za-z])
          )?
        | \\(?:text|mathrm|mbox)\s*\{{\s*,?\s*{_AND_IN_TEXT}\s*\}}|\b(?:and|or)\b|{_AND_IN_CJK}
        | \\(?:vee|wedge|lor|land)(?![A-Za-z])
    )
    """,
    re.VERBOSE,
)
_MODULUS = re.compile(
    r"""
    \s*
    (?:
          \\pmod\s*(\{)|\\pmod\s*([0-9a-z])
        | \(?\s*(?:\\[bp]?mod|\\(?:text|mathrm|operatorname)\{\s*mod\s*\}|mod\b)\s*
    )
    """,
    re.VERBOSE,
)
_NAME_BEFORE_EQUALS = re.compile(
    r"""
    \s*
    (
          \\(?:text|mathrm|mbox|textbf)\s*\{[^{}]*\}(?:_\{?\w+\}?)?
        | [A-Za-z][A-Za-z ]*[A-Za-z]{3}[A-Za-z ]*
        | [A-Za-z](?:_\{?\w+\}?)?\s*:\s*[A-Za-z](?:_\{?\w+\}?)?
    )\s*=(?!=)
    """,
    re.VERBOSE,
)
# of a value: f(2) = 17, P(A) = 1/2, \gcd(4, 6) = 2
_FUNCTION_BEFORE_EQUALS = re.compile(
    r"""
      \s*([A-Za-z](?:_\{?\w+\}?)?'*(?:\^\{-1\})?)\s*\(\s*[a-z](?:\s*,\s*[a-z])*\s*\)\s*=(?!=)
    | \s*
      (
          (?:
                [fghkpqFGHPQTSNVACDLMREd]|Pr
              | \\(?:gcd|lcm|max|min|det|deg|varphi|phi|mathbb\{[A-Z]\}|Pr)|gcd|lcm|max|min
          )(?:_\{?\w+\}?)?'*
      )\s*[(\[]((?:[-\w.,+ \\{}/|=]|\([-\w.,+ \\/]*\))*)[)\]]\s*=(?!=)
    | \s*
      (
          (?:m\s*)?\\(?:angle|triangle|overline|overrightarrow|widehat|vec|measuredangle|arc)\s*
          (?:\{\s*)?([A-Za-z]{1,4}|\\[a-z]+|[0-9])(?:_\{?\w+\}?)?\s*\}?
      )\s*=(?!=)
    """,
    re.VERBOSE,
)
_DEGREE = Unit((("degree", 1),))


def read_answer(text: str, *, with_exponents: bool = True) -> Node:
    """The tree of a normalized answer, all of it; Unreadable where some of it has no meaning here.

    `with_exponents`: 3e-1 is .3 rather than 3 e - 1.
    """
    if len(text) > MAX_LENGTH:
        raise Unreadable("too long")
    text = MATH_IN_TEXT.sub(_math_content, text) if "$" in text else text
    text = _NUMBER_IN_TEXT.sub(r" \1 ", text)
    for character, command in UNICODE.items():
        text = text.replace(character, command)
    text = re.sub(r"(?<=[0-9]),\\!\s*(?=[0-9]{3})", ",", text).strip()
    if (numeral := whole_base_numeral(text)) is not None:
        return numeral
    if (quantity := compound_quantity(text)) is not None:
        return quantity
    if (number := number_in_words(text)) is not None:
        return Number(number)
    if (explained := _value_in_words_too(text, with_exponents)) is not None:
        return explained
    return _Reader(Cursor(text, with_exponents)).read_all()


def _value_in_words_too(text: str, with_exponents: bool) -> Relation | None:
    """A value behind the same in several units, or in words: 2 hours and 40 minutes = 160 minutes,
    a dozen = 12."""
    first, equals, second = text.partition(" = ")
    if not equals:
        return None
    explained: Node | None = compound_quantity(first)
    if explained is None:
        number = number_in_words(first)
        explained = None if number is None else Number(number)
    if explained is None:
        return None
    return Relation(("=",), (explained, _Reader(Cursor(second, with_exponents)).read_all()))


def is_decimal(node: Node) -> bool:
    """Whether a number, with its sign and unit, is written with a decimal point."""
    if isinstance(node, Quantity):
        return is_decimal(node.value)
    if isinstance(node, Apply):
        return is_decimal(node.arguments[0])
    return isinstance(node, Number) and node.decimals is not None


def _math_content(match: re.Match[str]) -> str:
    return f" {next(group for group in match.groups() if group is not None).strip()} "


def sign_inside(node: Node) -> Node:
    """-(50%) as (-50)%, and so of degrees: what a percent sign or a unit belongs to is the whole
    number."""
    if not isinstance(node, Apply) or node.function != "negate":
        return node
    (inner,) = node.arguments
    if not isinstance(inner, Apply) or inner.function not in ("percent", "degree"):
        return node
    return Apply(inner.function, (Apply("negate", inner.arguments),))


class _Reader:
    """Reads an answer from left to right; each method leaves the cursor behind what it has read."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor

    # --- lists, relations, sets

    def read_all(self) -> Node:
        items = self.items()
        if not self.cursor.at_end():
            raise Unreadable(self.cursor.text[self.cursor.position :])
        return items[0] if len(items) == 1 else Group("", tuple(items))

    def items(self) -> list[Node]:
        items = [self.relation()]
        while self.cursor.take(_SEPARATOR):
            items.append(self.relation())
        return items

    def relation(self) -> Node:
        is_about = self.cursor.take(_ABOUT) is not None
        operators: list[str] = []
        sides: list[Node] = [self.name_of_a_value() or self.set_expression()]
        is_congruence = False
        while match := self.cursor.take(_RELATION):
            is_congruence = is_congruence or match[1] == r"\equiv"
            operators.append(_RELATIONS[match[1]])
            sides.append(self.set_expression())
        if is_congruence and not isinstance(sides[-1], Residue):
            raise Unreadable("congruent modulo nothing")
        if is_about and not (len(sides) == 1 and is_decimal(sides[0])):
            # of 7, a guess; 33.3 may be rounded because that was asked for
            raise Unreadable("about")
        return Relation(tuple(operators), tuple(sides)) if operators else sides[0]

    def name_of_a_value(self) -> Symbol | None:
        """The left side of `\\text{Area} = 42` or `f(x) = 2x`."""
        match = _NAME_BEFORE_EQUALS.match(self.cursor.text, self.cursor.position)
        match = match or _FUNCTION_BEFORE_EQUALS.match(self.cursor.text, self.cursor.position)
        if not match:
            return None
        name = match[1]
        if name is None:  # with what stands in the brackets: f(2), and f(3) is another
            return self.name_with_argument(match)
        words = name.split()
        if (
            set(words) & WORDS
            or words[0] in FUNCTIONS
            or supposes(f"{name} =")
            or GUESSED.search(name)
        ):
            raise Unreadable(name)
        self.cursor.position = match.end() - 1
        return Symbol(name)

    def name_with_argument(self, match: re.Match[str]) -> Symbol:
        """The left side of `f(2) = 17` or `\\angle ABC = 30^\\circ`."""
        self.cursor.position = match.end() - 1
        return Symbol("".join(match[0].removesuffix("=").split()))

    def set_expression(self) -> Node:
        node = self.quantity()
        while match := self.cursor.take(_SET_OPERATION):
            node = SetOperation(_SET_OPERATORS[match[1]], node, self.quantity())
        return node

    # --- a number and its unit

    def quantity(self) -> Node:
        if colon := take_colon(self.cursor):
            return self.with_unit(colon, None)
        money = take_money(self.cursor)
        node = sign_inside(self.sum())
        if money and money.is_negative:
            node = Apply("negate", (node,))
        modulus = self.modulus()
        if modulus is not None:
            return Residue(node, modulus)
        while scale := take_scale(self.cursor):
            node = Apply("*", (node, Number(Fraction(scale))))
        if take_per_cent(self.cursor):
            node = Apply("percent", (node,))
        return self.with_unit(node, money.unit if money else None)

    def with_unit(self, node: Node, money: Unit | None) -> Node:
        if isinstance(node, Apply) and node.function == "degree":
            node, money = node.arguments[0], _DEGREE
        unit = take_unit(self.cursor)
        if unit is not None and money is not None:
            own, named = dict(money.dimensions), dict(unit.dimensions)
            is_named_again = bool(own.keys() & named.keys()) or (
                money is _DEGREE and bool({"celsius", "fahrenheit"} & named.keys())
            )
            unit = unit if is_named_again else product(money, unit)
        unit = unit or money
        return node if unit is None else Quantity(node, unit)

    def modulus(self) -> Node | None:
        start = self.cursor.position
        match = self.cursor.take(_MODULUS)
        if match is None:
            return None
        if match[1]:
            with self.cursor.inside(brackets=False):
                node = self.sum()
            self.cursor.expect("}")
            return node
        if match[2]:
            self.cursor.position -= 1
            return self.power()
        node = self.sum()
        if "(" in self.cursor.text[start : match.end()]:
            self.cursor.expect(")")
        return node

    # --- arithmetic

    def sum(self) -> Node:
        terms = [self.term()]
        while True:
            self.cursor.skip_space()
            if self.cursor.text.startswith(("+", "-"), self.cursor.position):
                sign = self.cursor.text[self.cursor.position]
                self.cursor.position += 1
                term = self.term()
                terms.append(term if sign == "+" else Apply("negate", (term,)))
            elif self.cursor.command() in (r"\pm", r"\mp"):
                function = self.cursor.command()[1:]
                self.cursor.position += 3
                terms.append(Apply(function, (self.term(),)))
            else:
                return terms[0] if len(terms) == 1 else Apply("+", tuple(terms))

    def term(self) -> Node:
        self.cursor.skip_space()
        if self.cursor.take_text("+"):
            return self.term()
        if self.cursor.take_text("-"):
            return Apply("negate", (self.term(),))
        if self.cursor.command() in (r"\pm", r"\mp"):
            function = self.cursor.command()[1:]
            self.cursor.position += 3
            return Apply(function, (self.term(),))
        node = self.power()
        while True:
            if match := self.cursor.take(_PRODUCT):
                if match[1] == "**":
                    raise Unreadable("**")
                sign = self.cursor.take_text("-")
                factor = self.power()
                factor = Apply("negate", (factor,)) if sign else factor
                node = Apply("/" if match[1] in ("/", r"\div") else "*", (node, factor))
            elif self.starts_a_factor(node):
                node = Apply("*", (node, self.power()))
            else:
                return node

    def starts_a_factor(self, previous: Node) -> bool:
        """Whether a factor follows without a sign: 2x, 3\\pi, (x+1)(x-1)."""
        before = self.cursor.position
        self.cursor.skip_space()
        rest = self.cursor.text[self.cursor.position :]
        is_apart = self.cursor.position > before
        if not rest or re.match(r"\(?\s*(?:mod\b|\\[bp]?mod(?![A-Za-z])|\\text\{\s*mod)", rest):
            return False
        if rest[0] in "([":
            return not isinstance(previous, Group) and rest[0] == "("
        if rest[0].isdigit() or rest[0] == ".":
            # 3!7!
            return rest[0] != "." and not is_apart and self.cursor.text[before - 1 : before] == "!"
        if run := re.match(r"[A-Za-z]+", rest):
            if (
                isinstance(previous, Apply)
                and previous.function == "degree"
                and run[0] in ("C", "F")
            ):
                return False
            has_argument = run[0] in FUNCTIONS | {"sqrt"} and rest[run.end() :].lstrip()[:1] in (
                "(",
                "{",
            )
            may_be_unit = is_apart and isinstance(previous, Number) and not has_argument
            return self.is_algebra(run[0]) and not (may_be_unit and is_unit_next(self.cursor))
        if rest[0] == "|":
            return self.cursor.bars == 0
        if rest[0] != "\\":
            return rest[0] == "{"
        command = self.cursor.command()
        if text := TEXT.match(rest):
            return plain_name(text[1]) is not None and not is_unit_name(text[1].strip())
        is_factor = command in (
            r"\frac",
            r"\sqrt",
            r"\binom",
            r"\dbinom",
            r"\pi",
            r"\lfloor",
            r"\lceil",
            r"\lvert",
        )
        is_factor = is_factor or command in (r"\sum", r"\prod", r"\begin", r"\infty")
        return is_factor or command[1:] in GREEK or command[1:] in FUNCTIONS

    def is_algebra(self, letters: str) -> bool:
        """Whether letters in a row are a function or a product of variables, rather than a word or
        a unit."""
        if letters in FUNCTIONS or letters in ("pi", "sqrt"):
            return True
        is_number = is_scale(letters)
        return (
            len(letters) <= 2
            and not is_unit_name(letters) * (len(letters) > 1)
            and not is_number
            and letters not in WORDS
        )

    def power(self) -> Node:
        node = self.primary()
        while True:
            if degree := self.cursor.take(
                re.compile(r"\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])")
            ):
                assert degree
                node = Apply("degree", (node,))
            elif self.cursor.take(re.compile(r"\s*(?:\^|\*\*)")):
                node = Apply("^", (node, self.exponent()))
            elif self.cursor.take(re.compile(r"\s*!(?![=!])")):
                node = Apply("!", (node,))
            elif self.cursor.take(re.compile(r"\s*%")):
                node = Apply("percent", (node,))
            else:
                return node

    def exponent(self) -> Node:
        self.cursor.skip_space()
        if self.cursor.next_is("{"):
            return self.braces()
        if self.cursor.take_text("-"):
            return Apply("negate", (self.primary(),))
        return self.primary()

    def braces(self) -> Node:
        self.cursor.expect("{")
        with self.cursor.inside(brackets=False):
            node = self.sum()
        self.cursor.expect("}")
        return node

    def braced_items(self) -> Node:
        """A group, or a list: {1, 2} without its backslashes."""
        self.cursor.expect("{")
        with self.cursor.inside(brackets=self.cursor.depth == 0):
            items = self.items()
        self.cursor.expect("}")
        if len(items) > 1 and self.cursor.depth == 0:
            return Group("", tuple(items))
        if len(items) > 1 or isinstance(items[0], Relation):
            raise Unreadable("list")
        return items[0]

    def argument(self) -> Node:
        """What \\frac takes: a group, a digit, a letter or a command."""
        self.cursor.skip_space()
        if self.cursor.next_is("{"):
            return self.braces()
        if digit := self.cursor.take(re.compile(r"[0-9]")):
            return Number(Fraction(int(digit[0])))
        if letter := self.cursor.take(re.compile(r"[A-Za-z]")):
            return letter_symbol(letter[0])
        if self.cursor.command()[1:] in GREEK | {"pi", "sqrt"}:
            return self.primary()
        raise Unreadable("argument")

    def primary(self) -> Node:
        self.cursor.skip_space()
        if self.cursor.position == len(self.cursor.text):
            raise Unreadable("end")
        character = self.cursor.text[self.cursor.position]
        if character.isdigit() or character == ".":
            return take_number(self.cursor)
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

    def bracketed(self, opening: str) -> Node:
        """( or [: an expression, a tuple or an interval."""
        self.cursor.position += 1
        if self.cursor.depth == 0 and self.cursor.text.startswith(")", self.cursor.position):
            raise Unreadable("()")
        with self.cursor.inside(brackets=True):
            items = self.items()
            self.cursor.skip_space()
            closing = self.cursor.text[self.cursor.position : self.cursor.position + 1]
        if closing not in (")", "]") or not closing:
            raise Unreadable("bracket")
        self.cursor.position += 1
        if len(items) > 1:
            return Group(opening + closing, tuple(items))
        if opening + closing not in ("()", "[]") or isinstance(items[0], Relation):
            raise Unreadable("bracket")
        return items[0]

    def bar(self) -> Node:
        self.cursor.position += 1
        self.cursor.bars += 1
        node = self.sum()
        self.cursor.expect("|")
        self.cursor.bars -= 1
        return Apply("abs", (node,))

    def letters(self) -> Node:
        match = re.compile(r"[A-Za-z]+").match(self.cursor.text, self.cursor.position)
        assert match is not None
        run = match[0]
        if run in FUNCTIONS:
            self.cursor.position = match.end()
            return take_function(self, run)
        if run in ("pi", "infinity", "inf", "sqrt"):
            self.cursor.position = match.end()
            return take_root(self) if run == "sqrt" else PI if run == "pi" else INFINITY
        if (
            len(run) > 2
            or run in WORDS
            or (run.istitle() and run.casefold() in WORDS | _CONDITIONS)
        ):
            raise Unreadable(run)
        self.cursor.position += 1
        return self.with_subscript(letter_symbol(run[0]))

    def with_subscript(self, node: Node) -> Node:
        subscript = self.cursor.take(
            re.compile(r"_\s*(?:\{\s*(?:\\(?:text|mathrm)\s*\{)?([\w ,+-]+)\}?\s*\}|([0-9A-Za-z]))")
        )
        if not subscript:
            return node
        if not isinstance(node, Symbol):
            raise Unreadable(subscript[0])
        return Symbol(f"{node.name}_{(subscript[1] or subscript[2]).strip()}")

    def command_node(self) -> Node:
        if text := self.cursor.take(TEXT):
            name = plain_name(text[1])
            if name is None:
                raise Unreadable(text[0])
            return (
                take_function(self, name)
                if name in FUNCTIONS
                else self.with_subscript(letter_symbol(name))
            )
        command = self.cursor.command()
        self.cursor.position += len(command)
        name = command[1:]
        if name in GREEK:
            return self.with_subscript(Symbol(name))
        if name in FUNCTIONS:
            return take_function(self, name)
        if name not in COMMANDS:
            raise Unreadable(command)
        return COMMANDS[name](self)
