"""Whether a response's answer is the reference's.

The reference decides what is asked: a response may leave out a unit, a variable's name ("x = 5" for 5) or the brackets
of a tuple, but neither give another of these nor less than all.
"""

from dataclasses import dataclass

from isojax.tasks.answers.arithmetic import (
    Arithmetic,
    Inexact,
    Undefined,
    exact_value,
    functions,
    substitute,
    variables,
)
from isojax.tasks.answers.expression import is_decimal
from isojax.tasks.answers.tree import (
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
    SetOperation,
    Symbol,
)
from isojax.tasks.answers.units import conversion

MAX_ITEMS = 64  # of an unordered list, compared pair by pair


@dataclass(frozen=True)
class Interval:
    """Real numbers between two; an end that is None is infinite."""

    low: Node | None
    high: Node | None
    has_low: bool
    has_high: bool


class NotASet(Exception):
    """A node that is no set of real numbers."""


class Equality:
    """Compares the trees of two answers."""

    def __init__(self, arithmetic: Arithmetic) -> None:
        self.arithmetic = arithmetic

    def same(self, reference: Node, response: Node) -> bool:
        """Whether a response is right; False also where the two cannot be compared."""
        try:
            return self._same(_expand(reference), _expand(response))
        except (Undefined, RecursionError):
            return False

    def _same(self, reference: Node, response: Node) -> bool:
        if reference == response:
            return True
        if isinstance(reference, Relation) or isinstance(response, Relation):
            return self._same_relations(reference, response)
        if isinstance(reference, SetOperation) or isinstance(response, SetOperation) or REALS in (reference, response):
            return self._same_sets(reference, response)
        if _is_single(reference) != _is_single(response):  # {5} is 5
            return self._same(_only_item(reference), _only_item(response))
        if isinstance(reference, Group):
            return self._same_groups(reference, response)
        if isinstance(response, Group):
            return False
        return self._same_scalars(reference, response)

    # --- numbers and expressions

    def _same_scalars(self, reference: Node, response: Node) -> bool:
        match reference, response:
            case Matrix(reference_rows), Matrix(response_rows):
                return self._same_rows(reference_rows, response_rows)
            case BaseNumeral(digits), Number(value) if not isinstance(response, BaseNumeral):
                return digits.isdigit() and value == int(digits)
            case Residue(), Residue():
                return self._same_residues(reference, response)
            case Residue(value), _ if not isinstance(response, Matrix | Colon | BaseNumeral):
                return self._same(value, response)
            case (Colon(), _) | (_, Colon()):
                return _same_colons(reference, response)
        if isinstance(reference, Matrix | BaseNumeral) or isinstance(response, Matrix | BaseNumeral | Residue):
            return False
        return self._same_quantities(reference, response)

    def _same_rows(self, reference: tuple[tuple[Node, ...], ...], response: tuple[tuple[Node, ...], ...]) -> bool:
        if [len(row) for row in reference] != [len(row) for row in response]:
            return False
        cells = zip(sum(reference, ()), sum(response, ()), strict=True)
        return all(self._same(cell, other) for cell, other in cells)

    def _same_residues(self, reference: Residue, response: Residue) -> bool:
        if not self._same(reference.modulus, response.modulus):
            return False
        try:
            difference = exact_value(reference.value) - exact_value(response.value)
            modulus = exact_value(reference.modulus)
        except Inexact:
            return self._same(reference.value, response.value)
        return modulus != 0 and (difference / modulus).denominator == 1

    def _same_quantities(self, reference: Node, response: Node) -> bool:
        reference_unit = reference.unit if isinstance(reference, Quantity) else None
        response_unit = response.unit if isinstance(response, Quantity) else None
        factor = conversion(reference_unit, response_unit)
        if factor is None:
            return False
        reference = reference.value if isinstance(reference, Quantity) else reference
        response = response.value if isinstance(response, Quantity) else response
        if isinstance(reference, Colon) or isinstance(response, Colon):
            return _same_colons(reference, response)
        if isinstance(reference, Group) or isinstance(response, Group):
            return False
        if factor != 1:
            response = Apply("*", (response, Number(factor)))
        if self._same_values(reference, response):
            return True
        # 50% is 50 as well as 0.5 where the other side has no percent sign.
        is_percent = [isinstance(node, Apply) and node.function == "percent" for node in (reference, response)]
        if is_percent == [True, False]:
            return self._same_values(reference, Apply("percent", (response,)))
        if is_percent == [False, True]:
            return self._same_values(Apply("percent", (reference,)), response)
        return False

    def _same_values(self, reference: Node, response: Node) -> bool:
        reference_decimal, response_decimal = _decimal(reference), _decimal(response)
        if response_decimal is not None and reference_decimal is None:
            if not variables(reference) and self.arithmetic.is_rounded(response_decimal, reference):
                return True
        elif reference_decimal is not None and response_decimal is None:
            is_whole = isinstance(response, Number) and response.value.denominator == 1
            if not is_whole and not variables(response) and self.arithmetic.is_rounded(reference_decimal, response):
                return True
        return self.arithmetic.equal(reference, _in_case_of(reference, response))

    # --- lists, tuples and sets

    def _same_groups(self, reference: Group, response: Node) -> bool:
        if not isinstance(response, Group):
            return False
        brackets = {reference.brackets, response.brackets}
        if brackets == {"", "{}"} or brackets == {""}:
            return self._same_in_any_order(_unnamed(reference.items), _unnamed(response.items))
        if brackets == {"{}"}:
            return self._same_set_items(reference.items, response.items)
        is_interval = any("[" in one or "]" in one for one in brackets) and len(reference.items) == 2
        if reference.brackets != response.brackets and ("{}" in brackets or is_interval or "" not in brackets):
            return False
        # A tuple's items in their order, with or without its brackets.
        return self._same_in_order(_unnamed(reference.items), _unnamed(response.items))

    def _same_set_items(self, reference: tuple[Node, ...], response: tuple[Node, ...]) -> bool:
        def contains(items: tuple[Node, ...], node: Node) -> bool:
            return any(self._same(item, node) for item in items)

        if max(len(reference), len(response)) > MAX_ITEMS:
            return self._same_in_order(reference, response)
        return all(contains(reference, item) for item in response) and all(
            contains(response, item) for item in reference
        )

    def _same_in_any_order(self, reference: tuple[Node, ...], response: tuple[Node, ...]) -> bool:
        if max(len(reference), len(response)) > MAX_ITEMS:
            return self._same_in_order(reference, response)
        if len(reference) > len(response):
            return False
        remaining = list(response)
        for item in reference:
            match_index = next((i for i, other in enumerate(remaining) if self._same(item, other)), None)
            if match_index is None:
                return False
            del remaining[match_index]
        # What it says twice is no mistake.
        return all(any(self._same(item, other) for item in reference) for other in remaining)

    def _same_in_order(self, reference: tuple[Node, ...], response: tuple[Node, ...]) -> bool:
        if len(reference) != len(response):
            return False
        return all(self._same(item, other) for item, other in zip(reference, response, strict=True))

    # --- equations and inequalities

    def _same_relations(self, reference: Node, response: Node) -> bool:
        if isinstance(reference, Relation) and isinstance(response, Relation):
            if self._same_statements(reference, response):
                return True
        elif isinstance(reference, Relation):
            named = self._named_value(reference)
            if named is not None and any(self._same(value, response) for value in named.values):
                return True
        elif isinstance(response, Relation):
            named = self._named_value(response, is_response=True)
            if named is not None and any(self._same(reference, value) for value in named.values):
                return True
        return self._same_sets(reference, response)

    def _same_statements(self, reference: Relation, response: Relation) -> bool:
        reference_value, response_value = self._named_value(reference), self._named_value(response, is_response=True)
        if reference_value is not None and response_value is not None:
            names = {reference_value.name, response_value.name}
            is_one_name = len({str(name).casefold() for name in names if name is not None}) <= 1
            if is_one_name and self._same(reference_value.values[0], response_value.values[0]):
                return True
        if len(reference.operators) == len(response.operators) == 1:
            return self._same_comparison(reference, response)
        is_one_kind = reference.operators == response.operators
        return is_one_kind and self._same_in_order(reference.sides, response.sides)

    def _same_comparison(self, reference: Relation, response: Relation) -> bool:
        """3x - y + 13 = 0 and -3x + y = 13; x < 3 and 3 > x."""
        (operator,), (other_operator,) = reference.operators, response.operators
        try:
            difference = _difference(reference)
            factor = self.arithmetic.proportional(difference, _difference(response))
        except Undefined:
            return False
        if factor is None:
            return False
        if operator in ("=", "!="):
            return operator == other_operator
        flipped = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
        if operator not in flipped or self.arithmetic.context.im(factor) != 0:
            return False
        return other_operator == (operator if factor > 0 else flipped[operator])

    def _named_value(self, relation: Relation, *, is_response: bool = False) -> "NamedValue | None":
        """What a chain of equal signs ends in, where it holds: x = 5, 6 * 7 = 42, A = 2 * 8 = 16, 100/3 ~ 33.3."""
        if set(relation.operators) - {"=", "~"}:
            return self._membership(relation)
        name: Node | None = None
        sides = list(relation.sides)
        operators = list(relation.operators)
        if _is_name(sides[0]):
            name = sides.pop(0)
            operators.pop(0)
        elif len(sides) == 2 and _is_name(sides[1]):
            name = sides.pop()
            operators.pop()
        last = sides[-1]
        if is_response and name is not None and relation.operators[0] == "~" and not is_decimal(last):
            return None  # x is about 7
        if not operators:
            return NamedValue(name, (last,))
        values = [last]
        for side, operator in zip(sides[:-1], operators, strict=True):
            if _has_variables(side) and name is not None:
                continue  # A = x y = 12
            if operator == "~":
                if not self._is_about(side, last):
                    return None
                values.insert(0, side)
            elif not self._same(side, last):
                return None
        if name is None and _has_variables(last):
            return None  # an equation between expressions
        return NamedValue(name, tuple(values))

    def _membership(self, relation: Relation) -> "NamedValue | None":
        if relation.operators == ("in",) and _is_name(relation.sides[0]):
            return NamedValue(relation.sides[0], (relation.sides[1],))
        return None

    def _is_about(self, value: Node, approximation: Node) -> bool:
        """Whether a number is a value rounded, or cut, to the digits it has; so it is no second guess."""
        value = value.value if isinstance(value, Quantity) else value
        rounded = approximation.value if isinstance(approximation, Quantity) else approximation
        if not isinstance(rounded, Number):
            return False
        try:
            exact, about = (abs(self.arithmetic.value(node, 30)) for node in (value, rounded))
        except Undefined:
            return False
        units_left_out = (exact - about) * 10 ** (rounded.decimals or 0)
        return bool(-0.5 <= units_left_out < 1)

    # --- sets of real numbers

    def _same_sets(self, reference: Node, response: Node) -> bool:
        """Whether two sets, or inequalities of one variable, have the same real numbers."""
        try:
            first, second = self._intervals(reference), self._intervals(response)
        except NotASet:
            return self._same_operations(reference, response)
        if len(first) != len(second):
            return False
        return all(self._same_interval(one, other) for one, other in zip(first, second, strict=True))

    def _same_operations(self, reference: Node, response: Node) -> bool:
        if not isinstance(reference, SetOperation) or not isinstance(response, SetOperation):
            return False
        if reference.operator != response.operator:
            return False
        pair = (response.left, response.right)
        is_same = self._same_in_order((reference.left, reference.right), pair)
        is_symmetric = reference.operator != "-"
        return is_same or (is_symmetric and self._same_in_order((reference.left, reference.right), pair[::-1]))

    def _same_interval(self, one: Interval, other: Interval) -> bool:
        if (one.has_low, one.has_high) != (other.has_low, other.has_high):
            return False
        for end, other_end in ((one.low, other.low), (one.high, other.high)):
            if (end is None) != (other_end is None):
                return False
            if end is not None and other_end is not None and not self._same_quantities(end, other_end):
                return False
        return True

    def _intervals(self, node: Node) -> list[Interval]:
        """The parts of a set, in ascending order; NotASet where it is none."""
        match node:
            case Group("{}", items):
                return self._union([Interval(item, item, True, True) for item in map(_real, items)])
            case Group("", items) if all(isinstance(item, Relation) for item in items):
                return self._union([part for item in items for part in self._intervals(item)])
            case Group(brackets, (low, high)) if brackets in ("()", "[]", "(]", "[)"):
                is_low_infinite, is_high_infinite = _is_infinite(low, -1), _is_infinite(high, 1)
                low_end, high_end = None if is_low_infinite else _real(low), None if is_high_infinite else _real(high)
                has_low, has_high = (
                    brackets[0] == "[" and low_end is not None,
                    brackets[1] == "]" and high_end is not None,
                )
                return [Interval(low_end, high_end, has_low, has_high)]
            case Symbol("R", is_constant=True):
                return [Interval(None, None, False, False)]
            case SetOperation("|", left, right):
                return self._union(self._intervals(left) + self._intervals(right))
            case SetOperation("-", left, right):
                return self._intersection(self._intervals(left), self._complement(self._intervals(right)))
            case SetOperation("&", left, right):
                return self._intersection(self._intervals(left), self._intervals(right))
            case Relation():
                return self._solutions(node)
        raise NotASet

    def _solutions(self, relation: Relation) -> list[Interval]:
        """Of x < 3, 1 <= x < 5, x != 2 and x in a set."""
        operators, sides = relation.operators, relation.sides
        if operators == ("in",) and isinstance(sides[0], Symbol):
            return self._intervals(sides[1])
        if len(operators) == 1 and _is_name(sides[1]) and not _is_name(sides[0]):
            flipped = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!="}
            if operators[0] not in flipped:
                raise NotASet
            operators, sides = (flipped[operators[0]],), sides[::-1]
        if len(operators) == 1 and _is_name(sides[0]):
            bound = _real(sides[1])
            match operators[0]:
                case "<" | "<=":
                    return [Interval(None, bound, False, operators[0] == "<=")]
                case ">" | ">=":
                    return [Interval(bound, None, operators[0] == ">=", False)]
                case "!=":
                    return self._complement([Interval(bound, bound, True, True)])
        if len(operators) == 2 and _is_name(sides[1]):
            if set(operators) <= {"<", "<="}:
                return [Interval(_real(sides[0]), _real(sides[2]), operators[0] == "<=", operators[1] == "<=")]
            if set(operators) <= {">", ">="}:
                return [Interval(_real(sides[2]), _real(sides[0]), operators[1] == ">=", operators[0] == ">=")]
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
        has_high = one.has_high or other.has_high if order == 0 else (one if order > 0 else other).has_high
        return Interval(one.low, one.high if order > 0 else other.high, one.has_low, has_high)


@dataclass(frozen=True)
class NamedValue:
    """The value that an equation gives a name, if it has one; `values` are several spellings of it."""

    name: Node | None
    values: tuple[Node, ...]


def _expand(node: Node) -> Node:
    """An answer with plus-minus signs as the list of both, and the items of lists in a list as one list."""
    if not isinstance(node, Group) or node.brackets:
        variants = _variants(node)
        return variants[0] if len(variants) == 1 else Group("", tuple(variants))
    items: list[Node] = []
    for item in node.items:
        items += _variants(item)
    return Group("", tuple(items))


def _variants(node: Node) -> list[Node]:
    if not _has_sign_choice(node):
        return [node]
    return [_with_signs(node, upper=upper) for upper in (True, False)]


def _has_sign_choice(node: Node) -> bool:
    match node:
        case Relation(sides=sides):
            return any(map(_has_sign_choice, sides))
        case Group(items=items):
            return any(map(_has_sign_choice, items))
        case Quantity() | Apply():
            return bool({"pm", "mp"} & set(functions(node)))
    return False


def _with_signs(node: Node, *, upper: bool) -> Node:
    match node:
        case Relation(operators, sides):
            return Relation(operators, tuple(_with_signs(side, upper=upper) for side in sides))
        case Group(brackets, items):
            return Group(brackets, tuple(_with_signs(item, upper=upper) for item in items))
        case Quantity(value, unit):
            return Quantity(_with_signs(value, upper=upper), unit)
        case Apply("pm" | "mp" as sign, (argument,)):
            inner = _with_signs(argument, upper=upper)
            return inner if (sign == "pm") == upper else Apply("negate", (inner,))
        case Apply(function, arguments):
            return Apply(function, tuple(_with_signs(argument, upper=upper) for argument in arguments))
    return node


def _is_single(node: Node) -> bool:
    """Whether it is a set of one."""
    return isinstance(node, Group) and node.brackets == "{}" and len(node.items) == 1


def _only_item(node: Node) -> Node:
    return node.items[0] if isinstance(node, Group) and _is_single(node) else node


def _unnamed(items: tuple[Node, ...]) -> tuple[Node, ...]:
    """The values of "n = 2, 3, 4" and of "x = 1, x = 2"; other lists as they are, such as "x = 1, y = 2"."""
    if not items or not _is_assignment(items[0]):
        return items
    names = {item.sides[0] for item in items if isinstance(item, Relation)}
    are_values = all(_is_assignment(item) or not isinstance(item, Relation) for item in items)
    if len(names) != 1 or not are_values:
        return items
    return tuple(item.sides[1] if isinstance(item, Relation) else item for item in items)


def _is_assignment(node: Node) -> bool:
    return isinstance(node, Relation) and node.operators == ("=",) and _is_name(node.sides[0])


def _is_name(node: Node) -> bool:
    """x, f(x), Area, AB, |AB|, AB/CD, or (x, y)."""
    if isinstance(node, Group):
        return bool(node.brackets) and bool(node.items) and all(map(_is_name, node.items))
    if isinstance(node, Apply):
        return node.function in ("*", "/", "abs") and all(map(_is_name, node.arguments))
    return isinstance(node, Symbol) and not node.is_constant


def _has_variables(node: Node) -> bool:
    try:
        return bool(variables(node))
    except Undefined:
        return False


def _difference(relation: Relation) -> Node:
    return Apply("+", (relation.sides[0], Apply("negate", (relation.sides[1],))))


def _real(node: Node) -> Node:
    """An end of an interval; NotASet where it is no expression without variables."""
    if isinstance(node, Number | Apply | Symbol | Quantity) and not _has_variables(node):
        return node
    raise NotASet


def _is_infinite(node: Node, sign: int) -> bool:
    infinity = Symbol("infinity", True)
    return node == (infinity if sign > 0 else Apply("negate", (infinity,)))


def _decimal(node: Node) -> Number | None:
    """A number that is written with a decimal point."""
    if isinstance(node, Apply) and node.function == "negate":
        inner = _decimal(node.arguments[0])
        return None if inner is None else Number(-inner.value, inner.decimals)
    return node if isinstance(node, Number) and node.decimals is not None else None


def _in_case_of(reference: Node, response: Node) -> Node:
    """The response with its variables in the reference's capital or small letters, where that makes them the same."""
    reference_names, response_names = variables(reference), variables(response)
    if reference_names == response_names:
        return response
    by_folded = {name.casefold(): name for name in reference_names}
    if len(by_folded) != len(reference_names) or len({name.casefold() for name in response_names}) != len(
        response_names
    ):
        return response
    renamed = {name: Symbol(by_folded.get(name.casefold(), name)) for name in response_names}
    return substitute(response, renamed)


def _same_colons(reference: Node, response: Node) -> bool:
    """Times are the same digit by digit; ratios in proportion, 3:2 also as 3/2."""
    reference = reference.value if isinstance(reference, Quantity) else reference
    response = response.value if isinstance(response, Quantity) else response
    if isinstance(reference, Colon) and isinstance(response, Colon):
        if reference.parts == response.parts:
            return True
        if _may_be_time(reference) or _may_be_time(response) or len(reference.parts) != len(response.parts):
            return False
        pairs = list(zip(reference.parts, response.parts, strict=True))
        first, other = pairs[0]
        return all(part * other == other_part * first for part, other_part in pairs) and first != 0
    if isinstance(reference, Colon) and not _may_be_time(reference) and len(reference.parts) == 2:
        first, second = reference.parts
        is_fraction = isinstance(response, Apply) and response.function == "/"
        try:
            return is_fraction and second != 0 and exact_value(response) == first / second
        except Inexact:
            return False
    return False


def _may_be_time(colon: Colon) -> bool:
    return any(len(text) == 2 and text < "60" for text in colon.texts[1:])
