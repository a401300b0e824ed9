"""Single values of config.json, read with their bounds; an InputError names the key, what it holds
and what fits."""

from collections.abc import Mapping
from typing import Any

from isojax.core.errors import InputError
from isojax.core.limits import MAX_LAYERS, MAX_SETTING, MAX_VOCAB, MAX_WIDTH

MAX_SIZES = {
    "num_hidden_layers": MAX_LAYERS,
    "vocab_size": MAX_VOCAB,
    "original_max_position_embeddings": MAX_SETTING,
}
FIX = "Correct the file, or fetch it again."


def require_value(config_json: Mapping[str, Any], key: str, allowed: Any, reason: str) -> None:
    """Raise InputError where `key` is set to anything but `allowed`.

    Absent and null mean `allowed`. `reason`: for the message, such as "the decoder's MLP is
    SwiGLU"."""
    value = config_json.get(key)
    if value is not None and value != allowed:
        raise InputError(
            where="config.json",
            found=f"{key} = {value!r}",
            expected=f"{allowed!r}: {reason}",
            fix="This model cannot run here.",
        )


def read_flag(config_json: Mapping[str, Any], key: str) -> bool:
    """False where it is absent or null."""
    value = config_json.get(key)
    if not isinstance(value, (bool, type(None))):
        raise InputError(
            where="config.json",
            found=f"{key} = {value!r}",
            expected="true or false",
            fix=FIX,
        )
    return bool(value)


def read_size(
    config_json: Mapping[str, Any], key: str, default: int | None = None, section: str = ""
) -> int:
    """Return a whole number from 1 to the key's bound (MAX_SIZES); InputError for others.

    `default`: for an absent or null key; None: it must be there. `section`: the object of
    config.json that `config_json` is, for the message."""
    value = default if config_json.get(key) is None else config_json[key]
    most = MAX_SIZES.get(key, MAX_WIDTH)
    # True is an int to Python
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        expected = f"a whole number, at least 1 and at most {most:,}"
        raise _invalid_value(config_json, key, section, expected)
    return value


def read_number(config_json: Mapping[str, Any], key: str, section: str = "") -> float:
    """Return a number above 0, at most MAX_SETTING, as a float; InputError for others."""
    value = config_json.get(key)
    is_bool = isinstance(value, bool)
    if isinstance(value, (int, float)) and not is_bool and 0 < value <= MAX_SETTING:
        return float(value)
    expected = f"a number above 0, at most {MAX_SETTING:,}"
    raise _invalid_value(config_json, key, section, expected)


def _invalid_value(
    config_json: Mapping[str, Any], key: str, section: str, expected: str
) -> InputError:
    held = f"{key} = {config_json[key]!r}" if key in config_json else f"no {key}"
    if section:
        held = f"{section} has {held}"
    return InputError(
        where="config.json",
        found=held,
        expected=expected,
        fix=FIX,
    )
