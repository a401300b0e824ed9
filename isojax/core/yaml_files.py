"""YAML files read against a pydantic model, below dotted `key=value` overrides; each InputError
names its place."""

import difflib
import io
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

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


# What the parsers of YAML and of its ${...} raise for text that is none: tags (!!int "x"),
# thousands of digits, depth.
YAML_ERRORS = (
    yaml.YAMLError, OmegaConfBaseException, ValueError, TypeError, LookupError, AttributeError, RecursionError,
)  # fmt: skip


def first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), repr(error))


def nearest_key(key: str, known_keys: Iterable[str]) -> str:
    """The known name closest to `key`, first among those with the same last part: `lr` is
    cell.rl.learning_rate."""
    section, dot, name = key[:MAX_NAME].rpartition(".")
    name = next((known_name for known_name, synonyms in SYNONYMS.items() if name in synonyms), name)

    def closeness(known_key: str) -> tuple[bool, float]:
        similarity = difflib.SequenceMatcher(None, f"{section}{dot}{name}", known_key).ratio()
        return known_key.rpartition(".")[2] == name, similarity

    return max(known_keys, key=closeness)


def config_keys(model: type[BaseModel], prefix: str = "") -> dict[str, bool]:
    """Every dotted name a config may hold -> whether it is a section."""
    keys: dict[str, bool] = {}
    for name, field_info in model.model_fields.items():
        annotation = field_info.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            keys |= {f"{prefix}{name}": True, **config_keys(annotation, f"{prefix}{name}.")}
        else:
            keys[f"{prefix}{name}"] = False
    return keys


def flatten(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of everything that is not a section."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _read_leaves(
    data: Mapping[Any, Any], known_keys: Mapping[str, bool], source: str, prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of everything that is not a section; InputError at the first that is
    unknown or misplaced."""
    for key, value in data.items():
        dotted_key = f"{prefix}{key}"
        if dotted_key not in known_keys:
            if isinstance(value, Mapping) and value:
                dotted_key = next(flatten(value, f"{dotted_key}."), (dotted_key, None))[0]
            nearest = nearest_key(dotted_key, known_keys)
            raise InputError(
                f"{source}: unknown key {dotted_key!r}; the nearest known key is {nearest!r}."
            )
        if not known_keys[dotted_key]:
            yield dotted_key, value
        elif isinstance(value, Mapping):
            yield from _read_leaves(value, known_keys, source, f"{dotted_key}.")
        else:
            raise InputError(
                f"{source}: {dotted_key} is a section; given {value!r}, expected {dotted_key}.KEY."
            )


def check_yaml(text: str, aliases: bool = True) -> str:
    """The text itself; ValueError where it is longer, or nested deeper, than core/limits.py says.
    For a reader that does not count what `aliases` multiply, they are refused."""
    if len(text) > MAX_YAML_BYTES:
        raise ValueError(f"{len(text):,} characters, the most are {MAX_YAML_BYTES:,}")
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
            event, yaml.CollectionEndEvent
        )
        if depth > MAX_DEPTH:
            raise ValueError(f"lists and keys within each other more than {MAX_DEPTH} deep")
        if not aliases and isinstance(event, yaml.AliasEvent):
            raise ValueError(f"write out what *{event.anchor} stands for")
    return text


def _read_yaml(path: Path, known_keys: Mapping[str, bool]) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as f:
            text = check_yaml(f.read(MAX_YAML_BYTES + 1))
        data: Any = OmegaConf.to_container(OmegaConf.load(io.StringIO(text)))
    except yaml.MarkedYAMLError as e:
        line = e.problem_mark.line + 1 if e.problem_mark else "?"
        raise InputError(f"{path}, line {line}: not YAML ({e.problem or e.context}).") from e
    except (OSError, *YAML_ERRORS) as e:
        raise InputError(f"cannot read the config {path}: {first_line(e)}") from e
    if not isinstance(data, dict):
        top_keys = ", ".join(key for key in known_keys if "." not in key)
        raise InputError(
            f"{path}: given a {type(data).__name__} at the top, expected keys ({top_keys})."
        )
    return dict(_read_leaves(data, known_keys, str(path)))


def _read_override(text: str, known_keys: Mapping[str, bool]) -> dict[str, Any]:
    key, equals, _ = text.partition("=")
    if not equals or not key.strip():
        raise InputError(f"override {text!r}: expected key=value, such as sweep.budget=100000.")
    if key.count(".") > MAX_DEPTH or "\0" in key:
        raise InputError(
            f"override {text[:80]!r}: expected a key of a config, such as sweep.budget."
        )
    try:
        check_yaml(text.partition("=")[2])
        data: Any = OmegaConf.to_container(OmegaConf.from_dotlist([text]))
    except YAML_ERRORS as e:
        hint = f"""A list is written sweep.n=[2,4]; text with {{ or [ in quotes of its own: '{key}="..."'."""
        raise InputError(
            f"override {text!r}: the value is not YAML ({first_line(e)}). {hint}"
        ) from e
    return dict(_read_leaves(data, known_keys, f"override {text!r}"))


def _type_error(
    error: ValidationError, layers: Sequence[tuple[str, Any]], file_names: str
) -> InputError:
    """The first of pydantic's errors: the key, its value, what was expected, and the last of
    `layers` that sets it."""
    first_error = error.errors(include_url=False)[0]
    key = ".".join(map(str, first_error["loc"]))
    sources = [
        name for name, leaves in layers if any(f"{key}.".startswith(f"{leaf}.") for leaf in leaves)
    ]
    source = sources[-1] if sources else file_names
    value, error_type = first_error["input"], first_error["type"]
    expected = (
        first_error["msg"].removeprefix("Input should be ").replace("a valid array", "a list")
    )
    hint = ""
    if error_type == "tuple_type":
        hint = f" Write {key}=[{value}]."
    elif error_type == "string_type":
        hint = f""" Quote it: {key}='"{"..." if isinstance(value, dict | list) else value}"' on the command line."""
    elif error_type == "int_type" and isinstance(value, float) and value.is_integer():
        hint = f" Write {int(value)}."
    return InputError(
        f"{source}: {key}: given {value!r} ({type(value).__name__}), expected {expected}.{hint}"
    )


def load_yaml(
    model: type[M],
    paths: Sequence[Path],
    overrides: Sequence[str],
    unset_by_null: Collection[str] = (),
) -> M:
    """The files as a `model`, each over those before it, below overrides such as "sweep.n=[2,4]";
    raises InputError. Sections are merged key by key; anything else is replaced whole, a map of the
    user's names too. A null for one of the dotted names `unset_by_null` is as if nothing had set
    it."""
    known_keys = config_keys(model)
    layers = [(str(path), _read_yaml(path, known_keys)) for path in paths]
    merged = {key: value for _, leaves in layers for key, value in leaves.items()}
    for override in overrides:
        leaves = _read_override(override, known_keys)
        layers.append((f"override {override!r}", leaves))
        reaches_into_map = override.partition("=")[0].strip() not in known_keys
        for key, value in leaves.items():
            old_value = merged.get(key)
            merged[key] = (
                old_value | value if reaches_into_map and isinstance(old_value, dict) else value
            )

    merged = {
        key: value for key, value in merged.items() if value is not None or key not in unset_by_null
    }
    file_names = ", ".join(map(str, paths))
    try:
        nested = OmegaConf.create()
        for key, value in merged.items():
            OmegaConf.update(nested, key, value)
        if json.dumps(OmegaConf.to_container(nested)).count("${") > MAX_REFERENCES:
            raise ValueError(f"more than {MAX_REFERENCES} references ${{...}}")
        data = OmegaConf.to_container(nested, resolve=True, throw_on_missing=True)
        # pydantic's strict mode takes lists for tuples from JSON only
        json_text = json.dumps(data, ensure_ascii=False).encode()
    except YAML_ERRORS as e:
        raise InputError(
            f"{file_names}: {first_line(e)}. Expected plain values, and ${{...}} that name a key."
        ) from e
    try:
        return model.model_validate_json(json_text)
    except ValidationError as e:
        raise _type_error(e, layers, file_names) from e


def yaml_text(data: Mapping[str, Any]) -> str:
    """Plain data as YAML that reads back equal: text such as "1e5", which OmegaConf reads as a
    number, is quoted."""
    return OmegaConf.to_yaml(OmegaConf.create(dict(data)))
