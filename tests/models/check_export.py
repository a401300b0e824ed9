"""Do exported folders reload in transformers with equal logits? Run by hand, where torch,
transformers 5 and isojax's needs are.

    python tests/models/check_export.py                           # small models of every family
    python tests/models/check_export.py --model models/smollm2-135m
    python tests/models/check_export.py --stored models/trained   # a folder as it is; exit code 1
                                                                  # beyond rounding

Each model is written by isojax (in float32, and in bfloat16 with several files), loaded by
transformers' AutoModelForCausalLM, and run on both sides on the same tokens in float32. One JSON
line each: the logits' standard deviation, their largest and their root mean square difference. With
--model the folder is also loaded here, saved again, and compared with what transformers reads of
the original.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import jax.numpy as jnp

from isojax.core.config import ModelConfig, RopeScaling
from isojax.distributed.mesh_spec import parse_mesh
from isojax.distributed.sharding import make_mesh
from isojax.models import safetensors_io
from isojax.models.hf import hf_export, hf_load
from isojax.models.transformer import Decoder

SHAPE: dict[str, Any] = {
    "layers": 3,
    "width": 48,
    "heads": 6,
    "kv_heads": 2,
    "head_dim": 10,
    "mlp": 77,
    "vocab": 131,
    "norm_eps": 1e-5,
}
MAX_DIFFERENCE = 1e-3  # of float32 logits, of rounding alone
STRETCHED = RopeScaling(factor=8.0, original_max_position_embeddings=16)
GEMMA_OPTIONS: dict[str, Any] = {
    "window": 6,
    "sliding_layers": [0, 1, 2, 3, 4, 6, 7],
    "local_rope_base": 1e3,
    "rope_factor": 2.0,
    "query_scalar": 15.0,
}
MODELS = {
    "llama": ModelConfig(family="llama", **SHAPE, rope_base=5e5, rope_scaling=STRETCHED),
    "llama tied": ModelConfig(family="llama", **SHAPE, tied=True),
    "qwen2": ModelConfig(family="qwen2", **SHAPE, rope_base=1e6, qkv_bias=True),
    "qwen3 tied": ModelConfig(family="qwen3", **SHAPE, rope_base=5e6, qk_norm=True, tied=True),
    "llama biases": ModelConfig(
        family="llama", **SHAPE, options={"attention_bias": True, "mlp_bias": True}
    ),
    "qwen2 sliding": ModelConfig(
        family="qwen2", **SHAPE, qkv_bias=True, options={"window": 7, "sliding_layers": [1, 2]}
    ),
    "mistral": ModelConfig(family="mistral", **SHAPE, options={"window": 9}),
    # transformers takes OLMo 2's head_dim to be width / heads
    "olmo2": ModelConfig(family="olmo2", **(SHAPE | {"head_dim": 8}), rope_base=5e5),
    "qwen3_moe": ModelConfig(
        family="qwen3_moe",
        **SHAPE,
        qk_norm=True,
        options={"experts": 6, "top_k": 2, "expert_mlp": 20},
    ),
    "qwen3_moe mixed": ModelConfig(
        family="qwen3_moe",
        **SHAPE,
        qk_norm=True,
        tied=True,
        options={
            "experts": 5,
            "top_k": 3,
            "expert_mlp": 12,
            "renormalises": False,
            "dense_layers": [1],
        },
    ),
    "gemma3": ModelConfig(
        family="gemma3", **(SHAPE | {"layers": 8}), rope_base=1e6, tied=True, options=GEMMA_OPTIONS
    ),
}


def random_params(config: ModelConfig, vocab: int) -> Any:
    """Large weights, norms around 1, biases that are not zero."""
    rng = np.random.default_rng(0)

    def draw(path: Any, x: jax.ShapeDtypeStruct) -> np.ndarray:
        if path[-1].key.endswith("norm"):
            return rng.uniform(0.5, 1.5, x.shape).astype(np.float32)
        # layers, and experts
        stacked = 2 if path[-1].key.startswith("expert_") else len(x.shape) > 2
        fan_in = 1 if path[-1].key == "embed" else x.shape[stacked]
        gain = 4.0 if path[-1].key == "unembed" else 1.5
        return (gain * fan_in**-0.5 * rng.standard_normal(x.shape)).astype(np.float32)

    shapes = Decoder(config, vocab).shapes()
    return jax.tree_util.tree_map_with_path(draw, shapes)


def ours(folder: Path, tokens: np.ndarray) -> np.ndarray:
    """The logits of a folder, read and run here."""
    config = hf_load.resolve_model(ModelConfig(path=str(folder)))
    decoder = Decoder(config)
    params = hf_load.load(folder, config, decoder, make_mesh(parse_mesh("auto", 1), jax.devices()))

    def run(params: Any, tokens: Any) -> Any:
        return decoder.logits(
            params, decoder.forward(params, tokens, jnp.zeros(len(tokens), jnp.int32))
        )

    return np.asarray(jax.jit(run)(params, tokens))


def theirs(folder: Path, tokens: np.ndarray) -> np.ndarray:
    """The logits of a folder, read and run by transformers; every weight must be found and used."""
    model, loading = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not any(
        loading[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")
    ), loading
    with torch.no_grad():
        return model.eval()(torch.tensor(tokens)).logits.numpy()


def compare(name: str, folder: Path) -> float:
    """One line of figures; the largest difference."""
    vocab = AutoConfig.from_pretrained(folder).vocab_size
    tokens = np.random.default_rng(1).integers(0, vocab, (3, 40))
    a, b = ours(folder, tokens), theirs(folder, tokens)
    figures = {"std": b.std(), "max": np.abs(a - b).max(), "rms": np.sqrt(np.mean((a - b) ** 2))}
    print(
        json.dumps({"model": name} | {k: float(f"{v:.3g}") for k, v in figures.items()}), flush=True
    )
    return figures["max"]


def main() -> None:
    """Every model, in both forms."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="a model's folder, instead of random models")
    parser.add_argument(
        "--stored", type=Path, help="a model's folder, to be compared as it is and nothing else"
    )
    args = parser.parse_args()
    if args.stored:
        sys.exit(
            f"beyond {MAX_DIFFERENCE}"
            if compare(args.stored.name, args.stored) > MAX_DIFFERENCE
            else 0
        )
    inputs = args.model
    forms: tuple[tuple[str, float], ...] = (
        ("float32", 5e9),
        ("bfloat16", 5e4 if inputs is None else 1e8),
    )
    with tempfile.TemporaryDirectory() as temp:
        for name in [inputs.name] if inputs else MODELS:
            config = (
                hf_load.resolve_model(ModelConfig(path=str(inputs))) if inputs else MODELS[name]
            )
            assert config.vocab
            if inputs:
                decoder = Decoder(config)
                params = hf_load.load(
                    inputs, config, decoder, make_mesh(parse_mesh("auto", 1), jax.devices())
                )
                compare(f"{name}, as it is", inputs)
            else:
                params = random_params(config, config.vocab)
            for dtype, size in forms:
                folder = Path(temp) / f"{name}-{dtype}".replace(" ", "-")
                source = inputs or Path(temp) / f"{name}-config"
                if inputs is None:
                    source.mkdir(exist_ok=True)
                    hf_export.write_json(
                        source / "config.json", hf_export.make_config_json(config, 512, "float32")
                    )
                safetensors_io.MAX_FILE_BYTES = int(size)
                hf_export.save(params, config, source, folder, dtype)
                compare(
                    f"{name}, {dtype}, {len(list(folder.glob('*.safetensors')))} file(s)", folder
                )


if __name__ == "__main__":
    main()
