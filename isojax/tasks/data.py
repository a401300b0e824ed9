"""Splits of a problem set by difficulty, and the order in which a run meets its problems."""

from collections.abc import Iterator

import numpy as np

from isojax.config import DataConfig
from isojax.types import InputError, Problem


def split(problems: list[Problem], config: DataConfig) -> tuple[list[Problem], list[Problem]]:
    """(training, validation): the labelled problems inside `difficulty`, `validation` of them held out; disjoint by id and by prompt.

    Raises:
        InputError: too few problems of that difficulty, or one problem on both sides.
    """
    low, high = config.difficulty
    inside = [p for p in problems if low <= p.difficulty <= high]
    if len(inside) < 2 * config.validation:
        raise InputError(
            f"{len(inside)} of {len(problems)} problems have avg@{config.attempts} in [{low}, {high}]; "
            f"cell.data.validation={config.validation} needs at least {2 * config.validation}."
            " Widen cell.data.difficulty or raise cell.data.candidates."
        )
    order = np.random.default_rng([config.seed, 1]).permutation(len(inside))
    validation = [inside[i] for i in order[: config.validation]]
    training = [inside[i] for i in order[config.validation :]]
    check_disjoint(training, validation)
    return training, validation


def check_disjoint(training: list[Problem], validation: list[Problem]) -> None:
    """InputError where a prompt stands on both sides."""
    shared = {p.prompt for p in training} & {p.prompt for p in validation}
    if shared:
        raise InputError(
            f"{len(shared)} problems stand in training and validation, for example {min(shared)!r}; remove them from one side."
        )


def batches(problems: int, B_p: int, seed: int, first: int = 0) -> Iterator[np.ndarray]:
    """Indices of the B_p distinct problems of update `first`, `first` + 1, ...: shuffled epochs, the remainder of each left out.

    Raises:
        InputError: B_p is larger than the problem set.
    """
    if B_p > problems:
        raise InputError(
            f"B_p = {B_p} is larger than the training set of {problems} problems; lower sweep.B_p or raise cell.data.candidates."
        )
    an_epoch = problems // B_p
    epoch, at = divmod(first, an_epoch)
    while True:
        order = np.random.default_rng([seed, epoch]).permutation(problems)
        for i in range(at, an_epoch):
            yield order[i * B_p : (i + 1) * B_p]
        epoch, at = epoch + 1, 0
