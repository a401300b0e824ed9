"""The language model inside a model that reads images too: its settings are in `text_config`, its
tensors under `language_model.`, and the rest of the folder is of no use here."""

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isojax.core.errors import InputError
from isojax.core.tabular import list_some
from isojax.core.terminal import note
from isojax.models import families
from isojax.models.architecture import HEAD_WEIGHT
from isojax.models.hf.config_values import FIX
from isojax.models.hf.quantised import CONFIG_KEYS
from isojax.models.safetensors_io import StoredTensor

SECTION = "text_config"
# What is said outside of the section and holds for the language model too.
TIED = "tie_word_embeddings"
SHARED_KEYS = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "dtype",
    "torch_dtype",
    TIED,
    *CONFIG_KEYS,
)
# Before the names of its tensors: `language_model.model.` as published, `model.language_model.` by
# transformers 5.
PREFIX = re.compile(r"(?:model\.)?language_model\.(?:model\.)?")
_note_once = functools.cache(note)  # a sweep reads its base model once per cell


def family_of_text(architecture: object) -> str | None:
    """The family of the language model inside such an architecture; None for any other."""
    for name in families.family.names():
        text_part = families.family.load(name).traits.text_part
        if text_part is not None and text_part.architecture == architecture:
            return name
    return None


def text_config_json(config_json: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the config.json that the language model of a larger model would have by itself.

    None where the model has no such part. InputError where its section is missing, or contradicts
    what is outside."""
    architectures = config_json.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        return None
    family = family_of_text(architectures[0])
    if family is None:
        return None
    traits = families.family.load(family).traits
    assert traits.text_part is not None

    section = config_json.get(SECTION)
    if not isinstance(section, Mapping):
        raise InputError(
            where="config.json",
            found=f"{SECTION} = {section!r}",
            expected="an object with the shape",
            fix=FIX,
        )
    section = {key: value for key, value in section.items() if value is not None}
    shared = {key: config_json[key] for key in SHARED_KEYS if config_json.get(key) is not None}
    is_in_both = TIED in section and TIED in shared
    if is_in_both and section[TIED] != shared[TIED]:
        both = f"{TIED} = {shared[TIED]!r} at the top, and {section[TIED]!r} in {SECTION}"
        raise InputError(
            where="config.json",
            found=both,
            fix="Keep the one that the model was trained with.",
        )

    # Later entries replace earlier ones.
    # Tokens that end a text are the whole model's: after instruction tuning, the section still has
    # the base model's.
    return {
        "model_type": traits.model_type or family,
        **traits.text_part.defaults,
        **section,
        **shared,
        "architectures": [traits.architectures[0]],
    }


def text_tensors(folder: Path, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the language model's tensors, by the names that they would have by themselves.

    Such as "model.layers.0.self_attn.q_proj.weight". `stored`: all tensors of the folder, by name.
    A note says what is left out. InputError where two would have one name."""
    tensors: dict[str, StoredTensor] = {}
    others: list[str] = []
    for name, tensor in stored.items():
        prefix = PREFIX.match(name)
        if prefix is None and name != HEAD_WEIGHT:
            others.append(name)
            continue

        rest = name[prefix.end() :] if prefix else name
        plain_name = rest if rest == HEAD_WEIGHT else f"model.{rest}"
        if plain_name in tensors:
            names = f"{tensors[plain_name].name} and {name}"
            raise InputError(
                where=folder,
                found=f"holds the language model twice, as {names}",
                fix="Remove the copy of an older save.",
            )
        tensors[plain_name] = tensor

    if others:
        first_parts = [name.removeprefix("model.").partition(".")[0] for name in others]
        parts = list(dict.fromkeys(first_parts))
        unread = f"{len(others)} tensors of {list_some(parts)} are not read"
        _note_once(
            f"{folder}: its language model alone is trained and exported, without images; {unread}."
        )
    return tensors
