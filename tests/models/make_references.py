"""Writes references/: small random models with transformers' logits of them. Run by hand, where
torch is; tests read the files.

    python tests/models/make_references.py [NAME ...]           # needs torch, transformers 5, numpy
    python tests/models/make_references.py --check 20 --seed 1  # and what isojax needs, with jax

The second draws random models of random shapes, runs them here and there, and prints one JSON line
each: the largest and the root mean square difference of the logits over the three ways of running.
Batches hold sequences of unequal lengths, padded on the left for transformers and on the right for
isojax. Weights are large, so that the logits' standard deviation is at least 3 (asserted).
"""

import argparse
import copy
import json
import shutil
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    Glm4Config,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
)

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent / "references"
CONFIGS = {
    "llama": LlamaConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "mistral": MistralConfig,
    "olmo2": Olmo2Config,
    "gemma3": Gemma3TextConfig,
    "phi3": Phi3Config,  # the example of docs/extending.md
    "glm4": Glm4Config,  # glm4.py
}
OF_PLUGINS = ("phi3", "glm4")  # no families of isojax's own
LEAST_STD = 3.0
SIZES = (
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "num_hidden_layers",
)
STRETCHED = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 1e4}
GEMMA_ROPES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 2.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
}


@dataclass(frozen=True)
class Reference:
    """A model of odd sizes: on a mesh of 2 x 2 x 2 some axes are divided and some are not."""

    family: str
    sizes: tuple[int, ...]
    rope: dict[str, Any]
    tied: bool = False
    more: dict[str, Any] = field(default_factory=dict)  # keys of config.json

    @property
    def was_known_to_4(self) -> bool:
        """Whether its rope has the form that `older_spelling` turns back."""
        return "rope_type" in self.rope


# Windows are shorter than sequences.
REFERENCES = {
    "llama": Reference(
        "llama", (36, 6, 2, 10, 53, 97, 2), {**STRETCHED, "original_max_position_embeddings": 16}
    ),
    "qwen2": Reference(
        "qwen2", (40, 4, 2, 10, 54, 98, 2), {"rope_type": "default", "rope_theta": 1e6}
    ),
    "qwen3": Reference(
        "qwen3", (35, 5, 1, 14, 46, 97, 2), {"rope_type": "default", "rope_theta": 5e6}, True
    ),
    "llama_tied": Reference(
        "llama", (33, 3, 3, 8, 44, 101, 3), {"rope_type": "default", "rope_theta": 1e5}, True
    ),
    "llama_biases": Reference(
        "llama",
        (28, 4, 2, 8, 39, 71, 2),
        DEFAULT_ROPE,
        more={"attention_bias": True, "mlp_bias": True},
    ),
    "qwen2_sliding": Reference(
        "qwen2",
        (28, 4, 2, 6, 37, 73, 3),
        DEFAULT_ROPE,
        more={"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    ),
    "mistral": Reference(
        "mistral", (30, 3, 1, 8, 41, 70, 2), DEFAULT_ROPE, more={"sliding_window": 6}
    ),
    "olmo2": Reference(
        "olmo2", (36, 6, 2, 6, 43, 67, 2), {"rope_type": "default", "rope_theta": 5e5}
    ),
    "gemma3": Reference(
        "gemma3",
        (20, 4, 2, 6, 27, 74, 8),
        GEMMA_ROPES,
        True,
        {"sliding_window": 5, "query_pre_attn_scalar": 11, "pad_token_id": 0},
    ),
    "phi3": Reference(
        "phi3",
        (28, 4, 2, 8, 37, 69, 2),
        DEFAULT_ROPE,
        more={"sliding_window": 8, "pad_token_id": 0},
    ),
    "glm4": Reference(
        "glm4",
        (24, 4, 2, 8, 38, 67, 2),
        DEFAULT_ROPE | {"partial_rotary_factor": 0.5},
        more={"attention_bias": True, "pad_token_id": 0},
    ),
}
GRADIENT_ENTRIES = 5  # of each tensor's gradient, evenly spaced, that are kept beside its norm


def make_config(reference: Reference, eps: float = 1e-5) -> Any:
    """transformers' configuration of a model."""
    config = CONFIGS[reference.family]
    common = {
        "rope_parameters": copy.deepcopy(reference.rope),
        "tie_word_embeddings": reference.tied,
        "rms_norm_eps": eps,
        "max_position_embeddings": 4096,
        "architectures": [
            config.__name__.replace("TextConfig", "Config").replace("Config", "ForCausalLM")
        ],
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return config(**dict(zip(SIZES, reference.sizes, strict=True)), **common, **reference.more)


def make_model(config: Any, seed: int) -> Any:
    """A float32 model of random weights: matrices 1.5 / sqrt(fan in), scales of norms .5 to 1.5
    (Gemma's without the 1 that is added), biases and the unembedding large.
    """
    least_scale = -0.5 if isinstance(config, Gemma3TextConfig) else 0.5
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(least_scale, least_scale + 1, generator=draw)
            elif name.endswith("bias"):
                weight.normal_(0, 0.5, generator=draw)
            elif "embed_tokens" in name or "lm_head" in name:
                weight.normal_(0, 5 * config.hidden_size**-0.5, generator=draw)
            else:
                weight.normal_(0, 1.5 * weight.shape[1] ** -0.5, generator=draw)
    return model


def make_batch(rng: np.random.Generator, vocab: int, lengths: np.ndarray) -> np.ndarray:
    """Random tokens i32[b, T], right-padded with 0."""
    tokens = rng.integers(3, vocab, (len(lengths), lengths.max())).astype(np.int32)
    return np.where(np.arange(lengths.max())[None] < lengths[:, None], tokens, 0).astype(np.int32)


def reference_logits(model: Any, tokens: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """transformers' logits f32[b, T, V] of the right-padded `tokens`, computed left-padded; zero at
    padding."""
    rows, width = tokens.shape
    left, mask = np.zeros((rows, width), np.int64), np.zeros((rows, width), np.int64)
    for r, n in enumerate(lengths):
        left[r, width - n :], mask[r, width - n :] = tokens[r, :n], 1
    positions = np.maximum(mask.cumsum(1) - 1, 0)
    with torch.no_grad():
        out = model(
            torch.from_numpy(left),
            attention_mask=torch.from_numpy(mask),
            position_ids=torch.from_numpy(positions),
        ).logits.numpy()
    result = np.zeros_like(out)
    for r, n in enumerate(lengths):
        result[r, :n] = out[r, width - n :]
    std = result[np.arange(width)[None] < lengths[:, None]].std()
    assert std >= LEAST_STD, (
        f"the logits' standard deviation is {std:.2f}; expected at least {LEAST_STD}"
    )
    return result


def reference_gradients(
    model: Any, tokens: np.ndarray, lengths: np.ndarray
) -> dict[str, list[float]]:
    """Of the mean log-probability of all tokens but the first of each sequence: by tensor, its
    gradient's norm and entries of it, `GRADIENT_ENTRIES` evenly spaced ones."""
    logps = []
    for row, n in zip(tokens, lengths, strict=True):
        sequence = torch.from_numpy(row[None, :n].astype(np.int64))
        log_probs = torch.log_softmax(model(sequence).logits[0, :-1], -1)
        logps.append(log_probs.gather(1, sequence[0, 1:, None])[:, 0])
    model.zero_grad()
    torch.cat(logps).mean().backward()

    result = {}
    for name, weight in model.named_parameters():
        gradient = weight.grad.double().numpy().ravel()
        places = np.linspace(0, gradient.size - 1, GRADIENT_ENTRIES).astype(int)
        result[name] = [float(f"{x:.7g}") for x in (np.linalg.norm(gradient), *gradient[places])]
    return result


def older_spelling(config: dict[str, Any], type_key: str) -> dict[str, Any]:
    """The same config.json as transformers 4 writes it; `type_key` is "rope_type", or "type" as
    before 4.43."""
    old = dict(config)
    rope = dict(old.pop("rope_parameters"))
    old["rope_theta"], kind = rope.pop("rope_theta"), rope.pop("rope_type")
    old["rope_scaling"] = None if kind == "default" else {type_key: kind, **rope}
    old["torch_dtype"] = old.pop("dtype")
    return {**old, "transformers_version": "4.57.1"}


def write(name: str) -> None:
    """One reference: a folder that loads in transformers, with batch.npz, gradients.json, and where
    transformers 4 had another spelling config_v4.json."""
    reference = REFERENCES[name]
    seed, folder = list(REFERENCES).index(name), HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model = make_model(make_config(reference), seed)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink()

    config = json.loads((folder / "config.json").read_text())
    if reference.was_known_to_4:
        older = older_spelling(config, "type" if name == "llama" else "rope_type")
        (folder / "config_v4.json").write_text(json.dumps(older, indent=2) + "\n")

    lengths = np.array([40, 2, 23, 31], np.int32)
    tokens = make_batch(np.random.default_rng(seed), config["vocab_size"], lengths)
    logits = reference_logits(model, tokens, lengths)
    np.savez_compressed(folder / "batch.npz", tokens=tokens, lengths=lengths, logits=logits)
    gradients = reference_gradients(model, tokens, lengths)
    lines = [f"{json.dumps(name)}: {json.dumps(values)}" for name, values in gradients.items()]
    (folder / "gradients.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def random_config(rng: np.random.Generator) -> tuple[Any, dict[str, Any]]:
    """A random shape of a random family, and what was drawn."""
    family = str(rng.choice([name for name in CONFIGS if name not in OF_PLUGINS]))
    kv = int(rng.integers(1, 5))
    heads = kv * int(rng.integers(1, 5))
    head_dim = 2 * int(rng.integers(1, 17))
    # transformers takes OLMo 2's head_dim to be width / heads
    width = heads * (head_dim if family == "olmo2" else int(rng.integers(3, 17)))
    sizes = (width, heads, kv, head_dim, *(int(rng.integers(a, b)) for a, b in BOUNDS))

    rope = {"rope_type": "default", "rope_theta": float(10 ** rng.uniform(2, 7))}
    if family == "llama" and rng.random() < 0.7:
        low = float(rng.uniform(0.5, 2))
        stretch = {
            "factor": float(rng.uniform(1.5, 32)),
            "low_freq_factor": low,
            "high_freq_factor": low + float(rng.uniform(0.5, 6)),
        }
        rope |= {
            "rope_type": "llama3",
            **stretch,
            "original_max_position_embeddings": int(rng.integers(4, 33)),
        }
    if family == "gemma3":
        local = {"rope_type": "default", "rope_theta": float(10 ** rng.uniform(2, 7))}
        rope = {"full_attention": rope, "sliding_attention": local}

    layers, window = sizes[-1], int(rng.integers(1, 41))
    options: dict[str, dict[str, Any]] = {
        "llama": {"attention_bias": bool(rng.random() < 0.5), "mlp_bias": bool(rng.random() < 0.5)},
        "mistral": {"sliding_window": window if rng.random() < 0.8 else None},
        "gemma3": {
            "sliding_window": window,
            "query_pre_attn_scalar": int(rng.integers(2, 65)),
            "pad_token_id": 0,
        },
    }
    slides = {
        "use_sliding_window": True,
        "sliding_window": window,
        "max_window_layers": int(rng.integers(0, layers)),
    }
    if family in ("qwen2", "qwen3") and rng.random() < 0.6:
        options[family] = slides
    tied, eps = bool(rng.random() < 0.5), float(10 ** rng.uniform(-7, -4))
    reference = Reference(family, sizes, rope, tied, options.get(family, {}))
    return make_config(reference, eps), asdict(reference)


BOUNDS = ((5, 130), (10, 300), (1, 9))  # intermediate_size, vocab_size, num_hidden_layers


def check(count: int, seed: int, longest: int) -> None:
    """`count` random models, here and there; a JSON line each."""
    sys.path.insert(0, str(ROOT))
    from isojax.core.config import ModelConfig
    from isojax.models import families
    from isojax.models.hf.hf_config import find_family
    from isojax.models.transformer import Decoder
    from tests.models.agreement import differences, from_checkpoint

    for i in range(count):
        rng = np.random.default_rng((seed, i))
        config, drawn = random_config(rng)
        model = make_model(config, int(rng.integers(2**31)))
        lengths = rng.integers(2, longest + 1, int(rng.integers(2, 6))).astype(np.int32)
        tokens = make_batch(rng, config.vocab_size, lengths)
        expected = reference_logits(model, tokens, lengths)
        hf = json.loads(config.to_json_string(use_diff=False))
        if i % 2 and "rope_type" in drawn["rope"]:
            hf = older_spelling({"dtype": "float32", **hf}, "rope_type")
        family = families.family.load(find_family(hf["architectures"][0]))
        assert family.traits.settings is not None
        decoder = Decoder(
            ModelConfig(family=drawn["family"], **family.traits.settings(hf)), config.vocab_size
        )
        weights = {k: v.numpy() for k, v in model.state_dict().items()}
        result = differences(decoder, from_checkpoint(weights, decoder), tokens, lengths, expected)
        far = {way: float(np.abs(d).max()) for way, d in result.items()}
        rms = {way: float(np.sqrt((d.astype(np.float64) ** 2).mean())) for way, d in result.items()}
        line = {
            "max": max(far.values()),
            "rms": max(rms.values()),
            "std": float(expected[expected != 0].std()),
            "lengths": lengths.tolist(),
        }
        print(json.dumps(line | drawn), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="references to write; none: all")
    parser.add_argument(
        "--check",
        type=int,
        default=0,
        metavar="N",
        help="compare N random models, and write nothing",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=int, default=40, help="tokens of the longest sequence")
    inputs = parser.parse_args()
    torch.set_num_threads(1)
    if inputs.check:
        check(inputs.check, inputs.seed, inputs.longest)
    else:
        for name in inputs.names or REFERENCES:
            write(name)


if __name__ == "__main__":
    main()
