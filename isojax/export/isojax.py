"""isojax's own config: the sweep's, with the recommended cell alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from isojax.config import Config
from isojax.files import yaml_text
from isojax.scaling.recommend import Recommendation
from isojax.types import InputError

HOW_TO_RUN = "isojax train {file}"


def render(chosen: Recommendation, saved: Config | None, fit: Mapping[str, Any]) -> str:
    """The config as YAML.

    Raises:
        InputError: there is no sweep's config, as for imported logs.
    """
    if saved is None:
        raise InputError("there is no config.yaml beside the fit, so nothing says how to train; expected a sweep of isojax's. "
                         "For imported logs write the recommendation for their trainer: --for verl or --for trl.")  # fmt: skip
    return yaml_text(single_cell(saved, chosen).model_dump(mode="json"))


def single_cell(sweep: Config, chosen: Recommendation) -> Config:
    """The sweep's config with the chosen cell alone, under a name of its own: same task and recipe.

    Slots, microbatch and prompts are the planner's again: the sweep's were chosen for its smallest cell. The grid of evaluations is moved
    (by less than one ratio) so that its last value is the recommended C, where the run ends.
    """
    a, grid = chosen.allocation, sweep.cell.eval
    steps = max(0, math.floor(math.log(a.C / grid.start, grid.ratio)))
    evaluation = grid.model_copy(update={"start": a.C / grid.ratio**steps})
    cell = {"B_p": (a.B_p,), "n": (a.n,), "budget": a.C, "B_max": max(sweep.sweep.B_max, a.B), "seeds": 1}
    section = sweep.sweep.model_copy(update=cell | {"slots": None, "microbatch": None, "prompts": None})
    run = sweep.cell.model_copy(update={"eval": evaluation})
    return sweep.model_copy(update={"name": f"{sweep.name}-{a.B_p}x{a.n}-C{a.C}", "cell": run, "sweep": section})
