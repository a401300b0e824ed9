"""What TRL's GRPOTrainer calls things: its metrics, and the arguments that say n and the rollouts
of an update. Its own logs have them, and so have those that transformers' callbacks write to W&B or
TensorBoard, with train/ and eval/ before the names of metrics (trl 1.16)."""

from collections.abc import Mapping
from typing import Any

from isojax.core.limits import MAX_NUMBER

ROLLOUTS_PER_STEP = "rollouts_per_step"  # no argument of TRL's: `rollouts_per_step` computes it
CONFIG_COLUMNS = {"n": ("num_generations",), "B": (ROLLOUTS_PER_STEP,)}
TRAIN_COLUMNS = {
    "train_reward": ("reward",),
    "train:entropy": ("entropy",),
    "train:kl": ("kl",),
    "train:grad_norm": ("grad_norm",),
    "response_length": ("completions/mean_length",),
}
CALLBACK_COLUMNS = {
    field: tuple(f"train/{column}" for column in columns)
    for field, columns in TRAIN_COLUMNS.items()
}
CALLBACK_COLUMNS["reward"] = ("eval/reward",)


def rollouts_per_step(config: Mapping[str, Any]) -> dict[str, int]:
    """{ROLLOUTS_PER_STEP: B}, the rollouts of one update, computed from the values of a GRPOConfig.

    config: name to value. {} where the values are not all there, or give no whole number.
    generation_batch_size rollouts are drawn at a time. They serve steps_per_generation x
    num_iterations microsteps, of which gradient_accumulation_steps make an update, TRL's step."""
    argument_names = (
        "generation_batch_size",
        "gradient_accumulation_steps",
        "steps_per_generation",
        "num_iterations",
    )
    values = [config.get(name) for name in argument_names]
    if not all(isinstance(value, int) and value > 0 for value in values):
        return {}

    generation_batch, accumulation_steps, steps_per_generation, iterations = (
        int(value) for value in values if value is not None
    )
    microsteps_per_generation = steps_per_generation * iterations
    B, remainder = divmod(generation_batch * accumulation_steps, microsteps_per_generation)
    return {} if remainder else {ROLLOUTS_PER_STEP: B}


def plain_arguments(arguments: Any) -> dict[str, int | float | str]:
    """The numbers and texts among a trainer's arguments."""

    def is_number_or_text(value: Any) -> bool:
        return isinstance(value, str) or (type(value) in (int, float) and abs(value) <= MAX_NUMBER)

    items = arguments.items() if isinstance(arguments, dict) else ()
    return {key: value for key, value in items if is_number_or_text(value)}
