"""Plus-minus signs: an answer with ± is a list of two values."""

from isojax.tasks.answers.arithmetic import functions
from isojax.tasks.answers.tree import Apply, Group, Node, Quantity, Relation


def expand(node: Node) -> Node:
    """An answer with plus-minus signs as the list of both values; lists in a list become one list.

    3 ± 1, 7 is 4, 2, 7. Signs in one item are chosen together: of 1 ± 2 ∓ 3, all the upper ones or
    all the lower ones.
    """
    if isinstance(node, Group) and not node.brackets:
        items: list[Node] = []
        for item in node.items:
            items += _variants(item)
        return Group("", tuple(items))

    variants = _variants(node)
    return variants[0] if len(variants) == 1 else Group("", tuple(variants))


def _variants(node: Node) -> list[Node]:
    if not _has_sign_choice(node):
        return [node]
    return [_with_signs(node, upper=True), _with_signs(node, upper=False)]


def _has_sign_choice(node: Node) -> bool:
    """Whether ± or ∓ is in a node; of matrices and set operations it is not looked for."""
    match node:
        case Relation(sides=sides):
            return any(map(_has_sign_choice, sides))
        case Group(items=items):
            return any(map(_has_sign_choice, items))
        case Quantity() | Apply():
            return not {"pm", "mp"}.isdisjoint(functions(node))
    return False


def _with_signs(node: Node, *, upper: bool) -> Node:
    """The node with the upper sign, or the lower one, in place of each plus-minus sign: of 1 ± 2
    the upper one gives 1 + 2."""

    def with_signs(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        return tuple(_with_signs(inner, upper=upper) for inner in nodes)

    match node:
        case Relation(operators, sides):
            return Relation(operators, with_signs(sides))
        case Group(brackets, items):
            return Group(brackets, with_signs(items))
        case Quantity(value, unit):
            return Quantity(_with_signs(value, upper=upper), unit)
        case Apply("pm" | "mp" as sign, (argument,)):
            inner = _with_signs(argument, upper=upper)
            is_plus = (sign == "pm") == upper  # the upper sign of ± is +, that of ∓ is -
            return inner if is_plus else Apply("negate", (inner,))
        case Apply(function, arguments):
            return Apply(function, with_signs(arguments))
    # Numbers and symbols have none. Those in a series, matrix, set operation or residue stay.
    return node
