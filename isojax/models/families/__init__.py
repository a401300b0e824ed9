"""Model families, one file each: `build(config, vocab) -> Decoder` with the decorator `@family`, whose arguments say
how a published architecture maps onto the decoder."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isojax.core.plugins import PluginKind


@dataclass(frozen=True)
class FamilyTraits:
    """Empty for a family that no checkpoint is of."""

    architectures: Sequence[str] = ()  # of `architectures` in config.json; an export writes the first
    settings: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None  # config.json -> fields of `cell.model`


family = PluginKind("family", "models.families", FamilyTraits)
