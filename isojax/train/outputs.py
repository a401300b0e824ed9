"""What a cell's run writes to, opened by its launcher, not by the training code, and the rollouts it shows a person."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np

from isojax.core.atomic_files import append_bytes
from isojax.core.nouns import EvalPoint, Problem, StartReport
from isojax.tasks.answers.final_answer import reference_answer
from isojax.tasks.task import Task, is_on_device
from isojax.tasks.turns import split_turns
from isojax.train.checkpoint import StartUpload
from isojax.train.evaluate import EvalCounts

CHECKPOINT_FOLDER = "checkpoint"  # in a cell's folder
ProgressCallback = Callable[[str, float], None]  # (what is being done, the fraction done)
SHOWN_SAMPLES = 4  # of an evaluation, in samples.txt


class PointLedger(Protocol):
    """Records evaluations (runs/ledger.py). `targets`: values of the grid of C so far; `last_update`: M of the last."""

    @property
    def targets(self) -> list[int]: ...

    @property
    def last_update(self) -> int: ...

    def append(self, point: EvalPoint, seconds: float, devices: int) -> None: ...

    def record_failure(self, M: int, reason: str) -> None: ...


@dataclass(frozen=True)
class CellOutputs:
    """Where a cell's run writes; `ledger` is None in a process that does not write it."""

    folder: Path
    ledger: PointLedger | None
    start_upload: StartUpload | None
    on_progress: Callable[[int, float | None], None]  # C so far, and the reward at an evaluation
    on_start: Callable[[StartReport], None] = lambda report: None  # before the first update


def write_samples(path: Path, task: Task, problems: list[Problem], counts: EvalCounts, point: EvalPoint) -> None:
    """Appends a few rollouts, after their whole prompts, in place of what an earlier attempt has written; «» are around
    what the policy did not draw: a reply of the task, or the text of an interruption."""
    metrics_text = ", ".join(f"{k} = {v:.3f}" for k, v in point.metrics.items())
    header = f"C = {point.rollouts} rollouts, M = {point.M}, {metrics_text}\n".encode()
    lines = []
    shown = problems[:SHOWN_SAMPLES]
    prompts = [problem.prompt for problem in shown] if is_on_device(task) else task.prompt_texts(shown)
    samples = zip(shown, prompts, counts.first_responses, counts.rewards[:, 0], strict=False)
    for problem, prompt, tokens, reward in samples:
        grade = f"reward {reward:.3f}" if counts.graded else "correct" if reward == 1 else "wrong"
        verdict = grade if reward == 1 else f"{grade}, the answer is {reference_answer(problem.answer)}"
        rollout = f"{prompt}{_mark_context(task, tokens)}".replace("\n", "\n    ")
        lines.append(f"    {rollout}    {verdict}\n")
    old_text = path.read_bytes() if path.exists() else b""
    retained = old_text.partition(header)[0]
    retained = retained[: retained.rfind(b"\n") + 1]  # without a header that a kill or a full disk cut off
    if len(retained) < len(old_text):
        os.truncate(path, len(retained))
    append_bytes(path, header + "".join(lines).encode())


def _mark_context(task: Task, tokens: np.ndarray) -> str:
    """A response i32[t], context as ~token, as text. A turn's stop is shown with the reply after it."""
    ends = np.cumsum([len(turn) for turn in split_turns(tokens)])
    texts = ["", *(task.decode(tokens[:end]) for end in ends)]
    parts = [text[len(earlier) :] for earlier, text in pairwise(texts)]
    return "".join(f"«{part}»" if end and tokens[end - 1] < 0 else part for part, end in zip(parts, ends, strict=True))
