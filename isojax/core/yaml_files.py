"""YAML files read against a pydantic model, below dotted `key=value` overrides.

Each InputError names its place.
"""

import difflib
import io
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError

from isojax.core.errors import InputError
from isojax.core.limits import MAX_DEPTH, MAX_NAME, MAX_REFERENCES, MAX_YAML_BYTES

M = TypeVar("M", bound=BaseModel)

# A setting's name here -> what TRL, verl and Hugging Face call it, and usual abbreviations.
SYNONYMS = {
    "learning_rate": ("lr",),
    "temperature": ("temp",),
    "prompt_length": ("max_prompt_length",),
    "response_length": (
        "max_tokens",
        "max_new_tokens",
        "max_response_length",
        "max_completion_length",
    ),
    "B_p": ("batch_size", "train_batch_size"),
    "n": ("num_generations", "group_size"),
    "clip": ("epsilon", "clip_ratio"),
    "kl": ("beta",),
    "width": ("hidden_size",),
    "layers": ("num_hidden_layers",),
}

# What the parsers of YAML and of its ${...} raise for text that is none, as for tags (!!int "x"),
# thousands of digits, and depth.
YAML_ERRORS = (
    yaml.YAMLError,
    OmegaConfBaseException,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    RecursionError,
)


class ConfigLayer(NamedTuple):
    """What one file, or one override, sets."""

    source: str  # the file's path, or the override, for messages
    settings: dict[str, Any]  # by dotted keys


def first_line(error: Exception) -> str:
    """What an error says, without the lines in which some libraries explain it."""
    return next(iter(str(error).splitlines()), repr(error))


def nearest_key(key: str, known_keys: Iterable[str]) -> str:
    """The known name closest to `key`, for a message: of cell.rl.klx it is cell.rl.kl.

    A known name with the same last part comes before any other. Other trainers' names count as
    isojax's (SYNONYMS): of `lr` it is cell.rl.learning_rate. `known_keys`: dotted, at least one.
    """
    # Cut, as the time to compare grows with the length.
    section, dot, name = key[:MAX_NAME].rpartition(".")
    for known_name, synonyms in SYNONYMS.items():
        if name in synonyms:
            name = known_name
            break

    # Compared as a pair: first whether the last parts are equal. Captures `section`, `dot` and
    # `name`, which may be isojax's name in place of the one given.
    def closeness(known_key: str) -> tuple[bool, float]:
        similarity = difflib.SequenceMatcher(None, f"{section}{dot}{name}", known_key).ratio()
        return known_key.rpartition(".")[2] == name, similarity

    return max(known_keys, key=closeness)


def config_keys(model: type[BaseModel], prefix: str = "") -> dict[str, bool]:
    """Every dotted name a config may hold -> whether it is a section: {"cell": True, "cell.task":
    False, ...}. A section that may be null counts as a setting, and its keys are not there."""
    keys: dict[str, bool] = {}
    for field_name, field_info in model.model_fields.items():
        name = f"{prefix}{field_name}"
        annotation = field_info.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            keys[name] = True
            keys |= config_keys(annotation, f"{name}.")
        else:
            keys[name] = False
    return keys


def flatten(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of everything that is not a mapping: ("a.b", 1) of {"a": {"b": 1}}."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _read_leaves(
    data: Mapping[Any, Any], known_keys: Mapping[str, bool], source: str, prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every setting, by `known_keys`, in nested data such as YAML's.

    data: of the section whose dotted name, with a dot behind it, is `prefix`. known_keys: by
    `config_keys`. source: the file or override, for messages. The value of a setting may be a
    mapping too, such as `sweep.schedules`. InputError at the first key that is unknown, and at a
    section that is given a plain value.
    """
    for key, value in data.items():
        dotted_key = f"{prefix}{key}"
        if dotted_key not in known_keys:
            # Of an unknown section, the setting in it says best what was meant.
            if isinstance(value, Mapping) and value:
                # No name, where it has empty sections alone: then the section stays what is named.
                dotted_key, _ = next(flatten(value, f"{dotted_key}."), (dotted_key, None))
            nearest = nearest_key(dotted_key, known_keys)
            raise InputError(
                where=source,
                found=f"unknown key {dotted_key!r}",
                fix=f"The nearest known key is {nearest!r}.",
            )

        is_section = known_keys[dotted_key]
        if not is_section:
            yield dotted_key, value
        elif isinstance(value, Mapping):
            yield from _read_leaves(value, known_keys, source, f"{dotted_key}.")
        else:
            raise InputError(
                where=f"{source}: {dotted_key}",
                found=f"given {value!r} for a section",
                expected=f"{dotted_key}.KEY",
            )


def check_yaml(text: str, aliases: bool = True) -> str:
    """The text itself; ValueError where it is longer, or nested deeper, than core/limits.py says.

    aliases: whether *NAME, which stands for an earlier part of the text, is allowed. Not so for a
    reader that does not count what aliases of aliases multiply. Raises what yaml.parse raises for a
    text that is no YAML.
    """
    if len(text) > MAX_YAML_BYTES:
        raise ValueError(f"{len(text):,} characters, the most are {MAX_YAML_BYTES:,}")

    # The parser's events are looked at one by one, before anything is built of them.
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise ValueError(f"lists and keys within each other more than {MAX_DEPTH} deep")
        if not aliases and isinstance(event, yaml.AliasEvent):
            raise ValueError(f"write out what *{event.anchor} stands for")
    return text


def _read_yaml(path: Path, known_keys: Mapping[str, bool]) -> dict[str, Any]:
    """The settings of a file: dotted key -> value; InputError where it is no config.

    known_keys: by `config_keys`. Values are not checked yet, and ${...} in them are as written.
    """
    try:
        with path.open(encoding="utf-8") as f:
            # One character more than is allowed, so that a longer file is refused.
            text = check_yaml(f.read(MAX_YAML_BYTES + 1))
        data: Any = OmegaConf.to_container(OmegaConf.load(io.StringIO(text)))
    except yaml.MarkedYAMLError as e:
        line = e.problem_mark.line + 1 if e.problem_mark else "?"
        raise InputError(
            where=f"{path}, line {line}",
            found=f"not YAML ({e.problem or e.context})",
        ) from e
    except (OSError, *YAML_ERRORS) as e:
        raise InputError(
            where=path,
            found=f"cannot be read: {first_line(e)}",
        ) from e

    if not isinstance(data, dict):
        top_keys = ", ".join(key for key in known_keys if "." not in key)
        raise InputError(
            where=path,
            found=f"given a {type(data).__name__} at the top",
            expected=f"keys ({top_keys})",
        )
    return dict(_read_leaves(data, known_keys, str(path)))


def _read_override(text: str, known_keys: Mapping[str, bool]) -> dict[str, Any]:
    """The settings of an override: "sweep.n=[2,4]" -> {"sweep.n": [2, 4]}.

    Of a setting that is a map, "sweep.schedules.grow=TEXT" -> {"sweep.schedules": {"grow": TEXT}}.
    known_keys: by `config_keys`. InputError where the text is no override, or its key unknown.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InputError(
            where=f"override {text!r}",
            expected="key=value, such as sweep.budget=100000",
        )
    if key.count(".") > MAX_DEPTH or "\0" in key:
        raise InputError(
            where=f"override {text[:80]!r}",
            expected="a key of a config, such as sweep.budget",
        )

    try:
        check_yaml(value)
        data: Any = OmegaConf.to_container(OmegaConf.from_dotlist([text]))
    except YAML_ERRORS as e:
        hint = (
            "A list is written sweep.n=[2,4]; "
            f"""text with {{ or [ in quotes of its own: '{key}="..."'."""
        )
        raise InputError(
            where=f"override {text!r}",
            found=f"the value is not YAML ({first_line(e)})",
            fix=hint,
        ) from e
    return dict(_read_leaves(data, known_keys, f"override {text!r}"))


def _type_error(
    error: ValidationError, layers: Sequence[ConfigLayer], file_names: str
) -> InputError:
    """The InputError for the first of pydantic's errors: the key, its value, and what was expected.

    It names the last of `layers` that sets the key, as that is the one in force; `file_names`,
    where none does.
    """
    first_error = error.errors(include_url=False)[0]
    key = ".".join(map(str, first_error["loc"]))
    value = first_error["input"]

    # pydantic may name an entry of a setting: sweep.n.0 of sweep.n.
    sources = [
        layer.source
        for layer in layers
        if any(f"{key}.".startswith(f"{name}.") for name in layer.settings)
    ]
    source = sources[-1] if sources else file_names

    expected = re.sub("^(Input should be|String should|Tuple should) ", "", first_error["msg"])
    expected = expected.replace("a valid array", "a list")
    hint = _hint_on_type(first_error["type"], key, value)
    return InputError(
        where=f"{source}: {key}",
        found=f"given {value!r} ({type(value).__name__})",
        expected=expected,
        fix=hint,
    )


def _hint_on_type(error_type: str, key: str, value: Any) -> str:
    """What to write in place of a value of another type; "" where that is not plain. error_type:
    pydantic's name of the error. key: with dots. value: as given."""
    if error_type == "tuple_type":
        return f"Write {key}=[{value}]."
    if error_type == "string_type":
        text = "..." if isinstance(value, dict | list) else value
        return f"""Quote it: {key}='"{text}"' on the command line."""
    if error_type == "int_type" and isinstance(value, float) and value.is_integer():
        return f"Write {int(value)}."
    return ""


def load_yaml(
    model: type[M],
    paths: Sequence[Path],
    overrides: Sequence[str],
    unset_by_null: Collection[str] = (),
) -> M:
    """The settings of YAML files and overrides as an object of the class `model`.

    model: such as Config, whose fields are settings or sections.
    paths: each file goes over those before it. Sections are merged key by key; anything else is
        replaced whole, a map of the user's names too.
    overrides: such as "sweep.n=[2,4]"; they go over all files, each over those before it. Of a map,
        an override sets one entry.
    unset_by_null: dotted names of settings; a null for one of them is as if nothing had set it.

    InputError for whatever cannot be used.
    """
    known_keys = config_keys(model)
    layers = [ConfigLayer(str(path), _read_yaml(path, known_keys)) for path in paths]
    merged: dict[str, Any] = {}
    for layer in layers:
        merged |= layer.settings

    for override in overrides:
        layer = ConfigLayer(f"override {override!r}", _read_override(override, known_keys))
        layers.append(layer)
        # sweep.schedules.NAME=... sets one entry of a map, and leaves the others. Its whole name is
        # no known key; `_read_override` has refused those that reach into nothing.
        reaches_into_map = override.partition("=")[0].strip() not in known_keys
        for key, value in layer.settings.items():
            old_value = merged.get(key)
            if reaches_into_map and isinstance(old_value, dict):
                value = old_value | value
            merged[key] = value

    merged = {
        key: value for key, value in merged.items() if value is not None or key not in unset_by_null
    }
    file_names = ", ".join(map(str, paths))
    json_text = _resolve(merged, file_names)
    try:
        return model.model_validate_json(json_text)
    except ValidationError as e:
        raise _type_error(e, layers, file_names) from e


def _resolve(settings: Mapping[str, Any], file_names: str) -> bytes:
    """Settings, by dotted keys, as JSON of nested sections in which each ${...} has its value.

    JSON, because pydantic's strict mode takes lists for tuples from that only. InputError, with
    `file_names` as its place, for a ${...} that names no key, and for too many of them.
    """
    try:
        nested = OmegaConf.create()
        for key, value in settings.items():
            OmegaConf.update(nested, key, value)
        # A few references to references can stand for a text of any length.
        if json.dumps(OmegaConf.to_container(nested)).count("${") > MAX_REFERENCES:
            raise ValueError(f"more than {MAX_REFERENCES} references ${{...}}")
        data = OmegaConf.to_container(nested, resolve=True, throw_on_missing=True)
        return json.dumps(data, ensure_ascii=False).encode()
    except YAML_ERRORS as e:
        raise InputError(
            where=file_names,
            found=first_line(e),
            expected="plain values, and ${...} that name a key",
        ) from e


def yaml_text(data: Mapping[str, Any]) -> str:
    """Plain data as YAML that reads back equal.

    Text such as "1e5", which OmegaConf reads as a number, is quoted.
    """
    return OmegaConf.to_yaml(OmegaConf.create(dict(data)))
