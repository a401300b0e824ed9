"""The parts of `isojax difficulty`: problems by the base model's avg@16, as in the IsoCompute
Playbook (arXiv:2603.12151, section 3, Fig. 14).

very_easy (.6, .9], easy [.3, .6], hard [0, .0625]; extremely_hard 0 of 128.
"""

import csv
import io
import math
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtri

from isojax.core.nouns import Problem

DIFFICULTY_RANGES = {"very_easy": (0.6, 0.9), "easy": (0.3, 0.6), "hard": (0.0, 0.0625)}
EXTREMELY_HARD = "extremely_hard"


def labels_csv(labelled: Sequence[Problem]) -> str:
    """The text of labels.csv: a header, and a row per problem with the 90% interval of its rate."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["id", "solved", "attempts", "avg", "low", "high", "part", "prompt"])
    for p in labelled:
        low, high = wilson_interval(p.difficulty, p.attempts)
        rates = [f"{rate:.4f}" for rate in (p.difficulty, low, high)]
        part = difficulty_part(p) or ""
        writer.writerow([p.id, p.solved, p.attempts, *rates, part, p.prompt])
    return buffer.getvalue()


def wilson_interval(rate: float, attempts: int) -> tuple[float, float]:
    """Wilson's 90% interval (low, high) of a mean of right and wrong answers.

    rate: the mean, from 0 to 1, of so many attempts (at least 1). For graded rewards it is too
    wide, as they vary less than right and wrong answers of the same mean.
    """
    k = attempts
    z = float(ndtri(0.95))
    scale = 1 + z**2 / k
    centre = (rate + z**2 / (2 * k)) / scale
    half_width = z / scale * math.sqrt(rate * (1 - rate) / k + (z / (2 * k)) ** 2)
    return max(0.0, centre - half_width), min(1.0, centre + half_width)


def difficulty_part(problem: Problem) -> str | None:
    """The part of a labelled problem: a key of DIFFICULTY_RANGES, or None where it is in none.

    A share on the border of two belongs to the harder one.
    """
    part = None
    for name, (low, high) in DIFFICULTY_RANGES.items():
        if low <= problem.difficulty <= high:
            part = name  # of two, the one that comes later, as they get harder
    return part


def split_into_parts(
    labelled_problems: Sequence[Problem],
    unsolved_problems: Sequence[Problem],
    held_out: int,
    seed: int,
) -> dict[str, list[Problem]]:
    """The splits of a difficulty data set, in the order in which they are written.

    "all" has all labelled problems; PART_train and PART_validation those of each part that has
    some, such as "easy_train". unsolved_problems: of the part extremely_hard, a subset of the
    labelled ones by their ids. At most `held_out` problems of a part, and at most half, are held
    out for validation; no part trains on what another holds out. seed: cell.data.seed, which
    decides which ones.
    """
    problems_by_part = {
        name: [p for p in labelled_problems if difficulty_part(p) == name]
        for name in DIFFICULTY_RANGES
    }
    problems_by_part[EXTREMELY_HARD] = list(unsolved_problems)

    # A problem has one rank, in whichever parts it is.
    # 5: the stream of random numbers for this purpose, apart from others of the same seed.
    order = np.random.default_rng([seed, 5]).permutation(len(labelled_problems))
    rank_by_id = {labelled_problems[j].id: rank for rank, j in enumerate(order)}
    splits: dict[str, list[Problem]] = {"all": list(labelled_problems)}
    for part, problems in problems_by_part.items():
        ranked = sorted(problems, key=lambda p: rank_by_id[p.id])
        num_held_out = min(held_out, len(ranked) // 2)
        splits[f"{part}_train"] = ranked[num_held_out:]
        splits[f"{part}_validation"] = ranked[:num_held_out]

    # Extremely hard problems are hard ones too, and may be held out in one part alone.
    for part, other_part in (("hard", EXTREMELY_HARD), (EXTREMELY_HARD, "hard")):
        held_out_ids = {p.id for p in splits[f"{other_part}_validation"]}
        splits[f"{part}_train"] = [p for p in splits[f"{part}_train"] if p.id not in held_out_ids]
    return {name: problems for name, problems in splits.items() if problems}
