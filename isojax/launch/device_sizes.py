"""The sizes that decide how much memory a device takes and how much work it does, each a device's own part. No jax
here.

Letters are those of distributed/sharding.py; `prefix` stands for the positions of a prompt, P, `p` for those of a
block's prompts, g P, and `t` for those of a microbatch that layers run over, m (T - 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from isojax.core.config import CellConfig
from isojax.core.shapes import SamplerShapes

FLOAT_BYTES = 4


class MeshSizes(Protocol):
    """Sizes of a mesh's axes."""

    @property
    def data(self) -> int: ...

    @property
    def fsdp(self) -> int: ...

    @property
    def sequence(self) -> int: ...

    @property
    def tensor(self) -> int: ...


def shard_size(size: int, axis_shards: int) -> int:
    """A device's part of an axis; one that the mesh does not divide stays whole (distributed/sharding.py)."""
    return size // axis_shards if size % axis_shards == 0 else size


@dataclass(frozen=True)
class DeviceSizes:
    """All that decides a device's memory. `vocab`: rows of the embedding; `on_device`: where responses are judged."""

    cell: CellConfig
    remat: bool
    geometry: SamplerShapes
    mesh: MeshSizes
    vocab: int
    on_device: bool
    backend: str

    @cached_property
    def compute_itemsize(self) -> int:
        """Bytes of a number that products are computed in."""
        return 4 if self.cell.precision.for_platform(self.backend).compute == "float32" else 2

    @cached_property
    def cache_itemsize(self) -> int:
        """Bytes of a number in the sampler's cache."""
        return {"float32": 4, "bfloat16": 2, "int8": 1}[self.cell.precision.for_platform(self.backend).cache]

    @property
    def unrolled_layers(self) -> bool:
        """Whether the sampler has each layer's weights and cache apart."""
        return self.backend == "cpu" and self.cache_itemsize != 1

    @property
    def L(self) -> int:
        return self.cell.model.layers

    @property
    def D(self) -> int:
        return self.cell.model.width

    @property
    def F(self) -> int:
        return shard_size(self.cell.model.mlp, self.mesh.tensor)

    @property
    def V(self) -> int:
        return shard_size(self.vocab, self.mesh.tensor)

    @property
    def N(self) -> int:
        return shard_size(self.cell.model.heads, self.mesh.tensor)

    @property
    def K(self) -> int:
        return shard_size(self.cell.model.kv_heads, self.mesh.tensor)

    @property
    def attention_heads(self) -> int:
        """Heads that attention is computed of: XLA splits queries over the heads of keys, or over those of one key;
        else every device has all of them."""
        K = self.cell.model.kv_heads
        return self.N if K == 1 or K % self.mesh.tensor == 0 else self.cell.model.heads

    @property
    def H(self) -> int:
        return self.cell.model.head_dim

    @property
    def prompt_positions(self) -> int:
        """Positions of a prompt, filled up until sequence divides them."""
        return -(-self.geometry.prompt_length // self.mesh.sequence)

    @property
    def separate_prompt_cache(self) -> bool:
        """Whether the sampler's prompts lie apart from responses (models/decode.py)."""
        return self.geometry.slots_per_prefix > 1 or self.mesh.sequence > 1

    @property
    def prefill_tokens(self) -> int:
        """Positions of a block of prompts."""
        return self.geometry.prefill_batch * self.prompt_positions

    @property
    def microbatch_tokens(self) -> int:
        """Positions of a microbatch that layers run over: all of its responses' but the last."""
        return self.geometry.microbatch * max(1, self.geometry.response_length - 1)

    @property
    def key_positions(self) -> int:
        """Positions that a response's last one attends to."""
        return self.prompt_positions + self.geometry.response_length - 1

    @property
    def attention_params(self) -> int:
        """Numbers of a layer's attention, whose heads are apart in storage and joined in products."""
        return 2 * self.D * (self.N + self.K) * self.H

    @property
    def layer_params(self) -> int:
        """Numbers of a layer."""
        biases = (self.N + 2 * self.K) * self.H if self.cell.model.qkv_bias else 0
        return (
            self.attention_params
            + 3 * self.D * self.F
            + 2 * self.D
            + biases
            + (2 * self.H if self.cell.model.qk_norm else 0)
        )

    @property
    def embedding_params(self) -> int:
        """Numbers of the embedding; an unembedding has as many."""
        return self.V * self.D

    @property
    def num_embeddings(self) -> int:
        """How many of them there are."""
        return 1 if self.cell.model.tied else 2

    @property
    def num_params(self) -> int:
        """Parameters on a device that is not split over fsdp."""
        return self.L * self.layer_params + self.num_embeddings * self.embedding_params + self.D

    @property
    def fsdp_shards(self) -> int:
        """Into how many parts fsdp splits parameters, and their gradients with them."""
        return self.mesh.fsdp if self.D % self.mesh.fsdp == 0 else 1

    @property
    def param_bytes(self) -> int:
        """Bytes of the float32 parameters as they lie."""
        return FLOAT_BYTES * self.num_params // self.fsdp_shards

    @property
    def critic_bytes(self) -> int:
        """Bytes of the critic's float32 parameters."""
        if self.cell.rl.critic is None:
            return 0
        return self.param_bytes - (self.num_embeddings - 1) * FLOAT_BYTES * self.embedding_params // self.fsdp_shards

    @property
    def reference_bytes(self) -> int:
        """Bytes of the policy that the KL is measured against."""
        return self.param_bytes if self.cell.rl.kl > 0 or self.cell.rl.measure_kl else 0

    @property
    def rollout_bytes(self) -> int:
        """Bytes of a shard's rollouts: tokens, log-probabilities, mask, nuclei, ends and lengths."""
        T = self.geometry.response_length
        return self.geometry.buffer_rows * (9 * T + FLOAT_BYTES * (T if self.cell.sampling.top_p < 1 else 1) + 5)
