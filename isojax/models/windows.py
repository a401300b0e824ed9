"""Layers that slide: a token of theirs sees itself and the positions just before it, `window` in
all."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import Field

from isojax.core.config import ModelConfig
from isojax.core.config.section import PositiveInt, Section
from isojax.core.errors import InputError
from isojax.core.terminal import warn
from isojax.models.hf.config_values import FIX, read_size

FULL, SLIDING = "full", "sliding"  # kinds of layers
# the same in `layer_types` of a config.json
FULL_TYPE = "full_attention"
SLIDING_TYPE = "sliding_attention"


class WindowOptions(Section):
    """`cell.model.options` of families whose layers may slide."""

    # Positions that a sliding layer's token sees, its own included; null: none slides.
    window: PositiveInt | None = None
    # The numbers of the layers that slide, from 0; null: all, where there is a window.
    sliding_layers: list[Annotated[int, Field(ge=0)]] | None = None

    def kinds(self, layers: int) -> list[str]:
        """The kind of each layer."""
        if self.window is None:
            return [FULL] * layers
        sliding = range(layers) if self.sliding_layers is None else self.sliding_layers
        return [SLIDING if layer in sliding else FULL for layer in range(layers)]

    def window_of(self, kind: object) -> int | None:
        return self.window if kind == SLIDING else None


def read_windows(config_json: Mapping[str, Any], slides: Callable[[int], bool]) -> dict[str, Any]:
    """Return the WindowOptions of a config.json as a dict, empty where no layer slides.

    Keys: `window`, and `sliding_layers` where not all slide. `slides`: whether layer i, from 0,
    does where the file has no `layer_types`. InputError where layers slide and nothing says how
    far, or have another attention."""
    layers = read_size(config_json, "num_hidden_layers")
    sliding_layers = [i for i in range(layers) if slides(i)]
    layer_types = config_json.get("layer_types")
    if layer_types is not None:
        check_layer_types(layer_types, layers, (FULL_TYPE, SLIDING_TYPE))
        sliding_layers = [i for i, kind in enumerate(layer_types) if kind == SLIDING_TYPE]
    if not sliding_layers:
        return {}

    if config_json.get("sliding_window") is None:
        problem = f"{len(sliding_layers)} layers slide, and sliding_window is not there"
        raise InputError(
            where="config.json",
            found=problem,
            expected="the number of positions that they see",
            fix=FIX,
        )
    options: dict[str, Any] = {"window": read_size(config_json, "sliding_window")}
    if len(sliding_layers) < layers:
        options["sliding_layers"] = sliding_layers
    return options


def warn_of_windows(config: ModelConfig) -> dict[str, Any]:
    """Of a family whose layers llama.cpp computes without windows; no metadata."""
    options = WindowOptions.model_validate(config.options or {})
    if SLIDING in options.kinds(config.layers):
        beyond = f"in texts of more than {options.window} tokens its tokens see more than here"
        warn(f"llama.cpp has no sliding layers of {config.family}: {beyond}.")
    return {}


def windows_config_json(options: WindowOptions, layers: int) -> dict[str, Any]:
    """The way back from `read_windows`, for architectures that have `layer_types`."""
    kinds = options.kinds(layers)
    types = [SLIDING_TYPE if kind == SLIDING else FULL_TYPE for kind in kinds]
    return {"sliding_window": options.window, "layer_types": types}


def refuse_windows(config_json: Mapping[str, Any]) -> None:
    """InputError where a family whose layers are all full has a file that says otherwise."""
    layer_types = config_json.get("layer_types")
    if layer_types is not None:
        check_layer_types(layer_types, read_size(config_json, "num_hidden_layers"), (FULL_TYPE,))


def check_layer_types(layer_types: Any, layers: int, known: tuple[str, ...]) -> None:
    """Raise InputError unless `layer_types` is a list of `known` types, one for each layer.

    `known`: such as ("full_attention", "sliding_attention")."""
    held = repr(layer_types)
    is_known = isinstance(layer_types, list)
    if is_known:
        others = sorted({str(kind) for kind in layer_types} - set(known))
        held = ", ".join(others) or held
        is_known = not others

    if not is_known:
        raise InputError(
            where="config.json",
            found=f"layer_types has {held}",
            expected=f"{' or '.join(known)} for each layer: the family has no other",
            fix="This model cannot run here.",
        )
    if len(layer_types) != layers:
        raise InputError(
            where="config.json",
            found=f"{len(layer_types)} layer_types, and num_hidden_layers = {layers}",
            fix=FIX,
        )
