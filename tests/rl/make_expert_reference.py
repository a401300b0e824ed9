"""Writes expert_reference.npz: the load-balancing loss of transformers, and its gradient, of a
small random Qwen3-MoE on ragged sequences. Run by hand, where torch is; tests read the file.

    python tests/rl/make_expert_reference.py    # needs torch, transformers 5, numpy

Five problems have three responses each. A sequence is a prompt and a response without its last
token, which no layer reads; sequences are padded on the right.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

OUT = Path(__file__).parent / "expert_reference.npz"
PROBLEMS, N, P, T, VOCAB = 5, 3, 6, 5, 24
CONFIG = Qwen3MoeConfig(
    vocab_size=VOCAB,
    hidden_size=16,
    intermediate_size=24,
    moe_intermediate_size=12,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    num_experts=6,
    num_experts_per_tok=2,
    norm_topk_prob=True,
    decoder_sparse_step=1,
    mlp_only_layers=[1],
    output_router_logits=True,
    router_aux_loss_coef=1.0,
    pad_token_id=0,
)


def make_model() -> Any:
    """Weights large enough that experts are chosen unevenly."""
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(CONFIG).float()
    with torch.no_grad():
        for name, w in model.named_parameters():
            if "norm" in name:
                w.uniform_(0.5, 1.5)
            else:
                w.normal_(
                    0,
                    2.0 * w.shape[-1] ** -0.5 if "mlp.gate." in name else 1.2 * w.shape[-1] ** -0.5,
                )
    return model


def split_experts(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """With one matrix per expert, as checkpoints have them."""
    split: dict[str, np.ndarray] = {}
    for name, w in tensors.items():
        layer, _, part = name.rpartition(".experts.")
        if not layer:
            split[name] = w
            continue
        for i, of_expert in enumerate(w):
            if part == "down_proj":
                split[f"{layer}.experts.{i}.down_proj.weight"] = of_expert
            else:
                gate, up = np.split(of_expert, 2)
                split[f"{layer}.experts.{i}.gate_proj.weight"] = gate
                split[f"{layer}.experts.{i}.up_proj.weight"] = up
    return split


def main() -> None:
    model, rng = make_model(), np.random.default_rng(1)
    prompt_lengths = rng.integers(1, P + 1, PROBLEMS).astype(np.int32)
    lengths = rng.integers(1, T + 1, PROBLEMS * N).astype(np.int32)
    prompts = rng.integers(4, VOCAB, (PROBLEMS, P)).astype(np.int32)
    tokens = rng.integers(4, VOCAB, (PROBLEMS * N, T)).astype(np.int32)

    sequences = np.zeros((PROBLEMS * N, P + T), np.int64)
    mask = np.zeros_like(sequences)
    for row, length in enumerate(lengths):
        problem = row // N
        prompt = prompts[problem, : prompt_lengths[problem]]
        sequence = np.concatenate([prompt, tokens[row, : length - 1]])
        sequences[row, : len(sequence)], mask[row, : len(sequence)] = sequence, 1

    loss = model(input_ids=torch.tensor(sequences), attention_mask=torch.tensor(mask)).aux_loss
    loss.backward()
    weights = {name: w.detach().numpy() for name, w in model.named_parameters()}
    gradients = {name: w.grad.numpy() for name, w in model.named_parameters() if w.grad is not None}
    arrays = {f"weights/{name}": w for name, w in split_experts(weights).items()}
    arrays |= {f"gradients/{name}": d for name, d in split_experts(gradients).items()}
    batch = {
        "prompts": prompts,
        "prompt_lengths": prompt_lengths,
        "tokens": tokens,
        "lengths": lengths,
    }
    np.savez_compressed(OUT, loss=loss.item(), **batch, **arrays)
    print(f"{loss.item():.4f}, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
