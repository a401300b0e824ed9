"""Reads commands of LaTeX with their arguments: fractions, roots, functions, sets, sums, matrices.

Each function here gets a reader whose cursor is behind the command, and gives the tree (tree.py) of
the command with its arguments; the cursor is then behind these. Unreadable is raised for anything
else. COMMANDS has the function of each command."""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Protocol

from isojax.tasks.answers.cursor import Cursor, Unreadable
from isojax.tasks.answers.tree import (
    EMPTY_SET,
    IMAGINARY,
    INFINITY,
    PI,
    REALS,
    Apply,
    Group,
    Matrix,
    Node,
    Number,
    Relation,
    Series,
    Symbol,
)
from isojax.tasks.answers.vocabulary import FUNCTION_NAMES, FUNCTIONS

# The beginning of the real numbers with a condition: `x \in \mathbb{R} \mid`, `x :`
_SET_BUILDER = re.compile(
    r"""
    \s*\(?[A-Za-z]\s*
    (?:\\in\s*(?:\\mathbb\s*\{?\s*R\s*\}?|\\R(?![A-Za-z]))\s*)?
    \)?
    (?:\\mid(?![A-Za-z])|\\colon(?![A-Za-z])|\\vert(?![A-Za-z])|\\,?\||:|\|)
    """,
    re.VERBOSE,
)
_NUMBER_SET = re.compile(r"\s*\{\s*([A-Z])\s*\}|\s*([A-Z])")  # {R}, R
_SERIES_START = re.compile(r"\s*_\s*\{\s*([A-Za-z])\s*=")  # _{k=
_MATRIX = re.compile(r"\s*\{([pbB]?(?:small)?matrix|array)\}(?:\{[lcr| ]+\})?")  # {pmatrix}
# The end of a row, which may set its distance from the next: \\[4pt]
_ROW_END = re.compile(r"\s*\\\\\s*(?:\[\s*[0-9.]+\s*(?:pt|em|ex|mm|cm|in)\s*\])?")
_SUBSCRIPT_SIGN = re.compile(r"\s*_")
_POWER_SIGN = re.compile(r"\s*\^")
_DIGIT = re.compile(r"[0-9]")
_LETTERS = re.compile(r"[A-Za-z]+")


# What ends the argument of a function: \sin, \cos, \tan, \log, \arcsin, \exp, or an open bracket.
_STARTS_OF_FUNCTIONS = (r"\s", r"\c", r"\t", r"\l", r"\a", r"\e", "(")


class Reader(Protocol):
    """Reads the parts of an expression at its cursor (expression.py: ExpressionReader)."""

    cursor: Cursor

    def sum(self) -> Node: ...
    def term(self) -> Node: ...
    def power(self) -> Node: ...
    def primary(self) -> Node: ...
    def exponent(self) -> Node: ...
    def argument(self) -> Node: ...
    def braces(self) -> Node: ...
    def items(self) -> list[Node]: ...
    def relation(self) -> Node: ...
    def starts_a_factor(self, previous: Node) -> bool: ...


def take_function(reader: Reader, name: str) -> Node:
    r"""A function with what follows its name: the base of a logarithm, a power of the function, and
    the argument, as in \log_2 8 and \sin^2 x (which is (\sin x)^2). The power -1 is the inverse
    function, which only sin, cos and tan have here. name: without its backslash, such as "sin" or
    "log"; the cursor is behind it."""
    name = FUNCTION_NAMES.get(name, name)  # lg is log, asin is arcsin
    base: Node | None = None
    if name == "log" and reader.cursor.take(_SUBSCRIPT_SIGN):
        base = reader.braces() if reader.cursor.next_is("{") else _argument_number(reader)
    power: Node | None = None
    if reader.cursor.take(_POWER_SIGN):
        power = reader.exponent()
    # In brackets the argument ends with them, \sin(x) y; without, it is a product, \sin 2x.
    has_brackets = reader.cursor.next_is("(", "{")
    argument = _power_without_exponent(reader) if has_brackets else _function_product(reader)

    if power == Apply("negate", (Number(Fraction(1)),)):  # \sin^{-1} x is \arcsin x
        name = f"arc{name}"
        power = None
        if name not in ("arcsin", "arccos", "arctan"):
            raise Unreadable(name)

    node = Apply(name, (argument,) if base is None else (argument, base))
    return node if power is None else Apply("^", (node, power))


def _argument_number(reader: Reader) -> Node:
    r"""The base of a logarithm without braces: of \log_28 it is 2."""
    digit = reader.cursor.take(_DIGIT)
    if digit:
        return Number(Fraction(int(digit[0])))
    return reader.argument()


def _power_without_exponent(reader: Reader) -> Node:
    """An argument in brackets; what follows, such as the ^2 of \\sin(x)^2, is not part of it."""
    node = reader.primary()
    if isinstance(node, Group):
        raise Unreadable("arguments")
    return node


def _function_product(reader: Reader) -> Node:
    r"""An argument without brackets: of \sin 2x \cos x it is 2x."""
    node = reader.power()
    while not reader.cursor.next_is(*_STARTS_OF_FUNCTIONS) and reader.starts_a_factor(node):
        letters = _LETTERS.match(reader.cursor.text, reader.cursor.position)
        if letters and letters[0] in FUNCTIONS:
            break
        node = Apply("*", (node, reader.power()))

    if reader.cursor.next_is("/"):
        reader.cursor.position += 1
        node = Apply("/", (node, reader.power()))
    return node


def take_root(reader: Reader) -> Node:
    """A root, with the cursor behind its name: [3]{8} has an index and a radicand, {8} and (8) a
    radicand alone (then the index is 2)."""
    index: Node = Number(Fraction(2))
    if reader.cursor.take_text("["):
        with reader.cursor.inside(commas_separate=False):
            index = reader.sum()
        reader.cursor.expect("]")

    reader.cursor.skip_space()
    radicand = reader.braces() if reader.cursor.next_is("{") else reader.primary()
    if isinstance(radicand, Group):
        raise Unreadable("root")
    return Apply("root", (radicand, index))


def _fraction(reader: Reader) -> Node:
    numerator = reader.argument()
    return Apply("/", (numerator, reader.argument()))


def _binomial(reader: Reader) -> Node:
    top = reader.argument()
    return Apply("binom", (top, reader.argument()))


def _between(reader: Reader, function: str, closing: str) -> Node:
    """A function of the sum up to its closing command: "floor" up to \\rfloor."""
    with reader.cursor.inside(commas_separate=False):
        node = reader.sum()
    reader.cursor.expect(closing)
    return Apply(function, (node,))


def _set_of(reader: Reader, closing: str) -> Node:
    """A set, with the cursor behind its opening brace: its items, or a condition (x : x > 3)."""
    if reader.cursor.take_text(closing):
        return EMPTY_SET
    has_condition = reader.cursor.take(_SET_BUILDER) is not None
    with reader.cursor.inside(commas_separate=True):
        items = reader.items()
    reader.cursor.expect(closing)

    if has_condition:  # {x : x > 3} is its condition
        if len(items) != 1 or not isinstance(items[0], Relation):
            raise Unreadable("condition")
        return items[0]
    return Group("{}", tuple(items))


def _number_set(reader: Reader) -> Node:
    """The set behind \\mathbb: REALS for R, else a variable that stands for it, as for Z."""
    match = reader.cursor.take(_NUMBER_SET)
    if match is None:
        raise Unreadable("number set")
    letter = match[1] or match[2]
    return REALS if letter == "R" else Symbol(rf"\mathbb{{{letter}}}")


def _series(reader: Reader, is_sum: bool) -> Node:
    """A sum or a product, with the cursor behind \\sum or \\prod: _{k=1}^{10} k^2. One with
    infinitely many terms is Unreadable. _SERIES_START has taken the opening brace and "k =" when
    the lower bound is read."""
    start = reader.cursor.take(_SERIES_START)
    if start is None:
        raise Unreadable("series")
    with reader.cursor.inside(commas_separate=False):
        low = reader.sum()
    reader.cursor.expect("}")
    reader.cursor.expect("^")
    high = reader.exponent()

    if INFINITY in (low, high) or Apply("negate", (INFINITY,)) in (low, high):
        raise Unreadable("endless")
    return Series(is_sum=is_sum, index=start[1], low=low, high=high, term=reader.term())


def _matrix(reader: Reader) -> Node:
    """A matrix, with the cursor behind \\begin: {pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}.
    Unreadable where its rows differ in length, and for a determinant (vmatrix) or any other
    environment."""
    environment = reader.cursor.take(_MATRIX)
    if environment is None:
        raise Unreadable("environment")

    rows: list[tuple[Node, ...]] = []
    with reader.cursor.inside(commas_separate=True):
        while not reader.cursor.next_is(r"\end"):
            row = [reader.relation()]
            while reader.cursor.take_text("&"):
                row.append(reader.relation())
            rows.append(tuple(row))
            if not reader.cursor.take(_ROW_END):  # the last row may go without \\
                break
    reader.cursor.expect(f"\\end{{{environment[1]}}}")

    has_rows_of_one_length = len({len(row) for row in rows}) == 1
    if not has_rows_of_one_length:
        raise Unreadable("rows")
    return Matrix(tuple(rows))


# How the text behind each command is read.
COMMANDS: Mapping[str, Callable[[Reader], Node]] = {
    "pi": lambda reader: PI,
    "infty": lambda reader: INFINITY,
    "imath": lambda reader: IMAGINARY,
    "emptyset": lambda reader: EMPTY_SET,
    "varnothing": lambda reader: EMPTY_SET,
    "R": lambda reader: REALS,
    "frac": _fraction,
    "sqrt": take_root,
    "binom": _binomial,
    "dbinom": _binomial,
    "tbinom": _binomial,
    "mathbb": _number_set,
    "begin": _matrix,
    "lvert": lambda reader: _between(reader, "abs", r"\rvert"),
    "lfloor": lambda reader: _between(reader, "floor", r"\rfloor"),
    "lceil": lambda reader: _between(reader, "ceil", r"\rceil"),
    "{": lambda reader: _set_of(reader, r"\}"),
    "lbrace": lambda reader: _set_of(reader, r"\rbrace"),
    "sum": lambda reader: _series(reader, is_sum=True),
    "prod": lambda reader: _series(reader, is_sum=False),
    "boxed": lambda reader: reader.braces(),
    "fbox": lambda reader: reader.braces(),
    "underline": lambda reader: reader.braces(),
    "boldsymbol": lambda reader: reader.braces(),
}
