"""avg@k of the base policy on each problem, by blocks, appended to a file as they are found: a killed labelling goes on where it was."""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from isojax import hosts
from isojax.config import CellConfig
from isojax.evaluate import Evaluator, ProblemSet
from isojax.files import append_bytes
from isojax.models.decoder import Params
from isojax.rl.step import LABEL
from isojax.tasks.base import Encoded
from isojax.types import InputError, Problem

Tick = Callable[[str, float], None]  # (what is being done, the fraction done)


def label_key(cell: CellConfig, checkpoint: str, problems: Sequence[Problem]) -> str:
    """16 hex digits that name what labels depend on: the policy (`checkpoint`: its weights' fingerprint), the problems, how they are put,
    sampled and judged. Labels by another key are of something else."""
    told = {k: v for k, v in cell.model_dump(mode="json").items() if k in ("task", "model", "base", "prompt", "verifier", "sampling")}
    told |= {"seed": cell.data.seed, "checkpoint": checkpoint, "problems": [[p.id, p.prompt, p.answer, list(p.messages)] for p in problems]}
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=dict).encode()).hexdigest()[:16]


def label_problems(
    path: Path, of: str, chosen: ProblemSet, attempts: int, seed: int, evaluator: Evaluator, params: Params, tick: Tick
) -> list[Problem]:
    """The problems with the base policy's right answers out of `attempts` (rounded up to whole evaluations).

    `path` gets a line {"of": ...} and one line {"id", "solved", "attempts"} a problem; what stands there already is not sampled again.
    Draws belong to the problem, so the labels do not depend on how often the labelling was broken off.

    Raises:
        InputError: `path` holds labels of something else, or by another number of attempts, or is damaged.
    """
    repeats = -(-attempts // evaluator.samples)
    attempts = repeats * evaluator.samples
    known = hosts.by_first(lambda: read_labels(path, of, attempts))
    todo = [i for i, p in enumerate(chosen.problems) if p.id not in known]
    for start in range(0, len(todo), evaluator.problems):
        tick(f"labelling {len(chosen.problems)} problems by avg@{attempts}", 1 - (len(todo) - start) / len(chosen.problems))
        block = todo[start : start + evaluator.problems]
        part = ProblemSet([chosen.problems[i] for i in block], Encoded(*(x[block] for x in chosen.arrays)))
        counts = evaluator.counts(params, part, seed=seed, evaluation=0, repeats=repeats, stream=LABEL)
        solved = {p.id: int(right) for p, right in zip(part.problems, counts.right, strict=True)}
        known |= solved
        if hosts.writes():
            _append(path, of, [{"id": i, "solved": right, "attempts": attempts} for i, right in solved.items()])
    return [replace(p, solved=known[p.id], attempts=attempts) for p in chosen.problems]


def _append(path: Path, of: str, rows: list[dict[str, int]]) -> None:
    """More labels, forced to disk; the file is begun with what they are of."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = [] if path.exists() and path.stat().st_size else [{"of": of}]
    append_bytes(path, "".join(json.dumps(row) + "\n" for row in (*head, *rows)).encode())


def labels_of(path: Path) -> str:
    """What the labels in `path` are of; empty where there are none."""
    lines = path.read_text().splitlines() if path.exists() else []
    try:
        return str(json.loads(lines[0])["of"]) if lines else ""
    except (ValueError, KeyError, TypeError):
        return ""


def read_labels(path: Path, of: str, attempts: int) -> dict[int, int]:
    """Right answers by problem id, as far as they were found; a torn last line is cut off.

    Raises:
        InputError: a broken line before the last, or labels of something else or by another number of attempts.
    """
    if not path.exists():
        return {}
    data = path.read_bytes()
    whole, newline, torn = data.rpartition(b"\n")
    if torn:
        os.truncate(path, len(whole) + len(newline))
    known: dict[int, int] = {}
    lines = whole.splitlines()
    if lines and labels_of(path) != of:
        raise InputError(f"{path} holds labels of other settings ({labels_of(path)}, expected {of}); remove it, or choose another place.")
    for number, line in enumerate(lines[1:], 2):
        try:
            row = json.loads(line)
            problem, solved, given = int(row["id"]), int(row["solved"]), int(row["attempts"])
        except (ValueError, KeyError, TypeError) as e:
            raise InputError(f"{path}, line {number} is no label ({e!r}); remove the file, and the problems are labelled again.") from e
        if given != attempts:
            raise InputError(f"{path}, line {number}: labelled by avg@{given}, expected avg@{attempts}; take that, or remove the file.")
        known[problem] = solved
    return known
