"""How much reward training gained: by format alone and by better answers, and what the best
constant answer would get.

With a the share of responses that hold an answer and q the share of correct ones among these, from
0 to 1
    a1 q1 - a0 q0  =  (a1 - a0) q0 [format alone]  +  a1 (q1 - q0) [better answers]"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from isojax.core.nouns import RunRecord
from isojax.core.table_files import read_json_object
from isojax.report.console import TextTable
from isojax.runs.ledger import default_metric


def reward_gain(run: RunRecord, metric: str) -> tuple[float, float, float, float, float] | None:
    """A run's validation reward of the base policy and at the last evaluation, its gain, and the
    gain's parts: by format alone and by better answers. None where the base was not evaluated, or
    no share of answers recorded."""
    first, last = run.points[0], run.points[-1]
    if first.rollouts or not all(
        metric in p.metrics and "parsed_fraction" in p.metrics for p in (first, last)
    ):
        return None
    base_reward = first.metrics[metric]
    base_parsed_fraction = first.metrics["parsed_fraction"]
    gain, format_alone = last.metrics[metric] - base_reward, 0.0
    if base_parsed_fraction:
        more_parsed = last.metrics["parsed_fraction"] - base_parsed_fraction
        format_alone = more_parsed * base_reward / base_parsed_fraction
    return base_reward, last.metrics[metric], gain, format_alone, gain - format_alone


def report_gains(console: Console, folder: Path, runs: Sequence[RunRecord]) -> None:
    """Print a sweep's gains; nothing where its task has no answers in text."""
    constant: Any = read_json_object(folder / "base" / "about.json").get("best_constant")
    metric = default_metric(runs) if constant else ""
    gains = {run.cell.name: gain for run in runs if (gain := reward_gain(run, metric)) is not None}
    if not gains:
        return
    constant_text = (
        f"the best constant answer, {constant['answer']!r}, gets {constant['reward']:.3f}"
    )
    columns = ("B_p x n, seed", "base", "last", "gain", "format alone", "better answers")
    rows = [
        [cell, f"{base:.3f}", f"{last:.3f}", *(f"{part:+.3f}" for part in gain_and_parts)]
        for cell, (base, last, *gain_and_parts) in gains.items()
    ]
    console.print(TextTable(f"gain in {metric}; {constant_text}", columns, rows, text_columns=1))
