"""Which cells have too few evaluations for a curve. It needs no SciPy, so that a command can refuse
a sweep before it loads that."""

from collections.abc import Mapping, Sequence

from isojax.core.estimators import FloatArray

MIN_POINTS = 3  # of a curve, at C > 0


def unfitted_reasons(
    C_by_cell: Mapping[tuple[int, int], Sequence[FloatArray]],
) -> dict[tuple[int, int], str]:
    """Why cells have no curve, of those that have none, by the rising C > 0 at which their seeds
    are evaluated."""
    reasons = {
        key: reason for key, seeds in C_by_cell.items() if (reason := _unfitted_reason(seeds))
    }
    if (
        sum(len(C) for key, seeds in C_by_cell.items() if key not in reasons for C in seeds)
        <= MIN_POINTS
    ):
        return (
            dict.fromkeys(C_by_cell, f"fewer than {MIN_POINTS + 1} points at C > 0 in all")
            | reasons
        )
    return reasons


def _unfitted_reason(C_by_seed: Sequence[FloatArray]) -> str:
    points = sum(map(len, C_by_seed))
    if points < MIN_POINTS:
        return f"{points} points at C > 0, at least {MIN_POINTS} needed"
    shares_range = all(map(len, C_by_seed)) and max(C[0] for C in C_by_seed) < min(
        C[-1] for C in C_by_seed
    )
    return "" if shares_range else "its seeds share no range of C > 0"
