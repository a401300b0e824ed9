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
    """Real numbers between two; an end that is None is infinite."""

    low: Node | None
    high: Node | None
    has_low: bool
    has_high: bool


class NotASet(Exception):
    """A node that is no set of real numbers."""


class RealSets:
    """Reads trees as sets of real numbers."""

    def __init__(self, arithmetic: Arithmetic) -> None:
        self.arithmetic = arithmetic

    def intervals(self, node: Node) -> list[Interval]:
        """The parts of a set, in ascending order; NotASet where it is none."""
        match node:
            case Group("{}", items):
                return self._union([Interval(item, item, True, True) for item in map(_real, items)])
            case Group("", items) if all(isinstance(item, Relation) for item in items):
                return self._union([part for item in items for part in self.intervals(item)])
            case Group(brackets, (low, high)) if brackets in ("()", "[]", "(]", "[)"):
                is_low_infinite = _is_infinite(low, -1)
                is_high_infinite = _is_infinite(high, 1)
                low_end = None if is_low_infinite else _real(low)
                high_end = None if is_high_infinite else _real(high)
                has_low = brackets[0] == "[" and low_end is not None
                has_high = brackets[1] == "]" and high_end is not None
                return [Interval(low_end, high_end, has_low, has_high)]
            case Symbol("R", is_constant=True):
                return [Interval(None, None, False, False)]
            case SetOperation("|", left, right):
                return self._union(self.intervals(left) + self.intervals(right))
            case SetOperation("-", left, right):
                return self._intersection(
                    self.intervals(left), self._complement(self.intervals(right))
                )
            case SetOperation("&", left, right):
                return self._intersection(self.intervals(left), self.intervals(right))
            case Relation():
                return self._solutions(node)
        raise NotASet

    def _solutions(self, relation: Relation) -> list[Interval]:
        """Of x < 3, 1 <= x < 5, x != 2 and x in a set."""
        operators, sides = relation.operators, relation.sides
        if operators == ("in",) and isinstance(sides[0], Symbol):
            return self.intervals(sides[1])
        if len(operators) == 1 and is_name(sides[1]) and not is_name(sides[0]):
            flipped = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!="}
            if operators[0] not in flipped:
                raise NotASet
            operators, sides = (flipped[operators[0]],), sides[::-1]
        if len(operators) == 1 and is_name(sides[0]):
            bound = _real(sides[1])
            match operators[0]:
                case "<" | "<=":
                    return [Interval(None, bound, False, operators[0] == "<=")]
                case ">" | ">=":
                    return [Interval(bound, None, operators[0] == ">=", False)]
                case "!=":
                    return self._complement([Interval(bound, bound, True, True)])
        if len(operators) == 2 and is_name(sides[1]):
            if set(operators) <= {"<", "<="}:
                return [
                    Interval(
                        _real(sides[0]), _real(sides[2]), operators[0] == "<=", operators[1] == "<="
                    )
                ]
            if set(operators) <= {">", ">="}:
                return [
                    Interval(
                        _real(sides[2]), _real(sides[0]), operators[1] == ">=", operators[0] == ">="
                    )
                ]
        raise NotASet

    def _complement(self, parts: list[Interval]) -> list[Interval]:
        gaps: list[Interval] = []
        low: Node | None = None
        has_low, is_open = False, True  # where the next gap begins, if there is one
        for part in parts:
            if part.low is not None:
                gaps.append(Interval(low, part.low, has_low, not part.has_low))
            low, has_low = part.high, not part.has_high
            is_open = part.high is not None
        if is_open:
            gaps.append(Interval(low, None, has_low and low is not None, False))
        return gaps

    def _intersection(self, first: list[Interval], second: list[Interval]) -> list[Interval]:
        return self._complement(self._union(self._complement(first) + self._complement(second)))

    def _union(self, parts: list[Interval]) -> list[Interval]:
        """Parts in order, those that touch joined."""
        ordered: list[Interval] = []
        for part in [part for part in parts if not self._is_empty(part)]:
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
        if one.low is None or other.low is None:
            return one.low is None
        order = self.arithmetic.order(one.low, other.low)
        return order < 0 or (order == 0 and one.has_low)

    def _touch(self, one: Interval, other: Interval) -> bool:
        if one.high is None or other.low is None:
            return True
        order = self.arithmetic.order(one.high, other.low)
        return order > 0 or (order == 0 and (one.has_high or other.has_low))

    def _joined(self, one: Interval, other: Interval) -> Interval:
        if one.high is None or other.high is None:
            return Interval(one.low, None, one.has_low, False)
        order = self.arithmetic.order(one.high, other.high)
        has_high = (
            one.has_high or other.has_high if order == 0 else (one if order > 0 else other).has_high
        )
        return Interval(one.low, one.high if order > 0 else other.high, one.has_low, has_high)


def _real(node: Node) -> Node:
    """An end of an interval; NotASet where it is no expression without variables."""
    if isinstance(node, Number | Apply | Symbol | Quantity) and not has_variables(node):
        return node
    raise NotASet


def _is_infinite(node: Node, sign: int) -> bool:
    infinity = Symbol("infinity", True)
    return node == (infinity if sign > 0 else Apply("negate", (infinity,)))
