"""The figures and tables of benchmarks/foreign_worlds.py."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

TIMES = (1, 2, 4)
LARGE_ERROR = 0.02  # of the expected reward
Line = dict[str, Any]


def share(hits: Sequence[bool]) -> float:
    return float(np.mean(hits)) if len(hits) else float("nan")


def holds(case: Line) -> bool:
    return case["low"] <= case["truth"] <= case["high"]


def width(cases: Sequence[Line]) -> float:
    return float(np.mean([case["high"] - case["low"] for case in cases])) if cases else float("nan")


def recommendations(lines: Sequence[Line], times: int) -> list[Line]:
    """The answers for one budget; refusals are left out."""
    return [
        case
        for line in lines
        for case in line["recommended"]
        if case["times"] == times and "refused" not in case
    ]


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float]:
    """90% interval of the mean over worlds."""
    drawn = np.random.default_rng(0).choice(np.asarray(values, float), (4000, len(values)))
    low, high = np.quantile(drawn.mean(1), [0.05, 0.95])
    return float(low), float(high)


def calibration(cases: Sequence[tuple[float, bool]]) -> list[Line]:
    """Of each fifth of the stated probabilities: their mean, the share that is right, and the
    cases."""
    rows = []
    for fifth in range(5):
        inside = [(stated, right) for stated, right in cases if fifth == min(int(stated * 5), 4)]
        stated = share([stated for stated, _ in inside])
        right = share([right for _, right in inside])
        rows.append({"fifth": fifth, "said": stated, "right": right, "cases": len(inside)})
    return rows


def best_n_cases(lines: Sequence[Line], recommended_only: bool) -> list[tuple[float, bool]]:
    """(stated probability, whether this n is the best) at all three budgets."""
    return [
        (said, right)
        for times in TIMES
        for case in recommendations(lines, times)
        for n, said, right in case["n_probability"]
        if n == case["chosen"][1] or not recommended_only
    ]


def interval_figures(lines: Sequence[Line]) -> Line:
    """Shares of intervals that hold the truth, and their mean widths."""
    frontier = [case for line in lines for case in line["frontier"]]
    figures: Line = {
        "frontier": share([holds(case) for case in frontier]),
        "frontier_width": width(frontier),
    }
    for times in TIMES:
        for kind in ("cell", "new_run"):
            cases = [case[kind] for case in recommendations(lines, times)]
            figures[f"{kind}_{times}"] = share([holds(case) for case in cases])
            figures[f"{kind}_{times}_width"] = width(cases)
    return figures


def promise_figures(lines: Sequence[Line], times: int) -> Line:
    """How the recommended cell's expected reward and interval compare with its true reward, for a
    budget of `times` the data.

    `too_high`: the share of intervals that lie above the truth; `too_low`: below it. Errors, of
    reward: expected less true. The score of an interval (Winkler's) is its width, and 20 times the
    distance by which it misses: less is better."""
    cases = recommendations(lines, times)
    intervals = [case["cell"] for case in cases]
    errors = [case["expected"] - case["cell"]["truth"] for case in cases]
    scores = []
    for cell in intervals:
        miss = max(cell["low"] - cell["truth"], cell["truth"] - cell["high"], 0.0)
        scores.append(cell["high"] - cell["low"] + 20 * miss)

    return {
        "answers": len(cases),
        "inside": share([holds(cell) for cell in intervals]),
        "too_high": share([cell["truth"] < cell["low"] for cell in intervals]),
        "too_low": share([cell["truth"] > cell["high"] for cell in intervals]),
        "error": share(errors),
        "error_se": float(np.std(errors) / len(errors) ** 0.5) if errors else float("nan"),
        "score": share(scores),
        "regret": share([case["regret"] for case in cases]),
    }


def choice_figures(lines: Sequence[Line]) -> Line:
    """Regret, error and warnings at 4 times the data."""
    cases = recommendations(lines, 4)
    if not cases:
        return {"answers": 0}

    regret = np.array([case["regret"] for case in cases])
    of_best_measured = np.array([case["regret_best_measured"] for case in cases])
    is_covered = [
        case["regret_high"] is not None and case["regret"] <= case["regret_high"] + 1e-9
        for case in cases
    ]
    error = np.array([abs(case["expected"] - case["cell"]["truth"]) for case in cases])
    is_large = error > LARGE_ERROR
    is_warned = np.array([case["warning"] for case in cases])
    return {
        "answers": len(cases),
        "regret": float(regret.mean()),
        "regret_best_measured": float(of_best_measured.mean()),
        "difference": float((regret - of_best_measured).mean()),
        "difference_interval": bootstrap_interval(regret - of_best_measured),
        "regret_covered": share(is_covered),
        "error": float(error.mean()),
        "large_errors": int(is_large.sum()),
        "warned_large": share(is_warned[is_large]),
        "warned_others": share(is_warned[~is_large]),
    }


def small_figures(lines: Sequence[Line]) -> Line:
    """`covered`: the recommended n's true regret is at most the stated bound. `equal_covered`: so
    is that of each n said to be equal, where epsilon = .005 is allowed besides.
    """
    cases = recommendations(lines, 1)
    bounds = [case["regret_high"] or 0.0 for case in cases]
    covered, equal_covered = [], []
    for case, bound in zip(cases, bounds, strict=True):
        covered.append(case["regret"] <= bound + 1e-9)
        equal_covered.append(case["equal_n_regret"] <= bound + 0.005)
    return {
        "answers": len(cases),
        "covered": share(covered),
        "equal_covered": share(equal_covered),
        "no_effect": share([case["no_effect"] for case in cases]),
        "regret": share([case["regret"] for case in cases]),
        "bound": share(bounds),
    }


def stable_figures(lines: Sequence[Line]) -> Line:
    """The share of sweeps with a B_p that is called unstable: of all, and by the number of
    problems."""
    groups = {
        "all": (0, 10**9),
        "60 to 150": (60, 150),
        "151 to 300": (151, 300),
        "301 to 500": (301, 500),
    }
    rows: Line = {}
    for name, (low, high) in groups.items():
        called = [bool(line["unstable"]) for line in lines if low <= line["problems"] <= high]
        rows[name] = {"share": share(called), "sweeps": len(called)}
    return rows


def by_form(lines: Sequence[Line]) -> dict[str, list[Line]]:
    forms = {
        form: [line for line in lines if line["form"] == form]
        for form in dict.fromkeys(x["form"] for x in lines)
    }
    return forms | {"all": list(lines)}


def shown(value: float, digits: int) -> str:
    """.912 for .9123; - where there is no case."""
    return "-" if np.isnan(value) else f"{value:.{digits}f}".replace("0.", ".", 1)


def intervals_table(lines: Sequence[Line]) -> Table:
    names, titles = ["frontier"], ["frontier"]
    for kind in ("cell", "new_run"):
        for times in TIMES:
            names.append(f"{kind}_{times}")
            titles.append(f"{kind.replace('_', ' ')} {times}x")

    table = Table("form", "worlds", *titles)
    table.title = "Share of 90% intervals that hold the truth (mean width)"
    for form, group in by_form(lines).items():
        figures = interval_figures(group)
        cells = [
            f"{shown(figures[name], 2)} ({shown(figures[f'{name}_width'], 3)})" for name in names
        ]
        table.add_row(form, str(len(group)), *cells)
    return table


def promises_table(lines: Sequence[Line], times: int) -> Table:
    table = Table("form", "answers", "inside", "too high", "too low")
    for column in ("mean error (1 se)", "mean score", "regret"):
        table.add_column(column)
    table.title = f"The recommended cell's promise at {times}x, against its true reward"
    for form, group in by_form(lines).items():
        figures = promise_figures(group, times)
        table.add_row(
            form,
            str(figures["answers"]),
            *(shown(figures[name], 3) for name in ("inside", "too_high", "too_low")),
            f"{figures['error']:+.4f} ({shown(figures['error_se'], 4)})",
            shown(figures["score"], 3),
            shown(figures["regret"], 4),
        )
    return table


def choices_table(lines: Sequence[Line]) -> Table:
    table = Table(
        "form",
        "answers at 4x",
        "regret",
        "best measured",
        "difference (90% interval)",
        "regret covered",
        "mean error",
        "errors > .02",
        "of these warned",
        "of others warned",
        title="Recommendation at 4 times the data",
    )
    for form, group in by_form(lines).items():
        figures = choice_figures(group)
        if figures["answers"] == 0:
            table.add_row(form, "0")
            continue
        low, high = (shown(end, 4) for end in figures["difference_interval"])
        table.add_row(
            form,
            str(figures["answers"]),
            shown(figures["regret"], 4),
            shown(figures["regret_best_measured"], 4),
            f"{shown(figures['difference'], 4)} ({low} to {high})",
            shown(figures["regret_covered"], 2),
            shown(figures["error"], 4),
            str(figures["large_errors"]),
            shown(figures["warned_large"], 2),
            shown(figures["warned_others"], 2),
        )
    return table


def calibration_table(lines: Sequence[Line]) -> Table:
    columns = ("recommended: said", "right", "cases", "all n: said", "right", "cases")
    table = Table("P(best)", *columns)
    table.title = "Stated probability that n is best, at 1, 2 and 4 times the data"
    rows_of_recommended = calibration(best_n_cases(lines, recommended_only=True))
    rows_of_all = calibration(best_n_cases(lines, recommended_only=False))
    for recommended, all_n in zip(rows_of_recommended, rows_of_all, strict=True):
        fifth = recommended["fifth"]
        cells = []
        for row in (recommended, all_n):
            cells += [shown(row["said"], 2), shown(row["right"], 2), str(row["cases"])]
        table.add_row(f"{shown(fifth / 5, 1)} to {shown((fifth + 1) / 5, 1)}", *cells)
    return table


def small_table(lines: Sequence[Line]) -> Table:
    figures = small_figures(lines)
    table = Table(
        "sweeps", "bound covers", "... and equal n", "no effect of n", "mean regret", "mean bound"
    )
    table.title = "Small sweeps, at the largest measured C: true regret against its stated bound"
    shares = [shown(figures[name], 2) for name in ("covered", "equal_covered", "no_effect")]
    table.add_row(
        str(figures["answers"]), *shares, shown(figures["regret"], 4), shown(figures["bound"], 4)
    )
    return table


def stable_table(lines: Sequence[Line]) -> Table:
    table = Table("problems", "sweeps", "called unstable", title="Stable sweeps without counts")
    for name, row in stable_figures(lines).items():
        table.add_row(name, str(row["sweeps"]), shown(row["share"], 3))
    return table


def advice_figures(cases: Sequence[Line]) -> Line:
    """Of answers for one budget: the runs that marks stop, and mean regrets before and after the
    next run."""
    runs = [case["next"] for case in cases if case["next"] is not None]
    saved = [run["true"][0] - run["true"][1] for run in runs]
    figures: Line = {"answers": len(cases), "next_runs": len(runs), "saved": share(saved)}
    figures["stopped"] = share([stopped for case in cases for stopped in case["stopped"]])
    figures["saved_se"] = float(np.std(saved) / len(saved) ** 0.5) if saved else float("nan")
    for name in ("stated", "true"):
        figures |= {f"{name}_before": share([run[name][0] for run in runs])}
        figures |= {f"{name}_after": share([run[name][1] for run in runs])}
    return figures | {
        name: share([run[name] for run in runs]) for name in ("stated_by_refit", "cost")
    }


def advice_table(lines: Sequence[Line]) -> Table:
    """Of the fit's own form, and of the others."""
    table = Table(
        "form",
        "budget",
        "answers",
        "stopped",
        "next runs",
        "cost",
        "regret stated",
        "by the refit",
        "true",
    )
    table.add_column("true saving (1 se)")
    table.title = "Runs that halting marks stop, and the regret before and after the next run"
    groups = {
        "Hill": [line for line in lines if line["form"] == "hill"],
        "others": [line for line in lines if line["form"] != "hill"],
        "all": lines,
    }
    for form, group in groups.items():
        for times in TIMES:
            row = advice_figures(recommendations(group, times))
            table.add_row(
                form,
                f"{times}x",
                str(row["answers"]),
                shown(row["stopped"], 3),
                str(row["next_runs"]),
                shown(row["cost"], 2),
                f"{shown(row['stated_before'], 4)} to {shown(row['stated_after'], 4)}",
                shown(row["stated_by_refit"], 4),
                f"{shown(row['true_before'], 4)} to {shown(row['true_after'], 4)}",
                f"{shown(row['saved'], 4)} ({shown(row['saved_se'], 4)})",
            )
    return table


def print_tables(lines: Sequence[Line]) -> None:
    """The tables of each part on standard error, and what failed or was refused."""
    console = Console(stderr=True, width=180)
    fitted = [line for line in lines if line["failed"] is None]
    for line in lines:
        reasons = {case["refused"] for case in line.get("recommended", []) if "refused" in case}
        if line["failed"] is not None:
            reasons.add(line["failed"])
        for reason in sorted(reasons):
            world = f"{line['part']} {line['number']} ({line['form']})"
            console.print(f"{world}: {reason}", markup=False)

    tables_of_part = {
        "worlds": (
            intervals_table,
            *(partial(promises_table, times=times) for times in TIMES),
            choices_table,
            calibration_table,
        ),
        "risky": tuple(partial(promises_table, times=times) for times in TIMES),
        "small": (small_table,),
        "stable": (stable_table,),
        "advice": (advice_table,),
    }
    for part, tables in tables_of_part.items():
        lines_of_part = [line for line in fitted if line["part"] == part]
        if lines_of_part:
            for table in tables:
                console.print(table(lines_of_part))
