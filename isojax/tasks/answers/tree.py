"""An answer as a tree: the kinds of nodes. 2x = 6 cm is Relation(("=",), (Apply("*", (Number(2),
Symbol("x"))), Quantity(Number(6), unit)))."""

from dataclasses import dataclass
from fractions import Fraction

from isojax.tasks.answers.units import Unit


@dataclass(frozen=True)
class Number:
    """A rational number."""

    value: Fraction
    decimals: int | None = None  # digits after the decimal point; None where it is written without


@dataclass(frozen=True)
class Symbol:
    """A variable, or one of pi, e, i and infinity, which have `is_constant`."""

    name: str
    is_constant: bool = False


@dataclass(frozen=True)
class Apply:
    """A function of other expressions: + * / ^ negate pm mp percent degree abs floor ceil ! binom
    root log sin ...

    + has two or more arguments; * / ^ and binom have two, in the order in which they are written;
    root has a radicand and an index, log a number and perhaps a base; all others have one. pm and
    mp are the signs of ± and ∓ before their argument (sign_choice.py expands them).
    """

    function: str
    arguments: tuple["Node", ...]


@dataclass(frozen=True)
class Series:
    """A sum or a product over the integers from `low` to `high`."""

    is_sum: bool
    index: str
    low: "Node"
    high: "Node"
    term: "Node"


@dataclass(frozen=True)
class Quantity:
    """A number with its unit."""

    value: "Node"
    unit: Unit


@dataclass(frozen=True)
class Group:
    """Items between `brackets`: "()", "[)", "{}" ..., which are "" for a list without any.

    "{}" is a set, as {1, 2}; "" a list as 1, 2; others are tuples, and two items between ( or [ and
    ) or ] may be an interval.
    """

    brackets: str
    items: tuple["Node", ...]


@dataclass(frozen=True)
class Relation:
    """`sides` with one of = < <= > >= != in ~ (about) between each two: 1 <= x < 5 has three sides
    and two operators."""

    operators: tuple[str, ...]
    sides: tuple["Node", ...]


@dataclass(frozen=True)
class SetOperation:
    """Union (|), intersection (&) or difference (-) of two sets."""

    operator: str
    left: "Node"
    right: "Node"


@dataclass(frozen=True)
class Matrix:
    """Rows of a matrix, all of one length; a determinant is not one."""

    rows: tuple[tuple["Node", ...], ...]


@dataclass(frozen=True)
class Colon:
    """A time or a ratio, 2:05: parts as they are written ("2", "05"), and as numbers (2, 5)."""

    texts: tuple[str, ...]
    parts: tuple[Fraction, ...]


@dataclass(frozen=True)
class BaseNumeral:
    """Digits in a base from 2 to 36 without leading zeros: 52_8, with digits "52" and base 8."""

    digits: str
    base: int


@dataclass(frozen=True)
class Residue:
    """A number modulo another: 3 mod 7."""

    value: "Node"
    modulus: "Node"


Node = (
    Number
    | Symbol
    | Apply
    | Series
    | Quantity
    | Group
    | Relation
    | SetOperation
    | Matrix
    | Colon
    | BaseNumeral
    | Residue
)

PI = Symbol("pi", True)
EULER = Symbol("e", True)
IMAGINARY = Symbol("i", True)
INFINITY = Symbol("infinity", True)
REALS = Symbol("R", True)
EMPTY_SET = Group("{}", ())
