"""Plus-minus signs: an answer with them is a list of two."""

from isojax.tasks.answers.arithmetic import functions
from isojax.tasks.answers.tree import Apply, Group, Node, Quantity, Relation


def expand(node: Node) -> Node:
    """An answer with plus-minus signs as the list of both, and the items of lists in a list as one
    list."""
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
            return Apply(
                function, tuple(_with_signs(argument, upper=upper) for argument in arguments)
            )
    return node
