"""Files a user writes and isojax writes: YAML read against a pydantic model, below dotted overrides; whole-file writes. No jax here.

Whatever is wrong with a file or an override is an InputError that names its place, what was given and what was expected.
"""

from __future__ import annotations

import difflib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError

from isojax.types import InputError

M = TypeVar("M", bound=BaseModel)


def _known_keys(model: type[BaseModel], prefix: str = "") -> dict[str, bool]:
    """Every dotted name a config may hold -> whether it is a section."""
    keys: dict[str, bool] = {}
    for name, info in model.model_fields.items():
        kind = info.annotation
        keys[prefix + name] = isinstance(kind, type) and issubclass(kind, BaseModel)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            keys |= _known_keys(kind, f"{prefix}{name}.")
    return keys


def leaves(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of everything that is not a section."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _nearest(key: str, known: Sequence[str]) -> str:
    """The known dotted name closest to `key`; one with the same last part wins."""
    last = key.rpartition(".")[2]
    pool = [k for k in known if k.rpartition(".")[2] == last] or known
    return difflib.get_close_matches(key, pool, n=1, cutoff=0)[0]


def _check_keys(data: Mapping[Any, Any], known: Mapping[str, bool], source: str, prefix: str = "") -> None:
    """InputError at the first key that is unknown, a section that is not one, a number that is not finite."""
    for key, value in data.items():
        dotted = f"{prefix}{key}"
        if dotted not in known:
            if isinstance(value, Mapping) and value:
                dotted = next(leaves(value, f"{dotted}."), (dotted, None))[0]
            raise InputError(f"{source}: unknown key {dotted!r}; the nearest known key is {_nearest(dotted, list(known))!r}.")
        if known[dotted]:
            if not isinstance(value, Mapping):
                raise InputError(
                    f"{source}: {dotted} is a section; given {value!r}, expected keys below it. Write {dotted}.KEY, or leave it out."
                )
            _check_keys(value, known, source, f"{dotted}.")
        elif isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{source}: {dotted}: given {value!r}, expected a finite number.")


def _read_yaml(path: Path, known: Mapping[str, bool]) -> Any:
    try:
        data = OmegaConf.load(path)
        plain = OmegaConf.to_container(data)
    except yaml.MarkedYAMLError as e:
        line = e.problem_mark.line + 1 if e.problem_mark else "?"
        raise InputError(f"{path}, line {line}: not YAML ({e.problem or e.context}). Mend that line or the one above it.") from e
    except (OSError, UnicodeDecodeError, yaml.YAMLError, OmegaConfBaseException) as e:
        raise InputError(f"cannot read the config {path}: {str(e).splitlines()[0]}") from e
    if not isinstance(plain, dict):
        raise InputError(
            f"{path}: given a {type(plain).__name__} at the top, expected keys ({', '.join(k for k in known if '.' not in k)})."
        )
    _check_keys(plain, known, str(path))
    return data


def _read_override(text: str, known: Mapping[str, bool]) -> Any:
    key, equals, _ = text.partition("=")
    if not equals or not key.strip():
        raise InputError(f"override {text!r}: expected key=value, such as sweep.budget=100000.")
    try:
        data = OmegaConf.from_dotlist([text])
        plain = OmegaConf.to_container(data)
    except (yaml.YAMLError, OmegaConfBaseException) as e:
        mend = "A list is written sweep.n=[2,4]; quote the argument in the shell."
        raise InputError(f"override {text!r}: the value is not YAML ({str(e).splitlines()[0]}). {mend}") from e
    assert isinstance(plain, dict)
    _check_keys(plain, known, f"override {text!r}")
    return data


def _type_error(error: ValidationError, path: Path, overrides: Sequence[str]) -> InputError:
    """The first complaint of pydantic, with the key, its value, what was expected and where it was given."""
    first = error.errors(include_url=False)[0]
    key = ".".join(map(str, first["loc"]))
    source = next((f"override {o!r}" for o in reversed(overrides) if f"{key}.".startswith(f"{o.partition('=')[0].strip()}.")), str(path))
    given, kind = first["input"], first["type"]
    expected = first["msg"].removeprefix("Input should be ").replace("a valid array", "a list")
    hint = ""
    if kind == "tuple_type":
        hint = f" Write {key}=[{given}]."
    elif kind == "string_type":
        hint = f""" Quote it: {key}='"{given}"' on the command line."""
    elif kind == "int_type" and isinstance(given, float) and given.is_integer():
        hint = f" Write {int(given)}."
    return InputError(f"{source}: {key}: given {given!r} ({type(given).__name__}), expected {expected}.{hint}")


def load_yaml(model: type[M], path: Path, overrides: Sequence[str]) -> M:
    """The file as a `model`, below dotted overrides such as "sweep.n=[2,4]"; raises InputError."""
    known = _known_keys(model)
    parts = [_read_yaml(path, known), *(_read_override(o, known) for o in overrides)]
    try:
        data = OmegaConf.to_container(OmegaConf.merge(*parts), resolve=True, throw_on_missing=True)
        text = json.dumps(data, allow_nan=False)  # pydantic's strict mode takes lists for tuples from JSON only
    except (OmegaConfBaseException, TypeError, ValueError) as e:
        raise InputError(
            f"{path}: {str(e).splitlines()[0]}. Expected finite numbers, text, lists and keys, and ${{...}} that name a key."
        ) from e
    try:
        return model.model_validate_json(text)
    except ValidationError as e:
        raise _type_error(e, path, overrides) from e


def write_text(path: Path, text: str) -> None:
    """`write_bytes` of text as UTF-8."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a whole file or nothing: a reader, or a kill, sees the old content or the new; its folder is made.

    Raises:
        InputError: it cannot be written.
    """
    temp = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temp.open("wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temp, path)
    except OSError as e:
        with suppress(OSError):
            temp.unlink(missing_ok=True)
        raise InputError(f"cannot write {path}: {e.strerror or e}. Choose a place that you may write.") from e


def yaml_text(data: Mapping[str, Any]) -> str:
    """Plain data as YAML that reads back equal (OmegaConf quotes text such as "1e5", which it would read as a number)."""
    return OmegaConf.to_yaml(OmegaConf.create(dict(data)))


def write_yaml(path: Path, data: Mapping[str, Any]) -> None:
    """`yaml_text` as a file."""
    write_text(path, yaml_text(data))
