"""A small policy, a small task, meshes, and the decoder once more in plain array code: what the
tests of device code share.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any, ClassVar, Literal

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from isojax.core.config import ModelConfig
from isojax.core.nouns import Problem
from isojax.core.shapes import SamplerShapes
from isojax.distributed.mesh_spec import parse_mesh
from isojax.distributed.sharding import make_mesh
from isojax.models.transformer import Decoder, Params
from isojax.sampling.batch import ProblemArrays
from isojax.tasks.protocol import EncodedProblems, StopConditions
from tests.compiler import QUICK, SAME_BITS

CONFIG = ModelConfig(family="tiny", layers=2, width=32, heads=4, kv_heads=2, head_dim=8, mlp=48)
VOCAB, PAD, EOS = 24, 0, 3
P, T = 6, 3  # prompt and response positions
MESHES = ("data=4,tensor=2", "data=2,fsdp=2,tensor=2")
DECODER = Decoder(CONFIG, VOCAB)

# jax.jit with the least work, and where the bits of two programs are compared (tests/compiler.py)
quick_jit = partial(jax.jit, compiler_options=QUICK)
same_bits_jit = partial(jax.jit, compiler_options=SAME_BITS)


def compile_with(options: dict[str, int | bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """What `jax.jit` is given from now on is compiled so, whoever calls it; what is inlined is part
    of another program.
    """
    jit = jax.jit

    def compiled_so(*args: Any, **others: Any) -> Any:
        return jit(
            *args, **others if others.get("inline") else others | {"compiler_options": options}
        )

    monkeypatch.setattr(jax, "jit", compiled_so)


def mesh(text: str = "auto") -> Mesh:
    return make_mesh(parse_mesh(text, 8), jax.devices())


@cache
def policy(seed: int = 0) -> Params:
    """Host arrays; no scale of a norm is one, and the next-token distributions are uneven."""
    rng = np.random.default_rng(seed)

    def draw(path: Any, x: jax.ShapeDtypeStruct) -> np.ndarray:
        name = jax.tree_util.keystr(path)
        if "norm" in name:
            return rng.uniform(0.6, 1.4, x.shape).astype(np.float32)
        return rng.normal(
            0, 0.3 if "unembed" in name else 0.5 if "embed" in name else 0.17, x.shape
        ).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, DECODER.shapes())


def placed(params: Params, on: Mesh) -> Params:
    return jax.device_put(params, DECODER.shardings(on))


def shapes_of(arrays: Any) -> Any:
    """The ShapeDtypeStruct of each array of a tree, where it is."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), arrays
    )


def random_problems(count: int, seed: int = 0) -> ProblemArrays:
    """Prompts of 1..P random tokens, ids that are not their places."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, P + 1, count).astype(np.int32)
    prompts = rng.integers(4, VOCAB, (count, P)).astype(np.int32)
    prompts[np.arange(P)[None] >= lengths[:, None]] = PAD
    ids = rng.permutation(1000)[:count].astype(np.int32)
    return ProblemArrays(prompts, lengths, np.zeros((count, T), np.int32), ids)


def logits(xp: Any, params: Params, tokens: Any) -> Any:
    """The decoder in plain code, on whole sequences: tokens i[b t] -> logits [b t V]. `xp` is numpy
    or jax.numpy."""
    blocks, positions = params["blocks"], np.arange(tokens.shape[1])
    half = CONFIG.head_dim // 2
    angle = positions[:, None] * 10_000.0 ** (-np.arange(half) / half)[None]
    cos, sin = (f(angle)[None, :, None].astype(np.float32) for f in (np.cos, np.sin))

    def norm(x: Any, scale: Any) -> Any:
        return x / xp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale[None, None]

    def rotate(x: Any) -> Any:
        a, b = x[..., :half], x[..., half:]
        return xp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)

    x = xp.asarray(params["embed"])[tokens]
    for i in range(CONFIG.layers):
        w = {k: v[i] for k, v in blocks.items()}
        h = norm(x, w["attention_norm"])
        q = rotate(xp.einsum("btd,dnh->btnh", h, w["query"]))
        k = rotate(xp.einsum("btd,dnh->btnh", h, w["key"]))
        v = xp.einsum("btd,dnh->btnh", h, w["value"])
        k, v = (xp.repeat(y, CONFIG.heads // CONFIG.kv_heads, axis=2) for y in (k, v))
        s = xp.einsum("bqnh,bknh->bnqk", q, k) / CONFIG.head_dim**0.5
        s = xp.where((positions[None] <= positions[:, None])[None, None], s, -xp.inf)
        e = xp.exp(s - s.max(-1, keepdims=True))
        x = x + xp.einsum("bnqk,bknh,nhd->bqd", e / e.sum(-1, keepdims=True), v, w["out"])
        h = norm(x, w["mlp_norm"])
        gate = h @ w["gate"]
        x = x + (gate / (1 + xp.exp(-gate)) * (h @ w["up"])) @ w["down"]
    return norm(x, params["norm"]) @ params["unembed"]


def response_logits(
    xp: Any, params: Params, problems: ProblemArrays, group: np.ndarray, tokens: Any
) -> Any:
    """Logits [b T V] at the response positions of rows that answer problem `group` with `tokens` [b
    T]: one whole sequence a row.
    """
    rows, width = tokens.shape
    prompts = xp.pad(problems.prompts[group], ((0, 0), (0, width)))
    lengths = problems.lengths[group][:, None]
    after = np.arange(P + width)[None] - lengths
    sequence = xp.where(after < 0, prompts, xp.take_along_axis(tokens, after.clip(0, width - 1), 1))
    at = lengths + np.arange(width)[None]
    return logits(xp, params, sequence)[np.arange(rows)[:, None], at - 1]


def log_softmax(xp: Any, x: Any) -> Any:
    x = x - x.max(-1, keepdims=True)
    return x - xp.log(xp.exp(x).sum(-1, keepdims=True))


def gather(sampler_shapes: SamplerShapes, B: int, buffer: Any) -> np.ndarray:
    """The B rollouts of a buffer [S rows ...], in their order: each shard owns the next ceil(B /
    S)."""
    block = -(-B // sampler_shapes.shards)
    return np.stack([np.asarray(buffer)[r // block, r % block] for r in range(B)])


def scatter(sampler_shapes: SamplerShapes, flat: np.ndarray, fill: Any = 0) -> np.ndarray:
    """The inverse of `gather`; padding rows hold `fill`."""
    block = -(-len(flat) // sampler_shapes.shards)
    buffer = np.full(
        (sampler_shapes.shards, sampler_shapes.buffer_rows, *flat.shape[1:]), fill, flat.dtype
    )
    for r, x in enumerate(flat):
        buffer[r // block, r % block] = x
    return buffer


class Parity:
    """A task whose rewards are easy to know: a response is right where its first token is even."""

    on_device: ClassVar[Literal[True]] = True
    vocab, eos, pad, stops = VOCAB, EOS, PAD, StopConditions((EOS,), None)

    def problems(self, count: int, rng: np.random.Generator) -> list[Problem]:
        return [Problem(i, f"{i:03d}", "even") for i in range(count)]

    def encode(
        self, problems: list[Problem], prompt_length: int, response_length: int
    ) -> EncodedProblems:
        drawn = random_problems(max(p.id for p in problems) + 1, seed=9)
        at = [p.id for p in problems]
        return EncodedProblems(
            drawn.prompts[at], drawn.lengths[at], drawn.answers[at], np.array(at, np.int32)
        )

    def decode(self, tokens: np.ndarray) -> str:
        return "even" if tokens[0] % 2 == 0 else "odd"

    def demonstrations(
        self, count: int, rng: np.random.Generator, prompt_length: int, response_length: int
    ) -> EncodedProblems:
        return self.encode(self.problems(count, rng), prompt_length, response_length)

    def verify(self, answers: Any, tokens: Any, mask: Any) -> Any:
        return (mask[..., 0] & (tokens[..., 0] % 2 == 0)).astype(np.float32)
