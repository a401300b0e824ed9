"""How much reward training gained, in two parts: format alone, and better answers; with what the best constant answer
would get.

With a the share of responses that hold an answer and q the share of correct ones among these, the reward is a q, and
from the base policy (0) to the last evaluation (1) it rises by

    a1 q1 - a0 q0  =  (a1 - a0) q0  +  a1 (q1 - q0)
                      format alone     better answers
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from isojax.core.atomic_files import write_text
from isojax.core.nouns import RunRecord
from isojax.runs.ledger_reader import default_metric

GAINS_FILE = "gains.csv"
GAINS_HEADER = ("cell", "metric", "base", "last", "gain", "format_alone", "better_answers", "best_constant")


@dataclass(frozen=True)
class RewardGain:
    """One run's gain in validation reward, and its two parts; best_constant: the reward of always giving the most
    common answer.
    """

    cell: str
    metric: str
    base: float
    last: float
    format_alone: float
    best_constant: float

    @property
    def gain(self) -> float:
        """last - base."""
        return self.last - self.base

    @property
    def better_answers(self) -> float:
        """The part of the gain that is not format alone."""
        return self.gain - self.format_alone


def reward_gain(run: RunRecord, metric: str, best_constant: float) -> RewardGain | None:
    """A run's gain; None where its evaluations do not say how many responses held an answer, or the base was not
    evaluated.
    """
    first, last = run.points[0], run.points[-1]
    if first.rollouts or not all(metric in p.metrics and "parsed_fraction" in p.metrics for p in (first, last)):
        return None
    base_reward, base_parsed_fraction = first.metrics[metric], first.metrics["parsed_fraction"]
    format_alone = 0.0
    if base_parsed_fraction:
        more_parsed = last.metrics["parsed_fraction"] - base_parsed_fraction
        format_alone = more_parsed * base_reward / base_parsed_fraction
    return RewardGain(run.cell.name, metric, base_reward, last.metrics[metric], format_alone, best_constant)


def report_gains(console: Console, folder: Path, runs: Sequence[RunRecord]) -> None:
    """Print a sweep's gains and write them as gains.csv; nothing where its task has no answers in text."""
    base_info = json.loads((folder / "base" / "about.json").read_text())
    best_constant = base_info.get("best_constant")
    gains = [
        g
        for run in runs
        if best_constant and (g := reward_gain(run, default_metric(runs), best_constant["reward"])) is not None
    ]
    if not gains:
        return
    csv_text = io.StringIO()
    writer = csv.writer(csv_text, lineterminator="\n")
    writer.writerow(GAINS_HEADER)
    constant_text = f"the best constant answer, {best_constant['answer']!r}, gets {best_constant['reward']:.3f}"
    table = Table(title=f"gain in {gains[0].metric}; {constant_text}")
    for head in ("B_p x n, seed", "base", "last", "gain", "format alone", "better answers"):
        table.add_column(head, justify="right")
    for g in gains:
        gain_values = (g.base, g.last, g.gain, g.format_alone, g.better_answers)
        writer.writerow([g.cell, g.metric, *(f"{x:.4f}" for x in gain_values), f"{g.best_constant:.4f}"])
        table.add_row(g.cell, *(f"{x:.3f}" for x in gain_values[:2]), *(f"{x:+.3f}" for x in gain_values[2:]))
    write_text(folder / GAINS_FILE, csv_text.getvalue())
    console.print(table)
