"""Whether a response's answer is the same as the reference's; both are trees (tree.py).

The reference decides what is asked. A response may leave out a unit, a variable's name (5 where the
reference is x = 5) or the brackets of a tuple; but it may not give another unit, name or bracket,
nor only some of several values.
"""

from isojax.tasks.answers.arithmetic import (
    Arithmetic,
    Inexact,
    Undefined,
    exact_value,
    variables,
)
from isojax.tasks.answers.colons import same_colons
from isojax.tasks.answers.expression import is_decimal
from isojax.tasks.answers.names import NamedValue, has_variables, is_asked_for, is_name, unnamed
from isojax.tasks.answers.real_sets import Interval, NotASet, RealSets
from isojax.tasks.answers.sign_choice import expand
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
)
from isojax.tasks.answers.units import conversion

MAX_ITEMS = 64  # of an unordered list, compared pair by pair


class Equality:
    """Compares the trees of two answers.

    In all methods the reference's node comes first and the response's second, since the response
    may leave out what the reference has, and not the other way round. Between `same` and its
    answer, Undefined may be raised where two nodes cannot be compared.
    """

    def __init__(self, arithmetic: Arithmetic) -> None:
        self.arithmetic = arithmetic
        self.real_sets = RealSets(arithmetic)

    def same(self, reference: Node, response: Node) -> bool:
        """Whether a response is right; False also where the two cannot be compared."""
        try:
            return self._same(expand(reference), expand(response))
        except (Undefined, RecursionError):
            return False

    def _same(self, reference: Node, response: Node) -> bool:
        """The comparison of two nodes, by their kinds: relations (x < 3), unions and other
        operations on sets, lists (Group), then single values.

        The order matters: x < 3 must be found the same as the interval (-infinity, 3), so that
        relations and sets are tried before lists, and each kind is decided by the first test that
        applies to either node. `_same_scalars` must get no Relation or Group.
        """
        if reference == response:
            return True
        if isinstance(reference, Relation) or isinstance(response, Relation):
            return self._same_relations(reference, response)
        if any(isinstance(node, SetOperation) or node == REALS for node in (reference, response)):
            return self._same_sets(reference, response)

        # {5} is 5: where one of them is a set of one item, compare the item. The other is no such
        # set, so that `_only_item` returns it unchanged.
        if _is_single(reference) != _is_single(response):
            return self._same(_only_item(reference), _only_item(response))
        if isinstance(reference, Group):
            return self._same_groups(reference, response)
        if isinstance(response, Group):
            return False
        return self._same_scalars(reference, response)

    # --- numbers and expressions

    def _same_scalars(self, reference: Node, response: Node) -> bool:
        """Whether two nodes that are neither relations nor lists are the same: matrices, numbers in
        a base, residues (3 mod 7), times and ratios, otherwise quantities."""
        match reference, response:
            case Matrix(reference_rows), Matrix(response_rows):
                return self._same_rows(reference_rows, response_rows)
            # The base may be left out, 52 for 52_8, which then is read as a Number: its decimal
            # digits must be those of the numeral. A3_16 has a letter, and equals no Number.
            case BaseNumeral(digits), Number(value):
                return digits.isdigit() and value == int(digits)
            case Residue(), Residue():
                return self._same_residues(reference, response)
            # "mod 7" may be left out by the response.
            case Residue(value), _ if not isinstance(response, Matrix | Colon | BaseNumeral):
                return self._same(value, response)
            # A time or a ratio, such as 2:30 or 3:2.
            case (Colon(), _) | (_, Colon()):
                return same_colons(reference, response)
        # Two different kinds: a matrix or a number in a base equals nothing else, and 3 mod 7 is no
        # answer where 3 is the reference. (Two equal numerals were found so by `_same`, since their
        # trees are equal.)
        if isinstance(reference, Matrix | BaseNumeral):
            return False
        if isinstance(response, Matrix | BaseNumeral | Residue):
            return False
        return self._same_quantities(reference, response)

    def _same_rows(
        self, reference: tuple[tuple[Node, ...], ...], response: tuple[tuple[Node, ...], ...]
    ) -> bool:
        """Whether two matrices, each a tuple of rows, have the same entries."""
        if len(reference) != len(response):
            return False
        return all(
            self._same_in_order(row, other) for row, other in zip(reference, response, strict=True)
        )

    def _same_residues(self, reference: Residue, response: Residue) -> bool:
        """Whether both are one residue class: 10 mod 7 and 3 mod 7."""
        if not self._same(reference.modulus, response.modulus):
            return False
        try:
            difference = exact_value(reference.value) - exact_value(response.value)
            modulus = exact_value(reference.modulus)
        except Inexact:
            return self._same(reference.value, response.value)
        return modulus != 0 and (difference / modulus).denominator == 1

    def _same_quantities(self, reference: Node, response: Node) -> bool:
        """Whether two numbers or expressions, with or without units, are the same: 50 cm and 0.5 m;
        5 where the reference is 5 cm. Also of times with a unit, such as 2:30 pm."""
        # The factor from the response's unit to the reference's: 1 where one of them has no unit,
        # None where they measure different things.
        reference_unit = reference.unit if isinstance(reference, Quantity) else None
        response_unit = response.unit if isinstance(response, Quantity) else None
        factor = conversion(reference_unit, response_unit)
        if factor is None:
            return False

        reference = reference.value if isinstance(reference, Quantity) else reference
        response = response.value if isinstance(response, Quantity) else response
        if isinstance(reference, Colon) or isinstance(response, Colon):
            return same_colons(reference, response)
        if isinstance(reference, Group) or isinstance(response, Group):
            return False  # of several numbers with one unit, as (1, 2) cm, none is compared
        if factor != 1:
            response = Apply("*", (response, Number(factor)))
        if self._same_values(reference, response):
            return True

        # 50% is 50 as well as 0.5 where the other side has no percent sign. As 0.5 it was compared
        # above; here the other side gets the sign that it lacks.
        if _is_percent(reference) and not _is_percent(response):
            return self._same_values(reference, Apply("percent", (response,)))
        if _is_percent(response) and not _is_percent(reference):
            return self._same_values(Apply("percent", (reference,)), response)
        return False

    def _same_values(self, reference: Node, response: Node) -> bool:
        """Whether two expressions without units are equal, or one of them is a decimal number of
        six digits or more to which the other was rounded: 3.141593 and pi."""
        # A number written with a decimal point, with its sign; None for any other expression.
        # is_rounded: whether the decimal is the expression's value, rounded or cut off.
        reference_decimal = decimal(reference)
        response_decimal = decimal(response)
        if response_decimal is not None and reference_decimal is None:
            is_number = not variables(reference)
            if is_number and self.arithmetic.is_rounded(response_decimal, reference):
                return True
        elif reference_decimal is not None and response_decimal is None:
            # An integer is no exact value that the decimal was rounded from: 3 for 3.0000001. (The
            # branch above has no such test: there is_rounded alone decides on integers.)
            is_integer = isinstance(response, Number) and response.value.denominator == 1
            is_number = not is_integer and not variables(response)
            if is_number and self.arithmetic.is_rounded(reference_decimal, response):
                return True
        return self.arithmetic.equal(reference, response)

    # --- lists, tuples and sets

    def _same_groups(self, reference: Group, response: Node) -> bool:
        """Whether two lists, sets, tuples or intervals are the same. Lists without brackets, and
        sets, have their items in any order; tuples in theirs.

        `unnamed` leaves out the name that the items of a list share: 1, 2 for x = 1, x = 2.
        """
        if not isinstance(response, Group):
            return False
        brackets = {reference.brackets, response.brackets}
        if brackets == {"", "{}"} or brackets == {""}:
            return self._same_in_any_order(unnamed(reference.items), unnamed(response.items))
        if brackets == {"{}"}:
            return self._same_set_items(reference.items, response.items)

        # A tuple may leave out its brackets. Those of a set and of an interval, [1, 5) or (1, 5],
        # have a meaning, and may not differ. So different brackets are allowed only where one side
        # has none ("") and the other is neither a set nor may be an interval.
        if reference.brackets != response.brackets:
            has_square_bracket = any("[" in pair or "]" in pair for pair in brackets)
            may_be_interval = has_square_bracket and len(reference.items) == 2
            if "{}" in brackets or may_be_interval or "" not in brackets:
                return False
        return self._same_in_order(unnamed(reference.items), unnamed(response.items))

    def _same_set_items(self, reference: tuple[Node, ...], response: tuple[Node, ...]) -> bool:
        """Whether each set has every item of the other, however often. Long ones, of more than
        MAX_ITEMS items, are compared in order, since each pair of items takes time."""

        def contains(items: tuple[Node, ...], node: Node) -> bool:
            return any(self._same(item, node) for item in items)

        if max(len(reference), len(response)) > MAX_ITEMS:
            return self._same_in_order(reference, response)
        if not all(contains(reference, item) for item in response):
            return False
        return all(contains(response, item) for item in reference)

    def _same_in_any_order(self, reference: tuple[Node, ...], response: tuple[Node, ...]) -> bool:
        """Whether a response has each item of the reference, and no others, in any order. Long
        lists are compared in order, as in `_same_set_items`."""
        if max(len(reference), len(response)) > MAX_ITEMS:
            return self._same_in_order(reference, response)
        if len(reference) > len(response):
            return False

        # Each item of the reference takes one item of the response.
        remaining = list(response)
        for item in reference:
            for index, other in enumerate(remaining):
                if self._same(item, other):
                    del remaining[index]
                    break
            else:
                return False
        # What is left must be repetitions, which are no mistake.
        return all(any(self._same(item, other) for item in reference) for other in remaining)

    def _same_in_order(self, reference: tuple[Node, ...], response: tuple[Node, ...]) -> bool:
        if len(reference) != len(response):
            return False
        return all(self._same(item, other) for item, other in zip(reference, response, strict=True))

    # --- equations and inequalities

    def _same_relations(self, reference: Node, response: Node) -> bool:
        """Whether two nodes, of which at least one is a relation, are the same: as statements, or
        as a value and its equation (5 and x = 5), else as sets of real numbers.

        `_named_value` gives the value that an equation names, or None; it has several `values`
        where one is only about equal to the others, of which any may be compared: for
        x = 1/3 ~ 0.33 both. The equation of a response may also name an expression that was asked
        for, as m + n = 7 does; that of a reference names one variable."""
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
        """Whether two relations name one value (x = 5 and 5 = x), or have the same solutions."""
        reference_value = self._named_value(reference)
        response_value = self._named_value(response, is_response=True)
        if reference_value is not None and response_value is not None:
            # One of them may leave out the name; X is x.
            names = [reference_value.name, response_value.name]
            is_one_name = len({str(name).casefold() for name in names if name is not None}) <= 1
            if is_one_name and self._same(reference_value.values[0], response_value.values[0]):
                return True
        if len(reference.operators) == len(response.operators) == 1:
            return self._same_comparison(reference, response)
        is_one_kind = reference.operators == response.operators
        return is_one_kind and self._same_in_order(reference.sides, response.sides)

    def _same_comparison(self, reference: Relation, response: Relation) -> bool:
        """Whether two equations or inequalities with one sign each have the same solutions:
        3x - y + 13 = 0 and -3x + y = 13; x < 3 and 3 > x.

        They have where left - right of one is a multiple of left - right of the other; with a
        negative factor, the signs of inequalities must be reversed. Each relation has one operator
        and two sides.
        """
        (operator,) = reference.operators
        (other_operator,) = response.operators
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

    def _named_value(self, relation: Relation, *, is_response: bool = False) -> NamedValue | None:
        """The value in which a chain of equal signs ends, with its name if it has one: 5, named x,
        for x = 5; 42 for 6 * 7 = 42; 16, named A, for A = 2 * 8 = 16; 33.3 for 100/3 ~ 33.3 ("~" is
        the sign for about equal). Also the set for x in a set.

        `values` of what is returned has the last side first, but for chains with "~", where the
        exact values come before it; any of them may be compared.

        None where the chain is wrong, such as 6 * 7 = 43, or is an equation to be solved.
        is_response: a response may also name an expression that is asked for, as in m + n = 7.
        """
        if set(relation.operators) - {"=", "~"}:
            return self._membership(relation)  # of `x in a set`; None for inequalities

        # The name is the first side, or the last of two: 5 = x. operators[i] stands between
        # sides[i] and sides[i + 1], so that both lists lose one entry with the name.
        name: Node | None = None
        sides = list(relation.sides)
        operators = list(relation.operators)
        if is_name(sides[0]) or (is_response and len(sides) > 1 and is_asked_for(sides[0])):
            name = sides.pop(0)
            operators.pop(0)
        elif len(sides) == 2 and is_name(sides[1]):
            name = sides.pop()
            operators.pop()

        last = sides[-1]
        is_about = name is not None and relation.operators[0] == "~"
        if is_response and is_about and not is_decimal(last):
            return None  # "x is about 7" is a guess; 33.3 may be rounded because that was asked for
        if not operators:
            return NamedValue(name, (last,))

        # Every other side must equal the last one or, before "~", be about equal to it.
        values = [last]
        for side, operator in zip(sides[:-1], operators, strict=True):
            if has_variables(side) and name is not None:
                continue  # A = x y = 12
            if operator == "~":
                if not self._is_about(side, last):
                    return None
                values.insert(0, side)
            elif not self._same(side, last):
                return None

        if name is None and has_variables(last):
            return None  # an equation between expressions
        return NamedValue(name, tuple(values))

    def _membership(self, relation: Relation) -> NamedValue | None:
        if relation.operators == ("in",) and is_name(relation.sides[0]):
            return NamedValue(relation.sides[0], (relation.sides[1],))
        return None

    def _is_about(self, value: Node, approximation: Node) -> bool:
        """Whether an approximation is a number that agrees with the value in all its digits, by
        rounding or cutting: 33.3 for 100/3. Another number would be a second answer. Units are left
        out of the comparison."""
        value = value.value if isinstance(value, Quantity) else value
        rounded = approximation.value if isinstance(approximation, Quantity) else approximation
        if not isinstance(rounded, Number):
            return False
        try:
            exact = abs(self.arithmetic.value(value, 30))
            about = abs(self.arithmetic.value(rounded, 30))
        except Undefined:
            return False
        # In units of its last digit, a number that was cut off is smaller by less than one, and one
        # that was rounded up is larger by at most a half. Without decimals the last digit is the
        # one before the point.
        units_left_out = (exact - about) * 10 ** (rounded.decimals or 0)
        return bool(-0.5 <= units_left_out < 1)

    # --- sets of real numbers

    def _same_sets(self, reference: Node, response: Node) -> bool:
        """Whether two sets, or inequalities of one variable, have the same real numbers."""
        try:
            first = self.real_sets.intervals(reference)
            second = self.real_sets.intervals(response)
        except NotASet:
            return self._same_operations(reference, response)
        if len(first) != len(second):
            return False
        return all(
            self._same_interval(one, other) for one, other in zip(first, second, strict=True)
        )

    def _same_operations(self, reference: Node, response: Node) -> bool:
        """Whether two set operations, on sets that are no real numbers, have the same operator and
        the same sets; those of a union or an intersection may be swapped."""
        if not isinstance(reference, SetOperation) or not isinstance(response, SetOperation):
            return False
        if reference.operator != response.operator:
            return False
        reference_sets = (reference.left, reference.right)
        if self._same_in_order(reference_sets, (response.left, response.right)):
            return True
        is_symmetric = reference.operator != "-"
        return is_symmetric and self._same_in_order(reference_sets, (response.right, response.left))

    def _same_interval(self, one: Interval, other: Interval) -> bool:
        if one.has_low != other.has_low or one.has_high != other.has_high:
            return False
        return self._same_ends(one.low, other.low) and self._same_ends(one.high, other.high)

    def _same_ends(self, end: Node | None, other_end: Node | None) -> bool:
        if end is None or other_end is None:  # infinite
            return end is other_end
        return self._same_quantities(end, other_end)


def _is_single(node: Node) -> bool:
    """Whether a node is a set of one item: {5}."""
    return isinstance(node, Group) and node.brackets == "{}" and len(node.items) == 1


def _only_item(node: Node) -> Node:
    """The item of a set of one; any other node unchanged."""
    return node.items[0] if isinstance(node, Group) and _is_single(node) else node


def _is_percent(node: Node) -> bool:
    return isinstance(node, Apply) and node.function == "percent"


def _difference(relation: Relation) -> Node:
    """Left side - right side."""
    return Apply("+", (relation.sides[0], Apply("negate", (relation.sides[1],))))


def decimal(node: Node) -> Number | None:
    """A number that is written with a decimal point, with its sign; None of other nodes."""
    if isinstance(node, Apply) and node.function == "negate":
        inner = decimal(node.arguments[0])
        return None if inner is None else Number(-inner.value, inner.decimals)
    return node if isinstance(node, Number) and node.decimals is not None else None
