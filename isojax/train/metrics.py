"""The metrics of a run: summed over updates, averaged at an evaluation; and a few rollouts for a person to read."""

import os
from pathlib import Path

import numpy as np

from isojax.core.atomic_files import append_bytes
from isojax.core.config import PANEL, Config
from isojax.core.estimators import summarize_counts
from isojax.core.nouns import Cell, EvalPoint, Problem
from isojax.rl.metric import values
from isojax.tasks.grading.math_answers import reference_answer
from isojax.tasks.protocol import Task, count_unfinished
from isojax.train.base_policy import BasePolicy
from isojax.train.checkpoint import RunCursor
from isojax.train.evaluate import EvalCounts

SHOWN_SAMPLES = 4


def make_eval_point(
    target: int,
    cursor: RunCursor,
    cell: Cell,
    counts: EvalCounts,
    extra_counts: dict[str, EvalCounts],
    samples: int,
) -> EvalPoint:
    """What the ledger records of an evaluation, and of the updates since the one before (`cursor.sums`).

    Where the gradient is not computed of groups without advantage, `entropy` and other metrics of tokens are means over
    the trained tokens, a share `trained_token_fraction`; they are missing where nothing was trained.
    """
    train_metrics = values(cursor.sums)
    tokens = train_metrics.pop("tokens", 0.0)
    named_counts = {name: c for name, c in extra_counts.items() if name != PANEL}
    return EvalPoint(
        target=target,
        M=cursor.M,
        rollouts=cursor.M * cell.B,
        tokens=cursor.tokens + round(tokens),
        metrics=eval_metrics(counts, named_counts, samples),
        counts=tuple(int(c) for c in counts.correct),
        samples=samples,
        train=train_metrics,
        extra={name: tuple(int(c) for c in extra.correct) for name, extra in extra_counts.items()},
    )


def extra_eval_sets(base_policy: BasePolicy, config: Config) -> dict[str, list[Problem]]:
    """The problem sets evaluated in addition to the validation set, by name; last the panel, a random choice of the
    training problems."""
    size = config.cell.eval.panel
    order = np.random.default_rng([config.cell.data.seed, 5]).permutation(len(base_policy.training))
    return base_policy.extra_sets | ({PANEL: [base_policy.training[i] for i in sorted(order[:size])]} if size else {})


def eval_metrics(validation_counts: EvalCounts, extra_counts: dict[str, EvalCounts], samples: int) -> dict[str, float]:
    """The metrics of an evaluation: those of the validation set under their own names, those of each extra set with
    the set's name before a slash.

    parsed_fraction: the share of rollouts with an answer in the expected form, correct or not.
    truncated: the share that no stop condition ended.
    verifier_failures: checks that the verifier did not finish; their rollouts count as wrong.
    interrupted: the share that was interrupted to answer, where the recipe does that.
    """
    metrics: dict[str, float] = {}
    for prefix, counts in {"": validation_counts, **{f"{name}/": c for name, c in extra_counts.items()}}.items():
        rollouts = samples * len(counts.correct)
        set_metrics = summarize_counts(counts.correct, samples) | {
            "parsed_fraction": counts.parsed / rollouts,
            "truncated": 1 - counts.ended / rollouts,
            "verifier_failures": float(count_unfinished(counts.failures)),
        }
        if counts.interrupted is not None:
            set_metrics["interrupted"] = counts.interrupted / rollouts
        metrics |= {prefix + name: value for name, value in set_metrics.items()}
    return metrics


def write_samples(path: Path, task: Task, problems: list[Problem], counts: EvalCounts, point: EvalPoint) -> None:
    """Appends a few rollouts for a person to read. What an earlier attempt at the same evaluation has written is
    replaced."""
    metrics_text = ", ".join(f"{k} = {v:.3f}" for k, v in point.metrics.items())
    header = f"C = {point.rollouts} rollouts, M = {point.M}, {metrics_text}\n".encode()
    lines = []
    samples = zip(problems[:SHOWN_SAMPLES], counts.first_responses, counts.first_rewards, strict=False)
    for problem, tokens, reward in samples:
        verdict = "right" if reward == 1 else f"wrong, the answer is {reference_answer(problem.answer)}"
        lines.append(f"    {problem.prompt}{task.decode(tokens)}    {verdict}\n")
    old_text = path.read_bytes() if path.exists() else b""
    retained = old_text.partition(header)[0]
    if not retained.endswith(b"\n"):  # a header that a kill or a full disk cut off
        retained = retained[: retained.rfind(b"\n") + 1]
    if len(retained) < len(old_text):
        os.truncate(path, len(retained))
    append_bytes(path, header + "".join(lines).encode())
