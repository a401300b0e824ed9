"""What a sweep's folder is run with: the config as it is, or, where the folder holds a run, what of it may change. No jax here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from isojax.config import CHOSEN, Config, read_saved
from isojax.config_rl import FIRST_CLIP, FIRST_LOSS
from isojax.files import leaves, unwritten
from isojax.launch.planner import resolve
from isojax.types import InputError

CONFIG, BASE, LOGS, STATUS = "config.yaml", "base", "logs", "status.json"


def begun(folder: Path, resume: bool) -> bool:
    """Whether the folder holds a run.

    Raises:
        InputError: it does, and `resume` was not asked for; or it is none of isojax's, or cannot be looked into.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file, expected a folder to run in; choose another name with name=NAME.")
        found = {p.name for p in folder.iterdir() if not p.name.startswith(".")} if folder.exists() else set()
    except OSError as e:
        raise unwritten(folder, e) from e
    if found <= {BASE, LOGS, STATUS}:  # nothing, or what a kill left before the first cell
        return False
    if not resume:
        raise InputError(f"{folder} holds a run already; go on with it by --resume, or choose another name with name=NAME.")
    if CONFIG not in found:
        raise InputError(f"{folder} is no sweep's folder (it has no {CONFIG}); choose another name with name=NAME.")
    return True


def settle(config: Config, folder: Path, resume: bool, shards: int) -> Config:
    """The config this folder is run with: R and m chosen once and kept by every resume.

    Raises:
        InputError: the folder holds a run and `resume` was not asked for, or that run's settings differ.
    """
    if not begun(folder, resume):
        return config.model_copy(update={"sweep": resolve(config.sweep, shards, config.cell)})
    old = read_saved(folder / CONFIG)
    try:
        check_resume(old, config)
    except InputError as e:
        raise InputError(f"{e} To go on as it was: isojax launch {folder / CONFIG} --resume") from e
    if old.run.mesh != config.run.mesh:
        print(
            f"warning: {folder} was run with --mesh {old.run.mesh}; under {config.run.mesh} its cells go on equal to rounding only",
            file=sys.stderr,
        )
    kept = {key: getattr(old.sweep, key) for key in CHOSEN}
    return config.model_copy(update={"sweep": config.sweep.model_copy(update=kept)})


def settings(config: Config) -> dict[str, Any]:
    """Those of `cell` by their dotted names; a clip that is null is what it was written as once."""
    found = dict(leaves(config.cell.model_dump(mode="json"), "cell."))
    if config.cell.rl.loss == FIRST_LOSS and config.cell.rl.clip is None:
        found["cell.rl.clip"] = FIRST_CLIP
    return found


def check_resume(old: Config, new: Config) -> None:
    """InputError unless `new` may go on in the folder of `old`: the same name and cell settings, a sweep that only grows."""

    def refuse(key: str, was: object, now: object, expected: str) -> None:
        raise InputError(
            f"{key}: this run has {was!r}, given {now!r}; expected {expected}. Mend it, or choose another `name=` for a new run."
        )

    if old.name != new.name:
        refuse("name", old.name, new.name, "the same value")
    before, now = settings(old), settings(new)
    for key in before | now:
        if before.get(key) != now.get(key):
            refuse(key, before.get(key), now.get(key), "the same value")
    a, b = old.sweep, new.sweep
    for key, was, given in (("sweep.B_p", a.B_p, b.B_p), ("sweep.n", a.n, b.n)):
        if not set(was) <= set(given):
            refuse(key, list(was), list(given), "every value already in it (it may grow)")
    if a.seed != b.seed:
        refuse("sweep.seed", a.seed, b.seed, "the same value")
    for key, was, given in (("sweep.seeds", a.seeds, b.seeds), ("sweep.budget", a.budget, b.budget)):
        if given < was:
            refuse(key, was, given, "at least as much (it may grow)")
    for key in CHOSEN:
        was, given = getattr(a, key), getattr(b, key)
        if was is not None and given is not None and was != given:
            refuse(f"sweep.{key}", was, given, "the same value, or none")
    if a.remat != b.remat:
        refuse("sweep.remat", a.remat, b.remat, "the same value")
    largest = max((B_p * n for B_p in a.B_p for n in a.n if B_p * n <= a.B_max), default=0)
    if b.B_max < largest:
        refuse("sweep.B_max", a.B_max, b.B_max, f"at least {largest}, the largest B_p * n already run")
