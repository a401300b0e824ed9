"""TRL's GRPOConfig (checked with trl 1.16) as `trl grpo --config FILE` reads it.

TRL counts batches in completions: an update takes per_device_train_batch_size x gradient_accumulation_steps x processes of them, which
is B = B_p n here for one process. generation_batch_size = B draws exactly one update's rollouts, and num_iterations = 1 uses each once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isojax.config import Config
from isojax.export.words import comments, heading, learning_rate
from isojax.files import yaml_text
from isojax.scaling.recommend import Recommendation
from isojax.types import InputError

HOW_TO_RUN = "trl grpo --config {file} --model_name_or_path ... --dataset_name ... --reward_funcs ..."
PER_DEVICE = 8


def render(chosen: Recommendation, saved: Config | None, fit: Mapping[str, Any]) -> str:
    """The arguments as YAML.

    Raises:
        InputError: n = 1, which TRL's GRPO refuses.
    """
    a = chosen.allocation
    if a.n < 2:
        raise InputError(
            f"n = {a.n} rollouts a problem; TRL's GRPO expects at least 2, for it compares them. Use another trainer or n >= 2."
        )
    micro = max(size for size in range(1, PER_DEVICE + 1) if a.B % size == 0)
    arguments = {
        "num_generations": a.n,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": a.B // micro,
        "generation_batch_size": a.B,
        "num_iterations": 1,
        "max_steps": a.M,
    }
    lines = [
        *heading(chosen, fit),
        f"{learning_rate(chosen, saved)} The key is learning_rate.",
        f"On G processes divide gradient_accumulation_steps by G: an update takes per_device x steps x G = {a.B} completions.",
        f"Run: {HOW_TO_RUN.format(file='FILE')}",
    ]
    return comments(lines) + yaml_text(arguments)
