"""Splits of a problem set by difficulty, mixtures of splits, problems in two splits, and the order in which a run draws
its problems.
"""

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from isojax.core.config import DataConfig
from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.tasks.problem_sources import dedup_text, random_subset


def split_by_difficulty(problems: list[Problem], config: DataConfig) -> tuple[list[Problem], list[Problem]]:
    """(training, validation): the problems inside `difficulty`, `validation` of them held out; disjoint by id and by
    prompt.

    Problems are labelled, unless `attempts` is 0: then none is left out.

    Raises:
        InputError: too few problems (of that difficulty), or one problem on both sides.
    """
    (low, high), attempts, min_problems = config.difficulty, config.attempts, 2 * config.validation
    if attempts and not all(p.attempts for p in problems):
        unlabelled = next(p for p in problems if not p.attempts)
        raise InputError(
            f"problem {unlabelled.id} ({unlabelled.prompt[:60]!r}) is not labelled and cell.data.attempts={attempts}"
            " asks for a difficulty; label the problems first, or set cell.data.attempts=0 to take them all."
        )
    eligible = [p for p in problems if not attempts or low <= p.difficulty <= high]
    if len(eligible) < min_problems and attempts:
        raise InputError(
            f"{len(eligible)} of {len(problems)} problems have avg@{problems[0].attempts if problems else attempts} in"
            f" [{low}, {high}]; cell.data.validation={config.validation} needs at least {min_problems}."
            " Widen cell.data.difficulty or raise cell.data.candidates."
        )
    if len(eligible) < min_problems:
        raise InputError(
            f"there are {len(problems)} problems; cell.data.validation={config.validation} needs at least"
            f" {min_problems}. Lower it, raise cell.data.candidates, or name validation problems of their own by"
            " cell.data.held_out."
        )
    order = np.random.default_rng([config.seed, 1]).permutation(len(eligible))
    validation = [eligible[i] for i in order[: config.validation]]
    training = [eligible[i] for i in order[config.validation :]]
    check_disjoint(training, validation)
    return training, validation


def check_disjoint(training: list[Problem], validation: list[Problem]) -> None:
    """InputError where a prompt is on both sides."""
    shared = {dedup_text(p) for p in training} & {dedup_text(p) for p in validation}
    if shared:
        raise InputError(
            f"{len(shared)} problems are in training and validation, for example {min(shared)!r}; remove them from one"
            " side."
        )


def overlapping_prompts(training: Sequence[Problem], validation: Sequence[Problem]) -> list[str]:
    """Prompts of `training` that are in `validation` too, apart from white space and case; each once, in the order of
    `training`.
    """
    validation_prompts = {_normalized_prompt(p) for p in validation}
    return list(dict.fromkeys(p.prompt for p in training if _normalized_prompt(p) in validation_prompts))


def drop_overlap(training: Sequence[Problem], validation: Sequence[Problem]) -> tuple[list[Problem], int]:
    """(the training problems that are not in `validation` too, how many are); the caller shows the number."""
    validation_prompts = {_normalized_prompt(p) for p in validation}
    remaining = [p for p in training if _normalized_prompt(p) not in validation_prompts]
    return remaining, len(training) - len(remaining)


def _normalized_prompt(problem: Problem) -> str:
    return " ".join(dedup_text(problem).casefold().split())


def limit_size(problems: list[Problem], size: int | None, rng: np.random.Generator) -> list[Problem]:
    """D: at most `size` problems, a random choice in random order; all of them, as they are, where that is no limit."""
    return problems if size is None or size >= len(problems) else random_subset(problems, size, rng)


def mixture_counts(sizes: Mapping[str, int], shares: Mapping[str, float], size: int | None) -> dict[str, int]:
    """How many problems of each part make the largest mixture with these shares: at most `size` (D) in all, no part
    used up twice.

    Shares are normalised and taken as the decimal numbers they print as; what does not divide goes to the largest
    remainders.

    Raises:
        InputError: a part that is missing, empty or left without a problem, or a share that is not above 0.
    """
    for part, share in shares.items():
        if not share > 0:
            raise InputError(
                f"cell.data.mixture.{part}={share}: expected a share above 0. Leave the part out to take none of it."
            )
        if not sizes.get(part):
            parts_text = ", ".join(f"{name} ({count})" for name, count in sizes.items()) or "none"
            raise InputError(f"cell.data.mixture: part {part!r} holds no problems; there are {parts_text}.")
    if not shares:
        raise InputError("cell.data.mixture is empty; expected parts and shares, such as {hard: 0.5, easy: 0.5}.")
    exact_shares = {part: Fraction(str(share)) for part, share in shares.items()}
    exact_shares = {part: share / sum(exact_shares.values()) for part, share in exact_shares.items()}
    # Rounded up, a part may give one problem more than its exact share, never more: the largest total is at most this.
    total = min(int((sizes[part] + 1) / share) for part, share in exact_shares.items())
    total = min(total, sum(sizes[part] for part in shares), total if size is None else size)
    counts = _largest_remainder_counts(total, exact_shares)
    while any(count > sizes[part] for part, count in counts.items()):
        total -= 1
        counts = _largest_remainder_counts(total, exact_shares)
    if not all(counts.values()):
        raise InputError(
            f"cell.data.mixture: a mixture of {total} problems gives {counts}; raise cell.data.size, or leave parts"
            " out."
        )
    return counts


def _largest_remainder_counts(total: int, shares: Mapping[str, Fraction]) -> dict[str, int]:
    """Integers that add up to `total`, nearest to the shares by largest remainder; the first part wins a tie."""
    counts = {part: int(total * share) for part, share in shares.items()}
    by_remainder = sorted(shares, key=lambda part: counts[part] - total * shares[part])
    for part in by_remainder[: total - sum(counts.values())]:
        counts[part] += 1
    return counts


def mix_parts(
    problems_by_part: Mapping[str, list[Problem]],
    shares: Mapping[str, float],
    size: int | None,
    rng: np.random.Generator,
) -> list[Problem]:
    """The largest set of at most `size` problems with these shares of the parts (see `mixture_counts`), shuffled.

    Raises:
        InputError: as `mixture_counts`; and one problem in two parts.
    """
    counts = mixture_counts({part: len(problems) for part, problems in problems_by_part.items()}, shares, size)
    part_of_problem: dict[int, str] = {}
    for part in counts:
        for problem in problems_by_part[part]:
            if (other_part := part_of_problem.setdefault(problem.id, part)) != part:
                raise InputError(
                    f"cell.data.mixture: problem {problem.id} is in {other_part} and in {part}; expected parts that"
                    " share none. Take one."
                )
    mixture = [p for part, count in counts.items() for p in random_subset(problems_by_part[part], count, rng)]
    return random_subset(mixture, len(mixture), rng)


class EpochPosition(NamedTuple):
    """The position of an order: the next batch of its epoch, and which problems bool[problems] that epoch leaves
    out.
    """

    epoch: int
    at: int
    out: np.ndarray


class EpochOrder:
    """Indices of the B_p distinct problems of update `first`, `first` + 1, ..., i[B_p] each: shuffled epochs, the
    remainder of each left out.

    With `drop_above` (ScaleRL's no-positive-resampling, arXiv:2510.13786) an epoch leaves out the problems that have
    had that share or more of their rollouts correct, by what `record_rewards` has received when the epoch's first
    batch is drawn. Where fewer than B_p would be left, the B_p solved least often stay, so that the run still reaches
    its budget, as the others of its sweep do; `dropped_fraction` shows it.

    Raises:
        InputError: B_p is larger than the problem set.
    """

    def __init__(
        self,
        num_problems: int,
        B_p: int,
        seed: int,
        first_update: int = 0,
        drop_above: float | None = None,
        saved_state: Mapping[str, Any] | None = None,
        batches_drawn: int = 0,
    ):
        """`saved_state`: what `state_dict` returned after `first_update` updates, where problems may be left out.
        `batches_drawn`: how many batches had been drawn by then for the updates that follow; they are not drawn again.
        """
        if B_p > num_problems:
            raise InputError(
                f"B_p = {B_p} is larger than the training set of {num_problems} problems; lower sweep.B_p or raise"
                " cell.data.candidates."
            )
        self.num_problems, self.B_p, self.seed, self.drop_above = num_problems, B_p, seed, drop_above
        self.correct_counts, self.rollout_counts = np.zeros(num_problems), np.zeros(num_problems, np.int64)
        position = EpochPosition(
            *divmod(first_update + batches_drawn, num_problems // B_p), np.zeros(num_problems, bool)
        )
        self._unrecorded_positions: deque[EpochPosition] = deque()  # of the batches drawn and not recorded yet
        if drop_above is not None:
            assert saved_state is not None or first_update == 0, (
                "which problems are left out is not known from the number of updates"
            )
        if saved_state is not None:
            self.correct_counts[:], self.rollout_counts[:] = saved_state["correct"], saved_state["rollouts"]
            positions = [
                EpochPosition(epoch, next_batch, np.isin(np.arange(num_problems), excluded))
                for epoch, next_batch, excluded in saved_state["positions"]
            ]
            self._unrecorded_positions.extend(positions[:batches_drawn])
            position = positions[batches_drawn]
        self._lock = threading.Lock()  # a pipeline draws and records in two threads
        self._move_to(position)

    def __iter__(self) -> "EpochOrder":
        return self

    def __next__(self) -> np.ndarray:
        """The next batch."""
        with self._lock:
            batches_left = self.batches_left_in_epoch  # which may begin an epoch
            start = (self._batches_per_epoch - batches_left) * self.B_p
            if self.drop_above is not None:
                self._unrecorded_positions.append(self._position)
            self._position = self._position._replace(at=self._position.at + 1)
            return self._epoch_order[start : start + self.B_p]

    @property
    def batches_left_in_epoch(self) -> int:
        """How many batches, at least one, are left in the epoch of the next batch. Where that is an epoch's first
        batch, the epoch begins here.
        """
        if self._position.at == self._batches_per_epoch:
            self._move_to(EpochPosition(self._position.epoch + 1, 0, self._position.out))
        if self._position.at == 0 and not self._epoch_started:
            self._move_to(self._position._replace(out=self._problems_to_drop()), epoch_started=True)
        return self._batches_per_epoch - self._position.at

    @property
    def dropped_fraction(self) -> float:
        """The share of the problems that the epoch of the last batch left out."""
        return float(self._position.out.mean())

    def record_rewards(self, problem_index: np.ndarray, reward_sums: np.ndarray, n: int) -> None:
        """Record the rewards of the oldest batches not recorded yet, i[k B_p]: for each problem, the sum over its n
        rollouts.
        """
        with self._lock:
            np.add.at(self.correct_counts, problem_index, reward_sums)
            np.add.at(self.rollout_counts, problem_index, n)
            for _ in range(len(problem_index) // self.B_p):
                self._unrecorded_positions.popleft()

    def state_dict(self) -> dict[str, Any] | None:
        """What an order that continues after the batches recorded so far needs, for JSON; None where their number is
        enough.
        """
        if self.drop_above is None:
            return None
        with self._lock:
            positions = [
                (position.epoch, position.at, np.nonzero(position.out)[0].tolist())
                for position in (*self._unrecorded_positions, self._position)
            ]
            return {
                "positions": positions,
                "correct": self.correct_counts.tolist(),
                "rollouts": self.rollout_counts.tolist(),
            }

    def _move_to(self, position: EpochPosition, epoch_started: bool = False) -> None:
        """Take a position; `epoch_started`: what its epoch leaves out is decided."""
        self._position, self._epoch_started = position, epoch_started or position.at > 0
        order = np.random.default_rng([self.seed, position.epoch]).permutation(self.num_problems)
        self._epoch_order = order[~position.out[order]]
        self._batches_per_epoch = len(self._epoch_order) // self.B_p

    def _problems_to_drop(self) -> np.ndarray:
        """The problems to be left out, bool[problems]."""
        if self.drop_above is None:
            return np.zeros(self.num_problems, bool)
        solve_rate = self.correct_counts / np.maximum(self.rollout_counts, 1)
        excluded = (self.rollout_counts > 0) & (solve_rate >= self.drop_above)
        if self.num_problems - excluded.sum() < self.B_p:
            excluded[np.argsort(solve_rate, kind="stable")[: self.B_p]] = False
        return excluded
