"""Warns where prompt and response together are longer than the context that a model was trained
on."""

from pathlib import Path
from typing import Any

from isojax.core.config import SamplingConfig
from isojax.core.table_files import read_json_object

# Of a config.json.
POSITION_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length")


def model_positions(folder: Path) -> int | None:
    """How many positions config.json says that the model has, stretched ones included; None where
    it does not say."""
    if not (folder / "config.json").is_file():
        return None
    config = read_json_object(folder / "config.json")
    text_config = config.get("text_config")  # of models that also read images
    positions: list[int] = []
    for section in [config, text_config] if isinstance(text_config, dict) else [config]:
        for key in POSITION_KEYS:
            if _is_count(section.get(key)):
                positions.append(section[key])
    return max(positions, default=None)


def describe_excess(folder: Path, sampling: SamplingConfig) -> str | None:
    """A warning where the longest prompt and response together, P + T tokens, are more than the
    model in the folder has positions; None where they fit, or where config.json does not tell.
    sampling: gives P = prompt_length and T = response_length."""
    P = sampling.prompt_length
    T = sampling.response_length
    limit = model_positions(folder)
    if limit is None or P + T <= limit:
        return None

    fix = f"Set cell.sampling.response_length={limit - P}, or shorter prompts"
    if P >= limit:
        fix = (
            f"Set a cell.sampling.prompt_length well below {limit}, and a response_length that fits"
            f" the rest"
        )
    return (
        f"cell.sampling.prompt_length = {P:,} and response_length = {T:,} are {P + T:,} tokens in"
        f" all, and the model has {limit:,} positions (max_position_embeddings in"
        f" {folder / 'config.json'}): what is written beyond them is mostly no language. {fix}."
    )


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0
