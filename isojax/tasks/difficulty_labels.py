"""avg@k of the base policy on each problem, by blocks, appended to a file as they are found: a killed labelling goes on
where it was.
"""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from isojax.core.atomic_files import append_bytes
from isojax.core.config import CellConfig
from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.distributed import multiprocess
from isojax.models.transformer import Params
from isojax.rl.train_step import LABEL_STREAM
from isojax.tasks.protocol import EncodedProblems
from isojax.train.evaluate import Evaluator, TokenizedProblems

ProgressCallback = Callable[[str, float], None]  # (what is being done, the fraction done)


def compute_label_key(cell: CellConfig, fingerprint: str, problems: Sequence[Problem]) -> str:
    """16 hex digits that name what labels depend on: the policy (`checkpoint`: its weights' fingerprint), the problems,
    how they are put, sampled and judged. Labels by another key are of something else."""
    key_data = {
        k: v
        for k, v in cell.model_dump(mode="json").items()
        if k in ("task", "model", "base", "prompt", "verifier", "sampling")
    }
    key_data |= {
        "seed": cell.data.seed,
        "checkpoint": fingerprint,
        "problems": [[p.id, p.prompt, p.answer, list(p.messages)] for p in problems],
    }
    return hashlib.sha256(json.dumps(key_data, sort_keys=True, default=dict).encode()).hexdigest()[:16]


def label_problems(
    path: Path,
    label_key: str,
    problem_set: TokenizedProblems,
    attempts: int,
    seed: int,
    evaluator: Evaluator,
    params: Params,
    on_progress: ProgressCallback,
) -> list[Problem]:
    """The problems with the base policy's right answers out of `attempts` (rounded up to whole evaluations).

    `path` gets a line {"of": ...} and one line {"id", "solved", "attempts"} a problem; what stands there already is not
    sampled again. Draws belong to the problem, so the labels do not depend on how often the labelling was broken off.

    Raises:
        InputError: `path` holds labels of something else, or by another number of attempts, or is damaged.
    """
    repeats = -(-attempts // evaluator.samples_per_problem)
    attempts = repeats * evaluator.samples_per_problem
    solved_by_id = multiprocess.run_on_primary(lambda: read_labels(path, label_key, attempts))
    unlabelled = [i for i, p in enumerate(problem_set.problems) if p.id not in solved_by_id]
    for start in range(0, len(unlabelled), evaluator.problems_per_call):
        on_progress(
            f"labelling {len(problem_set.problems)} problems by avg@{attempts}",
            1 - (len(unlabelled) - start) / len(problem_set.problems),
        )
        block = unlabelled[start : start + evaluator.problems_per_call]
        block_problems = TokenizedProblems(
            [problem_set.problems[i] for i in block], EncodedProblems(*(x[block] for x in problem_set.arrays))
        )
        counts = evaluator.count_correct(
            params, block_problems, seed=seed, evaluation=0, repeats=repeats, stream=LABEL_STREAM
        )
        newly_solved = {p.id: int(right) for p, right in zip(block_problems.problems, counts.correct, strict=True)}
        solved_by_id |= newly_solved
        if multiprocess.is_primary():
            _append_labels(
                path, label_key, [{"id": i, "solved": right, "attempts": attempts} for i, right in newly_solved.items()]
            )
    return [replace(p, solved=solved_by_id[p.id], attempts=attempts) for p in problem_set.problems]


def _append_labels(path: Path, label_key: str, rows: list[dict[str, int]]) -> None:
    """More labels, forced to disk; the file is begun with what they are of."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = [] if path.exists() and path.stat().st_size else [{"of": label_key}]
    append_bytes(path, "".join(json.dumps(row) + "\n" for row in (*header, *rows)).encode())


def stored_label_key(path: Path) -> str:
    """What the labels in `path` are of; empty where there are none."""
    lines = path.read_text().splitlines() if path.exists() else []
    try:
        return str(json.loads(lines[0])["of"]) if lines else ""
    except (ValueError, KeyError, TypeError):
        return ""


def read_labels(path: Path, label_key: str, attempts: int) -> dict[int, int]:
    """Right answers by problem id, as far as they were found; a torn last line is cut off.

    Raises:
        InputError: a broken line before the last, or labels of something else or by another number of attempts.
    """
    if not path.exists():
        return {}
    data = path.read_bytes()
    complete, newline, torn = data.rpartition(b"\n")
    if torn:
        os.truncate(path, len(complete) + len(newline))
    solved_by_id: dict[int, int] = {}
    lines = complete.splitlines()
    if lines and stored_label_key(path) != label_key:
        raise InputError(
            f"{path} holds labels of other settings ({stored_label_key(path)}, expected {label_key}); remove it, or choose another place."
        )
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
                f"{path}, line {line_number}: labelled by avg@{stored_attempts}, expected avg@{attempts}; take that, or remove the file."
            )
        solved_by_id[problem_id] = solved
    return solved_by_id
