"""How hard problems are for the base policy: avg@k, kept in a file of labels, and the parts of a data set by it.

Labels are appended block by block, so that a killed labelling goes on: {"key": ...}, what they depend on, then a line
{"id", "solved", "attempts"} per problem, where `solved` is the sum of rewards. Parts are by avg@16 (IsoCompute
Playbook, section 3 and Fig. 14): very_easy (.6, .9], easy [.3, .6], hard [0, .0625]; extremely_hard: none right of
128."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from isojax.core.atomic_files import append_bytes
from isojax.core.config import CellConfig, RewardConfig
from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.distributed import multiprocess

ProgressCallback = Callable[[str, float], None]  # (what is being done, the fraction done)
DIFFICULTY_RANGES: Mapping[str, tuple[float, float]] = {
    "very_easy": (0.6, 0.9),
    "easy": (0.3, 0.6),
    "hard": (0.0, 0.0625),
}
EXTREMELY_HARD = "extremely_hard"
EXTREMELY_HARD_ATTEMPTS = 128


class Labeller(Protocol):
    """Samples the base policy on a problem set and sums its rewards (PolicyLabeller in train/base_policy.py)."""

    @property
    def problems_per_call(self) -> int: ...

    @property
    def samples_per_problem(self) -> int: ...

    def sum_rewards(self, problem_indices: Sequence[int], repeats: int) -> Sequence[float]:
        """The sums over `repeats` x `samples_per_problem` rollouts (binary: integers); the draws belong to their
        problem."""
        ...


def compute_label_key(cell: CellConfig, fingerprint: str, problems: Sequence[Problem]) -> str:
    """16 hex digits that name what labels depend on: the policy, the problems, and how rollouts are made and judged."""
    sections = {"task", "model", "base", "prompt", "verifier", "sampling"}
    key_data = cell.model_dump(mode="json", include=sections) | {
        **({} if cell.reward == RewardConfig() else {"reward": cell.reward.model_dump(mode="json")}),
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
    """The problems with the base policy's sums of rewards over `attempts` (rounded up to whole calls); what `path`
    holds is not sampled again."""
    repeats = -(-attempts // labeller.samples_per_problem)
    attempts = repeats * labeller.samples_per_problem
    solved_by_id = multiprocess.run_on_primary(lambda: read_labels(path, label_key, attempts))
    unlabelled = [i for i, problem in enumerate(problems) if problem.id not in solved_by_id]
    for start in range(0, len(unlabelled), labeller.problems_per_call):
        labelled = len(problems) - (len(unlabelled) - start)
        on_progress(f"labelling {len(problems)} problems by avg@{attempts}", labelled / len(problems))
        block = unlabelled[start : start + labeller.problems_per_call]
        sums = zip(block, labeller.sum_rewards(block, repeats), strict=True)
        newly_solved = {problems[i].id: reward_sum for i, reward_sum in sums}
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


def read_labels(path: Path, label_key: str, attempts: int) -> dict[int, float]:
    """Sums of rewards by problem id; a torn last line is cut off. InputError where the labels are of another kind."""
    if not path.exists():
        return {}
    data = path.read_bytes()
    complete, newline, torn = data.rpartition(b"\n")
    if torn:
        os.truncate(path, len(complete) + len(newline))
    solved_by_id: dict[int, float] = {}
    lines = complete.splitlines()
    if lines and (stored_key := stored_label_key(path)) != label_key:
        raise InputError(f"{path} holds labels of other settings ({stored_key}, expected {label_key}); remove it.")
    for line_number, line in enumerate(lines[1:], 2):
        try:
            row = json.loads(line)
            problem_id, solved, stored_attempts = int(row["id"]), row["solved"], int(row["attempts"])
            if not 0 <= solved <= stored_attempts:
                raise ValueError(f"solved is {solved}")
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


def difficulty_part(problem: Problem) -> str | None:
    """The part of a labelled problem; a share on the border of two belongs to the harder one."""
    matching_parts = [name for name, (low, high) in DIFFICULTY_RANGES.items() if low <= problem.difficulty <= high]
    return matching_parts[-1] if matching_parts else None


def split_into_parts(
    labelled_problems: Sequence[Problem], unsolved_problems: Sequence[Problem], held_out: int, seed: int
) -> dict[str, list[Problem]]:
    """The splits of a difficulty data set: `all`, and PART_train and PART_validation of each part that has problems. At
    most `held_out` problems, and at most half, are held out; no part trains on what another holds out."""
    order = np.random.default_rng([seed, 5]).permutation(len(labelled_problems))
    rank_by_id = {labelled_problems[j].id: rank for rank, j in enumerate(order)}
    problems_by_part = {
        name: [p for p in labelled_problems if difficulty_part(p) == name] for name in DIFFICULTY_RANGES
    }
    problems_by_part[EXTREMELY_HARD] = list(unsolved_problems)
    splits: dict[str, list[Problem]] = {"all": list(labelled_problems)}
    for part, problems in problems_by_part.items():
        ranked = sorted(problems, key=lambda p: rank_by_id[p.id])
        reserved = min(held_out, len(ranked) // 2)
        splits |= {f"{part}_train": ranked[reserved:], f"{part}_validation": ranked[:reserved]}
    for part, other_part in (("hard", EXTREMELY_HARD), (EXTREMELY_HARD, "hard")):
        reserved_ids = {p.id for p in splits[f"{other_part}_validation"]}
        splits[f"{part}_train"] = [p for p in splits[f"{part}_train"] if p.id not in reserved_ids]
    return {name: problems for name, problems in splits.items() if problems}
