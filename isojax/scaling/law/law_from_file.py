"""The law n*(C) from points of a frontier alone, such as those of a published figure: a table with
columns n and rollouts (`isojax fit-law`).

Every point counts once, without a running average. 90% intervals come from a bootstrap: the form of
the law (n_star_law.py: FORMS) is fitted again to points that are drawn with replacement."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from isojax.core.columns import is_blank, parse_number
from isojax.core.errors import InputError
from isojax.core.table_checks import check_unique_rows, filter_rows, float_column
from isojax.core.table_files import read_table
from isojax.core.tabular import DataTable
from isojax.scaling.intervals import LEVEL, REPLICATES, SEED, central_band
from isojax.scaling.law import n_star_law
from isojax.scaling.law.n_star_law import FORMS, MIN_DISTINCT_N
from isojax.scaling.mixed_settings import describe_mixtures
from isojax.scaling.result import Law
from isojax.scaling.tracks import FloatArray

POINT_COLUMNS = ("n", "rollouts")
MODES = ("hierarchical", "paper")
BAND_POINTS = 60  # values of C at which the law's interval is tabulated
REPLICATE_STARTS = 2  # of the search for each replicate; more do not change the intervals
# With fewer distinct n per parameter, single values of n determine the parameters.
MIN_DISTINCT_N_PER_PARAMETER = 2
SETTING_COLUMNS = ("B_p", "B", "seed")  # settings whose values are numbers
# The fitted parameters; the line's log10_C0 is the centre of its points, which is no parameter.
PARAMETERS = {"constant": ("b",), "linear": ("k", "b"), "sigmoid": ("L", "k", "log10_C0", "b")}


def fit_law_file(
    path: Path, filters: Sequence[str] = (), mode: str = "hierarchical"
) -> dict[str, Any]:
    """Fit the law n*(C) to a file of frontier points, the best n at each of several budgets C.

    path: CSV, TSV or JSON lines with columns n (>= 1) and rollouts (> 0). filters: rows to keep,
    such as ["model=7b"]. Other columns serve these filters, and a warning where columns of text or
    of SETTING_COLUMNS show that several settings are mixed. mode: "hierarchical" chooses the form
    by AICc, "paper" fits the paper's sigmoid.

    Gives a document of plain values:
    - kind ("points"), file, where (the filters), mode;
    - points, distinct_n {n: points}, C_low, C_high;
    - n_star: the fields of Law, with aicc, intervals of the parameters, and band, the law's 90%
      interval along C; None where the points have two values of n, which determine no law;
    - rmse, of log2 n; intervals: how they were made (level, replicates, seed, method), None in mode
      "paper"; flags: sentences.

    InputError for an unknown mode, or a file that cannot be used, with its line."""
    if mode not in MODES:
        raise InputError(
            where="mode",
            found=f"given {mode!r}",
            expected=f"one of {', '.join(MODES)}",
        )

    table = filter_rows(read_table(path), filters)
    n = float_column(table, "n", minimum=1)
    C = float_column(table, "rollouts", exclusive_minimum=0)
    settings = _setting_columns(table)
    check_unique_rows(table, (*POINT_COLUMNS, *settings))

    order = np.lexsort((n, C))  # by C, of equal C by n
    n = n[order]
    C = C[order]
    distinct_n = np.unique(n)
    document = {
        "kind": "points",
        "file": str(path),
        "where": list(filters),
        "mode": mode,
        "points": len(C),
        "distinct_n": {f"{v:g}": int((n == v).sum()) for v in distinct_n},
        "C_low": float(C[0]),
        "C_high": float(C[-1]),
    }
    # One value of n is a constant law, three show a slope; two show only where one overtakes the
    # other.
    if 1 < len(distinct_n) < MIN_DISTINCT_N:
        document |= _describe_no_law(C, n)
    else:
        document |= _fit_points(C, n, mode)
    document["flags"] = [*describe_mixtures(table, settings, filters, "law"), *document["flags"]]
    return document


def _describe_no_law(C: FloatArray, n: FloatArray) -> dict[str, Any]:
    """The fields of the document for points with two values of n: no law, and the reason.

    C, n: float[points]."""
    ranges = [
        f"n = {v:g} from C = {C[n == v].min():.4g} to {C[n == v].max():.4g}" for v in np.unique(n)
    ]
    both = f"{' and '.join(ranges)} are two values of n"
    flag = f"no law: {both}, and a slope needs {MIN_DISTINCT_N} at least"
    return {"n_star": None, "rmse": None, "intervals": None, "flags": [flag]}


def _fit_points(C: FloatArray, n: FloatArray, mode: str) -> dict[str, Any]:
    """The fields of the document for points with a law: n_star, rmse, intervals and flags.

    C (rising), n: float[points]. mode: a key of MODES."""
    log2_n = np.log2(n)
    n_max = float(n.max())
    # In mode paper the form is given, a sigmoid, and there is nothing to choose.
    # choose_law takes log2 n, which in a sweep is a mean over replicates; fit_law takes n and
    # averages its log2 over C itself.
    choice = None if mode == "paper" else n_star_law.choose_law(C, log2_n, n_max)
    law = n_star_law.fit_law(C, n, n_max) if choice is None else choice.law
    aicc = None if choice is None else choice.aicc

    residuals = n_star_law.log2_n_star(law, C) - log2_n
    # no_effect, a field of a sweep's law (NStarFit), is False: points alone do not show it.
    # n_star.intervals are those of the parameters; `intervals` states how they were made. Both stay
    # None in mode "paper".
    document = {
        "n_star": {
            **asdict(law),
            "aicc": aicc,
            "intervals": None,
            "no_effect": False,
            "band": None,
        },
        "rmse": float(np.sqrt(np.mean(residuals**2))),
        "intervals": None,
        "flags": list(_law_flags(C, n, law, aicc)),
    }
    if choice is not None:
        document["n_star"] |= _bootstrap_intervals(law, C, log2_n)
        document["intervals"] = {
            "level": LEVEL,
            "replicates": REPLICATES,
            "seed": SEED,
            "method": f"case bootstrap: points drawn with replacement, form {law.form} held fixed",
        }
    return document


def _refit(law: Law, C: FloatArray, log2_n: FloatArray, log2_n_cap: float) -> Law:
    """A law of the same form fitted to other points, float[points] each.

    A line keeps its centre C0, so that its b, the value there, is comparable. log2_n_cap: the
    log2 n at which a sigmoid saturates at most."""
    points = n_star_law.LawPoints(np.log10(C), log2_n, np.ones_like(C), log2_n_cap)
    if law.form == "sigmoid":
        return n_star_law.fit_rising_sigmoid(points, REPLICATE_STARTS)

    refitted = FORMS[law.form].fit(points, False)  # False: a law that does not fall
    if law.form != "linear" or law.log10_C0 is None:
        return refitted
    b_at_centre = float(n_star_law.log2_n_star(refitted, 10**law.log10_C0))
    return replace(refitted, b=b_at_centre, log10_C0=law.log10_C0)


def _bootstrap_intervals(law: Law, C: FloatArray, log2_n: FloatArray) -> dict[str, Any]:
    """The 90% intervals of the law's parameters and of n*(C), by a bootstrap over the points.

    C (rising), log2_n: float[points]. Gives {"intervals": {name: [low, high]}, "band": [{"C": C,
    "low": n, "high": n}, ...]}; the names are those of PARAMETERS, such as "k"."""
    # A draw in which all points have the same C has no slope, and is drawn again.
    rng = np.random.default_rng(SEED)
    log2_n_cap = float(log2_n.max()) + 1  # as for the law itself: twice the largest n
    refitted_laws = []
    while len(refitted_laws) < REPLICATES:
        resampled = rng.integers(0, len(C), len(C))
        if law.form == "constant" or np.ptp(C[resampled]) > 0:
            refitted_laws.append(_refit(law, C[resampled], log2_n[resampled], log2_n_cap))

    names = PARAMETERS[law.form]
    parameters = [[getattr(refitted, name) for name in names] for refitted in refitted_laws]
    lows, highs = central_band(np.array(parameters))

    C_grid = np.geomspace(C[0], C[-1], BAND_POINTS) if C[-1] > C[0] else C[:1]
    laws_along_C = [n_star_law.n_star(refitted, C_grid) for refitted in refitted_laws]
    n_lows, n_highs = central_band(np.array(laws_along_C))
    band = zip(C_grid.tolist(), n_lows.tolist(), n_highs.tolist(), strict=True)
    return {
        "intervals": {
            name: [float(low), float(high)]
            for name, low, high in zip(names, lows, highs, strict=True)
        },
        "band": [{"C": at, "low": low, "high": high} for at, low, high in band],
    }


def _setting_columns(table: DataTable) -> list[str]:
    """The names of the columns that describe the setting in which a point was measured.

    These are columns of text, such as a model's name, and those of SETTING_COLUMNS, whose values
    are numbers."""

    def is_text(name: str) -> bool:
        return all(
            isinstance(value, str) and parse_number(value) is None
            for value in table.rows.column(name)
            if not is_blank(value)
        )

    others = [name for name in table.columns if name not in POINT_COLUMNS]
    return [name for name in others if name in SETTING_COLUMNS or is_text(name)]


def _law_flags(
    C: FloatArray, n: FloatArray, law: Law, aicc: Mapping[str, float | None] | None
) -> Iterator[str]:
    """What a reader of a law must know before believing it, a sentence each.

    C (rising), n: float[points]. aicc: the score of each form, such as {"constant": -3.1, "linear":
    -9.4, "sigmoid": None}, None for a form with too few points; None in mode "paper"."""
    distinct_n = np.unique(n)
    parameter_count = FORMS[law.form].parameter_count
    if len(distinct_n) == 1:
        text = f"all {len(n)} points have n = {distinct_n[0]:g}: n*(C) is taken as constant"
        yield f"{text}, because no other n was compared with it"
        return

    if parameter_count > 1 and len(distinct_n) < MIN_DISTINCT_N_PER_PARAMETER * parameter_count:
        listed = ", ".join(f"{v:g}" for v in distinct_n)
        parameters = f"the {parameter_count} parameters of n*(C)"
        yield f"only {len(distinct_n)} distinct n ({listed}) determine {parameters}"
    if law.form == "constant":
        text = f"no form is better supported than a constant, n = {2**law.b:.3g}"
        yield f"{text}: the points do not show n to change with C"

    unsupported_forms = [name for name, score in (aicc or {}).items() if score is None]
    if unsupported_forms:
        counts = f"{len(distinct_n)} distinct n, {len(np.unique(C))} distinct C"
        yield f"the points are too few for {' and '.join(unsupported_forms)}: {counts}"

    yield from _fall_flags(C, n)
    yield from (text for _, text in n_star_law.law_limits(law, C[0], C[-1]))
    if n[-1] == n.max():
        text = f"the points end at their largest n ({n.max():g})"
        yield f"{text}: n*(C) levels off there only if larger n were tried too"
    if aicc is not None and len(n) > len(distinct_n):
        yield (
            "AICc and intervals take points as independent; those of one n share runs, "
            "so both may be too confident"
        )


def _fall_flags(C: FloatArray, n: FloatArray) -> Iterator[str]:
    """The flag that n falls from one point to the next as C rises, with the largest fall."""
    falls = [(a, b) for a, b in pairwise(range(len(n))) if n[b] < n[a]]
    if not falls:
        return

    a, b = max(falls, key=lambda fall: n[fall[0]] / n[fall[1]])
    times = "once" if len(falls) == 1 else f"{len(falls)} times, most"
    largest = f"from {n[a]:g} at C = {C[a]:.4g} to {n[b]:g} at C = {C[b]:.4g}"
    yield f"n falls as C rises {times} {largest}: a rising law averages over that"
