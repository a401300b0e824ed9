"""Names that an answer gives its value: x, f(x), Area, |AB|."""

from dataclasses import dataclass

from isojax.tasks.answers.arithmetic import Undefined, variables
from isojax.tasks.answers.tree import Apply, Group, Node, Relation, Symbol

_FUNCTIONS_ASKED_FOR = frozenset(["sin", "cos", "tan", "cot", "sec", "csc"])


@dataclass(frozen=True)
class NamedValue:
    """The value on one side of an equation, and the name on the other side, if there is one."""

    name: Node | None
    values: tuple[Node, ...]  # several forms of one value, such as 100/3 and 33.3


def unnamed(items: tuple[Node, ...]) -> tuple[Node, ...]:
    """The values of a list of equations with one name, without the name: 2, 3, 4 for
    "n = 2, 3, 4", and 1, 2 for "x = 1, x = 2".

    Other lists are returned unchanged, such as "x = 1, y = 2". items: of a Group (tree.py). Only
    the first item of "n = 2, 3, 4" is an equation, a Relation; the others are values.
    """
    if not items or not is_assignment(items[0]):
        return items

    # is_assignment: an equation with a name on its left, as x = 5.
    names: set[Node] = set()
    values: list[Node] = []
    for item in items:
        if not isinstance(item, Relation):
            values.append(item)  # 3 and 4 of "n = 2, 3, 4"
        elif is_assignment(item):
            names.add(item.sides[0])
            values.append(item.sides[1])
        else:
            return items
    return tuple(values) if len(names) == 1 else items


def is_assignment(node: Node) -> bool:
    """Whether a node is an equation with a name on its left: x = 5."""
    return isinstance(node, Relation) and node.operators == ("=",) and is_name(node.sides[0])


def is_name(node: Node) -> bool:
    """Whether a node may name a value: x, f(x), Area, AB, |AB|, AB/CD, (x, y)."""
    if isinstance(node, Group):
        return bool(node.brackets) and bool(node.items) and all(map(is_name, node.items))
    if isinstance(node, Apply):
        return node.function in ("*", "/", "abs") and all(map(is_name, node.arguments))
    return isinstance(node, Symbol) and not node.is_constant


def has_variables(node: Node) -> bool:
    """Whether an expression has variables; what is no expression has none."""
    try:
        return bool(variables(node))
    except Undefined:
        return False


def is_asked_for(node: Node) -> bool:
    r"""Whether an expression may be what a problem asks for: m + n, a^2 + b^2, \sin A.

    Of 2x = 10 only x is asked for, so 2x is not.
    """
    if not isinstance(node, Apply) or not has_variables(node):
        return False
    if node.function in _FUNCTIONS_ASKED_FOR and all(map(is_name, node.arguments)):
        return True
    return len(variables(node)) >= 2
