"""Reads config.json as transformers 4 and 5 write it."""

import functools
from collections.abc import Collection, Mapping
from typing import Any

from isojax.core.config import ModelConfig
from isojax.core.errors import InputError
from isojax.core.terminal import warn
from isojax.models import families
from isojax.models.hf.config_values import FIX, read_number, read_size, require_value
from isojax.models.hf.quantised import CONFIG_KEYS, quantised_config_error
from isojax.models.hf.rope_config import rope_settings

_warn_once = functools.cache(warn)  # a sweep reads its base model once per cell
EPS_KEY = "rms_norm_eps"
# How architectures end that are no decoder of text, and what they are.
OTHER_KINDS = {
    "ForSequenceClassification": (
        "a classifier or reward model, with a score in the place of the head"
    ),
    "ForTokenClassification": (
        "a classifier or reward model, with scores in the place of the head"
    ),
    "RewardModel": "a reward model, with a score in the place of the head",
    "ForConditionalGeneration": "a model of images, sound or pairs of texts",
    "WithValueHead": "a policy with a value head of TRL",
}


def find_family(architecture: str) -> str:
    """Return the family of a name in config.json's `architectures`; InputError for unknown ones.

    Such as "Qwen2ForCausalLM" -> "qwen2"."""
    family_of: dict[str, str] = {}
    whole_models = []  # whose language model is a family's
    for family in families.family.names():
        traits = families.family.load(family).traits
        family_of |= dict.fromkeys(traits.architectures, family)
        if traits.text_part is not None:
            whole_models.append(traits.text_part.architecture)
    if architecture in family_of:
        return family_of[architecture]

    known = ", ".join(sorted([*family_of, *whole_models]))
    fix = (
        "A family of your own is a file like isojax/models/families/qwen3.py, "
        "named by cell.model.family."
    )
    for ending, kind in OTHER_KINDS.items():
        if architecture.endswith(ending):
            fix = (
                f"It is {kind}; give the language model that it was made from, "
                "or one of these families."
            )
    raise InputError(
        where="config.json",
        found=f"architectures names {architecture!r}, which no family here runs",
        expected=f"one of {known}",
        fix=fix,
    )


def check_model_type(config_json: Mapping[str, Any], family: str) -> None:
    """Raise InputError where model_type names another family than `architectures` does.

    A warning where it names no published family (one whose checkpoints have a config.json):
    transformers goes by model_type, and servers by architectures. `config_json` has
    `architectures`, and `family` is the one that these name, such as "qwen2"."""
    model_type = config_json.get("model_type")
    if model_type in (None, model_type_of(family)):
        return

    both = f"architectures = {config_json['architectures']!r}, and model_type = {model_type!r}"
    for name in families.family.names():
        # Without `settings` the family reads no config.json ("tiny"): a file with its name as
        # model_type is not known to be of that family.
        is_published = families.family.load(name).traits.settings is not None
        if is_published and model_type == model_type_of(name):
            raise InputError(
                where="config.json",
                found=f"{both}, which is another family",
                fix="Correct the one that is wrong.",
            )
    _warn_once(
        f"config.json: {both}; transformers goes by model_type, "
        f"and isojax reads the model as {family}."
    )


def model_type_of(family: str) -> str:
    """What config.json calls the family."""
    return families.family.load(family).traits.model_type or family


def common_settings(
    config_json: Mapping[str, Any],
    head_dim: int | None = None,
    *,
    own_keys: Collection[str] = (),
    eps_key: str = EPS_KEY,
) -> dict[str, Any]:
    """Return ModelConfig's fields of a family with SwiGLU and one table of rotary positions.

    Keys: those of `shape_settings` and `rope_settings`. `head_dim`: the family's where the file has
    none; None: width / heads. `own_keys`: those that the family reads by itself, as in
    `rope_settings`. `eps_key`: what the file calls the norms' epsilon. InputError for a key that
    cannot be used."""
    require_value(config_json, "hidden_act", "silu", "the decoder's MLP is SwiGLU")
    shape = shape_settings(config_json, head_dim, eps_key=eps_key)
    return shape | rope_settings(config_json, own_keys)


def shape_settings(
    config_json: Mapping[str, Any],
    head_dim: int | None = None,
    tied: bool = False,
    eps_key: str = EPS_KEY,
) -> dict[str, Any]:
    """Return ModelConfig's fields that every published family reads alike.

    Keys: layers, width, heads, kv_heads, head_dim, mlp, vocab, norm_eps and tied. `head_dim`: the
    family's where the file has none; None: width / heads. `tied`: what an absent flag means.
    `eps_key`: the file's name of the norms' epsilon. InputError for weights that are quantised, or
    a value that cannot be used."""
    for key in CONFIG_KEYS:
        if config_json.get(key):
            raise quantised_config_error(key, config_json[key])

    width = read_size(config_json, "hidden_size")
    heads = read_size(config_json, "num_attention_heads")
    if config_json.get("head_dim") is None and head_dim is None and width % heads:
        raise InputError(
            where="config.json",
            found=(
                f"no head_dim, and hidden_size = {width} is no multiple of num_attention_heads "
                f"= {heads}"
            ),
            fix="Add head_dim to it.",
        )

    is_tied = config_json.get("tie_word_embeddings")
    if not isinstance(is_tied, (bool, type(None))):
        raise InputError(
            where="config.json",
            found=f"tie_word_embeddings = {is_tied!r}",
            expected="true or false",
            fix=FIX,
        )
    return {
        "layers": read_size(config_json, "num_hidden_layers"),
        "width": width,
        "heads": heads,
        "kv_heads": read_size(config_json, "num_key_value_heads", heads),
        "head_dim": read_size(config_json, "head_dim", head_dim or width // heads),
        "mlp": read_size(config_json, "intermediate_size"),
        "vocab": read_size(config_json, "vocab_size"),
        "norm_eps": read_number(config_json, eps_key),
        "tied": tied if is_tied is None else is_tied,
    }


def common_config_json(config: ModelConfig, eps_key: str = EPS_KEY) -> dict[str, Any]:
    """Return config.json's keys of a family that `common_settings` reads: the way back.

    transformers 5 reads `rope_parameters`, 4 `rope_theta` and `rope_scaling`."""
    scaling = None
    if config.rope_scaling is not None:
        scaling = {"rope_type": "llama3", **config.rope_scaling.model_dump()}
    positions = scaling or {"rope_type": "default"}
    return {
        **shape_config_json(config, eps_key),
        "hidden_act": "silu",
        "rope_theta": config.rope_base,
        "rope_scaling": scaling,
        "rope_parameters": {"rope_theta": config.rope_base, **positions},
    }


def shape_config_json(config: ModelConfig, eps_key: str = EPS_KEY) -> dict[str, Any]:
    """The way back from `shape_settings`."""
    return {
        "vocab_size": config.vocab,
        "hidden_size": config.width,
        "intermediate_size": config.mlp,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        eps_key: config.norm_eps,
        "tie_word_embeddings": config.tied,
    }
