"""Sets of real numbers: unions of intervals, inequalities of one variable, differences."""

from dataclasses import dataclass

from isojax.tasks.answers.arithmetic import Arithmetic
from isojax.tasks.answers.names import has_variables, is_name
from isojax.tasks.answers.tree import (
    Apply,
    Group,
    Node,
    Number,
    Quantity,
    Relation,
    SetOperation,
    Symbol,
)


@dataclass(frozen=True)
class Interval:
    """Real numbers between `low` and `high`, which are expressions without variables; has_low and
    has_high: whether the end is part of it. An end that is None is infinite, and its has_... False.
    """

    low: Node | None
    high: Node | None
    has_low: bool
    has_high: bool


# 3 > x is x < 3.
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!="}


class NotASet(Exception):
    """A node that is no set of real numbers."""


class RealSets:
    """Reads trees as sets of real numbers."""

    def __init__(self, arithmetic: Arithmetic) -> None:
        self.arithmetic = arithmetic

    def intervals(self, node: Node) -> list[Interval]:
        """The set that a node describes, as intervals that are apart and in ascending order: two
        for x < 1 or x > 5. Each number of a set {1, 2} is an interval with equal ends, and [] is
        the empty set. NotASet where the node is no set of real numbers; Undefined where an end has
        no real value."""
        match node:
            # _real: the node itself; NotASet where it is no expression or has variables.
            case Group("{}", items):
                points = [Interval(item, item, True, True) for item in map(_real, items)]
                return self._union(points)
            case Group("", items) if all(isinstance(item, Relation) for item in items):
                # x < 1, x > 5: the solutions of one or the other
                return self._union([part for item in items for part in self.intervals(item)])
            case Group(brackets, (low, high)) if brackets in ("()", "[]", "(]", "[)"):
                return [_between_brackets(brackets, low, high)]
            case Symbol("R", is_constant=True):
                return [Interval(None, None, False, False)]
            case SetOperation("|", left, right):
                return self._union(self.intervals(left) + self.intervals(right))
            case SetOperation("-", left, right):
                outside = self._complement(self.intervals(right))
                return self._intersection(self.intervals(left), outside)
            case SetOperation("&", left, right):
                return self._intersection(self.intervals(left), self.intervals(right))
            case Relation():
                return self._solutions(node)
        raise NotASet

    def _solutions(self, relation: Relation) -> list[Interval]:
        """The solutions of an inequality or membership of one variable, as intervals: of x < 3,
        1 <= x < 5, x != 2 or x in a set. NotASet for other relations. operators[i] stands between
        sides[i] and sides[i + 1]."""
        operators = relation.operators
        sides = relation.sides
        # is_name, below: x, f(x), |AB| and the like, which may name the unknown.
        if operators == ("in",) and isinstance(sides[0], Symbol):
            return self.intervals(sides[1])

        if len(operators) == 1:
            operator = operators[0]
            if is_name(sides[0]):
                return self._one_sided(operator, sides[1])
            if is_name(sides[1]) and operator in _FLIPPED:  # 3 > x
                return self._one_sided(_FLIPPED[operator], sides[0])

        if len(operators) == 2 and is_name(sides[1]):
            if set(operators) <= {"<", "<="}:
                low, high = _real(sides[0]), _real(sides[2])
                return [Interval(low, high, operators[0] == "<=", operators[1] == "<=")]
            if set(operators) <= {">", ">="}:
                low, high = _real(sides[2]), _real(sides[0])
                return [Interval(low, high, operators[1] == ">=", operators[0] == ">=")]
        raise NotASet

    def _one_sided(self, operator: str, side: Node) -> list[Interval]:
        """The numbers x for which `x operator side` holds."""
        bound = _real(side)
        match operator:
            case "<" | "<=":
                return [Interval(None, bound, False, operator == "<=")]
            case ">" | ">=":
                return [Interval(bound, None, operator == ">=", False)]
            case "!=":
                return self._complement([Interval(bound, bound, True, True)])
        raise NotASet

    def _complement(self, parts: list[Interval]) -> list[Interval]:
        """All real numbers outside the parts, which are in ascending order and apart: the gaps
        before, between and after them. Without parts, all real numbers."""
        gaps: list[Interval] = []
        low: Node | None = None  # where the next gap begins: first at minus infinity
        has_low = False
        is_unbounded = False  # the last part goes to infinity, so no gap follows
        for part in parts:
            # A part that begins at minus infinity, which only the first can, has no gap before it.
            if part.low is not None:
                gaps.append(Interval(low, part.low, has_low, not part.has_low))
            low = part.high
            has_low = not part.has_high
            is_unbounded = part.high is None
        if not is_unbounded:
            gaps.append(Interval(low, None, has_low, False))
        return gaps

    def _intersection(self, first: list[Interval], second: list[Interval]) -> list[Interval]:
        # De Morgan: what is in both is outside neither.
        outside = self._union(self._complement(first) + self._complement(second))
        return self._complement(outside)

    def _union(self, parts: list[Interval]) -> list[Interval]:
        """The union of intervals in any order: in ascending order, those that touch or overlap
        joined, empty ones left out."""
        # Sort by insertion: ends are expressions, which only `arithmetic.order` can compare.
        ordered: list[Interval] = []
        for part in parts:
            if self._is_empty(part):  # such as (3, 3), or one whose low end is the higher
                continue
            index = 0
            while index < len(ordered) and self._starts_before(ordered[index], part):
                index += 1
            ordered.insert(index, part)

        joined: list[Interval] = []
        for part in ordered:
            if joined and self._touch(joined[-1], part):
                joined[-1] = self._joined(joined[-1], part)
            else:
                joined.append(part)
        return joined

    def _is_empty(self, part: Interval) -> bool:
        if part.low is None or part.high is None:
            return False
        order = self.arithmetic.order(part.low, part.high)
        return order > 0 or (order == 0 and not (part.has_low and part.has_high))

    def _starts_before(self, one: Interval, other: Interval) -> bool:
        """Whether `one` begins before `other`, or at the same place with its end in it."""
        if one.low is None or other.low is None:
            return one.low is None
        order = self.arithmetic.order(one.low, other.low)
        return order < 0 or (order == 0 and one.has_low)

    def _touch(self, one: Interval, other: Interval) -> bool:
        """Whether no number lies between `one` and `other`, which does not begin before it."""
        if one.high is None or other.low is None:
            return True
        order = self.arithmetic.order(one.high, other.low)
        return order > 0 or (order == 0 and (one.has_high or other.has_low))

    def _joined(self, one: Interval, other: Interval) -> Interval:
        """The union of two intervals that touch; `one` begins first."""
        if one.high is None or other.high is None:
            return Interval(one.low, None, one.has_low, False)
        order = self.arithmetic.order(one.high, other.high)
        if order > 0:
            return Interval(one.low, one.high, one.has_low, one.has_high)
        has_high = other.has_high or (order == 0 and one.has_high)
        return Interval(one.low, other.high, one.has_low, has_high)


def _between_brackets(brackets: str, low: Node, high: Node) -> Interval:
    """[1, 5), (-infinity, 3]; an infinite end is never part of its interval."""
    low_end = None if _is_infinite(low, -1) else _real(low)
    high_end = None if _is_infinite(high, 1) else _real(high)
    has_low = brackets[0] == "[" and low_end is not None
    has_high = brackets[1] == "]" and high_end is not None
    return Interval(low_end, high_end, has_low, has_high)


def _real(node: Node) -> Node:
    """An end of an interval; NotASet where it is no expression without variables."""
    if isinstance(node, Number | Apply | Symbol | Quantity) and not has_variables(node):
        return node
    raise NotASet


def _is_infinite(node: Node, sign: int) -> bool:
    infinity = Symbol("infinity", True)
    return node == (infinity if sign > 0 else Apply("negate", (infinity,)))
