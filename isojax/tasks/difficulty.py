"""The parts of a data set by the base model's avg@16 (IsoCompute Playbook, section 3 and Fig. 14): very_easy (.6, .9],
easy [.3, .6], hard [0, .0625]; extremely_hard: none correct of 128."""

from collections.abc import Mapping, Sequence

import numpy as np

from isojax.core.nouns import Problem

DIFFICULTY_RANGES: Mapping[str, tuple[float, float]] = {
    "very_easy": (0.6, 0.9),
    "easy": (0.3, 0.6),
    "hard": (0.0, 0.0625),
}
EXTREMELY_HARD = "extremely_hard"
EXTREMELY_HARD_ATTEMPTS = 128


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
