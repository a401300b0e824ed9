"""Schedules that a config takes from the fit of a sweep, made explicit before anything runs."""

from pathlib import Path

from isojax.core.config import Config
from isojax.core.errors import InputError
from isojax.core.schedule import FittedSchedule, parse_schedule, schedule_text
from isojax.scaling.allocate.curve_ensemble import load_rollout_ensemble
from isojax.scaling.allocate.growing_n import best_n_stages
from isojax.scaling.result import read_fit_file


def resolve_schedules(config: Config) -> Config:
    """The config with every schedule that needs a fit, n*(a C), written as explicit stages.

    The folder of a run keeps them, whatever becomes of the fit. InputError where a fit cannot be
    read or used.
    """
    sweep = config.sweep
    schedules = {
        name: _resolve_schedule(name, text, sweep.budget) for name, text in sweep.schedules.items()
    }
    return config.with_settings(sweep={"schedules": schedules})


def _resolve_schedule(name: str, text: str, budget: int) -> str:
    """A schedule of sweep.schedules as a config writes it, with explicit stages up to `budget`."""
    schedule = parse_schedule(text)
    if not isinstance(schedule, FittedSchedule):
        return text
    path = Path(schedule.run)
    fit_file = path / "fit.json" if path.is_dir() else path
    try:
        ensemble = load_rollout_ensemble(read_fit_file(fit_file))
        return schedule_text(best_n_stages(ensemble, schedule.B_p, schedule.ahead, float(budget)))
    except InputError as e:
        advice = "The config.yaml of a run that has begun has its stages."
        raise e.within(f"sweep.schedules.{name}").with_fix(advice) from e
