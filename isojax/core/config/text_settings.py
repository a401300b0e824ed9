"""Settings that a task in text must give: the defaults are those of the toy task, and would silently ruin a run of a
language model.
"""

from __future__ import annotations

from isojax.core.config.sweep import CellConfig
from isojax.core.errors import InputError

LENGTH_KEYS = ("prompt_length", "response_length")


def require_lengths(cell: CellConfig) -> None:
    """InputError where the sampler's lengths are left to their defaults."""
    missing = [f"cell.sampling.{key}" for key in LENGTH_KEYS if key not in cell.sampling.model_fields_set]
    if missing:
        raise InputError(
            f"{' and '.join(missing)} must be set for cell.task = {cell.task}, a task in text: the most tokens of a"
            " prompt (longer ones are dropped) and of a response. Usual are prompt_length=256 and response_length=512"
            " for GSM8K and an instruct model, 48 and 4 for sums."
        )


def require_learning_rate(cell: CellConfig) -> None:
    """InputError where the learning rate is left to its default."""
    if "learning_rate" not in cell.rl.model_fields_set:
        raise InputError(
            f"cell.rl.learning_rate must be set for cell.task = {cell.task}, a task in text: the default is that of the"
            " toy task. Usual are 1e-6 for a model of 7B parameters at B = cell.rl.lr_reference_batch = 1024 (the"
            " paper's), 1e-5 for one of 135M; `isojax lr-search` finds one."
        )
