"""Whether two expressions have the same value. Rational numbers are compared exactly, others as
floating-point numbers of up to 250 digits, and expressions with variables at several points.

Expressions are trees (tree.py), such as Apply("+", (Number(1), Symbol("x"))) for 1 + x.

Two floating-point values are compared with more and more digits: the difference of equal values
shrinks towards 0 with each digit, any other difference keeps its size.

No algebra is done, so no expression can grow without bound; exact numbers of more than MAX_BITS are
left to floating point.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, comb, factorial, floor, isqrt
from typing import Any

from isojax.tasks.answers.tree import Apply, Node, Number, Quantity, Series, Symbol

MAX_BITS = 100_000  # of an exact number
MAX_FACTORIAL = 5_000
MAX_TERMS = 2_000  # of a sum or a product
MAX_NESTED_TERMS = 40  # of one whose terms are sums or products themselves
MAX_EXPONENT_BITS = 64  # of an exponent in floating point
DIGITS = (50, 120, 250)  # of floating-point numbers, in the order in which they are tried
SIZE_BITS = 500  # larger numbers are compared in all their digits
MAX_SIZE_BITS = 400_000  # still larger ones are not compared
SAME_DIGITS = 20  # leading digits in which two values must agree
NUM_POINTS = 5  # values of the variables at which expressions are compared

Value = Any  # a real or complex number of mpmath


class Inexact(Exception):
    """An expression without an exact rational value here."""


class Undefined(Exception):
    """An expression without a value: a variable, a division by 0, a number out of range."""


def exact_value(node: Node) -> Fraction:
    """The value of an expression without variables as a fraction: 3/4 + 1 is Fraction(7, 4).

    Inexact is raised where it is irrational or undefined, as sqrt(2) and 1/0, and where numerator
    and denominator have more than MAX_BITS together, so that no computation takes long. Units are
    left out.
    """
    match node:
        case Number(value):
            return value
        case Quantity(value):
            return exact_value(value)
        case Apply(function, arguments):
            # Powers, factorials and binomials that would be huge, such as 2^(10^9), are refused
            # before they are computed. Values of other functions have at most about as many digits
            # as their arguments together, and are measured afterwards.
            value = _apply_exactly(function, [exact_value(argument) for argument in arguments])
            if value.numerator.bit_length() + value.denominator.bit_length() > MAX_BITS:
                raise Inexact
            return value
        case Series():
            return _series_exactly(node)
    raise Inexact


def _apply_exactly(function: str, values: list[Fraction]) -> Fraction:
    """The value of a function, such as "+" or "binom", of rational arguments; Inexact where it is
    irrational or undefined, or has no exact version here (sin, log, ...).

    values: one for "negate", "percent", "abs", "floor", "ceil" and "!"; two for "*", "/", "^"
    (base, exponent), "root" (radicand, index) and "binom" (top, bottom); two or more for "+".
    """
    # Of a function with one argument, first and last are the same. A condition that fails, such as
    # a denominator of 0, leads to `raise Inexact` at the end.
    first, last = values[0], values[-1]
    match function:
        case "+":
            return sum(values, Fraction(0))
        case "*":
            return first * last
        case "/" if last:
            return first / last
        case "negate":
            return -first
        case "percent":
            return first / 100
        case "abs":
            return abs(first)
        case "floor":
            return Fraction(floor(first))
        case "ceil":
            return Fraction(ceil(first))
        case "^":
            return _power_exactly(first, last)
        case "root" if last == 2 and first >= 0:
            return _square_root_exactly(first)
        case "!" if first.denominator == 1 and 0 <= first <= MAX_FACTORIAL:
            return Fraction(factorial(int(first)))
        case "binom" if (
            first.denominator == last.denominator == 1 and 0 <= last <= first <= MAX_FACTORIAL
        ):
            return Fraction(comb(int(first), int(last)))
    raise Inexact


def _power_exactly(base: Fraction, exponent: Fraction) -> Fraction:
    """A power with a whole exponent; Inexact for other exponents, 0^0, and too large values."""
    if exponent.denominator != 1 or (base == 0 and exponent <= 0):
        raise Inexact
    num_bits = base.numerator.bit_length() + base.denominator.bit_length()
    if abs(exponent) * num_bits > MAX_BITS:
        raise Inexact
    return base ** int(exponent)


def _square_root_exactly(value: Fraction) -> Fraction:
    """3/2 of 9/4; Inexact where numerator or denominator is no square."""
    numerator, denominator = isqrt(value.numerator), isqrt(value.denominator)
    if numerator**2 != value.numerator or denominator**2 != value.denominator:
        raise Inexact
    return Fraction(numerator, denominator)


def _series_exactly(series: Series) -> Fraction:
    """The value of a sum or product; Inexact where it has too many terms, or an inexact one. It is
    empty where high < low: 0 for a sum, 1 for a product."""
    low = exact_value(series.low)
    high = exact_value(series.high)
    if low.denominator != 1 or high.denominator != 1 or high - low > _max_terms(series):
        raise Inexact

    total = Fraction(0 if series.is_sum else 1)
    for index in range(int(low), int(high) + 1):
        term = exact_value(substitute(series.term, {series.index: Number(Fraction(index))}))
        total = total + term if series.is_sum else total * term
        if total.numerator.bit_length() > MAX_BITS:
            raise Inexact
    return total


def _max_terms(series: Series) -> int:
    """How large high - low may be: MAX_TERMS where no series is inside the terms, MAX_NESTED_TERMS
    where one is, 0 where there are more, since each of them is computed for every term."""
    num_inside = sum(name == "series" for name in functions(series.term))
    if num_inside == 0:
        return MAX_TERMS
    return MAX_NESTED_TERMS if num_inside == 1 else 0


def substitute(node: Node, values: Mapping[str, Node]) -> Node:
    """An expression with other expressions in place of its variables: x + 1 with {"x": Number(2)}
    is 2 + 1. Variables that `values` does not name stay, and so do nodes that are no expression."""
    match node:
        case Symbol(name, is_constant=False):
            return values.get(name, node)
        case Apply(function, arguments):
            return Apply(function, tuple(substitute(argument, values) for argument in arguments))
        case Series():
            # Inside its terms, the index hides a variable of the same name.
            in_term = {name: value for name, value in values.items() if name != node.index}
            return Series(
                is_sum=node.is_sum,
                index=node.index,
                low=substitute(node.low, values),
                high=substitute(node.high, values),
                term=substitute(node.term, in_term),
            )
        case Quantity(value, unit):
            return Quantity(substitute(value, values), unit)
    return node


def variables(node: Node) -> frozenset[str]:
    """The names of an expression's variables: {"x", "y"} for 2 x y; the index of a series is none.
    Undefined is raised for a node that is no expression: a list, a relation or a matrix."""
    match node:
        case Symbol(name, is_constant):
            return frozenset() if is_constant else frozenset([name])
        case Apply(arguments=arguments):
            return frozenset[str]().union(*map(variables, arguments))
        case Series():
            in_term = variables(node.term) - {node.index}
            return variables(node.low) | variables(node.high) | in_term
        case Quantity(value):
            return variables(value)
        case Number():
            return frozenset()
    raise Undefined(f"{type(node).__name__} in an expression")


def functions(node: Node) -> Iterator[str]:
    """The names of all functions and constants in an expression, "series" for a sum or a product
    with bounds: "*" and "pi" for 2 pi. Names may come several times; nodes that are no expression
    have none."""
    match node:
        case Symbol(name, is_constant=True):
            yield name
        case Apply(function, arguments):
            yield function
            for argument in arguments:
                yield from functions(argument)
        case Series():
            yield "series"
            for part in (node.low, node.high, node.term):
                yield from functions(part)
        case Quantity(value):
            yield from functions(value)


@dataclass(frozen=True)
class Arithmetic:
    """Floating-point arithmetic of any precision; `context` is an mpmath.MPContext that nothing
    else uses, because its number of digits is set here."""

    context: Any

    def value(self, node: Node, digits: int) -> Value:
        """The value of an expression without variables, computed with so many decimal digits, such
        as DIGITS[0]; Undefined where it has no finite value. The number of digits stays set in
        `context` until the next call, and what is computed in between has it too."""
        self.context.dps = digits
        try:
            result = self._value(node)
        except (
            ArithmeticError,
            ValueError,
            TypeError,
            RecursionError,
            MemoryError,
            self.context.NoConvergence,
        ) as e:
            raise Undefined(str(e)) from e

        if not self.context.isfinite(result):
            raise Undefined("infinite")
        return result

    def _value(self, node: Node) -> Value:
        """The value of a tree with the digits that are set in the context; an exception of mpmath,
        or Undefined, where it has none."""
        context = self.context
        match node:
            case Number(value):
                return context.mpf(value.numerator) / value.denominator
            case Symbol("pi", is_constant=True):
                return context.pi * 1  # a number with the digits that are set now
            case Symbol("e", is_constant=True):
                return context.e * 1
            case Symbol("i", is_constant=True):
                return context.mpc(0, 1)
            case Quantity(value):
                return self._value(value)
            case Apply(function, arguments):
                return self._apply(function, [self._value(argument) for argument in arguments])
            case Series():
                return self._series(node)
        raise Undefined(str(node))

    def _series(self, series: Series) -> Value:
        """As `_series_exactly`, in floating point; Undefined instead of Inexact."""
        low = self._value(series.low)
        high = self._value(series.high)
        are_integers = self.context.isint(low) and self.context.isint(high)
        if not are_integers or high - low > _max_terms(series):
            raise Undefined("bounds")

        total = self.context.mpf(0 if series.is_sum else 1)
        for index in range(int(low), int(high) + 1):
            term = self._value(substitute(series.term, {series.index: Number(Fraction(index))}))
            total = total + term if series.is_sum else total * term
        return total

    def _apply(self, function: str, values: list[Value]) -> Value:
        """The value of a function, such as "+", "root" or "sin", of these arguments; their number
        and order are those of `_apply_exactly`, and "log" has a number and perhaps a base. An
        exception of mpmath, or Undefined, where it has none."""
        context = self.context
        first, last = values[0], values[-1]  # the same where there is one argument
        match function:
            case "+":
                return sum(values[1:], first)
            case "*":
                return first * last
            case "/":
                return first / last
            case "negate":
                return -first
            case "percent":
                return first / 100
            case "degree":
                return first * context.pi / 180
            case "abs":
                return abs(first)
            case "floor" | "ceil":
                return getattr(context, function)(first)
            case "^":
                return self._power(first, last)
            case "root":
                return context.sqrt(first) if last == 2 else self._root(first, last)
            # _check_size: Undefined for arguments so large that mpmath would hang.
            case "!":
                self._check_size(first)
                return context.factorial(first)
            case "binom":
                self._check_size(first)
                self._check_size(last)
                return context.binomial(first, last)
            case "exp":
                return self._power(context.e * 1, first)
            case "ln":
                return context.log(first)
            case "log":
                return context.log(first) / context.log(last if len(values) == 2 else 10)
        # The others have one argument, and are called in mpmath as here, except for these three.
        names = {"arcsin": "asin", "arccos": "acos", "arctan": "atan"}
        self._check_size(first)
        return getattr(context, names.get(function, function))(first)

    def _check_size(self, value: Value) -> None:
        """Undefined where a number is so large that mpmath would take long, or all memory."""
        if value != 0 and self.context.mag(value) > MAX_EXPONENT_BITS:
            raise Undefined("too large")

    def _power(self, base: Value, exponent: Value) -> Value:
        self._check_size(exponent)
        return self.context.power(base, exponent)

    def _root(self, radicand: Value, index: Value) -> Value:
        """A root, which is real where there is a real one: of a negative number, an odd root."""
        # The cube root of -8 is -2, not the complex number that a power of 1/3 gives.
        is_odd = self.context.isint(index) and int(index) % 2 == 1
        if is_odd and self.context.im(radicand) == 0 and self.context.re(radicand) < 0:
            return -self.context.power(-radicand, 1 / index)
        return self.context.power(radicand, 1 / index)

    # --- comparisons

    def equal(self, first: Node, second: Node) -> bool:
        """Whether two expressions are equal wherever both have a value: 2 (x + 1) and 2 x + 2.
        Expressions without a value, as 1/0, are equal only if they are the same tree. Undefined is
        raised where one is no expression: a list, a relation or a matrix."""
        if first == second:
            return True

        names = sorted(variables(first) | variables(second))
        if not names:
            return self._equal_numbers(first, second)

        # Expressions with variables: equal if they are at each point at which both have a value.
        is_complex = "i" in {*functions(first), *functions(second)}
        num_compared = 0
        for point in self._points(names, first, second):
            at_first = substitute(first, point)
            at_second = substitute(second, point)
            try:
                values = [self.value(node, DIGITS[0]) for node in (at_first, at_second)]
            except Undefined:
                continue

            # A root of a negative number, say: the point is outside the domain of one of them.
            if not is_complex and any(self._has_imaginary_part(value) for value in values):
                continue
            if not self._equal_numbers(at_first, at_second):
                return False
            num_compared += 1
        return num_compared >= 2  # fewer points prove nothing

    def _has_imaginary_part(self, value: Value) -> bool:
        return bool(abs(self.context.im(value)) > abs(value) * 1e-30)

    def _equal_numbers(self, first: Node, second: Node) -> bool:
        """Whether two expressions without variables are equal, exactly if both are rational, else
        in floating point; False where one has no value."""
        try:
            return exact_value(first) == exact_value(second)
        except (Inexact, ArithmeticError, RecursionError):
            pass
        try:
            return self._vanishes(first, second)
        except Undefined:
            return False

    def _vanishes(self, first: Node, second: Node) -> bool:
        """Whether two numbers are equal: their difference, computed with more and more digits,
        gets smaller with each. That of different numbers, however small, keeps its size. Undefined
        where one has no value. The expressions have no variables."""
        differences: list[Value] = []  # for each of DIGITS
        size: Value = 0  # the larger of the two numbers
        for digits in DIGITS:
            first_value = self.value(first, digits)
            second_value = self.value(second, digits)
            difference = abs(first_value - second_value)
            size = max(abs(first_value), abs(second_value))

            # Do not judge by the first precision, of which cancellation may leave no digit.
            is_first = not differences
            if difference > size * self.context.mpf(10) ** -SAME_DIGITS and not is_first:
                return False
            differences.append(difference)

        if self.context.mag(size) > SIZE_BITS:
            return self._vanishes_at_size(first, second, self.context.mag(size))
        if differences[-1] == 0:
            return True
        # Of equal numbers, the 130 digits from DIGITS[1] to DIGITS[2], or more, shrink it far more
        # than the 10^-60 that are asked for here.
        largest = max(differences[:-1])
        return largest == 0 or differences[-1] < largest * self.context.mpf(10) ** -60

    def _vanishes_at_size(self, first: Node, second: Node, num_bits: int) -> bool:
        """Whether two huge numbers, of so many bits, agree in all digits before the decimal point:
        2^100000 and 2^100000 + 1 do not."""
        if num_bits > MAX_SIZE_BITS:
            return False
        digits = int(num_bits * 0.302) + DIGITS[0]  # a bit is .301 of a digit
        return bool(abs(self.value(first, digits) - self.value(second, digits)) < 1e-20)

    def _points(self, names: list[str], *nodes: Node) -> Iterator[Mapping[str, Node]]:
        """NUM_POINTS points at which to compare expressions, each a value for each variable:
        {"x": Number(...)}. They are the same in each call: fractions of both signs, or positive
        integers where a series, a factorial or a binomial needs them. names: of all variables in
        the nodes, sorted, since the values are drawn in this order."""
        function_names = {name for node in nodes for name in functions(node)}
        needs_integers = not function_names.isdisjoint(("series", "!", "binom"))

        draw = random.Random(0)
        for number in range(NUM_POINTS):
            point: dict[str, Node] = {}
            for name in names:
                if needs_integers:
                    value = Fraction(draw.randint(4, 12))
                else:
                    # From .1 to 4, in the later points negative. Over the prime 1009, hardly any is
                    # a simple fraction, where different expressions are likelier to agree.
                    sign = -1 if number > NUM_POINTS // 2 else 1
                    value = sign * Fraction(draw.randint(100, 4000), 1009)
                point[name] = Number(value)
            yield point

    def proportional(self, first: Node, second: Node) -> Value | None:
        """The constant c for which first = c second, whatever the variables are: 2 for 2 x and x.
        None where there is no such constant, or where neither expression has variables. c is a
        number of mpmath, which may be complex, and is never 0. Undefined where one of them is no
        expression."""
        names = sorted(variables(first) | variables(second))
        if not names:
            return None

        factors: list[Value] = []  # at each point
        for point in self._points(names, first, second):
            try:
                numerator = self.value(substitute(first, point), DIGITS[0])
                denominator = self.value(substitute(second, point), DIGITS[0])
            except Undefined:
                continue
            if denominator == 0 or numerator == 0:  # no factor, or 0, which would be no equation
                return None
            factors.append(numerator / denominator)
        if len(factors) < 2:  # too few points at which both have a value
            return None

        first_factor = factors[0]
        spread = max(abs(factor - first_factor) for factor in factors)
        max_spread = abs(first_factor) * self.context.mpf(10) ** -SAME_DIGITS
        return first_factor if spread < max_spread else None

    def order(self, first: Node, second: Node) -> int:
        """-1, 0 or 1 as the first of two real numbers is smaller, equal or larger; Undefined where
        one is not real."""
        if self._equal_numbers(first, second):
            return 0
        difference = self.value(first, DIGITS[1]) - self.value(second, DIGITS[1])
        if self.context.im(difference) != 0:
            raise Undefined("not real")
        return -1 if difference < 0 else 1

    def is_rounded(self, rounded: Number, node: Node) -> bool:
        """Whether a decimal number is the value of an expression, cut off or rounded: 3.141592 and
        3.141593 are pi. The number must have six decimals or more, and six significant digits, so
        that 3.14 and 0.000001 count as no such number. node: an expression without variables; False
        where it has no value."""
        if rounded.decimals is None or rounded.decimals < 6:
            return False
        # The digits without the point, as an integer: below 10^5 it has five digits or fewer.
        if abs(rounded.value) * 10**rounded.decimals < 10**5:
            return False
        try:
            value = self.value(node, DIGITS[0])
            decimal = self._value(rounded)  # with the same number of digits
        except Undefined:
            return False

        unit = self.context.mpf(10) ** -rounded.decimals
        # A number that was cut off is smaller by less than one unit of its last digit; a number
        # that was rounded up is larger by at most half a unit.
        excess = abs(decimal) - abs(value)
        # A little more than .5, for the rounding errors of `excess` itself.
        return bool(abs(value - decimal) < unit and excess <= unit * 0.500001)
