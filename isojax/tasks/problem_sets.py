"""Splits of a problem set by difficulty, mixtures of parts, and problems in two sets."""

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from isojax.core.config import DataConfig
from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.tasks.problem_sources import dedup_text, random_subset


def within_difficulty(problems: Sequence[Problem], data: DataConfig) -> list[Problem]:
    """The labelled problems whose avg@k is inside `cell.data.difficulty`; all of them where `attempts` is 0."""
    low, high = data.difficulty
    return [p for p in problems if not data.attempts or low <= p.difficulty <= high]


def split_by_difficulty(problems: Sequence[Problem], data: DataConfig) -> tuple[list[Problem], list[Problem]]:
    """(training, validation): the problems inside `cell.data.difficulty`, `validation` of them held out."""
    eligible, min_problems = within_difficulty(problems, data), 2 * data.validation
    if len(eligible) < min_problems and data.attempts:
        (low, high), attempts = data.difficulty, problems[0].attempts if problems else data.attempts
        raise InputError(
            f"{len(eligible)} of {len(problems)} problems have avg@{attempts} in [{low}, {high}]; cell.data.validation="
            f"{data.validation} needs {min_problems} or more. Widen cell.data.difficulty or raise cell.data.candidates."
        )
    if len(eligible) < min_problems:
        raise InputError(
            f"there are {len(problems)} problems; cell.data.validation={data.validation} needs at least {min_problems}."
            " Lower it, raise cell.data.candidates, or name validation problems of their own by cell.data.held_out."
        )
    order = np.random.default_rng([data.seed, 1]).permutation(len(eligible))
    validation = [eligible[i] for i in order[: data.validation]]
    return [eligible[i] for i in order[data.validation :]], validation


def drop_overlap(training: Sequence[Problem], validation: Sequence[Problem]) -> tuple[list[Problem], int]:
    """(the training problems that are not in `validation` too, whatever their white space and case; how many are)."""
    validation_prompts = {_normalized_prompt(p) for p in validation}
    remaining = [p for p in training if _normalized_prompt(p) not in validation_prompts]
    return remaining, len(training) - len(remaining)


def _normalized_prompt(problem: Problem) -> str:
    return " ".join(dedup_text(problem).casefold().split())


def mix_parts(
    problems_by_part: Mapping[str, Sequence[Problem]],
    shares: Mapping[str, float],
    size: int | None,
    rng: np.random.Generator,
) -> list[Problem]:
    """The largest set of at most `size` problems with these shares of the parts, shuffled; no problem comes twice."""
    counts = mixture_counts({part: len(problems) for part, problems in problems_by_part.items()}, shares, size)
    part_of_problem: dict[int, str] = {}
    for part in counts:
        for problem in problems_by_part[part]:
            if (other_part := part_of_problem.setdefault(problem.id, part)) != part:
                raise InputError(
                    f"cell.data.mixture: problem {problem.id} is in {other_part} and in {part}; take one of the two."
                )
    mixture = [p for part, count in counts.items() for p in random_subset(problems_by_part[part], count, rng)]
    return random_subset(mixture, len(mixture), rng)


def mixture_counts(sizes: Mapping[str, int], shares: Mapping[str, float], size: int | None) -> dict[str, int]:
    """How many problems of each part make the largest mixture with these shares, at most `size` (D) in all."""
    exact_shares = {part: Fraction(str(share)) for part, share in shares.items()}  # the decimals that they print as
    exact_shares = {part: share / sum(exact_shares.values()) for part, share in exact_shares.items()}
    # Rounded up, a part may give one problem more than its exact share, never more: the largest total is at most this.
    total = min(int((sizes[part] + 1) / share) for part, share in exact_shares.items())
    total = min(total, sum(sizes[part] for part in shares), total if size is None else size)
    counts = _largest_remainder_counts(total, exact_shares)
    while any(count > sizes[part] for part, count in counts.items()):
        total -= 1
        counts = _largest_remainder_counts(total, exact_shares)
    if not all(counts.values()):
        raise InputError(f"cell.data.mixture: a mixture of {total} problems gives {counts}; raise cell.data.size.")
    return counts


def _largest_remainder_counts(total: int, shares: Mapping[str, Fraction]) -> dict[str, int]:
    """Integers that add up to `total`, nearest to the shares by largest remainder; the first part wins a tie."""
    counts = {part: int(total * share) for part, share in shares.items()}
    by_remainder = sorted(shares, key=lambda part: counts[part] - total * shares[part])
    for part in by_remainder[: total - sum(counts.values())]:
        counts[part] += 1
    return counts
