"""What a sweep's folder is run with: the config as it is, or, where the folder holds a run, what of
it may change."""

import os
from pathlib import Path
from typing import Any, NoReturn

from isojax.core.atomic_files import write_error
from isojax.core.config import AUTOSIZED_SETTINGS, Config, load_config
from isojax.core.errors import InputError
from isojax.core.terminal import warn
from isojax.core.yaml_files import flatten
from isojax.launch.display import print_line
from isojax.launch.planner import plan_cells
from isojax.launch.prompt_date import with_new_date, with_saved_date
from isojax.launch.status_file import STATUS_FILE
from isojax.launch.sweep_status import CONFIG_FILE, read_sweep_status, resume_command
from isojax.runs.rounds_file import ROUNDS_FILE

# In a sweep's folder: its base policy and problems; what the processes of a Ray cluster print.
BASE_FOLDER = "base"
LOGS_FOLDER = "logs"
STARTS_FILE = "starts.json"  # of idle_starts.py, written before anything else


def holds_run(folder: Path, resume: bool) -> bool:
    """Whether the folder holds a run that this one goes on with; False where it is new.

    InputError where it holds one and `resume` is not set, holds something else, or cannot be
    written.
    """
    try:
        # The folder, or the nearest one above it that is there.
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not existing.is_dir():
            raise InputError(
                found=f"{existing} is a file",
                expected="a folder to run in",
                fix="Choose another run.dir= or name=.",
            )
        if not os.access(existing, os.W_OK | os.X_OK):
            raise InputError(
                found=f"cannot make the folder {folder}, or write in it",
                fix="Choose a place that you may write.",
            )
        names = set()
        if existing == folder:
            names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    except OSError as e:
        raise write_error(folder, e) from e

    # Nothing, or what a kill left before the first cell.
    if names <= {BASE_FOLDER, LOGS_FOLDER, STATUS_FILE, STARTS_FILE, ROUNDS_FILE}:
        return False

    if not resume:
        raise InputError(
            where=folder,
            found="holds a run already",
            fix="Go on with it by --resume, or choose another name=NAME.",
        )
    if CONFIG_FILE not in names:
        raise InputError(
            where=folder,
            found=f"no sweep's folder (it has no {CONFIG_FILE})",
            fix="Choose another name=NAME.",
        )
    return True


def config_for_folder(config: Config, folder: Path, resume: bool) -> Config:
    """The config with which this folder is run: `config` in a new one.

    A resumed run keeps its static sizes (AUTOSIZED_SETTINGS) and the day in its prompts.
    InputError where `config` differs in what a run cannot change, or `resume` is not set.
    """
    if not holds_run(folder, resume):
        return with_new_date(config, folder / BASE_FOLDER)

    saved_config = load_config(str(folder / CONFIG_FILE))
    config = with_saved_date(config, saved_config, folder)
    try:
        check_resume(saved_config, config)
    except InputError as e:
        command = resume_command(folder, saved_config)  # "" where the folder was renamed
        if not command:
            raise
        raise e.with_fix(f"To go on as it was: {command}") from e

    if saved_config.run.mesh != config.run.mesh:
        warn(
            f"{folder} ran on mesh {saved_config.run.mesh}; on {config.run.mesh} it goes on equal"
            " to rounding only"
        )
    saved_sizes = {key: getattr(saved_config.sweep, key) for key in AUTOSIZED_SETTINGS}
    return config.with_settings(sweep=saved_sizes)


def print_remaining(config: Config, folder: Path, resume: bool) -> None:
    """Print what is left to do in a folder that holds a run; nothing for any other."""
    if not (folder / CONFIG_FILE).exists():
        return
    status = read_sweep_status(folder, planned=config)
    rollouts_left = max(0, status.budget - status.rollouts)
    left = f"{rollouts_left:,} of {status.budget:,} rollouts"
    done = f"{status.count('done')} of {len(status.cells)} runs are done"
    for cell in status.cells:
        if cell.rollouts and cell.state != "done":
            done += f"; {cell.cell.name} has C = {cell.rollouts:,}"

    needs_resume = ""
    if not resume:
        needs_resume = f"{folder} holds a run already, which goes on by --resume alone; "
    print_line(f"{needs_resume}what remains of {config.name}: {left}; {done}")


def check_resume(old: Config, new: Config) -> None:
    """InputError unless `new` has the same name and cell settings as `old`, and a sweep that grows.

    It grows where it keeps its values of B_p and n, its schedules and cells, and has as many seeds
    and rollouts or more. Sizes that both set have to be equal.
    """
    old_settings = _fixed_settings(old)
    new_settings = _fixed_settings(new)
    for key in old_settings | new_settings:
        if old_settings.get(key) != new_settings.get(key):
            _refuse(key, old_settings.get(key), new_settings.get(key), "the same value")

    # The grid keeps what it has: values, schedules, seeds, budget and the cells under B_max.
    for key in ("B_p", "n"):
        old_values = list(getattr(old.sweep, key))
        new_values = list(getattr(new.sweep, key))
        if not set(old_values) <= set(new_values):
            expected = "every value already in it (it may grow)"
            _refuse(f"sweep.{key}", old_values, new_values, expected)
    for name, schedule in old.sweep.schedules.items():
        new_schedule = new.sweep.schedules.get(name)
        if new_schedule != schedule:
            expected = "the same schedule (others may be added)"
            _refuse(f"sweep.schedules.{name}", schedule, new_schedule, expected)
    for key in ("seeds", "budget"):
        old_value = getattr(old.sweep, key)
        new_value = getattr(new.sweep, key)
        if new_value < old_value:
            _refuse(f"sweep.{key}", old_value, new_value, "at least as much (it may grow)")
    lost_cells = set(plan_cells(old.sweep)) - set(plan_cells(new.sweep))
    if lost_cells:
        largest_B = max(cell.B_p * cell.n for cell in lost_cells)
        expected = f"at least {largest_B}, the largest cell in it"
        _refuse("sweep.B_max", old.sweep.B_max, new.sweep.B_max, expected)

    # Its sizes are kept: a run equals itself only with the same ones.
    for key in AUTOSIZED_SETTINGS:
        old_value = getattr(old.sweep, key)
        new_value = getattr(new.sweep, key)
        if None not in (old_value, new_value) and old_value != new_value:
            _refuse(f"sweep.{key}", old_value, new_value, "the same value, or null")


def _fixed_settings(config: Config) -> dict[str, Any]:
    """The settings that a run cannot change, by name, such as {"cell.rl.kl": 0.0}.

    A grid may become an adaptive sweep, and the other way round, so that both have the same entry
    for sweep.strategy; a sweep of `isojax spend` changes neither its B_p, n nor budget.
    """
    cell_settings = dict(flatten(config.cell.model_dump(mode="json"), "cell."))
    sweep = config.sweep
    fixed_sweep_settings = {"sweep.seed": sweep.seed, "sweep.strategy": "grid or adaptive"}
    if sweep.trains_one_policy:
        fixed_sweep_settings |= {
            f"sweep.{key}": getattr(sweep, key) for key in ("strategy", "B_p", "n", "budget")
        }
    return {"name": config.name} | cell_settings | fixed_sweep_settings


def _refuse(key: str, old_value: object, new_value: object, expected: str) -> NoReturn:
    """Raise an InputError for a setting such as "sweep.seeds" that a resumed run changes."""
    raise InputError(
        where=key,
        found=f"this run has {old_value!r}, given {new_value!r}",
        expected=expected,
        fix="Correct it, or choose another `name=` for a new run.",
    )
