"""Hooks, which see every update of a run: `hook(report: UpdateReport)`, one file each.
`run.on_update` names one of this folder, or a file or module of yours. It changes no result; a task
that verifies on device trains one update after the other then, instead of many in a program, and
agrees to rounding.

A file has one function with the decorator `@update_hook`. Of several processes of a run, the first
one calls it."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from isojax.core.errors import InputError
from isojax.core.nouns import Cell, Problem
from isojax.core.plugins import NoTraits, Plugin, PluginKind
from isojax.core.user_code import describe_exception
from isojax.sampling.batch import RolloutBatch

update_hook = PluginKind("update_hook", "train.update_hooks", NoTraits)


@dataclass(frozen=True)
class UpdateReport:
    """One update, after it was made. Rollouts are on the host, in their order: rollout r is the (r
    % n)-th of problem r // n."""

    cell: Cell  # with the B_p and n of this update
    folder: Path  # of the run, such as runs/NAME/cells/32x8-s0
    M: int  # updates done, this one among them
    C: int  # rollouts sampled for training so far
    sampled: int  # of these, for this update; with dynamic sampling more than the batch has
    problems: Sequence[Problem]  # B_p
    # B = B_p n, each i32[its length]; tokens that the policy did not draw as ~token
    responses: Sequence[np.ndarray]
    logps: Sequence[np.ndarray]  # B, each f32[its length], of the sampler
    rewards: np.ndarray  # f32[B]
    metrics: Mapping[str, float]  # as in the ledger, of this update alone
    batch: RolloutBatch  # the same as arrays on the devices
    decode: Callable[[np.ndarray], str]  # tokens as text


def load_hook(name: str | None) -> Plugin | None:
    """The hook that `run.on_update` names, such as "save_rollouts" or "mine.py"; None for None.

    InputError where there is none of that name, or it cannot be called with one argument.
    """
    if name is None:
        return None
    try:
        hook = update_hook.load(name)
    except InputError as e:
        raise e.within("run.on_update") from e

    try:
        inspect.signature(hook.function).bind("report")
    except TypeError as e:
        expected = "a function of one argument, the UpdateReport of isojax.train.update_hooks"
        raise InputError(
            where=f"run.on_update = {name}",
            found=f"it cannot be called with one ({e})",
            expected=expected,
        ) from e
    return hook


def call_hook(hook: Plugin, report: UpdateReport) -> None:
    """Call a hook; InputError, with the place in the hook's code, for whatever it raises."""
    try:
        hook(report)
    except Exception as e:  # whatever a user's own function raises
        raise InputError(
            where=f"run.on_update = {hook.name}",
            found=f"after update {report.M}, {describe_exception(e)}",
        ) from e
