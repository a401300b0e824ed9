"""Files a user writes and isojax writes: YAML read against a pydantic model, below dotted overrides; whole-file writes. No jax here.

Whatever is wrong with a file or an override is an InputError that names its place, what was given and what was expected.
"""

from __future__ import annotations

import difflib
import errno
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError

from isojax.types import InputError, RunFailed

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

WRITTEN: list[Callable[[Path], object]] = []  # each is told of every file that is written whole or added to (storage.py)

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


def _read_yaml(path: Path, known: Mapping[str, bool]) -> dict[str, Any]:
    try:
        plain: Any = OmegaConf.to_container(OmegaConf.load(path))
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
    return plain


def _read_override(text: str, known: Mapping[str, bool]) -> dict[str, Any]:
    key, equals, _ = text.partition("=")
    if not equals or not key.strip():
        raise InputError(f"override {text!r}: expected key=value, such as sweep.budget=100000.")
    try:
        plain: Any = OmegaConf.to_container(OmegaConf.from_dotlist([text]))
    except (yaml.YAMLError, OmegaConfBaseException) as e:
        mend = f"""A list is written sweep.n=[2,4]; text with {{ or [ in quotes of its own: '{key}="..."'."""
        raise InputError(f"override {text!r}: the value is not YAML ({str(e).splitlines()[0]}). {mend}") from e
    assert isinstance(plain, dict)
    _check_keys(plain, known, f"override {text!r}")
    return plain


def _merge(below: Mapping[str, Any], above: Mapping[str, Any], known: Mapping[str, bool], inside: bool, prefix: str = "") -> dict[str, Any]:
    """`above` over `below`: sections key by key (`inside`: maps too), any other value in the place of the one before it."""
    merged = dict(below)
    for key, value in above.items():
        dotted, before = f"{prefix}{key}", below.get(key)
        if isinstance(value, dict) and isinstance(before, dict) and (known.get(dotted) or inside):
            value = _merge(before, value, known, inside, f"{dotted}.")
        merged[key] = value
    return merged


def _says(data: Any, key: str) -> bool:
    """Whether a part of a config gives a dotted key, or what that stands in."""
    for name in key.split("."):
        if not isinstance(data, Mapping):
            return True
        if name not in data:
            return False
        data = data[name]
    return True


def _type_error(error: ValidationError, parts: Sequence[tuple[str, Any]], files: str) -> InputError:
    """The first complaint of pydantic, with the key, its value, what was expected and where it was given: the last of `parts` with it."""
    first = error.errors(include_url=False)[0]
    key = ".".join(map(str, first["loc"]))
    source = next((name for name, data in reversed(parts) if _says(data, key)), files)
    given, kind = first["input"], first["type"]
    expected = first["msg"].removeprefix("Input should be ").replace("a valid array", "a list")
    hint = ""
    if kind == "tuple_type":
        hint = f" Write {key}=[{given}]."
    elif kind == "string_type":
        hint = f""" Quote it: {key}='"{"..." if isinstance(given, dict | list) else given}"' on the command line."""
    elif kind == "int_type" and isinstance(given, float) and given.is_integer():
        hint = f" Write {int(given)}."
    return InputError(f"{source}: {key}: given {given!r} ({type(given).__name__}), expected {expected}.{hint}")


def load_yaml(model: type[M], paths: Sequence[Path], overrides: Sequence[str]) -> M:
    """The files as a `model`, each over those before it, below dotted overrides such as "sweep.n=[2,4]"; raises InputError.

    Sections are merged key by key. Anything else takes the place of what stood there, a map of names of the user's own
    (`cell.data.mixture`) too, unless an override reaches into it (`cell.eval.extra.aime=...`).
    """
    known = _known_keys(model)
    parts = [(str(path), _read_yaml(path, known)) for path in paths]
    parts += [(f"override {override!r}", _read_override(override, known)) for override in overrides]
    reaching = [False] * len(paths) + [override.partition("=")[0].strip() not in known for override in overrides]
    files = ", ".join(map(str, paths))
    merged: dict[str, Any] = {}
    for (_, part), inside in zip(parts, reaching, strict=True):
        merged = _merge(merged, part, known, inside)
    try:
        data = OmegaConf.to_container(OmegaConf.create(merged), resolve=True, throw_on_missing=True)
        text = json.dumps(data, allow_nan=False)  # pydantic's strict mode takes lists for tuples from JSON only
    except (OmegaConfBaseException, TypeError, ValueError) as e:
        raise InputError(
            f"{files}: {str(e).splitlines()[0]}. Expected finite numbers, text, lists and keys, and ${{...}} that name a key."
        ) from e
    try:
        return model.model_validate_json(text)
    except ValidationError as e:
        raise _type_error(e, parts, files) from e


def write_text(path: Path, text: str) -> None:
    """`write_bytes` of text as UTF-8."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a whole file or nothing: a reader, or a kill, sees the old content or the new; its folder is made.

    Raises:
        RunFailed: the disk is full.
        InputError: it cannot be written for another reason.
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
        raise unwritten(path, e) from e
    _tell(path)


def append_bytes(path: Path, data: bytes) -> None:
    """Add to a file in one call, and force it to disk. A kill or a full disk may leave a part of it.

    Raises:
        RunFailed, InputError: as `write_bytes`.
    """
    try:
        with path.open("ab") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
    except OSError as e:
        raise unwritten(path, e) from e
    _tell(path)


def _tell(path: Path) -> None:
    for hear in WRITTEN:
        hear(path)


def unwritten(path: Path, error: OSError) -> InputError | RunFailed:
    """What to tell of a file that cannot be written."""
    said = f"cannot write {path}: {error.strerror or error}"
    if error.errno in FULL:
        return RunFailed(f"{said}. What was written before is whole; make room, and go on by --resume.")
    return InputError(f"{said}. Choose a place that you may write.")


def yaml_text(data: Mapping[str, Any]) -> str:
    """Plain data as YAML that reads back equal (OmegaConf quotes text such as "1e5", which it would read as a number)."""
    return OmegaConf.to_yaml(OmegaConf.create(dict(data)))


def write_yaml(path: Path, data: Mapping[str, Any]) -> None:
    """`yaml_text` as a file."""
    write_text(path, yaml_text(data))
