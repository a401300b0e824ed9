"""What a run tells of itself at an evaluation: metrics of training and validation, and a few rollouts to read."""

import os
from pathlib import Path

import numpy as np

from isojax.base import Base
from isojax.config import PANEL, Config
from isojax.estimators import summary
from isojax.evaluate import Counts
from isojax.files import append_bytes
from isojax.problems import short_answer
from isojax.rl.objective import MAX
from isojax.rl.step import TAUGHT
from isojax.tasks.base import Task, unfinished
from isojax.types import EvalPoint, Problem

SAMPLES_SHOWN = 4
COUNTED = "verifier_"  # metrics of training that are counts, summed over the updates between two points; of the others, the mean


def add_up(sums: dict[str, float], more: dict[str, float]) -> dict[str, float]:
    """Metrics of updates and of those that followed, some of which have metrics that others have not."""
    return sums | {k: max(sums.get(k, 0.0), v) if k.startswith(MAX) else sums.get(k, 0.0) + v for k, v in more.items()}


def means(sums: dict[str, float], updates: int) -> dict[str, float]:
    """What sums over the updates of an interval come to: means, but for the verifier's failures, which stay sums, and maxima.

    Where groups that teach nothing are not computed, `entropy` and its like are means over the tokens of those that teach, whose share
    of all is `taught`; where none did, there are none.
    """
    told = {k: v if k.startswith((COUNTED, MAX)) else v / updates for k, v in sums.items() if not k.startswith(TAUGHT)}
    weighted = {k.removeprefix(TAUGHT): v for k, v in sums.items() if k.startswith(TAUGHT)}
    return told | ({k: v / sums["taught"] for k, v in weighted.items()} if weighted and sums["taught"] > 0 else {})


def further_sets(base: Base, config: Config) -> dict[str, list[Problem]]:
    """What is evaluated beside the validation set, by name; the panel last, a random choice of the training problems."""
    size = config.cell.eval.panel
    order = np.random.default_rng([config.cell.data.seed, 5]).permutation(len(base.training))
    return base.extra | ({PANEL: [base.training[i] for i in sorted(order[:size])]} if size else {})


def metrics_of(found: Counts, extra: dict[str, Counts], samples: int) -> dict[str, float]:
    """The metrics of an evaluation: of the validation set under their own names, of each further set below its name.

    answered: the share of rollouts that hold an answer in the right form, right or wrong; truncated: that met no stop;
    verifier_failures: checks that did not come to an end (counted as wrong). interrupted: told to come to an end, where that is done.
    """
    metrics: dict[str, float] = {}
    for prefix, counts in {"": found, **{f"{name}/": c for name, c in extra.items()}}.items():
        rollouts = samples * len(counts.right)
        metrics |= {prefix + k: v for k, v in summary(counts.right, samples).items()}
        metrics |= {f"{prefix}answered": counts.answered / rollouts, f"{prefix}truncated": 1 - counts.ended / rollouts}
        metrics[f"{prefix}verifier_failures"] = float(unfinished(counts.failures))
        if counts.interrupted is not None:
            metrics[f"{prefix}interrupted"] = counts.interrupted / rollouts
    return metrics


def write_samples(path: Path, task: Task, problems: list[Problem], found: Counts, point: EvalPoint) -> None:
    """A few rollouts that a person can read, once an evaluation: of one that is not in the ledger, what stands there is written anew."""
    head = f"C = {point.rollouts} rollouts, M = {point.M}, " + ", ".join(f"{k} = {v:.3f}" for k, v in point.metrics.items()) + "\n"
    lines = [head]
    for problem, tokens, reward in zip(problems[:SAMPLES_SHOWN], found.tokens, found.first, strict=False):
        verdict = "right" if reward == 1 else f"wrong, the answer is {short_answer(problem)}"
        lines.append(f"    {problem.prompt}{task.decode(tokens)}    {verdict}\n")
    before, begin = path.read_bytes() if path.exists() else b"", head.encode()
    kept = before.partition(begin)[0]
    if not kept.endswith(b"\n"):  # a head torn by a kill or a full disk
        kept = kept[: kept.rfind(b"\n") + 1]
    if len(kept) < len(before):
        os.truncate(path, len(kept))
    append_bytes(path, "".join(lines).encode())
