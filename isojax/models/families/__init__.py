"""Model families, one file each: a function `(config, vocab) -> Architecture` with the decorator
`@family`, whose arguments say how a published architecture maps onto `cell.model`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from isojax.core.config import ModelConfig
from isojax.core.config.section import Section
from isojax.core.errors import InputError
from isojax.core.plugins import PluginKind
from isojax.models.hf.gguf_traits import GGUFTraits

Options = TypeVar("Options", bound=Section)


@dataclass(frozen=True)
class TextPart:
    """The family as the language model inside a larger one, whose `text_config` and
    `language_model.` it is."""

    architecture: str  # of the whole, in `architectures` of config.json
    defaults: Mapping[str, Any]  # what keys mean that its `text_config` lacks


@dataclass(frozen=True)
class FamilyTraits:
    """Empty for a family that no checkpoint is of."""

    architectures: Sequence[str] = ()  # of `architectures` in config.json; a new one gets the first
    model_type: str = ""  # of config.json, where it is not the family's name
    # config.json -> fields of `cell.model`
    settings: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
    # The way back, for a model that has no config.json yet: all of it but what `make_config_json`
    # adds.
    config_json: Callable[[ModelConfig], dict[str, Any]] | None = None
    text_part: TextPart | None = None  # of a model that reads images too
    gguf: GGUFTraits | None = None  # None: neither read from llama.cpp's files nor written to them


family = PluginKind("family", "models.families", FamilyTraits)


class NoOptions(Section):
    """Of a family that has none."""


def read_options(config: ModelConfig, options: type[Options]) -> Options:
    """Return `cell.model.options` as a family's section, checked; InputError for what it lacks.

    `options`: the family's class, such as `WindowOptions`. A family without options calls it with
    `NoOptions`, for the check alone."""
    try:
        return options.model_validate(config.options or {})
    except ValidationError as e:
        error = e.errors()[0]
        key = ".".join(map(str, ("cell.model.options", *error["loc"])))
        known = "no options"
        if options.model_fields:
            known = f"the options {', '.join(options.model_fields)}"
        raise InputError(
            where=key,
            found=f"{error['msg']}; given {error['input']!r}",
            fix=f"The family {config.family} has {known}.",
        ) from e
