"""The figures and tables of benchmarks/foreign_worlds.py."""

from __future__ import annotations

from collections.abc import Sequence
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
        inside = [(said, right) for said, right in cases if fifth == min(int(said * 5), 4)]
        said, right = ([case[i] for case in inside] for i in range(2))
        rows.append(
            {"fifth": fifth, "said": share(said), "right": share(right), "cases": len(inside)}
        )
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


def choice_figures(lines: Sequence[Line]) -> Line:
    """Regret, error and warnings at 4 times the data."""
    cases = recommendations(lines, 4)
    if not cases:
        return {"answers": 0}
    regret, measured = (
        np.array([case[name] for case in cases]) for name in ("regret", "regret_best_measured")
    )
    error = np.array([abs(case["expected"] - case["cell"]["truth"]) for case in cases])
    warned = np.array([case["warning"] for case in cases])
    covered = [
        case["regret_high"] is not None and case["regret"] <= case["regret_high"] + 1e-9
        for case in cases
    ]
    return {
        "answers": len(cases),
        "regret": float(regret.mean()),
        "regret_best_measured": float(measured.mean()),
        "difference": float((regret - measured).mean()),
        "difference_interval": bootstrap_interval(regret - measured),
        "regret_covered": share(covered),
        "error": float(error.mean()),
        "large_errors": int(np.sum(error > LARGE_ERROR)),
        "warned_large": share(warned[error > LARGE_ERROR]),
        "warned_others": share(warned[error <= LARGE_ERROR]),
    }


def small_figures(lines: Sequence[Line]) -> Line:
    """`covered`: the recommended n's true regret is at most the stated bound. `equal_covered`: so
    is that of each n said to be equal, where epsilon = .005 is allowed besides.
    """
    cases = recommendations(lines, 1)
    bounds = [case["regret_high"] or 0.0 for case in cases]
    return {
        "answers": len(cases),
        "covered": share(
            [case["regret"] <= bound + 1e-9 for case, bound in zip(cases, bounds, strict=True)]
        ),
        "equal_covered": share(
            [
                case["equal_n_regret"] <= bound + 0.005
                for case, bound in zip(cases, bounds, strict=True)
            ]
        ),
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
    inside = {
        name: [bool(line["unstable"]) for line in lines if low <= line["problems"] <= high]
        for name, (low, high) in groups.items()
    }
    return {
        name: {"share": share(called), "sweeps": len(called)} for name, called in inside.items()
    }


def by_form(lines: Sequence[Line]) -> dict[str, list[Line]]:
    forms = {
        form: [line for line in lines if line["form"] == form]
        for form in dict.fromkeys(x["form"] for x in lines)
    }
    return forms | {"all": list(lines)}


def shown(value: float, digits: int) -> str:
    """.912 for .9123; - where there is no case."""
    return "-" if np.isnan(value) else f"{value:.{digits}f}".replace("0.", ".", 1)


def worlds_tables(lines: Sequence[Line]) -> list[Table]:
    names = ["frontier", *(f"{kind}_{times}" for kind in ("cell", "new_run") for times in TIMES)]
    titles = ["frontier", *(f"{kind} {times}x" for kind in ("cell", "new run") for times in TIMES)]
    held = Table(
        "form", "worlds", *titles, title="Share of 90% intervals that hold the truth (mean width)"
    )
    choices = Table(
        *(
            "form",
            "answers at 4x",
            "regret",
            "best measured",
            "difference (90% interval)",
            "regret covered",
        ),
        *("mean error", "errors > .02", "of these warned", "of others warned"),
        title="Recommendation at 4 times the data",
    )
    for form, group in by_form(lines).items():
        figures, choice = interval_figures(group), choice_figures(group)
        cells = [
            f"{shown(figures[name], 2)} ({shown(figures[f'{name}_width'], 3)})" for name in names
        ]
        held.add_row(form, str(len(group)), *cells)
        if choice["answers"] == 0:
            choices.add_row(form, "0")
            continue
        low, high = (shown(end, 4) for end in choice["difference_interval"])
        choices.add_row(
            *(
                form,
                str(choice["answers"]),
                shown(choice["regret"], 4),
                shown(choice["regret_best_measured"], 4),
            ),
            *(
                f"{shown(choice['difference'], 4)} ({low} to {high})",
                shown(choice["regret_covered"], 2),
            ),
            *(shown(choice["error"], 4), str(choice["large_errors"])),
            *(shown(choice["warned_large"], 2), shown(choice["warned_others"], 2)),
        )
    return [held, choices, calibration_table(lines)]


def calibration_table(lines: Sequence[Line]) -> Table:
    table = Table(
        "P(best)", *("recommended: said", "right", "cases"), *("all n: said", "right", "cases")
    )
    table.title = "Stated probability that n is best, at 1, 2 and 4 times the data"
    chosen, every = (calibration(best_n_cases(lines, only)) for only in (True, False))
    for ours, all_n in zip(chosen, every, strict=True):
        cells = [
            text
            for row in (ours, all_n)
            for text in (shown(row["said"], 2), shown(row["right"], 2), str(row["cases"]))
        ]
        table.add_row(
            f"{shown(ours['fifth'] / 5, 1)} to {shown((ours['fifth'] + 1) / 5, 1)}", *cells
        )
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
    fitted, others = (
        [line for line in lines if (line["form"] == "hill") is own] for own in (True, False)
    )
    for form, group in {"Hill": fitted, "others": others, "all": lines}.items():
        for times in TIMES:
            row = advice_figures(recommendations(group, times))
            regrets = {
                name: f"{shown(row[f'{name}_before'], 4)} to {shown(row[f'{name}_after'], 4)}"
                for name in ("stated", "true")
            }
            saving = f"{shown(row['saved'], 4)} ({shown(row['saved_se'], 4)})"
            counts = (
                str(row["answers"]),
                shown(row["stopped"], 3),
                str(row["next_runs"]),
                shown(row["cost"], 2),
            )
            refit = shown(row["stated_by_refit"], 4)
            table.add_row(
                form, f"{times}x", *counts, regrets["stated"], refit, regrets["true"], saving
            )
    return table


def print_tables(lines: Sequence[Line]) -> None:
    """The tables of each part on standard error, and what failed or was refused."""
    console = Console(stderr=True, width=180)
    fitted = [line for line in lines if line["failed"] is None]
    for line in lines:
        refused = {case["refused"] for case in line.get("recommended", []) if "refused" in case}
        for reason in [line["failed"]] * (line["failed"] is not None) + sorted(refused):
            console.print(
                f"{line['part']} {line['number']} ({line['form']}): {reason}", markup=False
            )
    parts = {
        part: [line for line in fitted if line["part"] == part]
        for part in ("worlds", "small", "stable", "advice")
    }
    tables = worlds_tables(parts["worlds"]) if parts["worlds"] else []
    tables += [small_table(parts["small"])] if parts["small"] else []
    tables += [stable_table(parts["stable"])] if parts["stable"] else []
    tables += [advice_table(parts["advice"])] if parts["advice"] else []
    for table in tables:
        console.print(table)
