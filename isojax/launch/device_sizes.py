"""The sizes that decide how much memory a device takes and how much work it does: each is one device's own part.

Letters are those of distributed/sharding.py.
"""

from __future__ import annotations

from isojax.core.config import CellConfig
from isojax.core.shapes import SamplerShapes
from isojax.distributed.mesh_spec import MeshShape

FLOAT_BYTES = 4
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}


def shard_size(size: int, axis_shards: int) -> int:
    """A device's part of an axis; one that the mesh does not divide stays whole (distributed/sharding.py)."""
    return size // axis_shards if size % axis_shards == 0 else size


class DeviceSizes:
    """Sizes of one device's part of a sweep; `vocab` are the rows of the embedding."""

    def __init__(self, cell: CellConfig, remat: bool, shapes: SamplerShapes, mesh: MeshShape, vocab: int, backend: str):
        model, precision = cell.model, cell.precision.for_platform(backend)
        self.cell, self.remat, self.shapes, self.mesh, self.vocab = cell, remat, shapes, mesh, vocab
        self.L, self.D, self.H = model.layers, model.width, model.head_dim
        self.F, self.V = shard_size(model.mlp, mesh.tensor), shard_size(vocab, mesh.tensor)
        self.N, self.K = shard_size(model.heads, mesh.tensor), shard_size(model.kv_heads, mesh.tensor)
        # Heads that attention is computed of: XLA splits queries over the heads of keys, or over those of one key;
        # otherwise every device has all of them.
        splits_queries = model.kv_heads == 1 or model.kv_heads % mesh.tensor == 0
        self.attention_heads = self.N if splits_queries else model.heads

        self.compute_bytes = 4 if precision.compute == "float32" else 2  # of a number that products are computed in
        self.cache_bytes = ITEM_BYTES[precision.cache]  # of a number in the sampler's cache
        self.unrolled_layers = backend == "cpu" and precision.cache != "int8"  # of the sampler's weights and cache

        # Positions of a prompt, padded until sequence divides them; of a block of prompts; of a microbatch, whose last
        # positions go through no layer; and those that a response's last one attends to.
        self.prompt_positions = -(-shapes.prompt_length // mesh.sequence)
        self.prefill_tokens = shapes.prefill_batch * self.prompt_positions
        self.microbatch_tokens = shapes.microbatch * max(1, shapes.response_length - 1)
        self.key_positions = self.prompt_positions + shapes.response_length - 1
        # Whether the sampler keeps prompts and responses in different arrays (models/decode.py).
        self.separate_prompt_cache = shapes.slots_per_prefix > 1 or mesh.sequence > 1

        biases = (self.N + 2 * self.K) * self.H if model.qkv_bias else 0
        norms = 2 * self.D + (2 * self.H if model.qk_norm else 0)
        attention_params = 2 * self.D * (self.N + self.K) * self.H
        self.layer_params = attention_params + 3 * self.D * self.F + norms + biases
        self.embedding_params = self.V * self.D  # an unembedding has as many
        self.num_embeddings = 1 if model.tied else 2
        self.num_params = self.L * self.layer_params + self.num_embeddings * self.embedding_params + self.D
        self.fsdp_shards = mesh.fsdp if self.D % mesh.fsdp == 0 else 1  # of parameters and their gradients

        self.param_bytes = FLOAT_BYTES * self.num_params // self.fsdp_shards
        # The critic has no unembedding.
        unembedding_bytes = (self.num_embeddings - 1) * FLOAT_BYTES * self.embedding_params // self.fsdp_shards
        self.critic_bytes = 0 if cell.rl.critic is None else self.param_bytes - unembedding_bytes
        self.has_reference = cell.rl.kl > 0 or cell.rl.measure_kl
        self.reference_bytes = self.param_bytes if self.has_reference else 0
        self.has_nucleus = cell.sampling.top_p < 1

    @property
    def rollout_bytes(self) -> int:
        """Bytes of a shard's rollouts: tokens, log-probabilities, mask, nuclei, ends and lengths."""
        T = self.shapes.response_length
        return self.shapes.buffer_rows * (9 * T + FLOAT_BYTES * (T if self.has_nucleus else 1) + 5)
