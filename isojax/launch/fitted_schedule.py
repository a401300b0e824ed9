"""Schedules that a config takes from the fit of a sweep, made explicit before anything runs."""

from pathlib import Path

from isojax.core.config import Config
from isojax.core.errors import InputError
from isojax.core.schedule import FittedSchedule, parse_schedule, schedule_text
from isojax.scaling.allocate.curve_ensemble import load_rollout_ensemble
from isojax.scaling.allocate.growing_n import best_n_stages
from isojax.scaling.result import read_fit_file


def resolve_schedules(config: Config) -> Config:
    """The config with n*(a C) of a fit as stages; the folder of a run keeps them, whatever becomes of the fit."""
    schedules = {name: _resolve(name, text, config.sweep.budget) for name, text in config.sweep.schedules.items()}
    if schedules == config.sweep.schedules:
        return config
    return config.with_settings(sweep={"schedules": schedules})


def _resolve(name: str, text: str, budget: int) -> str:
    schedule = parse_schedule(text)
    if not isinstance(schedule, FittedSchedule):
        return text
    path = Path(schedule.run)
    try:
        ensemble = load_rollout_ensemble(read_fit_file(path / "fit.json" if path.is_dir() else path))
        return schedule_text(best_n_stages(ensemble, schedule.B_p, schedule.ahead, float(budget)))
    except InputError as e:
        raise InputError(f"sweep.schedules.{name}: {e} The config.yaml of a run that has begun has its stages.") from e
