"""GGUF files (llama.cpp's) made into ordinary folders: config.json, safetensors, tokenizer. Read through the `gguf`
package.

Quantised weights are dequantised, so that float32 holds exactly what llama.cpp computes with. Three things are stored
otherwise than
in a checkpoint: names; for the architecture llama, the rows of queries and keys (pairs to be rotated lie side by side
there, halves here); and the tokenizer, of which only the name of its splitting rule is kept, so those rules stand
below.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from isojax.core import registry
from isojax.core.config import ModelConfig, RopeScaling
from isojax.core.errors import InputError
from isojax.models.hf import hf_export, hf_load
from isojax.models.hf.hf_layout import weight_layouts
from isojax.models.rope import rope_frequencies
from isojax.models.safetensors_io import TensorSources, atomic_folder, write_safetensors

FAMILIES = ("llama", "qwen2", "qwen3")  # GGUF's architectures; the families here have the same names
LAYER_PREFIX, ROPE_FREQS = "blk.{layer}.", "rope_freqs.weight"
GGUF_NAMES = {
    "embed": "token_embd.weight",
    "norm": "output_norm.weight",
    "unembed": "output.weight",
    "blocks.attention_norm": LAYER_PREFIX + "attn_norm.weight",
    "blocks.query": LAYER_PREFIX + "attn_q.weight",
    "blocks.key": LAYER_PREFIX + "attn_k.weight",
    "blocks.value": LAYER_PREFIX + "attn_v.weight",
    "blocks.out": LAYER_PREFIX + "attn_output.weight",
    "blocks.mlp_norm": LAYER_PREFIX + "ffn_norm.weight",
    "blocks.gate": LAYER_PREFIX + "ffn_gate.weight",
    "blocks.up": LAYER_PREFIX + "ffn_up.weight",
    "blocks.down": LAYER_PREFIX + "ffn_down.weight",
    "blocks.query_bias": LAYER_PREFIX + "attn_q.bias",
    "blocks.key_bias": LAYER_PREFIX + "attn_k.bias",
    "blocks.value_bias": LAYER_PREFIX + "attn_v.bias",
    "blocks.query_norm": LAYER_PREFIX + "attn_q_norm.weight",
    "blocks.key_norm": LAYER_PREFIX + "attn_k_norm.weight",
}
CONTROL_TOKEN, USER_DEFINED_TOKEN = 3, 4  # token types


def import_gguf(path: Path, folder: Path, dtype: str = "float32") -> None:
    """Make a folder of a GGUF file, one tensor at a time; it appears whole.

    Raises:
        InputError: the `gguf` package is missing, the file is none or holds what the decoder cannot run, or the folder
        is there.
    """
    with atomic_folder(folder) as temp:
        reader = open_gguf(path)
        read_metadata = metadata_reader(path, reader)
        gguf_tensors = {tensor.name: tensor for tensor in reader.tensors}
        config = read_model_config(path, read_metadata, gguf_tensors)
        vocab = int(gguf_tensors[GGUF_NAMES["embed"]].data.shape[0])
        tensors = plan_tensors(path, config, vocab, gguf_tensors)
        tokenizer, settings = build_tokenizer(path, read_metadata)
        token_ids = {
            f"{name}_token_id": read_metadata(f"tokenizer.ggml.{key}_token_id", None)
            for name, key in SPECIAL_TOKENS.items()
            if name != "unk"
        }
        token_ids = {name: value for name, value in token_ids.items() if value is not None}
        config_json = hf_export.make_config_json(
            config, vocab, read_metadata(f"{config.family}.context_length", hf_export.DEFAULT_MAX_POSITIONS), dtype
        )
        hf_export.write_config_json(temp, config_json | token_ids)
        for name, content in (("generation_config.json", token_ids), ("tokenizer_config.json", settings)):
            (temp / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        tokenizer.save(str(temp / "tokenizer.json"))
        write_safetensors(temp, tensors, dtype, 5e9)


def open_gguf(path: Path) -> Any:
    """The package's reader of a file."""
    try:
        from gguf import GGUFReader
    except ModuleNotFoundError as e:
        raise InputError('reading a GGUF file needs the gguf package: pip install "isojax[gguf]"') from e
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected a GGUF file.")
    try:
        return GGUFReader(path)
    except (ValueError, IndexError, KeyError, OSError, UnicodeDecodeError) as e:
        raise InputError(f"{path}: not a whole GGUF file ({e}). Copy it anew.") from e


REQUIRED: Any = object()


def metadata_reader(path: Path, reader: Any) -> Callable[..., Any]:
    """`read(key, default)` of the file's metadata; without a default, a key that is missing is an InputError."""

    def read(key: str, default: Any = REQUIRED) -> Any:
        if key in reader.fields:
            return reader.fields[key].contents()
        if default is REQUIRED:
            raise InputError(
                f"{path}: has no {key} in its metadata; expected a language model's GGUF file of {', '.join(FAMILIES)}."
            )
        return default

    return read


def read_positive(
    path: Path, read_metadata: Callable[..., Any], key: str, default: Any = REQUIRED, kind: Any = int
) -> Any:
    """A number of the metadata; InputError where it is not above 0, or a list: one for each layer, where layers differ
    in shape.
    """
    value = read_metadata(key, default)
    if not isinstance(value, kind) or not value > 0:
        expected = f"a {'whole ' if kind is int else ''}number above 0, the same for every layer"
        raise InputError(f"{path}: {key} is {value!r}; expected {expected}. Copy the file anew, or take another model.")
    return value


def read_model_config(path: Path, read_metadata: Callable[..., Any], gguf_tensors: dict[str, Any]) -> ModelConfig:
    """The model's shape from the metadata; tied where the file has no second matrix, or the same one twice."""
    family = read_metadata("general.architecture")
    if family not in FAMILIES:
        raise InputError(f"{path}: general.architecture is {family!r}; expected one of {', '.join(FAMILIES)}.")
    width = read_positive(path, read_metadata, f"{family}.embedding_length")
    heads = read_positive(path, read_metadata, f"{family}.attention.head_count")
    head_dim = read_positive(path, read_metadata, f"{family}.attention.key_length", width // heads)
    if (rotary_dims := read_metadata(f"{family}.rope.dimension_count", head_dim)) != head_dim:
        raise InputError(
            f"{path}: rope.dimension_count = {rotary_dims}, head size {head_dim}; expected equal ones (whole heads are "
            "turned)."
        )
    if (scaling_type := read_metadata(f"{family}.rope.scaling.type", "none")) != "none":
        raise InputError(
            f"{path}: stretched rotary positions ({scaling_type}); expected none, or Llama 3's. Take the model's "
            "safetensors folder."
        )
    rope_base = as_decimal(read_positive(path, read_metadata, f"{family}.rope.freq_base", 10_000.0, (int, float)))
    if GGUF_NAMES["embed"] not in gguf_tensors:
        raise InputError(
            f"{path}: has no tensor {GGUF_NAMES['embed']}; expected a language model's weights. Copy the file anew."
        )
    embed, unembed = gguf_tensors[GGUF_NAMES["embed"]], gguf_tensors.get(GGUF_NAMES["unembed"])
    tied = unembed is None or (embed.tensor_type == unembed.tensor_type and np.array_equal(embed.data, unembed.data))
    return ModelConfig(
        family=family,
        layers=read_positive(path, read_metadata, f"{family}.block_count"),
        width=width,
        heads=heads,
        kv_heads=read_positive(path, read_metadata, f"{family}.attention.head_count_kv", heads),
        head_dim=head_dim,
        mlp=read_positive(path, read_metadata, f"{family}.feed_forward_length"),
        norm_eps=as_decimal(
            read_positive(path, read_metadata, f"{family}.attention.layer_norm_rms_epsilon", kind=(int, float))
        ),
        rope_base=rope_base,
        rope_scaling=llama3_scaling(path, head_dim, rope_base, gguf_tensors.get(ROPE_FREQS)),
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        tied=tied,
    )


def llama3_scaling(path: Path, head_dim: int, base: float, tensor: Any | None) -> RopeScaling | None:
    """Llama 3's stretching, of which the file keeps only by how much each frequency is divided; the rest is as Llama
    3.1 and 3.2 have it.

    Raises:
        InputError: those numbers are not what that stretching gives.
    """
    if tensor is None:
        return None
    divisors = np.asarray(tensor.data, np.float32).ravel()
    scaling = RopeScaling(factor=as_decimal(divisors.max()))
    expected = rope_frequencies(head_dim, base, None) / rope_frequencies(head_dim, base, scaling)
    if divisors.shape != expected.shape or not np.allclose(divisors, expected, rtol=1e-4):
        raise InputError(
            f"{path}: {ROPE_FREQS} is not Llama 3's stretching by {scaling.factor:g} from "
            f"{scaling.original_max_position_embeddings} "
            "positions. Take the model's safetensors folder."
        )
    return scaling


def as_decimal(value: float) -> float:
    """A float32 of the metadata as the decimal number it was written as: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def plan_tensors(path: Path, config: ModelConfig, vocab: int, gguf_tensors: dict[str, Any]) -> TensorSources:
    """The checkpoint's tensors by name, each with its shape and how to get it.

    Raises:
        InputError: tensors that are missing, misshapen or unknown.
    """
    tensors: dict[str, tuple[tuple[int, ...], Callable[[], np.ndarray]]] = {}
    known_names, problems = {GGUF_NAMES["unembed"]}, []
    decoder = registry.load("models.families", config.family, "build").build(config, vocab)
    for weight in weight_layouts(config, decoder):
        for layer, name in enumerate(weight.tensor_names):
            known_names.add(gguf_name := GGUF_NAMES[weight.key].format(layer=layer))
            shape = (
                tuple(int(n) for n in reversed(gguf_tensors[gguf_name].shape)) if gguf_name in gguf_tensors else None
            )
            if shape != weight.stored_shape:
                problems.append(
                    f"{gguf_name} {f'has shape {list(shape)}' if shape else 'is missing'}, expected "
                    f"{list(weight.stored_shape)}"
                )
                continue
            heads = (
                {"blocks.query": config.heads, "blocks.key": config.kv_heads}.get(weight.key)
                if config.family == "llama"
                else None
            )
            tensors[name] = (
                weight.stored_shape,
                lambda tensor=gguf_tensors[gguf_name], heads=heads: dequantize_tensor(path, tensor, heads),
            )
    problems += [f"{name} is unknown" for name in sorted(set(gguf_tensors) - known_names - {ROPE_FREQS})]
    if problems:
        raise InputError(
            f"{path}: {len(problems)} tensors are not as a {config.family} has them: "
            f"{'; '.join(problems[: hf_load.MAX_LISTED])}."
        )
    return tensors


def dequantize_tensor(path: Path, tensor: Any, heads: int | None) -> np.ndarray:
    """A tensor dequantised to float32; with `heads`, rows of pairs put back into halves."""
    from gguf.quants import dequantize

    try:
        dequantized = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    except NotImplementedError as e:
        raise InputError(
            f"{path}: {tensor.name} is stored as {tensor.tensor_type.name}, which gguf cannot dequantise ({e})."
        ) from e
    if heads is None:
        return dequantized
    rows, columns = dequantized.shape
    return dequantized.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


WORD_PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST_PATTERN = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPECIAL_TOKENS = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}


def pre_tokenizer_steps(rule: str) -> list[Any] | None:
    """How text is cut before byte-level merges, by GGUF's name of the rule; None for a name unknown here."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    rules = {
        "gpt-2": [gpt2],
        "smollm": [pre_tokenizers.Digits(individual_digits=True), gpt2],
        "llama-bpe": [pre_tokenizers.Split(Regex(WORD_PATTERN + r"\p{N}{1,3}" + REST_PATTERN), "isolated"), byte_level],
        "qwen2": [pre_tokenizers.Split(Regex(WORD_PATTERN + r"\p{N}" + REST_PATTERN), "isolated"), byte_level],
    }
    return rules.get(rule)


def build_tokenizer(path: Path, read_metadata: Callable[..., Any]) -> tuple[Tokenizer, dict[str, Any]]:
    """The tokenizer, and the contents of its tokenizer_config.json with the chat template."""
    model_type, rule = read_metadata("tokenizer.ggml.model"), read_metadata("tokenizer.ggml.pre", "no rule")
    steps = pre_tokenizer_steps(rule)
    if model_type != "gpt2" or steps is None:
        raise InputError(
            f"{path}: its tokenizer is {model_type!r} cut by {rule!r}; expected byte-level BPE ('gpt2') cut by gpt-2, "
            "smollm, llama-bpe or "
            "qwen2. Take the model's safetensors folder instead."
        )
    tokens = read_metadata("tokenizer.ggml.tokens")
    merges = [tuple(pair.split(" ")) for pair in read_metadata("tokenizer.ggml.merges")]
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=rule == "llama-bpe"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    if rule == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    types = list(enumerate(read_metadata("tokenizer.ggml.token_type", [])))
    tokenizer.add_special_tokens(
        [AddedToken(tokens[i], normalized=False, special=True) for i, t in types if t == CONTROL_TOKEN]
    )
    tokenizer.add_tokens(
        [AddedToken(tokens[i], normalized=False, special=False) for i, t in types if t == USER_DEFINED_TOKEN]
    )
    ids = {name: read_metadata(f"tokenizer.ggml.{key}_token_id", None) for name, key in SPECIAL_TOKENS.items()}
    special_tokens = {f"{name}_token": tokens[i] for name, i in ids.items() if i is not None}
    if read_metadata("tokenizer.ggml.add_bos_token", rule == "llama-bpe") and "bos_token" in special_tokens:
        bos = special_tokens["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(f"{bos} $A", f"{bos} $A {bos} $B", [(bos, vocab[bos])])
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **special_tokens}
    template = read_metadata("tokenizer.chat_template", None)
    return tokenizer, settings | ({"chat_template": template} if template else {})
