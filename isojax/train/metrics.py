"""What a run tells of itself at an evaluation: metrics of training and validation, and a few rollouts to read."""

import os
from pathlib import Path

import numpy as np

from isojax.core.atomic_files import append_bytes
from isojax.core.config import PANEL, Config
from isojax.core.estimators import summarize_counts
from isojax.core.nouns import EvalPoint, Problem
from isojax.rl.objective import MAX_SUFFIX
from isojax.rl.train_step import TRAINED_TOKENS_PREFIX
from isojax.tasks.problem_selection import final_answer
from isojax.tasks.protocol import Task, count_unfinished
from isojax.train.base_policy import BasePolicy
from isojax.train.evaluate import EvalCounts

SHOWN_SAMPLES = 4
# metrics of training that are counts, summed over the updates between two points; of the others, the mean
COUNT_PREFIX = "verifier_"


def accumulate_metrics(sums: dict[str, float], new_metrics: dict[str, float]) -> dict[str, float]:
    """Metrics of updates and of those that followed, some of which have metrics that others have not."""
    return sums | {
        k: max(sums.get(k, 0.0), v) if k.endswith(MAX_SUFFIX) else sums.get(k, 0.0) + v for k, v in new_metrics.items()
    }


def interval_metrics(sums: dict[str, float], updates: int) -> dict[str, float]:
    """What sums over the updates of an interval come to: means, but for the verifier's failures, which stay sums, and
    maxima.

    Where groups that teach nothing are not computed, `entropy` and its like are means over the tokens of those that
    teach, whose share of all is `taught`; where none did, there are none.
    """
    metrics = {
        k: v if k.startswith(COUNT_PREFIX) or k.endswith(MAX_SUFFIX) else v / updates
        for k, v in sums.items()
        if not k.startswith(TRAINED_TOKENS_PREFIX)
    }
    trained_token_sums = {
        k.removeprefix(TRAINED_TOKENS_PREFIX): v for k, v in sums.items() if k.startswith(TRAINED_TOKENS_PREFIX)
    }
    return metrics | (
        {k: v / sums["taught"] for k, v in trained_token_sums.items()}
        if trained_token_sums and sums["taught"] > 0
        else {}
    )


def extra_eval_sets(base_policy: BasePolicy, config: Config) -> dict[str, list[Problem]]:
    """What is evaluated beside the validation set, by name; the panel last, a random choice of the training
    problems.
    """
    size = config.cell.eval.panel
    order = np.random.default_rng([config.cell.data.seed, 5]).permutation(len(base_policy.training))
    return base_policy.extra_sets | ({PANEL: [base_policy.training[i] for i in sorted(order[:size])]} if size else {})


def eval_metrics(validation_counts: EvalCounts, extra_counts: dict[str, EvalCounts], samples: int) -> dict[str, float]:
    """The metrics of an evaluation: of the validation set under their own names, of each further set below its name.

    parsed_fraction: the share of rollouts that hold an answer in the right form, right or wrong; truncated: that met no stop;
    verifier_failures: checks that did not come to an end (counted as wrong). interrupted: told to come to an end, where
    that is done.
    """
    metrics: dict[str, float] = {}
    for prefix, counts in {"": validation_counts, **{f"{name}/": c for name, c in extra_counts.items()}}.items():
        rollouts = samples * len(counts.correct)
        metrics |= {prefix + k: v for k, v in summarize_counts(counts.correct, samples).items()}
        metrics |= {
            f"{prefix}parsed_fraction": counts.parsed / rollouts,
            f"{prefix}truncated": 1 - counts.ended / rollouts,
        }
        metrics[f"{prefix}verifier_failures"] = float(count_unfinished(counts.failures))
        if counts.interrupted is not None:
            metrics[f"{prefix}interrupted"] = counts.interrupted / rollouts
    return metrics


def write_samples(path: Path, task: Task, problems: list[Problem], counts: EvalCounts, point: EvalPoint) -> None:
    """A few rollouts that a person can read, once an evaluation: of one that is not in the ledger, what stands there is
    written anew.
    """
    header = (
        f"C = {point.rollouts} rollouts, M = {point.M}, "
        + ", ".join(f"{k} = {v:.3f}" for k, v in point.metrics.items())
        + "\n"
    )
    lines = [header]
    for problem, tokens, reward in zip(
        problems[:SHOWN_SAMPLES], counts.first_responses, counts.first_rewards, strict=False
    ):
        verdict = "right" if reward == 1 else f"wrong, the answer is {final_answer(problem)}"
        lines.append(f"    {problem.prompt}{task.decode(tokens)}    {verdict}\n")
    old_text, header_bytes = path.read_bytes() if path.exists() else b"", header.encode()
    retained = old_text.partition(header_bytes)[0]
    if not retained.endswith(b"\n"):  # a head torn by a kill or a full disk
        retained = retained[: retained.rfind(b"\n") + 1]
    if len(retained) < len(old_text):
        os.truncate(path, len(retained))
    append_bytes(path, "".join(lines).encode())
