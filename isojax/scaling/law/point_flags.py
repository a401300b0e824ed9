"""Flags of a law fitted to frontier points: mixed settings, few n, an uncertain form, extrapolation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

import numpy as np

from isojax.core.tabular import DataTable, is_blank, parse_number
from isojax.scaling.law.law_forms import FORMS, MIN_DISTINCT_N, Law
from isojax.scaling.law.n_star_law import LawChoice, n_star
from isojax.scaling.validation_metrics import FloatArray

# With fewer distinct n per parameter, single values of n determine the parameters.
MIN_DISTINCT_N_PER_PARAMETER = 2
# The points do not distinguish the law's form from another one with at least this Akaike weight.
RIVAL_WEIGHT = 0.1
MAX_SETTING_VALUES = 20  # a text column with more distinct values labels each row and is no setting
SETTING_COLUMNS = ("B_p", "B", "seed")  # settings whose values are numbers


def setting_columns(table: DataTable, point_columns: Collection[str]) -> list[str]:
    """The columns that describe a point's setting: text, and the numbers of SETTING_COLUMNS."""

    def is_text(name: str) -> bool:
        values = [row.values.get(name) for row in table.rows]
        return all(isinstance(v, str) and parse_number(v) is None for v in values if not is_blank(v))

    return [c for c in table.columns if c not in point_columns and (c in SETTING_COLUMNS or is_text(c))]


def mixture_flags(table: DataTable, settings: Sequence[str], filters: Sequence[str]) -> list[str]:
    """Several values of one setting in one law."""
    flags = []
    filtered_columns = {text.partition("=")[0].strip() for text in filters}
    for name in (s for s in settings if s not in filtered_columns):
        values = [str(row.values.get(name)) for row in table.rows if not is_blank(row.values.get(name))]
        distinct_values = list(dict.fromkeys(values))
        if 1 < len(distinct_values) <= min(MAX_SETTING_VALUES, len(values) // 2):
            flags.append(
                f"the points mix {name} = {', '.join(distinct_values)} in one law; "
                f"--where {name}={distinct_values[0]} takes one of them"
            )
    return flags


def two_values_flag(C: FloatArray, n: FloatArray) -> str:
    """Why no law is fitted to two values of n, and where each was best."""
    ranges = [f"n = {v:g} from C = {C[n == v].min():.4g} to {C[n == v].max():.4g}" for v in np.unique(n)]
    return f"no law: {' and '.join(ranges)} are two values of n, and a slope needs {MIN_DISTINCT_N} at least"


def law_flags(
    C: FloatArray,
    n: FloatArray,
    law: Law,
    choice: LawChoice | None,
    parameter_ranges: Mapping[str, tuple[float, float]],
) -> list[str]:
    """The flags of a law fitted to points sorted by C.

    Args:
        choice: None in mode "paper".
        parameter_ranges: parameter -> its smallest and largest value when one n is left out.
    """
    distinct_n = np.unique(n)
    if len(distinct_n) == 1:
        return [
            f"all {len(n)} points have n = {distinct_n[0]:g}: n*(C) is taken as constant, because no other n was "
            "compared with it"
        ]
    flags = _support_flags(distinct_n, law, parameter_ranges)
    if law.form == "constant":
        flags.append(
            f"no form is better supported than a constant, n = {2**law.b:.3g}: the points do not show n to change with "
            "C"
        )
    if choice is not None:
        flags += _choice_flags(choice, len(distinct_n), len(np.unique(C)))
    flags += [*_fall_flags(C, n), *_reach_flags(C, n, law)]
    if choice is not None and len(n) > len(distinct_n):
        flags.append(
            "AICc and the intervals treat the points as independent; points of one n come from the same runs, so both "
            "may be too confident"
        )
    return flags


def _support_flags(distinct_n: FloatArray, law: Law, parameter_ranges: Mapping[str, tuple[float, float]]) -> list[str]:
    """Few distinct n, and how far the parameters depend on each."""
    parameter_count = FORMS[law.form].parameter_count
    if parameter_count == 1 or len(distinct_n) >= MIN_DISTINCT_N_PER_PARAMETER * parameter_count:
        return []
    listed = ", ".join(f"{v:g}" for v in distinct_n)
    text = f"only {len(distinct_n)} distinct n ({listed}) determine the {parameter_count} parameters of n*(C)"
    ranges = ", ".join(f"{name} {low:.3g} to {high:.3g}" for name, (low, high) in parameter_ranges.items())
    return [f"{text}; with one of them left out: {ranges}" if ranges else text]


def _choice_flags(choice: LawChoice, distinct_n: int, distinct_C: int) -> list[str]:
    """Forms that the points hardly distinguish from the chosen one, or are too few for."""
    form = choice.law.form
    flags = [
        f"the points hardly distinguish {form} from {name} (Akaike weights {choice.weights[form]:.2f} and {weight:.2f})"
        for name, weight in choice.weights.items()
        if name != form and weight >= RIVAL_WEIGHT
    ]
    unsupported_forms = [name for name, score in choice.aicc.items() if score is None]
    if unsupported_forms:
        counts = f"{distinct_n} distinct n, {distinct_C} distinct C"
        flags.append(f"the points are too few for {' and '.join(unsupported_forms)}: {counts}")
    return flags


def _fall_flags(C: FloatArray, n: FloatArray) -> list[str]:
    """Where n falls, which a rising law cannot describe."""
    falling_pairs = [(a, b) for a, b in pairwise(range(len(n))) if n[b] < n[a]]
    if not falling_pairs:
        return []
    a, b = max(falling_pairs, key=lambda ab: n[ab[0]] / n[ab[1]])
    times = "once" if len(falling_pairs) == 1 else f"{len(falling_pairs)} times, most"
    fall = f"from {n[a]:g} at C = {C[a]:.4g} to {n[b]:g} at C = {C[b]:.4g}"
    return [f"n falls as C rises {times} {fall}: a rising law averages over that"]


def _reach_flags(C: FloatArray, n: FloatArray, law: Law) -> list[str]:
    """Parameters that the points do not determine, and where the law goes beyond them."""
    flags = []
    C0 = float("nan") if law.log10_C0 is None else 10**law.log10_C0
    values = {"L": law.L, "k": law.k, "C0": C0}
    at_bounds = ", ".join(f"{name} = {values[name]:.4g}" for name in law.at_bounds)
    if at_bounds:
        flags.append(f"n*(C) has {at_bounds} at its bound; the points do not determine it")
    if n[-1] == n.max():
        flags.append(
            f"the points end at their largest n ({n.max():g}): n*(C) levels off there only if larger n were tried too"
        )
    if law.form != "sigmoid":
        return flags
    n_saturation, n_at_end = 2 ** (law.b + law.L), float(n_star(law, C[-1]))
    if not C[0] <= C0 <= C[-1]:
        flags.append(
            f"the law reaches beyond its points: its middle C0 = {C0:.4g} is outside {C[0]:.4g} to {C[-1]:.4g}"
        )
    if n_saturation > 2**0.5 * n_at_end:
        flags.append(
            f"the law reaches beyond its points: it saturates at n = {n_saturation:.3g}, "
            f"but is at {n_at_end:.3g} where they end"
        )
    return flags
