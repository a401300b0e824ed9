"""isojax's own config: the sweep's, with the recommended cell alone."""

import math

from isojax.core.config import WHOLE_GRID, Config
from isojax.core.errors import InputError
from isojax.core.yaml_files import yaml_text
from isojax.report.exporters import exporter, recommended_growth
from isojax.scaling.allocate.recommendation import Recommendation


def render_growing(
    recommendation: Recommendation, sweep_config: Config | None, name: str
) -> list[str]:
    """As `render`, with the recommended schedule in place of the cell: one run, which is named
    after the sweep."""
    schedule = recommended_growth(recommendation).schedule
    config = _config(recommendation, sweep_config)
    largest_n = max(cell.n for cell in recommendation.measured_cells)
    B_max = max(config.sweep.B_max, recommendation.allocation.B_p * largest_n)
    sweep = {"B_p": (), "n": (), "schedules": {"growing": schedule}, "B_max": B_max}
    config = config.with_settings(name=f"{config.name}-growing", sweep=sweep)
    return [yaml_text(config.model_dump(mode="json"))]


@exporter(how_to_run="isojax train {file}", render_growing=render_growing)
def render(recommendation: Recommendation, sweep_config: Config | None) -> str:
    """The sweep's config as YAML with the chosen cell alone, under a name of its own: same task and
    recipe."""
    return yaml_text(_config(recommendation, sweep_config).model_dump(mode="json"))


def _config(recommendation: Recommendation, sweep_config: Config | None) -> Config:
    """The sweep's config with a grid of the recommended cell alone: one seed, and a budget of the
    recommended C. Its name holds the cell and C. InputError without the sweep's config, as for
    imported logs."""
    if sweep_config is None:
        raise InputError(
            found="no config.yaml in the folder of the fit",
            expected="one",
            fix="For logs: --for verl or --for trl.",
        )

    allocation = recommendation.allocation
    sweep = {
        "B_p": (allocation.B_p,),
        "n": (allocation.n,),
        "schedules": {},
        "budget": allocation.C,
        "B_max": max(sweep_config.sweep.B_max, allocation.B),
        "seeds": 1,
        **WHOLE_GRID,  # every run to its end, none stopped early
        # The planner chooses sizes again: the sweep's were for its smallest cell.
        "decode_slots": None,
        "microbatch": None,
        "prefill_batch": None,
    }

    # The grid of evaluations is moved (by less than one ratio) so that its last value is the
    # recommended C, where the run ends.
    eval_grid = sweep_config.cell.eval
    whole_ratios = max(0, math.floor(math.log(allocation.C / eval_grid.start, eval_grid.ratio)))
    first_C = allocation.C / eval_grid.ratio**whole_ratios

    name = f"{sweep_config.name}-{allocation.B_p}x{allocation.n}-C{allocation.C}"
    return sweep_config.with_settings(name=name, cell={"eval": {"start": first_C}}, sweep=sweep)
