"""The sizes that decide how much memory a device takes and how much work it does, each a device's own part. No jax here.

Letters are those of sharding.py; `prefix` stands for the positions of a prompt, P, `p` for those of a block's prompts, g P, and `t`
for those of a microbatch that layers run over, m (T - 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from isojax.config import CellConfig
from isojax.geometry import Geometry

FLOAT = 4


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


def part(size: int, ways: int) -> int:
    """A device's part of an axis; one that the mesh does not divide stays whole (sharding.py)."""
    return size // ways if size % ways == 0 else size


@dataclass(frozen=True)
class Sizes:
    """All that decides a device's memory. `vocab`: rows of the embedding; `on_device`: where responses are judged."""

    cell: CellConfig
    remat: bool
    geometry: Geometry
    mesh: MeshSizes
    vocab: int
    on_device: bool
    backend: str

    @cached_property
    def compute(self) -> int:
        """Bytes of a number that products are computed in."""
        return 4 if self.cell.precision.on(self.backend).compute == "float32" else 2

    @cached_property
    def cache(self) -> int:
        """Bytes of a number in the sampler's cache."""
        return {"float32": 4, "bfloat16": 2, "int8": 1}[self.cell.precision.on(self.backend).cache]

    @property
    def unrolled(self) -> bool:
        """Whether the sampler has each layer's weights and cache apart."""
        return self.backend == "cpu" and self.cache != 1

    @property
    def L(self) -> int:
        return self.cell.model.layers

    @property
    def D(self) -> int:
        return self.cell.model.width

    @property
    def F(self) -> int:
        return part(self.cell.model.mlp, self.mesh.tensor)

    @property
    def V(self) -> int:
        return part(self.vocab, self.mesh.tensor)

    @property
    def N(self) -> int:
        return part(self.cell.model.heads, self.mesh.tensor)

    @property
    def K(self) -> int:
        return part(self.cell.model.kv_heads, self.mesh.tensor)

    @property
    def attending(self) -> int:
        """Heads that attention is computed of: XLA splits queries over the heads of keys, or over those of one key; else every device has
        all of them."""
        K = self.cell.model.kv_heads
        return self.N if K == 1 or K % self.mesh.tensor == 0 else self.cell.model.heads

    @property
    def H(self) -> int:
        return self.cell.model.head_dim

    @property
    def prefix(self) -> int:
        """Positions of a prompt, filled up until sequence divides them."""
        return -(-self.geometry.prompt_length // self.mesh.sequence)

    @property
    def apart(self) -> bool:
        """Whether the sampler's prompts lie apart from responses (models/decoding.py)."""
        return self.geometry.width > 1 or self.mesh.sequence > 1

    @property
    def p(self) -> int:
        """Positions of a block of prompts."""
        return self.geometry.prompts * self.prefix

    @property
    def t(self) -> int:
        """Positions of a microbatch that layers run over: all of its responses' but the last."""
        return self.geometry.microbatch * max(1, self.geometry.response_length - 1)

    @property
    def keys(self) -> int:
        """Positions that a response's last one attends to."""
        return self.prefix + self.geometry.response_length - 1

    @property
    def matrices(self) -> int:
        """Numbers of a layer's attention, whose heads are apart in storage and joined in products."""
        return 2 * self.D * (self.N + self.K) * self.H

    @property
    def layer(self) -> int:
        """Numbers of a layer."""
        biases = (self.N + 2 * self.K) * self.H if self.cell.model.qkv_bias else 0
        return self.matrices + 3 * self.D * self.F + 2 * self.D + biases + (2 * self.H if self.cell.model.qk_norm else 0)

    @property
    def table(self) -> int:
        """Numbers of the embedding; an unembedding has as many."""
        return self.V * self.D

    @property
    def tables(self) -> int:
        """How many of them there are."""
        return 1 if self.cell.model.tied else 2

    @property
    def numbers(self) -> int:
        """Parameters on a device that is not split over fsdp."""
        return self.L * self.layer + self.tables * self.table + self.D

    @property
    def ways(self) -> int:
        """Into how many parts fsdp splits parameters, and their gradients with them."""
        return self.mesh.fsdp if self.D % self.mesh.fsdp == 0 else 1

    @property
    def stored(self) -> int:
        """Bytes of the float32 parameters as they lie."""
        return FLOAT * self.numbers // self.ways

    @property
    def critic(self) -> int:
        """Bytes of the critic's float32 parameters."""
        if self.cell.rl.critic is None:
            return 0
        return self.stored - (self.tables - 1) * FLOAT * self.table // self.ways

    @property
    def reference(self) -> int:
        """Bytes of the policy that the KL is measured against."""
        return self.stored if self.cell.rl.kl > 0 or self.cell.rl.measure_kl else 0

    @property
    def rollouts(self) -> int:
        """Bytes of a shard's rollouts: tokens, log-probabilities, mask, nuclei, ends and lengths."""
        T = self.geometry.response_length
        return self.geometry.rows * (9 * T + FLOAT * (T if self.cell.sampling.top_p < 1 else 1) + 5)
