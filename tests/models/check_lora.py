"""Are LoRA's logits PEFT's, and do exported adapters load there? Run by hand, where torch, PEFT and
isojax's needs are.

    python tests/models/check_lora.py                             # small models of every family
    python tests/models/check_lora.py --model models/smollm2-135m

Each model is given random adapters, written as isojax exports them, and run by PEFT on the same
tokens in float32: the folder of adapters on the base model, and the merged folder in transformers
alone. One JSON line each: the logits' standard deviation, what the adapters change of them, and the
largest difference. The exit code is 1 beyond 3e-4.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from peft import PeftModel  # pyright: ignore[reportMissingImports]
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import jax.numpy as jnp
from check_export import MODELS, random_params, theirs

from isojax.core.config import ModelConfig
from isojax.core.config.model import LoraConfig
from isojax.distributed.mesh_spec import MeshShape
from isojax.distributed.sharding import make_mesh
from isojax.models.hf import hf_export, hf_load
from isojax.models.lora import merge_adapters, policy_params, split_adapters
from isojax.models.transformer import Decoder

MAX_DIFFERENCE = 3e-4
LORA = LoraConfig(rank=8, alpha=24.0)


def with_peft(base: Path, adapter: Path, tokens: np.ndarray) -> np.ndarray:
    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter
    )
    used = [name for name, _ in model.named_parameters() if "lora_" in name]
    # in every stack of layers
    assert len(used) == 2 * 7 * model.config.num_hidden_layers, len(used)
    with torch.no_grad():
        return model.eval()(torch.tensor(tokens)).logits.numpy()


def check(name: str, config: ModelConfig, base_params: Any, source: Path, temp: Path) -> float:
    """One line of figures; the larger difference."""
    config = config.model_copy(update={"lora": LORA})
    decoder = Decoder(config)
    rng, (adapters, _) = np.random.default_rng(7), split_adapters(decoder.shapes())
    adapters = jax.tree.map(
        lambda x: rng.normal(0, 0.1 * x.shape[1] ** -0.5, x.shape).astype(np.float32), adapters
    )
    params = policy_params(adapters, base_params)
    base_folder, adapter_folder, merged_folder = (
        temp / f"{name}-{part}" for part in ("base", "adapter", "merged")
    )
    hf_export.save(base_params, decoder.base.config, source, base_folder)
    hf_export.save_adapter(adapters, config, str(base_folder), adapter_folder)
    hf_export.save(merge_adapters(params, config.lora), decoder.base.config, source, merged_folder)

    tokens = np.random.default_rng(1).integers(0, config.vocab or 1, (3, 40))
    first = jnp.zeros(len(tokens), jnp.int32)
    ours = np.asarray(
        jax.jit(lambda p: decoder.logits(p, decoder.forward(p, tokens, first)))(params)
    )
    figures = {
        "std": ours.std(),
        "changed": np.abs(ours - theirs(base_folder, tokens)).max(),
        "peft": np.abs(ours - with_peft(base_folder, adapter_folder, tokens)).max(),
        "merged": np.abs(ours - theirs(merged_folder, tokens)).max(),
    }
    print(
        json.dumps({"model": name} | {k: float(f"{v:.3g}") for k, v in figures.items()}), flush=True
    )
    return max(figures["peft"], figures["merged"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="a model's folder, instead of random models")
    folder = parser.parse_args().model
    differences = []
    with tempfile.TemporaryDirectory() as temp_name:
        temp = Path(temp_name)
        if folder:
            config = hf_load.resolve_model(ModelConfig(path=str(folder)))
            decoder = Decoder(config)
            params = hf_load.load(folder, config, decoder, make_mesh(MeshShape(), jax.devices()))
            differences.append(check(folder.name, config, params, folder, temp))
        for name, config in {} if folder else MODELS.items():
            source = temp / f"{name}-config"
            source.mkdir()
            hf_export.write_json(
                source / "config.json", hf_export.make_config_json(config, 512, "float32")
            )
            differences.append(
                check(name, config, random_params(config, config.vocab), source, temp)
            )
    sys.exit(f"beyond {MAX_DIFFERENCE}" if max(differences) > MAX_DIFFERENCE else 0)


if __name__ == "__main__":
    main()
