"""Splits of a problem set by difficulty, mixtures of splits, what stands on both sides, and the order in which a run meets its
problems. No jax here."""

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from isojax.config import DataConfig
from isojax.tasks.sources import asked, choose
from isojax.types import InputError, Problem


def split(problems: list[Problem], config: DataConfig) -> tuple[list[Problem], list[Problem]]:
    """(training, validation): the problems inside `difficulty`, `validation` of them held out; disjoint by id and by prompt.

    Problems are labelled, unless `attempts` is 0: then none is left out.

    Raises:
        InputError: too few problems (of that difficulty), or one problem on both sides.
    """
    (low, high), attempts, needed = config.difficulty, config.attempts, 2 * config.validation
    if attempts and not all(p.attempts for p in problems):
        bare = next(p for p in problems if not p.attempts)
        raise InputError(
            f"problem {bare.id} ({bare.prompt[:60]!r}) is not labelled and cell.data.attempts={attempts} asks for a difficulty;"
            " label the problems first, or set cell.data.attempts=0 to take them all."
        )
    inside = [p for p in problems if not attempts or low <= p.difficulty <= high]
    if len(inside) < needed and attempts:
        raise InputError(
            f"{len(inside)} of {len(problems)} problems have avg@{problems[0].attempts if problems else attempts} in [{low}, {high}]; "
            f"cell.data.validation={config.validation} needs at least {needed}."
            " Widen cell.data.difficulty or raise cell.data.candidates."
        )
    if len(inside) < needed:
        raise InputError(
            f"there are {len(problems)} problems; cell.data.validation={config.validation} needs at least {needed}."
            " Lower it, raise cell.data.candidates, or name validation problems of their own by cell.data.held_out."
        )
    order = np.random.default_rng([config.seed, 1]).permutation(len(inside))
    validation = [inside[i] for i in order[: config.validation]]
    training = [inside[i] for i in order[config.validation :]]
    check_disjoint(training, validation)
    return training, validation


def check_disjoint(training: list[Problem], validation: list[Problem]) -> None:
    """InputError where a prompt stands on both sides."""
    shared = {asked(p) for p in training} & {asked(p) for p in validation}
    if shared:
        raise InputError(
            f"{len(shared)} problems stand in training and validation, for example {min(shared)!r}; remove them from one side."
        )


def overlap(training: Sequence[Problem], validation: Sequence[Problem]) -> list[str]:
    """Prompts of `training` that stand in `validation` too, but for white space and case; each once, in the order of `training`."""
    seen = {_loosely(p) for p in validation}
    return list(dict.fromkeys(p.prompt for p in training if _loosely(p) in seen))


def drop_overlap(training: Sequence[Problem], validation: Sequence[Problem]) -> tuple[list[Problem], int]:
    """(the training problems that do not stand in `validation`, how many do): `overlap`'s are gone. The caller shows the number."""
    seen = {_loosely(p) for p in validation}
    kept = [p for p in training if _loosely(p) not in seen]
    return kept, len(training) - len(kept)


def _loosely(problem: Problem) -> str:
    return " ".join(asked(problem).casefold().split())


def limit(problems: list[Problem], size: int | None, rng: np.random.Generator) -> list[Problem]:
    """D: at most `size` problems, a random choice in random order; all of them, as they are, where that is no limit."""
    return problems if size is None or size >= len(problems) else choose(problems, size, rng)


def portions(sizes: Mapping[str, int], shares: Mapping[str, float], size: int | None) -> dict[str, int]:
    """How many problems of each part make the largest mixture with these shares: at most `size` (D) in all, no part used up twice.

    Shares are normalised and taken as the decimal numbers they print as; what does not divide goes to the largest remainders.

    Raises:
        InputError: a part that is missing, empty or left without a problem, or a share that is not above 0.
    """
    for part, share in shares.items():
        if not share > 0:
            raise InputError(f"cell.data.mixture.{part}={share}: expected a share above 0. Leave the part out to take none of it.")
        if not sizes.get(part):
            there = ", ".join(f"{name} ({count})" for name, count in sizes.items()) or "none"
            raise InputError(f"cell.data.mixture: part {part!r} holds no problems; there are {there}.")
    if not shares:
        raise InputError("cell.data.mixture is empty; expected parts and shares, such as {hard: 0.5, easy: 0.5}.")
    exact = {part: Fraction(str(share)) for part, share in shares.items()}
    exact = {part: share / sum(exact.values()) for part, share in exact.items()}
    # Rounded up, a part may give one problem more than its exact share, never more: the largest total is at most this.
    total = min(int((sizes[part] + 1) / share) for part, share in exact.items())
    total = min(total, sum(sizes[part] for part in shares), total if size is None else size)
    counts = _rounded(total, exact)
    while any(count > sizes[part] for part, count in counts.items()):
        total -= 1
        counts = _rounded(total, exact)
    if not all(counts.values()):
        raise InputError(f"cell.data.mixture: a mixture of {total} problems gives {counts}; raise cell.data.size, or leave parts out.")
    return counts


def _rounded(total: int, shares: Mapping[str, Fraction]) -> dict[str, int]:
    """Integers that add up to `total`, nearest to the shares by largest remainder; the first part wins a tie."""
    counts = {part: int(total * share) for part, share in shares.items()}
    by_remainder = sorted(shares, key=lambda part: counts[part] - total * shares[part])
    for part in by_remainder[: total - sum(counts.values())]:
        counts[part] += 1
    return counts


def mix(parts: Mapping[str, list[Problem]], shares: Mapping[str, float], size: int | None, rng: np.random.Generator) -> list[Problem]:
    """The largest set of at most `size` problems with these shares of the parts (see `portions`), shuffled; ids stay.

    Raises:
        InputError: as `portions`; and one problem in two parts.
    """
    counts = portions({part: len(problems) for part, problems in parts.items()}, shares, size)
    owners: dict[int, str] = {}
    for part in counts:
        for problem in parts[part]:
            if (other := owners.setdefault(problem.id, part)) != part:
                raise InputError(
                    f"cell.data.mixture: problem {problem.id} stands in {other} and in {part}; expected parts that share none. Take one."
                )
    chosen = [p for part, count in counts.items() for p in choose(parts[part], count, rng)]
    return choose(chosen, len(chosen), rng)


class Place(NamedTuple):
    """Where an order stands: the next batch of its epoch, and which problems bool[problems] that epoch leaves out."""

    epoch: int
    at: int
    out: np.ndarray


class Order:
    """Indices of the B_p distinct problems of update `first`, `first` + 1, ..., i[B_p] each: shuffled epochs, the remainder of each left
    out.

    With `drop_above` (ScaleRL's no-positive-resampling, arXiv:2510.13786) an epoch leaves out the problems of whose rollouts so far that
    share or more were right, by what `record` has been told when the epoch's first batch is drawn. Where fewer than B_p would be left,
    the B_p solved least often stay: a run then still reaches its budget, as the others of its sweep do, and `dropped` tells it.

    Raises:
        InputError: B_p is larger than the problem set.
    """

    def __init__(
        self,
        problems: int,
        B_p: int,
        seed: int,
        first: int = 0,
        drop_above: float | None = None,
        saved: Mapping[str, Any] | None = None,
        drawn: int = 0,
    ):
        """`saved`: what `save` gave after `first` updates, where problems may be left out. `drawn`: how many batches had been drawn by then
        for the updates that follow, which are not to be drawn again."""
        if B_p > problems:
            raise InputError(
                f"B_p = {B_p} is larger than the training set of {problems} problems; lower sweep.B_p or raise cell.data.candidates."
            )
        self.problems, self.B_p, self.seed, self.drop_above = problems, B_p, seed, drop_above
        self.right, self.seen = np.zeros(problems), np.zeros(problems, np.int64)
        place = Place(*divmod(first + drawn, problems // B_p), np.zeros(problems, bool))
        self._unrecorded: deque[Place] = deque()  # places of the batches drawn and not recorded yet
        if drop_above is not None:
            assert saved is not None or first == 0, "which problems are left out is not known from the number of updates"
        if saved is not None:
            self.right[:], self.seen[:] = saved["right"], saved["seen"]
            places = [Place(epoch, at, np.isin(np.arange(problems), out)) for epoch, at, out in saved["places"]]
            self._unrecorded.extend(places[:drawn])
            place = places[drawn]
        self._lock = threading.Lock()  # a pipeline draws and records in two threads
        self._go(place)

    def __iter__(self) -> "Order":
        return self

    def __next__(self) -> np.ndarray:
        """The next batch."""
        with self._lock:
            left = self.left_in_epoch  # which may begin an epoch
            start = (self._batches - left) * self.B_p
            if self.drop_above is not None:
                self._unrecorded.append(self._place)
            self._place = self._place._replace(at=self._place.at + 1)
            return self._order[start : start + self.B_p]

    @property
    def left_in_epoch(self) -> int:
        """How many batches, one at least, the epoch of the next one has left; where it is an epoch's first, that begins here."""
        if self._place.at == self._batches:
            self._go(Place(self._place.epoch + 1, 0, self._place.out))
        if self._place.at == 0 and not self._begun:
            self._go(self._place._replace(out=self._solved()), begun=True)
        return self._batches - self._place.at

    @property
    def dropped(self) -> float:
        """The share of the problems that the epoch of the last batch left out."""
        return float(self._place.out.mean())

    def record(self, index: np.ndarray, right: np.ndarray, n: int) -> None:
        """What the rollouts of batches i[k B_p], the oldest ones that are not recorded yet, came to: of n each, the sum of the rewards."""
        with self._lock:
            np.add.at(self.right, index, right)
            np.add.at(self.seen, index, n)
            for _ in range(len(index) // self.B_p):
                self._unrecorded.popleft()

    def save(self) -> dict[str, Any] | None:
        """What an order that goes on after the batches recorded so far needs, for JSON; None where their number says all."""
        if self.drop_above is None:
            return None
        with self._lock:
            places = [(place.epoch, place.at, np.nonzero(place.out)[0].tolist()) for place in (*self._unrecorded, self._place)]
            return {"places": places, "right": self.right.tolist(), "seen": self.seen.tolist()}

    def _go(self, place: Place, begun: bool = False) -> None:
        """Stands at a place; `begun`: what its epoch leaves out is decided."""
        self._place, self._begun = place, begun or place.at > 0
        order = np.random.default_rng([self.seed, place.epoch]).permutation(self.problems)
        self._order = order[~place.out[order]]
        self._batches = len(self._order) // self.B_p

    def _solved(self) -> np.ndarray:
        """The problems to be left out, bool[problems]."""
        if self.drop_above is None:
            return np.zeros(self.problems, bool)
        rate = self.right / np.maximum(self.seen, 1)
        out = (self.seen > 0) & (rate >= self.drop_above)
        if self.problems - out.sum() < self.B_p:
            out[np.argsort(rate, kind="stable")[: self.B_p]] = False
        return out
