"""What a family describes: embedding, the kind of each layer, a layer of each kind, the last norm
and the head."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flax import nnx

from isojax.core.config import ModelConfig
from isojax.models.layers.attention_layer import Attention
from isojax.models.layers.block import Block, pre_norm_block
from isojax.models.layers.embedding import Embedding
from isojax.models.layers.gated_mlp import GatedMLP
from isojax.models.layers.linear import Linear
from isojax.models.layers.norm import Norm, RMSNorm
from isojax.models.layers.rope import Rope
from isojax.models.spec import Spec, spec_of

# Names in a published checkpoint. A layer's tensors have its number, and the layer's own names
# after it.
EMBEDDING, FINAL_NORM, HEAD = "model.embed_tokens", "model.norm", "lm_head"
EMBEDDING_WEIGHT, HEAD_WEIGHT = f"{EMBEDDING}.weight", f"{HEAD}.weight"
LAYER_PREFIX = "model.layers.{layer}."

# What layers that are alike in all but their weights share, such as "sliding": any hashable.
Kind = Any


@dataclass(frozen=True)
class Architecture:
    """What a family makes of a config: the parts of a described policy."""

    embedding: Embedding
    kinds: Sequence[Kind]  # of each layer
    block: Callable[[Kind], Block]  # describes a layer of a kind
    norm: Norm
    head: Linear | None  # None: the embedding makes the logits too
    # Parts of tensors' names here -> what the family's checkpoints have in their place.
    renamed: Mapping[str, str] = field(default_factory=dict)
    # A layer's tensor in the family's checkpoints -> the layer's own tensors that it holds, one
    # after the other.
    fused: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def unembedding(self) -> Spec:
        """The parameter that makes the logits."""
        return spec_of(self.embedding.table) if self.head is None else self.head.spec


Describe = Callable[[ModelConfig, int], Architecture]  # of a config and a vocabulary


def make_architecture(
    config: ModelConfig,
    vocab: int,
    kinds: Sequence[Kind],
    block: Callable[[Kind], Block],
    *,
    norm: Norm | None = None,
    embedding_scale: float = 1.0,
    renamed: Mapping[str, str] | None = None,
    fused: Mapping[str, Sequence[str]] | None = None,
) -> Architecture:
    """Return an Architecture whose parts outside of layers are as most families have them.

    `config`: its width, norm_eps and `tied` are read. `vocab`: tokens of the embedding. `kinds`:
    the kind of each layer, such as ["sliding", "full"]. `block`: from a kind to a described layer.
    `norm`: the last one; None: an RMSNorm. `embedding_scale`: of the embedding's rows. `renamed`,
    `fused`: as in `Architecture`, such as {"mlp.gate_proj": "block_sparse_moe.w1"} and
    {"mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj")}."""
    embed = {"embed": config.width}
    head = None
    if not config.tied:
        # never a target of LoRA, and not held as int8
        head = Linear("unembed", embed, {"vocab": vocab}, HEAD, adapts=False, quantises=False)
    return Architecture(
        embedding=Embedding(vocab, config.width, EMBEDDING, embedding_scale),
        kinds=tuple(kinds),
        block=block,
        norm=norm or RMSNorm("norm", embed, FINAL_NORM, config.norm_eps),
        head=head,
        renamed=renamed or {},
        fused=fused or {},
    )


def llama_architecture(config: ModelConfig, vocab: int) -> Architecture:
    """Describe Llama's layers, with Qwen2's biases and Qwen3's norms where the config has them.

    `config.qkv_bias`: whether queries, keys and values have a bias; `config.qk_norm`: whether each
    head's queries and keys are normalised. All layers are of one kind, "full"."""
    rope = Rope(config.head_dim, config.rope_base, config.rope_scaling)
    head, eps = {"head_dim": config.head_dim}, config.norm_eps

    # The third argument of a norm is its name in a layer of a checkpoint, without ".weight".
    def block(kind: Kind) -> Block:
        query_norm = key_norm = None
        if config.qk_norm:
            query_norm = RMSNorm("query_norm", head, "self_attn.q_norm", eps)
            key_norm = RMSNorm("key_norm", head, "self_attn.k_norm", eps)
        attention = Attention(
            config, rope, bias=config.qkv_bias, query_norm=query_norm, key_norm=key_norm
        )
        return pre_norm_block(config, attention, GatedMLP(config))

    return make_architecture(config, vocab, ["full"] * config.layers, block)


def find_ropes(module: Any) -> list[Rope]:
    """The rotary tables that a described layer rotates by, each once."""
    ropes: list[Rope] = []
    for value in vars(module).values():
        if isinstance(value, Rope):
            ropes.append(value)
        elif isinstance(value, nnx.Module):
            ropes += find_ropes(value)
    return list(dict.fromkeys(ropes))
