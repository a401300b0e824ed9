"""The order in which a run draws its problems: shuffled epochs, which may leave out problems that
are solved."""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from isojax.core.errors import InputError


class EpochPosition(NamedTuple):
    """The place of a batch in the order."""

    epoch: int
    batch_index: int  # in its epoch
    excluded: np.ndarray  # bool[problems], the problems that the epoch leaves out


class EpochOrder(Iterator[np.ndarray]):
    """Indices i[B_p] of the distinct problems of each batch: shuffled epochs, their remainders left
    out.

    With `drop_above` (ScaleRL's no-positive-resampling, arXiv:2510.13786) an epoch leaves out
    problems with that share or more of their rollouts correct; the B_p solved least often stay, so
    that the run reaches its budget.
    """

    def __init__(
        self,
        num_problems: int,
        B_p: int,
        seed: int,
        first_batch: int = 0,
        drop_above: float | None = None,
        saved_state: Mapping[str, Any] | None = None,
        batches_ahead: int = 0,
        first_epoch: int = 0,
    ):
        """Make the order of the training problems from the batch `first_batch` on, in batches of
        B_p (problems per batch); InputError where B_p exceeds num_problems. seed: the run's; with
        the number of an epoch it fixes the epoch's order.

        drop_above: a share of correct rollouts from 0 to 1 (class docstring); None: leave out no
        problem.

        saved_state: what `state_dict` returned after `first_batch` batches; needed where problems
        may be left out. With first_batch = 0 only its counts of rewards are used, to begin an
        order with those of an earlier one.

        batches_ahead: how many batches after `first_batch` had been drawn already for later
        updates (asynchronous sampling); they are not drawn again.

        first_epoch: the number of the epoch that begins with batch 0, which seeds its shuffling.
        """
        if B_p > num_problems:
            raise InputError(
                where="B_p",
                found=(
                    f"given {B_p}, which is more than the training set of {num_problems} problems"
                ),
                fix="Lower sweep.B_p.",
            )
        self.num_problems = num_problems
        self.B_p = B_p
        self.seed = seed
        self.drop_above = drop_above
        self.reward_sums_by_problem = np.zeros(num_problems)
        self.rollout_counts = np.zeros(num_problems, np.int64)
        if saved_state is not None:
            self.reward_sums_by_problem[:] = saved_state["correct"]
            self.rollout_counts[:] = saved_state["rollouts"]

        # Batches that were drawn and whose rewards are not recorded yet, the oldest first.
        self._unrecorded_positions: deque[EpochPosition] = deque()

        # Where nothing is left out, every epoch has the same number of batches, so that the next
        # position follows from the number of batches. Otherwise it was saved: first those of the
        # batches drawn ahead, then the next one.
        epoch, batch_index = divmod(first_batch + batches_ahead, num_problems // B_p)
        position = EpochPosition(first_epoch + epoch, batch_index, np.zeros(num_problems, bool))
        if saved_state is not None and (first_batch or batches_ahead):
            positions: list[EpochPosition] = []
            # One for each unrecorded batch, the oldest first, and that of the next batch at last.
            for saved_epoch, saved_batch_index, excluded_indices in saved_state["positions"]:
                excluded = np.isin(np.arange(num_problems), excluded_indices)
                positions.append(EpochPosition(saved_epoch, saved_batch_index, excluded))
            self._unrecorded_positions.extend(positions[:batches_ahead])
            position = positions[batches_ahead]
        # Whether it has been decided what the epoch leaves out: at its first batch.
        self._epoch_started = position.batch_index > 0
        self._move_to(position)

    def __next__(self) -> np.ndarray:
        self._begin_epoch_if_due()
        start = self._position.batch_index * self.B_p
        if self.drop_above is not None:
            self._unrecorded_positions.append(self._position)
        self._position = self._position._replace(batch_index=self._position.batch_index + 1)
        return self._epoch_order[start : start + self.B_p]

    @property
    def batches_left_in_epoch(self) -> int:
        """How many batches, at least one, are left in the epoch of the next batch, which may begin
        here."""
        self._begin_epoch_if_due()
        return self._batches_per_epoch - self._position.batch_index

    @property
    def dropped_fraction(self) -> float:
        """The share of the problems that the epoch of the last batch left out."""
        return float(self._position.excluded.mean())

    def record_rewards(self, problem_index: np.ndarray, reward_sums: np.ndarray, n: int) -> None:
        """Record the rewards of the k oldest unrecorded batches. problem_index: i[k * B_p], as
        `next` gave them; reward_sums: f[k * B_p], for each of these the sum over its n rollouts.
        Only with `drop_above`."""
        np.add.at(self.reward_sums_by_problem, problem_index, reward_sums)
        np.add.at(self.rollout_counts, problem_index, n)
        for _ in range(len(problem_index) // self.B_p):
            self._unrecorded_positions.popleft()

    def state_dict(self) -> dict[str, Any] | None:
        """What an order needs to continue after the recorded batches, for JSON; None where their
        number is enough. "positions": [epoch, batch_index, [excluded problems]] of each unrecorded
        batch and of the next one; "correct" and "rollouts": sum of rewards and number of rollouts
        of each problem."""
        if self.drop_above is None:
            return None
        positions: list[tuple[int, int, list[int]]] = []
        for position in (*self._unrecorded_positions, self._position):
            excluded_indices = np.nonzero(position.excluded)[0].tolist()
            positions.append((position.epoch, position.batch_index, excluded_indices))
        return {
            "positions": positions,
            "correct": self.reward_sums_by_problem.tolist(),
            "rollouts": self.rollout_counts.tolist(),
        }

    def _begin_epoch_if_due(self) -> None:
        """Where the next batch is the first of an epoch, decide what this epoch leaves out."""
        epoch = self._position.epoch
        batch_index = self._position.batch_index
        if batch_index == self._batches_per_epoch:
            epoch += 1
            batch_index = 0
            self._epoch_started = False
        if not self._epoch_started:
            self._epoch_started = True
            self._move_to(EpochPosition(epoch, batch_index, self._problems_to_drop()))

    def _move_to(self, position: EpochPosition) -> None:
        """Go to a position, and shuffle its epoch, without the problems that it leaves out."""
        self._position = position
        order = np.random.default_rng([self.seed, position.epoch]).permutation(self.num_problems)
        self._epoch_order = order[~position.excluded[order]]
        self._batches_per_epoch = len(self._epoch_order) // self.B_p

    def _problems_to_drop(self) -> np.ndarray:
        """bool[problems]: whether the epoch that begins now leaves a problem out."""
        if self.drop_above is None:
            return np.zeros(self.num_problems, bool)
        solve_rate = self.reward_sums_by_problem / np.maximum(self.rollout_counts, 1)
        excluded = (self.rollout_counts > 0) & (solve_rate >= self.drop_above)
        if self.num_problems - excluded.sum() < self.B_p:  # too few for a batch
            excluded[np.argsort(solve_rate, kind="stable")[: self.B_p]] = False
        return excluded
