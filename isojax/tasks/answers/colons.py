"""Times and ratios: 2:30, 3:2."""

from isojax.tasks.answers.arithmetic import Inexact, exact_value
from isojax.tasks.answers.tree import Apply, Colon, Node, Quantity


def same_colons(reference: Node, response: Node) -> bool:
    """Times are the same digit by digit; ratios in proportion, 3:2 also as 3/2."""
    reference = reference.value if isinstance(reference, Quantity) else reference
    response = response.value if isinstance(response, Quantity) else response
    if isinstance(reference, Colon) and isinstance(response, Colon):
        if reference.parts == response.parts:
            return True
        if (
            _may_be_time(reference)
            or _may_be_time(response)
            or len(reference.parts) != len(response.parts)
        ):
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
