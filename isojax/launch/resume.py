"""What a sweep's folder is run with: the config as it is, or, where the folder holds a run, what of it may change. No
jax here.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from isojax.core.atomic_files import write_error
from isojax.core.config import AUTOSIZED_SETTINGS, Config, read_saved_config
from isojax.core.errors import InputError
from isojax.core.yaml_files import flatten
from isojax.launch.planner import resolve_sweep_sizes
from isojax.runs.status import STATUS_FILE

CONFIG_FILE, BASE_FOLDER, LOGS_FOLDER = "config.yaml", "base", "logs"


def holds_run(folder: Path, resume: bool) -> bool:
    """Whether the folder holds a run.

    Raises:
        InputError: it does, and `resume` was not asked for; or it is none of isojax's, or cannot be looked into.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file, expected a folder to run in; choose another name with name=NAME.")
        names = {p.name for p in folder.iterdir() if not p.name.startswith(".")} if folder.exists() else set()
    except OSError as e:
        raise write_error(folder, e) from e
    if names <= {BASE_FOLDER, LOGS_FOLDER, STATUS_FILE}:  # nothing, or what a kill left before the first cell
        return False
    if not resume:
        raise InputError(
            f"{folder} holds a run already; go on with it by --resume, or choose another name with name=NAME."
        )
    if CONFIG_FILE not in names:
        raise InputError(
            f"{folder} is no sweep's folder (it has no {CONFIG_FILE}); choose another name with name=NAME."
        )
    return True


def config_for_folder(config: Config, folder: Path, resume: bool, shards: int) -> Config:
    """The config this folder is run with: R and m chosen once and kept by every resume.

    Raises:
        InputError: the folder holds a run and `resume` was not asked for, or that run's settings differ.
    """
    if not holds_run(folder, resume):
        return config.model_copy(update={"sweep": resolve_sweep_sizes(config.sweep, shards, config.cell)})
    saved_config = read_saved_config(folder / CONFIG_FILE)
    try:
        check_resume(saved_config, config)
    except InputError as e:
        raise InputError(f"{e} To go on as it was: isojax launch {folder / CONFIG_FILE} --resume") from e
    if saved_config.run.mesh != config.run.mesh:
        print(
            f"warning: {folder} was run with --mesh {saved_config.run.mesh}; "
            f"under {config.run.mesh} its cells go on equal to rounding only",
            file=sys.stderr,
        )
    saved_sizes = {key: getattr(saved_config.sweep, key) for key in AUTOSIZED_SETTINGS}
    return config.model_copy(update={"sweep": config.sweep.model_copy(update=saved_sizes)})


def cell_settings(config: Config) -> dict[str, Any]:
    """The settings of `cell` by their dotted names."""
    return dict(flatten(config.cell.model_dump(mode="json"), "cell."))


def check_resume(old: Config, new: Config) -> None:
    """InputError unless `new` may go on in the folder of `old`: the same name and cell settings, a sweep that only
    grows.
    """

    def refuse(key: str, old_value: object, new_value: object, expected: str) -> None:
        raise InputError(
            f"{key}: this run has {old_value!r}, given {new_value!r}; expected {expected}. Mend it, "
            "or choose another `name=` for a new run."
        )

    if old.name != new.name:
        refuse("name", old.name, new.name, "the same value")
    old_settings, new_settings = cell_settings(old), cell_settings(new)
    for key in old_settings | new_settings:
        if old_settings.get(key) != new_settings.get(key):
            refuse(key, old_settings.get(key), new_settings.get(key), "the same value")
    old_sweep, new_sweep = old.sweep, new.sweep
    for key, old_value, new_value in (
        ("sweep.B_p", old_sweep.B_p, new_sweep.B_p),
        ("sweep.n", old_sweep.n, new_sweep.n),
    ):
        if not set(old_value) <= set(new_value):
            refuse(key, list(old_value), list(new_value), "every value already in it (it may grow)")
    if old_sweep.seed != new_sweep.seed:
        refuse("sweep.seed", old_sweep.seed, new_sweep.seed, "the same value")
    for key, old_value, new_value in (
        ("sweep.seeds", old_sweep.seeds, new_sweep.seeds),
        ("sweep.budget", old_sweep.budget, new_sweep.budget),
    ):
        if new_value < old_value:
            refuse(key, old_value, new_value, "at least as much (it may grow)")
    for key in AUTOSIZED_SETTINGS:
        old_value, new_value = getattr(old_sweep, key), getattr(new_sweep, key)
        if old_value is not None and new_value is not None and old_value != new_value:
            refuse(f"sweep.{key}", old_value, new_value, "the same value, or none")
    if old_sweep.remat != new_sweep.remat:
        refuse("sweep.remat", old_sweep.remat, new_sweep.remat, "the same value")
    largest_batch = max(
        (B_p * n for B_p in old_sweep.B_p for n in old_sweep.n if B_p * n <= old_sweep.B_max), default=0
    )
    if new_sweep.B_max < largest_batch:
        refuse(
            "sweep.B_max",
            old_sweep.B_max,
            new_sweep.B_max,
            f"at least {largest_batch}, the largest B_p * n already run",
        )
