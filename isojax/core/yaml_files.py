"""YAML files that a user or isojax writes, read against a pydantic model, below dotted `key=value` overrides.

Whatever is wrong with a file or an override is an InputError that names its place, what was given and what was
expected.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError

from isojax.core.atomic_files import write_text
from isojax.core.errors import InputError
from isojax.core.key_names import nearest_key

M = TypeVar("M", bound=BaseModel)


def _known_keys(model: type[BaseModel], prefix: str = "") -> dict[str, bool]:
    """Every dotted name a config may hold -> whether it is a section."""
    keys: dict[str, bool] = {}
    for name, field_info in model.model_fields.items():
        annotation = field_info.annotation
        keys[prefix + name] = isinstance(annotation, type) and issubclass(annotation, BaseModel)
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            keys |= _known_keys(annotation, f"{prefix}{name}.")
    return keys


def flatten(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of everything that is not a section."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _check_keys(data: Mapping[Any, Any], known_keys: Mapping[str, bool], source: str, prefix: str = "") -> None:
    """InputError at the first key that is unknown, a section that is not one, a number that is not finite."""
    for key, value in data.items():
        dotted_key = f"{prefix}{key}"
        if dotted_key not in known_keys:
            if isinstance(value, Mapping) and value:
                dotted_key = next(flatten(value, f"{dotted_key}."), (dotted_key, None))[0]
            nearest = nearest_key(dotted_key, list(known_keys))
            raise InputError(f"{source}: unknown key {dotted_key!r}; the nearest known key is {nearest!r}.")
        if known_keys[dotted_key]:
            if not isinstance(value, Mapping):
                raise InputError(
                    f"{source}: {dotted_key} is a section; given {value!r}, expected keys below it. Write"
                    f" {dotted_key}.KEY, or leave it out."
                )
            _check_keys(value, known_keys, source, f"{dotted_key}.")
        elif isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{source}: {dotted_key}: given {value!r}, expected a finite number.")


def _read_yaml(path: Path, known_keys: Mapping[str, bool]) -> dict[str, Any]:
    try:
        data: Any = OmegaConf.to_container(OmegaConf.load(path))
    except yaml.MarkedYAMLError as e:
        line = e.problem_mark.line + 1 if e.problem_mark else "?"
        raise InputError(
            f"{path}, line {line}: not YAML ({e.problem or e.context}). Correct that line or the one above it."
        ) from e
    except (OSError, UnicodeDecodeError, yaml.YAMLError, OmegaConfBaseException) as e:
        raise InputError(f"cannot read the config {path}: {str(e).splitlines()[0]}") from e
    if not isinstance(data, dict):
        top_keys = ", ".join(key for key in known_keys if "." not in key)
        raise InputError(f"{path}: given a {type(data).__name__} at the top, expected keys ({top_keys}).")
    _check_keys(data, known_keys, str(path))
    return data


def _read_override(text: str, known_keys: Mapping[str, bool]) -> dict[str, Any]:
    key, equals, _ = text.partition("=")
    if not equals or not key.strip():
        raise InputError(f"override {text!r}: expected key=value, such as sweep.budget=100000.")
    try:
        data: Any = OmegaConf.to_container(OmegaConf.from_dotlist([text]))
    except (yaml.YAMLError, OmegaConfBaseException) as e:
        hint = f"""A list is written sweep.n=[2,4]; text with {{ or [ in quotes of its own: '{key}="..."'."""
        raise InputError(f"override {text!r}: the value is not YAML ({str(e).splitlines()[0]}). {hint}") from e
    assert isinstance(data, dict)
    _check_keys(data, known_keys, f"override {text!r}")
    return data


def _merge(
    base: Mapping[str, Any],
    overlay: Mapping[str, Any],
    known_keys: Mapping[str, bool],
    merge_maps: bool,
    prefix: str = "",
) -> dict[str, Any]:
    """`overlay` over `base`: sections are merged key by key (with `merge_maps`, maps too), any other value replaces the
    one in `base`.
    """
    merged = dict(base)
    for key, value in overlay.items():
        dotted_key, old_value = f"{prefix}{key}", base.get(key)
        if isinstance(value, dict) and isinstance(old_value, dict) and (known_keys.get(dotted_key) or merge_maps):
            value = _merge(old_value, value, known_keys, merge_maps, f"{dotted_key}.")
        merged[key] = value
    return merged


def _has_key(data: Any, key: str) -> bool:
    """Whether a part of a config gives a dotted key, or what that stands in."""
    for name in key.split("."):
        if not isinstance(data, Mapping):
            return True
        if name not in data:
            return False
        data = data[name]
    return True


def _type_error(error: ValidationError, layers: Sequence[tuple[str, Any]], file_names: str) -> InputError:
    """The first of pydantic's errors, with the key, its value, what was expected, and the last of `layers` that gives
    it.
    """
    first_error = error.errors(include_url=False)[0]
    key = ".".join(map(str, first_error["loc"]))
    source = next((name for name, data in reversed(layers) if _has_key(data, key)), file_names)
    value, error_type = first_error["input"], first_error["type"]
    expected = first_error["msg"].removeprefix("Input should be ").replace("a valid array", "a list")
    hint = ""
    if error_type == "tuple_type":
        hint = f" Write {key}=[{value}]."
    elif error_type == "string_type":
        hint = f""" Quote it: {key}='"{"..." if isinstance(value, dict | list) else value}"' on the command line."""
    elif error_type == "int_type" and isinstance(value, float) and value.is_integer():
        hint = f" Write {int(value)}."
    return InputError(f"{source}: {key}: given {value!r} ({type(value).__name__}), expected {expected}.{hint}")


def load_yaml(model: type[M], paths: Sequence[Path], overrides: Sequence[str]) -> M:
    """The files as a `model`, each over those before it, below dotted overrides such as "sweep.n=[2,4]"; raises
    InputError.

    Sections are merged key by key. Anything else takes the place of what stood there, a map of names of the user's own
    (`cell.data.mixture`) too, unless an override reaches into it (`cell.eval.extra.aime=...`).
    """
    known_keys = _known_keys(model)
    layers = [(str(path), _read_yaml(path, known_keys)) for path in paths]
    layers += [(f"override {override!r}", _read_override(override, known_keys)) for override in overrides]
    merges_maps = [False] * len(paths) + [
        override.partition("=")[0].strip() not in known_keys for override in overrides
    ]
    file_names = ", ".join(map(str, paths))
    merged: dict[str, Any] = {}
    for (_, layer), merge_maps in zip(layers, merges_maps, strict=True):
        merged = _merge(merged, layer, known_keys, merge_maps)
    try:
        data = OmegaConf.to_container(OmegaConf.create(merged), resolve=True, throw_on_missing=True)
        json_text = json.dumps(data, allow_nan=False)  # pydantic's strict mode takes lists for tuples from JSON only
    except (OmegaConfBaseException, TypeError, ValueError) as e:
        raise InputError(
            f"{file_names}: {str(e).splitlines()[0]}. Expected finite numbers, text, lists and keys, and ${{...}} that"
            " name a key."
        ) from e
    try:
        return model.model_validate_json(json_text)
    except ValidationError as e:
        raise _type_error(e, layers, file_names) from e


def yaml_text(data: Mapping[str, Any]) -> str:
    """Plain data as YAML that reads back equal (OmegaConf quotes text such as "1e5", which it would read as a
    number).
    """
    return OmegaConf.to_yaml(OmegaConf.create(dict(data)))


def write_yaml(path: Path, data: Mapping[str, Any]) -> None:
    """`yaml_text` as a file."""
    write_text(path, yaml_text(data))
