"""Recognises quantised weights, by config.json or by the tensors themselves, and says what makes
floats of them."""

from collections.abc import Mapping
from typing import Any

from isojax.core.errors import InputError

# the last two: compressed-tensors, MLX
CONFIG_KEYS = ("quantization_config", "compression_config", "quantization")
METHOD_OF_KEY = {"compression_config": "compressed-tensors", "quantization": "mlx"}
METHOD_KEYS = ("quant_method", "quant_algo", "quant_type")

# The last part of a tensor's name -> the method that stores such tensors; the surest first.
METHOD_OF_SUFFIX = {
    "weight_scale_inv": "fp8",
    "qzeros": "gptq or awq",
    "qweight": "gptq or awq",
    "g_idx": "gptq or awq",
    "absmax": "bitsandbytes",
    "quant_map": "bitsandbytes",
    "SCB": "bitsandbytes",
    "weight_packed": "compressed-tensors",
    "weight_shape": "compressed-tensors",
    "weight_scale": "compressed-tensors or fp8",
    "weight_scale_2": "modelopt",
    "scales": "mlx",
    "blocks": "mxfp4",
}
FLOAT8_DTYPES = ("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
INTEGER_DTYPES = ("I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64", "F4", "F6_E2M3", "F6_E3M2")

# What transformers makes floats of while it loads a model, if this class asks for it.
CONFIG_CLASS_OF_METHOD = {
    "fp8": "FineGrainedFP8Config",
    "compressed-tensors": "CompressedTensorsConfig",
    "mxfp4": "Mxfp4Config",
}


def quantised_config_error(key: str, value: Any) -> InputError:
    """Return the error, with the remedy, for a config.json that has a key of CONFIG_KEYS.

    `value`: what the key holds, such as {"quant_method": "fp8"}."""
    settings = value if isinstance(value, Mapping) else {}
    named_methods = [str(settings[name]) for name in METHOD_KEYS if settings.get(name)]
    if named_methods:
        method = named_methods[0]
    elif settings.get("load_in_4bit") or settings.get("load_in_8bit"):
        method = "bitsandbytes"
    else:
        method = METHOD_OF_KEY.get(key, "quantised")

    leftover = (
        f"If the weights are floats all the same, as after a merge, remove {key} from config.json"
    )
    fix = dequantise_fix(method)
    return InputError(
        where="config.json",
        found=f"{key} is set: the weights are quantised ({method})",
        fix=f"{fix[0].upper()}{fix[1:]} {leftover}.",
    )


def describe_quantised_tensors(dtypes: Mapping[str, str]) -> str:
    """Say what quantised tensors there are, and the remedy; empty for none.

    `dtypes`: those of tensors that a model does not need or cannot read, by name, such as
    {"model.layers.0.mlp.up_proj.qweight": "I32"}."""
    by_last_part = {_last_part(name): name for name in dtypes}
    suffixes = [suffix for suffix in METHOD_OF_SUFFIX if suffix in by_last_part]
    # integers count only in a layer's matrices: of other tensors they tell nothing
    float8, integers = [], []
    for name, dtype in dtypes.items():
        if dtype in FLOAT8_DTYPES:
            float8.append(name)
        elif dtype in INTEGER_DTYPES and name.endswith("_proj.weight"):
            integers.append(name)

    # A tensor that shows it, and the method that stores such ones: the surest first.
    method = ""
    if suffixes:
        example = by_last_part[suffixes[0]]
        method = METHOD_OF_SUFFIX[suffixes[0]]
    elif float8 or integers:
        example = [*float8, *integers][0]
    else:
        return ""
    if float8 and method in ("", "compressed-tensors or fp8"):
        method = "fp8"

    dtype = dtypes[example]
    description = (
        f"its weights are quantised ({method or dtype}), as {example} shows, a tensor of {dtype}; "
        f"{dequantise_fix(method)}"
    )
    if method in CONFIG_CLASS_OF_METHOD:
        description += (
            " That reads quantization_config, which config.json has lost: fetch it again."
        )
    return description


def dequantise_fix(method: str) -> str:
    """Say how floats are made of the weights of a method: a command where there is one.

    `method`: such as "fp8" or "bitsandbytes", or "", where it is unknown."""
    original = "expected float weights: take the model that it was quantised from"
    config_class = CONFIG_CLASS_OF_METHOD.get(method)

    if method == "mlx":
        command = "mlx_lm.convert --hf-path FOLDER --mlx-path NEW --dequantize"
        return f"{original}, or dequantise it: {command}."
    if method == "bitsandbytes":
        imports = "from transformers import AutoModelForCausalLM as M"
        model = "M.from_pretrained('FOLDER').dequantize()"
    elif config_class:
        imports = f"from transformers import AutoModelForCausalLM as M, {config_class} as Q"
        model = "M.from_pretrained('FOLDER', quantization_config=Q(dequantize=True))"
    else:
        return f"{original}, because transformers cannot dequantise it."

    command = f"python -c \"{imports}; {model}.save_pretrained('NEW')\""
    return (
        f"{original}, or dequantise it: {command}, where transformers and accelerate are; "
        "then copy the tokenizer to NEW."
    )


def _last_part(name: str) -> str:
    """`qweight` of `model.layers.0.mlp.up_proj.qweight`; of mxfp4's `gate_up_proj_blocks`,
    `blocks`."""
    last = name.rsplit(".", 1)[-1]
    return "blocks" if last.endswith("_blocks") else last
