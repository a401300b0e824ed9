"""Times and ratios: 2:30, 3:2."""

from isojax.tasks.answers.arithmetic import Inexact, exact_value
from isojax.tasks.answers.tree import Apply, Colon, Node, Quantity


def same_colons(reference: Node, response: Node) -> bool:
    """Whether two answers, at least one of them a time or a ratio (Colon), are the same. Times are
    the same digit by digit; ratios in proportion, 3:2 also as 3/2. False where the reference is no
    Colon. Units are left out."""
    reference = reference.value if isinstance(reference, Quantity) else reference
    response = response.value if isinstance(response, Quantity) else response
    if not isinstance(reference, Colon):
        return False
    if isinstance(response, Colon):
        return _same_times_or_ratios(reference, response)
    return _is_ratio_as_fraction(reference, response)


def _same_times_or_ratios(reference: Colon, response: Colon) -> bool:
    """Whether two have the same parts, or are ratios in proportion, of the same number of parts."""
    if reference.parts == response.parts:
        return True
    if _may_be_time(reference) or _may_be_time(response):
        return False
    if len(reference.parts) != len(response.parts):
        return False

    # 3:2:1 is 6:4:2: each part times the other's first part is the same. Without divisions by 0.
    first, other_first = reference.parts[0], response.parts[0]
    pairs = zip(reference.parts, response.parts, strict=True)
    return first != 0 and all(part * other_first == other * first for part, other in pairs)


def _is_ratio_as_fraction(ratio: Colon, response: Node) -> bool:
    """Whether a response is 3/2 where the reference is 3:2."""
    if _may_be_time(ratio) or len(ratio.parts) != 2:
        return False
    first, second = ratio.parts
    if not (isinstance(response, Apply) and response.function == "/") or second == 0:
        return False
    try:
        return exact_value(response) == first / second
    except Inexact:
        return False


def _may_be_time(colon: Colon) -> bool:
    """Whether minutes or seconds follow: 2:30 and 2:05, but not 2:3 or 2:75."""
    return any(len(text) == 2 and text < "60" for text in colon.texts[1:])
