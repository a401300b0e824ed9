"""The reward of each cell before and after training, and at the end on the extra sets of problems."""

from collections.abc import Sequence
from statistics import fmean

from isojax.core.nouns import RunRecord
from isojax.report.fit_views import CellKey, runs_by_cell
from isojax.report.page.markup import Html, html_section, html_table
from isojax.report.wording import format_compact, format_reward
from isojax.scaling.result import FitResult, FittedRun
from isojax.scaling.tracks import metric_value


def rewards_section(fit: FitResult, run_records: Sequence[RunRecord]) -> Html:
    """Where each cell started and ended, and what it then reached on the extra sets that all runs were evaluated on."""
    fitted_runs: dict[CellKey, list[FittedRun]] = {}
    for run in sorted(fit.runs, key=lambda run: (run.B_p, run.n, run.seed)):
        fitted_runs.setdefault((run.B_p, run.n), []).append(run)
    extra_rewards = _extra_set_rewards(run_records)
    rows = []
    for cell, runs in fitted_runs.items():
        finals = [run.final_reward for run in runs]
        mean_final = fmean(finals)
        rows.append(
            [
                f"{cell[0]} × {cell[1]}",
                format_reward(fit.base_reward),
                format_reward(mean_final),
                f"{mean_final / fit.base_reward:.2f}×" if fit.base_reward else "–",
                ", ".join(map(format_reward, finals)),
                *(format_reward(values.get(cell)) for values in extra_rewards.values()),
                format_compact(max(run.C_max for run in runs)),
                sum(run.points for run in runs),
            ]
        )
    headings = ["B_p × n", "base", "final, mean of seeds", "ratio", "final of each seed"]
    headings += [*(f"{metric}, final" for metric in extra_rewards), "C reached", "evaluations"]
    table = html_table(f"Validation {fit.metric} before and after training", headings, rows)
    return html_section("rewards", "Reward of each cell", table)


def _extra_set_rewards(runs: Sequence[RunRecord]) -> dict[str, dict[CellKey, float]]:
    """avg@k of each extra set at the end of the runs, by metric and (B_p, n), a mean over seeds."""
    ends = [run.points[-1] for run in runs]
    metrics_of_each_run = [{f"{name}/avg@{point.samples}" for name in point.extra} for point in ends]
    shared_metrics = set.intersection(*metrics_of_each_run) if ends else set()
    cells = runs_by_cell(runs).items()
    return {
        metric: {cell: fmean(metric_value(run.points[-1], metric) for run in seeds) for cell, seeds in cells}
        for metric in sorted(shared_metrics)
    }
