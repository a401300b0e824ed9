"""What a cell's run writes to, opened by its launcher, not by the training code, and the rollouts
it shows a person."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from isojax.core.atomic_files import append_bytes
from isojax.core.nouns import EvalPoint, Problem, StartReport
from isojax.tasks.task import Task
from isojax.train.checkpoint import RemoteCheckpoints
from isojax.train.evaluate import EvalCounts, RolloutSample
from isojax.train.sample_text import (
    describe_beginning,
    describe_details,
    describe_verdict,
    mark_context,
    prompt_texts,
    shared_beginning,
)

CHECKPOINT_FOLDER = "checkpoint"  # in a cell's folder
ProgressCallback = Callable[[str, float], None]  # (what is being done, the fraction done)
SHOWN_SAMPLES = 4  # of an evaluation, in samples.txt


class PointLedger(Protocol):
    """Records evaluations (runs/ledger.py). `targets`: the values of the grid of C that it has,
    rising; `last_update`: M of the last of them, 0 where there is none."""

    @property
    def targets(self) -> list[int]: ...

    @property
    def last_update(self) -> int: ...

    def append(self, point: EvalPoint, seconds: float, devices: int) -> None: ...

    def record_failure(self, M: int, reason: str) -> None: ...


@dataclass(frozen=True)
class CellOutputs:
    """Where a cell's run writes; `ledger` is None in a process that does not write it."""

    folder: Path  # the cell's, such as runs/NAME/cells/32x8-s0
    ledger: PointLedger | None
    remote: RemoteCheckpoints | None  # None: checkpoints are not copied elsewhere
    on_progress: Callable[[int, float | None], None]  # C so far, and the reward at an evaluation
    on_start: Callable[[StartReport], None] = lambda report: None  # before the first update


def write_samples(
    path: Path, task: Task, problems: list[Problem], counts: EvalCounts, point: EvalPoint
) -> None:
    """Appends a few rollouts of an evaluation to samples.txt, for a person to read.

    Each stands after its prompt and before its reward; what all prompts begin with is written once
    in the file. «» are around what the policy did not draw: a reply of the task, or the text of an
    interruption. What a broken-off run had written from this evaluation on is replaced.

    problems: of the validation set, in the order of `counts`; the first SHOWN_SAMPLES are shown.
    """
    metrics_text = ", ".join(f"{name} = {x:.3f}" for name, x in point.metrics.items())
    header = f"C = {point.rollouts} rollouts, M = {point.M}, {metrics_text}\n".encode()

    # Everything from an equal header on was written by a run that broke off before its checkpoint.
    old_text = path.read_bytes() if path.exists() else b""
    retained = old_text.partition(header)[0]
    # up to the last whole line: a kill or a full disk may have cut off the one after it
    retained = retained[: retained.rfind(b"\n") + 1]

    shown = problems[:SHOWN_SAMPLES]
    prompts = prompt_texts(task, shown)
    beginning = shared_beginning(prompts)
    beginning_text = describe_beginning(beginning)
    # An empty text, of prompts that share nothing, counts as written.
    is_written = beginning_text.encode() in retained
    lines = [] if is_written else [beginning_text]
    # Not strict: there is a rollout of every problem, and a few are shown.
    for problem, prompt, sample in zip(shown, prompts, _first_rollouts(counts), strict=False):
        rollout = prompt.removeprefix(beginning) + mark_context(task, sample.tokens)
        indented = rollout.replace("\n", "\n    ")
        lines.append(f"    {indented}    {describe_verdict(problem, sample, counts.graded)}\n")
        details = describe_details(task, problem, sample)
        if details:
            lines.append(f"        ({details})\n")

    if len(retained) < len(old_text):
        os.truncate(path, len(retained))
    append_bytes(path, header + "".join(lines).encode())


def _first_rollouts(counts: EvalCounts) -> Iterator[RolloutSample]:
    """The first rollout of each problem, in their order; described in full where `counts` kept
    samples, else by its tokens and reward alone."""
    if counts.samples:
        yield from (samples[0] for samples in counts.samples)
    else:
        rewards = counts.rewards[:, 0].tolist()
        yield from map(RolloutSample, counts.first_responses, rewards)
