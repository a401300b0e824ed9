"""The metrics of a run: summed over updates, averaged at an evaluation; and a few rollouts for a person to read."""

import os
from pathlib import Path

import numpy as np

from isojax.core.atomic_files import append_bytes
from isojax.core.config import PANEL, CellConfig
from isojax.core.estimators import summarize_counts
from isojax.core.nouns import Cell, EvalPoint, Problem
from isojax.rl.metric import values
from isojax.tasks.protocol import count_unfinished
from isojax.tasks.task import Task
from isojax.tasks.verifiers.math import reference_answer
from isojax.train.base_policy import BasePolicy
from isojax.train.checkpoint import RunCursor
from isojax.train.evaluate import EvalCounts

VALIDATION_SET = ""  # its name among the sets that are evaluated
SHOWN_SAMPLES = 4


def eval_problem_sets(base_policy: BasePolicy, config: CellConfig) -> dict[str, list[Problem]]:
    """The problem sets that are evaluated, by name: the validation set, then the extra sets, then the panel, a
    random choice of the training problems."""
    order = np.random.default_rng([config.data.seed, 5]).permutation(len(base_policy.training))
    panel = [base_policy.training[i] for i in sorted(order[: config.eval.panel])]
    return {VALIDATION_SET: base_policy.validation, **base_policy.extra_sets, **({PANEL: panel} if panel else {})}


def make_eval_point(
    target: int, cursor: RunCursor, cell: Cell, counts_by_set: dict[str, EvalCounts], samples: int
) -> EvalPoint:
    """What the ledger records of an evaluation, and of the updates since the one before (`cursor.sums`).

    Where the gradient is not computed of groups without advantage, `entropy` and other metrics of tokens are means over
    the trained tokens, a share `trained_token_fraction`; they are missing where nothing was trained.
    """
    train_metrics = values(cursor.sums)
    tokens = train_metrics.pop("tokens", 0.0)
    correct_by_set = {name: tuple(int(c) for c in counts.correct) for name, counts in counts_by_set.items()}
    return EvalPoint(
        target=target,
        M=cursor.M,
        rollouts=cursor.M * cell.B,
        tokens=cursor.tokens + round(tokens),
        metrics=eval_metrics(counts_by_set, samples),
        counts=correct_by_set.pop(VALIDATION_SET),
        samples=samples,
        train=train_metrics,
        extra=correct_by_set,
    )


def eval_metrics(counts_by_set: dict[str, EvalCounts], samples: int) -> dict[str, float]:
    """The metrics of an evaluation: those of the validation set under their own names, those of each extra set with
    the set's name before a slash; of the panel the counts suffice.

    parsed_fraction: the share of rollouts with an answer in the expected form, correct or not.
    truncated: the share that no stop condition ended.
    verifier_failures: checks that the verifier did not finish; their rollouts count as wrong.
    interrupted: the share that was interrupted to answer, where the recipe does that.
    """
    metrics: dict[str, float] = {}
    for set_name, counts in counts_by_set.items():
        if set_name == PANEL:
            continue
        rollouts = samples * len(counts.correct)
        set_metrics = summarize_counts(counts.correct, samples) | {
            "parsed_fraction": counts.parsed / rollouts,
            "truncated": 1 - counts.ended / rollouts,
            "verifier_failures": float(count_unfinished(counts.failures)),
        }
        if counts.interrupted is not None:
            set_metrics["interrupted"] = counts.interrupted / rollouts
        metrics |= {f"{set_name}/{name}" if set_name else name: value for name, value in set_metrics.items()}
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
