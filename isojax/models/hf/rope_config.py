"""The rotary positions of config.json. transformers 4 writes `rope_theta` and `rope_scaling`,
transformers 5 writes `rope_parameters` with theta in it, or one such object for each type of layer,
and what exporters write is in between.

Programs differ in which of these they read, so where two of them say different things the file is
refused. One difference is harmless: transformers 4 adds its default theta, 10,000, at the top of
what transformers 5 wrote.
"""

from collections.abc import Collection, Mapping
from typing import Any

from isojax.core.config import RopeScaling
from isojax.core.errors import InputError
from isojax.models.hf.config_values import FIX, read_number, read_size, require_value

DEFAULT_THETA = 10_000.0  # transformers' own, where a config.json has none (Llama 1 and 2)
SECTIONS = ("rope_scaling", "rope_parameters")
COMMON_KEYS = {"rope_type", "rope_theta"}
LLAMA3_KEYS = {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
LATER_TYPES = ("yarn", "dynamic")  # which makers add to a model that was trained without them
KEEP_ONE = "Keep in config.json the one that the model was trained with."


def rope_settings(config_json: Mapping[str, Any], own_keys: Collection[str] = ()) -> dict[str, Any]:
    """Return ModelConfig's rope_base and rope_scaling, as a dict with these two keys.

    rope_scaling is None for plain positions, else Llama 3's. `own_keys`: those that the family
    reads by itself, such as "partial_rotary_factor", and which are refused otherwise. InputError
    where the file contradicts itself, or describes positions that the decoder does not compute."""
    config_json = without_keys(config_json, own_keys)
    _check_rotation(config_json)

    sections = {key: _read_section(config_json, key) for key in SECTIONS}
    sections = {key: section for key, section in sections.items() if section}
    rope_base = _agreed_theta(config_json, sections)
    # the key is for messages; of two sections that agree, the first is used
    key, section = _agreed_section(sections)
    if section.get("rope_type", "default") == "default":
        return {"rope_base": rope_base, "rope_scaling": None}

    length_key = "original_max_position_embeddings"
    if length_key in section and config_json.get(length_key) not in (None, section[length_key]):
        at_top = f"{length_key} = {config_json[length_key]!r} at the top"
        raise InputError(
            where="config.json",
            found=f"{at_top}, and {section[length_key]!r} in {key}",
            fix=KEEP_ONE,
        )
    scaling = RopeScaling(
        factor=read_number(section, "factor", key),
        low_freq_factor=read_number(section, "low_freq_factor", key),
        high_freq_factor=read_number(section, "high_freq_factor", key),
        original_max_position_embeddings=read_size(section, length_key, section=key),
    )
    return {"rope_base": rope_base, "rope_scaling": scaling}


def _check_rotation(config_json: Mapping[str, Any]) -> None:
    """Raise InputError unless all layers have positions, and rotate whole heads by two halves."""
    require_value(config_json, "partial_rotary_factor", 1.0, "the decoder rotates whole heads")
    for key in ("rope_interleaved", "rope_interleave"):
        require_value(config_json, key, False, "the decoder rotates a head's two halves")

    # 1 where a layer has positions, in spite of the name
    rotated_layers = config_json.get("no_rope_layers") or []
    if not isinstance(rotated_layers, list) or not all(rotated_layers):
        problem = f"no_rope_layers = {rotated_layers!r} leaves layers without positions"
        raise InputError(
            where="config.json",
            found=problem,
            expected="rotary positions in all",
            fix="This model cannot run here.",
        )


def without_keys(config_json: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """The file without these keys, at its top and in its sections."""

    def remove(entry: Any) -> Any:
        if not isinstance(entry, Mapping):
            return entry
        return {key: remove(value) for key, value in entry.items() if key not in keys}

    without = {key: value for key, value in config_json.items() if key not in keys}
    for key in SECTIONS:
        if key in without:
            without[key] = remove(without[key])
    return without


def read_rotated_share(config_json: Mapping[str, Any], default: float = 1.0) -> float:
    """Return `partial_rotary_factor`, the share of a head's numbers that are rotated.

    It may be at the file's top or in one of SECTIONS. `default`: the family's. InputError where two
    places differ."""
    key = "partial_rotary_factor"
    shares = set()
    for place in (config_json, *(config_json.get(section) for section in SECTIONS)):
        if isinstance(place, Mapping) and place.get(key) is not None:
            shares.add(read_number(place, key))
    if len(shares) > 1:
        raise InputError(
            where="config.json",
            found=f"{key} = {' and '.join(map(str, sorted(shares)))}",
            fix=KEEP_ONE,
        )
    return shares.pop() if shares else default


def _read_section(config_json: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return one of SECTIONS of a config.json, {} where the file has none.

    Without null values, with the object of the used type of layers in place of those by type, and
    with its type under `rope_type` alone: {"rope_type": "llama3", "factor": 8.0, ...}. InputError
    for types other than "default" and "llama3", and for keys that the type does not use."""
    value = config_json.get(key) or {}
    if not isinstance(value, Mapping):
        raise InputError(
            where="config.json",
            found=f"{key} = {value!r}",
            expected="an object with rope_type",
            fix=FIX,
        )
    section = _of_used_layers(config_json, key, _without_nulls(value))

    old_type = section.pop("type", None)  # as transformers 4 first named it
    rope_type = "default"
    if section or old_type:  # an empty section stays empty
        rope_type = section.setdefault("rope_type", old_type or "default")
    if old_type not in (None, rope_type):
        raise InputError(
            where="config.json",
            found=f"{key} has type = {old_type!r} and rope_type = {rope_type!r}",
            fix=KEEP_ONE,
        )
    if rope_type not in ("default", "llama3"):
        fix = "This model cannot run here."
        if rope_type in LATER_TYPES:
            fix = (
                "If it was added after training, for longer texts than these, "
                "remove it from a copy of config.json."
            )
        raise InputError(
            where="config.json",
            found=f"{key} has rope_type = {rope_type!r}",
            expected="default or llama3",
            fix=fix,
        )

    require_value(section, "partial_rotary_factor", 1.0, "the decoder rotates whole heads")
    known_keys = set(COMMON_KEYS)
    harmless_keys = {"partial_rotary_factor"}  # which change nothing
    if rope_type == "llama3":
        known_keys |= LLAMA3_KEYS
    else:
        harmless_keys.add("original_max_position_embeddings")
        if section.get("factor") == 1:
            harmless_keys.add("factor")
    section = {name: value for name, value in section.items() if name not in harmless_keys}

    unknown_keys = sorted(section.keys() - known_keys)
    if unknown_keys:
        held = ", ".join(f"{name} = {section[name]!r}" for name in unknown_keys)
        raise InputError(
            where="config.json",
            found=f"{key} has {held}, which rope_type = {rope_type!r} does not use",
            fix="Name the type that this belongs to, or remove it from config.json.",
        )
    return section


def _of_used_layers(
    config_json: Mapping[str, Any], key: str, section: dict[str, Any]
) -> dict[str, Any]:
    """Return a section in which the model's layers have one object, merged into the section.

    `section`: such as {"full_attention": {"rope_theta": 1e6}}; one without objects by type of layer
    comes back as it is. `key`: its name, for messages. InputError where the types that the model's
    layers are of differ, or the section contradicts them."""
    by_type = {name: entry for name, entry in section.items() if isinstance(entry, Mapping)}
    if not by_type:
        return section

    # where the file does not say which types its layers are of, all
    used_types = sorted(set(config_json.get("layer_types") or by_type) & by_type.keys())
    used = [_without_nulls(by_type[name]) for name in used_types]
    if not used or any(entry != used[0] for entry in used):
        types = ", ".join(f"{name}: {dict(entry)}" for name, entry in by_type.items())
        raise InputError(
            where="config.json",
            found=f"{key} differs between types of layers ({types})",
            expected="one for all layers",
        )

    common = {name: entry for name, entry in section.items() if name not in by_type}
    if any(used[0].get(name, entry) != entry for name, entry in common.items()):
        both = f"{key} has {common} beside {used[0]} for {', '.join(used_types)}"
        raise InputError(
            where="config.json",
            found=both,
            fix=KEEP_ONE,
        )
    return common | used[0]


def _without_nulls(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if value is not None}


def _agreed_theta(
    config_json: Mapping[str, Any], sections: Mapping[str, Mapping[str, Any]]
) -> float:
    """Return the theta of the file; InputError where it has several.

    `sections`: those of SECTIONS that the file has, as `_read_section` returns them."""
    thetas = {}  # location -> theta
    for key, section in sections.items():
        if "rope_theta" in section:
            thetas[key] = read_number(section, "rope_theta", key)
    # a null that is the only theta is refused by `read_number`
    if "rope_theta" in config_json and (config_json["rope_theta"] is not None or not thetas):
        top = read_number(config_json, "rope_theta")
        # Without theta, rope_scaling is what transformers 4 wrote, and its theta is the one at the
        # top. Else the default at the top may be what it has added to a file of transformers 5.
        belongs_to_scaling = "rope_scaling" in sections and "rope_scaling" not in thetas
        may_be_added = top == DEFAULT_THETA and not belongs_to_scaling
        if not may_be_added or not thetas:
            thetas["the top"] = top

    if len(set(thetas.values())) > 1:
        listed = " and ".join(f"{theta:,.12g} in {location}" for location, theta in thetas.items())
        raise InputError(
            where="config.json",
            found=f"rope_theta = {listed}".replace("in the top", "at the top"),
            fix=KEEP_ONE,
        )
    return next(iter(thetas.values()), DEFAULT_THETA)


def _agreed_section(sections: Mapping[str, Mapping[str, Any]]) -> tuple[str, Mapping[str, Any]]:
    """Return the key and the section, without its theta; ("", {}) where there is none.

    `sections`: rope_scaling and rope_parameters, those that the file has. Where it has both, they
    must agree in all but theta, else InputError."""
    contents = {}
    for key, section in sections.items():
        contents[key] = {name: value for name, value in section.items() if name != "rope_theta"}
    if not contents:
        return "", {}

    if len(contents) == 2 and contents["rope_scaling"] != contents["rope_parameters"]:
        both = " and ".join(f"{key} = {content}" for key, content in contents.items())
        raise InputError(
            where="config.json",
            found=both,
            fix=f"Programs differ in which one they read. {KEEP_ONE}",
        )
    return next(iter(contents.items()))
