"""How much reward training gained: by format alone and by better answers, and what the best
constant answer would get.

With a the share of responses that hold an answer and q the share of correct ones among these, from
0 to 1
    a1 q1 - a0 q0  =  (a1 - a0) q0 [format alone]  +  a1 (q1 - q0) [better answers]"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from isojax.core.nouns import RunRecord
from isojax.core.table_files import read_json_object
from isojax.report.console import TextTable
from isojax.runs.ledger import default_metric

ANSWERED = "parsed_fraction"  # the share of responses that hold an answer


class RewardGain(NamedTuple):
    """A run's validation reward, and what training gained of it."""

    base: float  # of the base policy
    last: float  # at the last evaluation
    gain: float
    format_alone: float  # parts of the gain
    better_answers: float


def reward_gain(run: RunRecord, metric: str) -> RewardGain | None:
    """How much validation reward training gained over the base policy, in two parts: by answering
    more often, and by better answers (the module has the formula). None where the base policy was
    not evaluated, or the share of responses with an answer was not recorded."""
    first = run.points[0]
    last = run.points[-1]
    is_recorded = all(metric in p.metrics and ANSWERED in p.metrics for p in (first, last))
    if first.rollouts or not is_recorded:
        return None

    # The reward is a times q, so q0 is the base policy's reward over its share of answers. Where it
    # never answered, q0 is unknown, and nothing is ascribed to the format.
    base_reward = first.metrics[metric]
    base_answered = first.metrics[ANSWERED]
    gain = last.metrics[metric] - base_reward
    format_alone = 0.0
    if base_answered:
        more_answered = last.metrics[ANSWERED] - base_answered
        format_alone = more_answered * base_reward / base_answered
    return RewardGain(base_reward, last.metrics[metric], gain, format_alone, gain - format_alone)


def report_gains(console: Console, folder: Path, runs: Sequence[RunRecord]) -> None:
    """Print a table of each run's gain in reward and its two parts, and what the best constant
    answer would get; nothing where the sweep's task has no answers in text. `folder`: the
    sweep's."""
    # such as {"answer": "2", "reward": 0.07}
    constant: Any = read_json_object(folder / "base" / "about.json").get("best_constant")
    if not constant:
        return

    metric = default_metric(runs)
    rows = []
    for run in runs:
        parts = reward_gain(run, metric)
        if parts is None:
            continue
        rewards = [f"{parts.base:.3f}", f"{parts.last:.3f}"]
        changes = [parts.gain, parts.format_alone, parts.better_answers]
        rows.append([run.cell.name, *rewards, *(f"{change:+.3f}" for change in changes)])
    if not rows:
        return

    best = f"the best constant answer, {constant['answer']!r}, gets {constant['reward']:.3f}"
    columns = ("B_p x n, seed", "base", "last", "gain", "format alone", "better answers")
    console.print(TextTable(f"gain in {metric}; {best}", columns, rows, text_columns=1))
