"""avg@k of the base policy on each problem, appended to a file block by block, so that a killed labelling goes on:
{"key": ...}, what the labels depend on, then a line {"id", "solved", "attempts"} per problem."""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from isojax.core.atomic_files import append_bytes
from isojax.core.config import CellConfig
from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.distributed import multiprocess

ProgressCallback = Callable[[str, float], None]  # (what is being done, the fraction done)


class Labeller(Protocol):
    """Samples the base policy on a problem set and counts correct rollouts (PolicyLabeller in train/evaluate.py)."""

    @property
    def problems_per_call(self) -> int: ...

    @property
    def samples_per_problem(self) -> int: ...

    def count_correct(self, problem_indices: Sequence[int], repeats: int) -> Sequence[int]:
        """How many of `repeats` x `samples_per_problem` rollouts are correct; the draws belong to their problem."""
        ...


def compute_label_key(cell: CellConfig, fingerprint: str, problems: Sequence[Problem]) -> str:
    """16 hex digits that name what labels depend on: the policy, the problems, and how rollouts are made and judged."""
    sections = {"task", "model", "base", "prompt", "verifier", "sampling"}
    key_data = cell.model_dump(mode="json", include=sections) | {
        "seed": cell.data.seed,
        "checkpoint": fingerprint,
        "problems": [[p.id, p.prompt, p.answer, list(p.messages)] for p in problems],
    }
    return hashlib.sha256(json.dumps(key_data, sort_keys=True, default=dict).encode()).hexdigest()[:16]


def label_problems(
    path: Path,
    label_key: str,
    problems: Sequence[Problem],
    attempts: int,
    labeller: Labeller,
    on_progress: ProgressCallback,
) -> list[Problem]:
    """The problems with the base policy's correct rollouts out of `attempts` (rounded up to whole calls); what `path`
    holds is not sampled again."""
    repeats = -(-attempts // labeller.samples_per_problem)
    attempts = repeats * labeller.samples_per_problem
    solved_by_id = multiprocess.run_on_primary(lambda: read_labels(path, label_key, attempts))
    unlabelled = [i for i, problem in enumerate(problems) if problem.id not in solved_by_id]
    for start in range(0, len(unlabelled), labeller.problems_per_call):
        labelled = len(problems) - (len(unlabelled) - start)
        on_progress(f"labelling {len(problems)} problems by avg@{attempts}", labelled / len(problems))
        block = unlabelled[start : start + labeller.problems_per_call]
        counts = zip(block, labeller.count_correct(block, repeats), strict=True)
        newly_solved = {problems[i].id: int(correct) for i, correct in counts}
        solved_by_id |= newly_solved
        if multiprocess.is_primary():
            path.parent.mkdir(parents=True, exist_ok=True)
            header = [] if path.exists() and path.stat().st_size else [{"key": label_key}]
            rows = [{"id": i, "solved": solved, "attempts": attempts} for i, solved in newly_solved.items()]
            append_bytes(path, "".join(json.dumps(row) + "\n" for row in (*header, *rows)).encode())
    return [replace(problem, solved=solved_by_id[problem.id], attempts=attempts) for problem in problems]


def stored_label_key(path: Path) -> str:
    """The key of the labels in `path`; empty where there are none."""
    lines = path.read_text().splitlines() if path.exists() else []
    try:
        return str(json.loads(lines[0])["key"]) if lines else ""
    except (ValueError, KeyError, TypeError):
        return ""


def read_labels(path: Path, label_key: str, attempts: int) -> dict[int, int]:
    """Correct rollouts by problem id; a torn last line is cut off. InputError where the labels are of another kind."""
    if not path.exists():
        return {}
    data = path.read_bytes()
    complete, newline, torn = data.rpartition(b"\n")
    if torn:
        os.truncate(path, len(complete) + len(newline))
    solved_by_id: dict[int, int] = {}
    lines = complete.splitlines()
    if lines and (stored_key := stored_label_key(path)) != label_key:
        raise InputError(f"{path} holds labels of other settings ({stored_key}, expected {label_key}); remove it.")
    for line_number, line in enumerate(lines[1:], 2):
        try:
            row = json.loads(line)
            problem_id, solved, stored_attempts = int(row["id"]), int(row["solved"]), int(row["attempts"])
        except (ValueError, KeyError, TypeError) as e:
            raise InputError(
                f"{path}, line {line_number} is no label ({e!r}); remove the file, and the problems are labelled again."
            ) from e
        if stored_attempts != attempts:
            raise InputError(
                f"{path}, line {line_number}: labelled by avg@{stored_attempts}, expected avg@{attempts}; remove it."
            )
        solved_by_id[problem_id] = solved
    return solved_by_id
