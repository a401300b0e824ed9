"""Rollouts of long-tailed lengths: slots that are refilled, against the refill's ideal and a run to
the longest. One JSON line for each n.

    python benchmarks/refill.py [--n 16] [--rollouts 512] [--slots 32] [--prompt 64] [--cap 1024]
    [--layers 2] [--vocab 4096] [--repeats 3]

Lengths are lognormal (mean 240, sigma .8), cut at the cap: at each response position the end token
has the probability with which a length that has come so far ends there, and the policy shares out
the rest; the sampler knows nothing of it. The decoder has SmolLM2-135M's shape with fewer layers
and a smaller vocabulary, and random weights; `--kv-heads 1` makes it a third as wide, `--model
FOLDER` takes a whole one.

In units of the ideal, `tokens / R` steps of a decoder whose slots are all live, each at its time
measured in the same run:

    refill    the engine, all rollouts in one call
    longest   the same engine in batches of R rollouts, each until its longest has ended
    cap       as many batches, each of as many steps as the cap

`steps` says what each would take if steps alone took time; `at_once` is a queue whose slots are
refilled at the very step at which they are free: what no sampler that does not know the lengths can
go below. Medians of interleaved repeats, each with lengths of its own; on one core the time is the
processor's.
"""

import argparse
import heapq
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy.special import log_ndtr

from isojax.core.config import ModelConfig, SamplingConfig
from isojax.core.shapes import SamplerShapes
from isojax.distributed.mesh_spec import parse_mesh
from isojax.distributed.sharding import make_mesh
from isojax.models.decode import Decoding, KVCache
from isojax.models.hf import hf_load
from isojax.models.transformer import Decoder, Params
from isojax.sampling import engine as engine_module
from isojax.sampling.batch import ProblemArrays, SamplingBatch
from isojax.sampling.engine import Engine, SamplerWeights, build_engine
from isojax.sampling.layout import Layout
from isojax.sampling.slots import SamplerState, Slots
from isojax.tasks.protocol import StopConditions

# lengths in tokens; the end token stands first, so that the uniform number alone decides on it
MEAN = 240.0
SIGMA = 0.8
END = 0
STEPS = 64  # of the timing of one


def log_odds(cap: int) -> np.ndarray:
    """Of an end at each response position, given that none came before; f32[cap]."""
    # of length t, from t-1 to t
    edges = (np.log(np.arange(1, cap + 1)) - np.log(MEAN) + SIGMA**2 / 2) / SIGMA
    above = np.append(0.0, log_ndtr(-edges))  # log P(length > t)
    # P(t) / P(length > t) = P(> t-1) / P(> t) - 1
    return (np.log(np.expm1(above[:-1] - above[1:]))).astype(np.float32)


class Ending(Decoder):
    """A decoder with the odds of the lengths, by response position."""

    def __init__(self, config: ModelConfig, vocab: int, cap: int):
        super().__init__(config, vocab)
        self.odds = log_odds(cap)


class Counting(Decoding):
    """A decoding whose end token has those odds. The last number of a hidden state is the response
    position."""

    def prefill(self, params: Params, prompts: Any, lengths: Any) -> tuple[Any, Any]:
        entries, last = super().prefill(params, prompts, lengths)
        return entries, last.at[:, -1].set(0)

    def step(
        self, weights: Params, cache: KVCache, tokens: Any, positions: Any, t: Any
    ) -> tuple[Any, KVCache]:
        hidden, cache = super().step(weights, cache, tokens, positions, t)
        return hidden.at[:, -1].set(t + 1), cache

    def logits(self, weights: Params, hidden: Any) -> Any:
        assert isinstance(self.decoder, Ending)
        logits = super().logits(weights, hidden.at[:, -1].set(0))
        others = jax.nn.logsumexp(logits.at[:, END].set(-jnp.inf), -1)
        odds = jnp.asarray(self.decoder.odds)[hidden[:, -1].astype(jnp.int32)]
        return logits.at[:, END].set(others + odds)


def build(
    decoder: Decoder,
    rollouts: int,
    n: int,
    args: argparse.Namespace,
    stops: tuple[int, ...] = (END,),
) -> Engine:
    """The sampler's engine for one device and so many rollouts a call."""
    sampler_shapes = SamplerShapes([(rollouts // n, n)], 1, args.slots, 1, args.prompt, args.cap)
    sampling = SamplingConfig(prompt_length=args.prompt, response_length=args.cap)
    engine = build_engine(
        decoder,
        sampler_shapes,
        make_mesh(parse_mesh("auto", 1), jax.devices()),
        sampling,
        StopConditions(stops, None),
    )
    return replace(engine, decoding=Counting(**vars(engine.decoding)))


def batch(engine: Engine, n: int, key: Any, first: int = 0) -> SamplingBatch:
    """The engine's fill of problems `first` .., with prompts that are their numbers over and
    over."""
    sampler_shapes = engine.shapes
    ids = jnp.arange(sampler_shapes.problem_rows, dtype=jnp.int32) + first
    prompts = jnp.broadcast_to(ids[:, None] + 1, (len(ids), sampler_shapes.prompt_length))
    problems = ProblemArrays(
        prompts,
        jnp.full(len(ids), sampler_shapes.prompt_length),
        jnp.zeros((len(ids), 0), jnp.int32),
        ids,
    )
    return SamplingBatch(
        problems,
        Layout(jnp.int32(sampler_shapes.Q_cap), jnp.int32(n), shards=1).shard_slice(jnp.int32(0)),
        jnp.int32(n),
        key,
    )


def run(engine: Engine, params: Params, n: int) -> Callable[..., tuple[Any, Any]]:
    """`sample(params, key, first) -> (lengths, refills from the queue)`, compiled."""

    def sample(params: Params, key: Any, first: Any) -> tuple[Any, Any]:
        inputs = batch(engine, n, key, first)
        weights = engine.decoding.prepare_weights(params)

        def refill(carry: tuple[SamplerState, Any]) -> tuple[SamplerState, Any]:
            return engine.decode_chunk(SamplerWeights(weights, params), inputs, carry[0])[0], carry[
                1
            ] + 1

        state, refills = lax.while_loop(
            lambda c: engine.has_work(inputs, c[0]),
            refill,
            (engine.init_state(jnp.int32(0)), jnp.int32(0)),
        )
        return state.outputs[-1][: engine.shapes.B_cap], refills

    return jax.jit(sample).lower(params, jax.random.key(0), jnp.int32(0)).compile()


def full_steps(engine: Engine, params: Params) -> Callable[[Params], Any]:
    """`STEPS` steps with all slots live, compiled."""

    def steps(params: Params) -> Any:
        weights = engine.decoding.prepare_weights(params)
        state = engine.init_state(jnp.int32(0))
        begun = state.slots._replace(t=jnp.ones_like(state.slots.t))
        going = jnp.zeros(engine.shapes.slots, bool)

        def step(_: Any, carry: tuple[Slots, KVCache]) -> tuple[Slots, KVCache]:
            return engine.decode_step(weights, *carry, state.group_last_hidden, going)[:2]

        return lax.fori_loop(0, STEPS, step, (begun, state.cache))[0].tokens

    return jax.jit(steps).lower(params).compile()


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of a call that is compiled, and what it returns."""
    clock = time.process_time if len(os.sched_getaffinity(0)) == 1 else time.perf_counter
    start = clock()
    out = jax.block_until_ready(call())
    return clock() - start, out


def schedule(lengths: np.ndarray, slots: int, chunk: int, patience: float) -> tuple[int, int]:
    """(steps, refills) of an engine that goes back to the queue after `chunk` steps, or once slots
    have idled for `patience` together.
    """
    left, queue, steps, refills = np.zeros(slots, int), list(lengths[::-1]), 0, 0
    while queue or left.any():
        refills += 1
        for slot in np.flatnonzero(left == 0)[: len(queue)]:
            left[slot] = queue.pop()
        live, idle = left > 0, 0
        for _ in range(chunk):
            left, steps = np.maximum(left - 1, 0), steps + 1
            idle += int((live & (left == 0)).sum())
            if not left.any() or (queue and idle >= patience):
                break
    return steps, refills


def at_once(lengths: np.ndarray, slots: int) -> int:
    """Steps of a queue whose slots are refilled at the step at which they are free."""
    free = [0] * slots
    for length in lengths:
        heapq.heapreplace(free, free[0] + int(length))
    return max(free)


def measure(decoder: Decoder, params: Params, n: int, args: argparse.Namespace) -> dict[str, Any]:
    """One n: times and steps, as shares of the ideal's."""
    B, R = args.rollouts, args.slots
    full, part = build(decoder, B, n, args), build(decoder, R, n, args)
    refill, longest, cap = (
        run(engine, params, n) for engine in (full, part, build(decoder, R, n, args, ()))
    )
    steps, firsts = full_steps(full, params), range(0, B // n, R // n)

    result: dict[str, list[float]] = {}
    for repeat in range(args.repeats):
        key = jax.random.key(repeat)
        took, sampled = timed(lambda key=key: refill(params, key, jnp.int32(0)))
        batches, step = [], []
        for first in firsts:
            batches.append(
                timed(lambda key=key, first=first: longest(params, key, jnp.int32(first)))
            )
            step.append(timed(lambda: steps(params))[0] / STEPS)
        step = statistics.median(step)
        capped, _ = timed(lambda key=key: cap(params, key, jnp.int32(0)))
        seconds = {
            "refill": took,
            "longest": sum(s for s, _ in batches),
            "cap": len(firsts) * capped,
        }

        lengths, refills = (np.asarray(x) for x in sampled)
        np.testing.assert_array_equal(lengths, np.concatenate([x[0] for _, x in batches]))
        used, expected = schedule(lengths, R, engine_module.CHUNK_TOKENS, R)
        assert refills == expected, (refills, expected)
        ideal = lengths.sum() / R
        line = {name: s / (ideal * step) for name, s in seconds.items()}
        line |= {
            "longest_over_refill": seconds["longest"] / took,
            "step_ms": 1000 * step,
            "refills": float(refills),
        }
        line |= {
            "steps_refill": used / ideal,
            "steps_at_once": at_once(lengths, R) / ideal,
            "steps_cap": len(firsts) * args.cap / ideal,
        }
        line |= {
            "steps_longest": lengths.reshape(-1, R).max(1).sum() / ideal,
            "mean_length": float(lengths.mean()),
        }
        line |= {"tokens_per_second": lengths.sum() / took}
        for name, value in line.items():
            result.setdefault(name, []).append(float(value))
    return {name: round(statistics.median(values), 3) for name, values in result.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path)
    parser.add_argument("--n", default="16")
    defaults = {
        "rollouts": 512,
        "slots": 32,
        "prompt": 64,
        "cap": 1024,
        "layers": 2,
        "kv_heads": 3,
        "vocab": 4096,
        "repeats": 3,
    }
    for name, default in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    args = parser.parse_args()

    if args.model:
        config = hf_load.resolve_model(ModelConfig(path=str(args.model)))
        decoder = Ending(config, config.vocab or args.vocab, args.cap)
        params: Any = hf_load.load(
            args.model, config, decoder, make_mesh(parse_mesh("auto", 1), jax.devices())
        )
    else:
        wide = {
            "width": 192 * args.kv_heads,
            "heads": 3 * args.kv_heads,
            "kv_heads": args.kv_heads,
            "mlp": 512 * args.kv_heads,
        }
        config = ModelConfig(layers=args.layers, **wide, head_dim=64, tied=True)
        decoder = Ending(config, args.vocab, args.cap)
        params = jax.jit(decoder.init)(jax.random.key(0))
    for n in map(int, args.n.split(",")):
        line = {"n": n, "rollouts": args.rollouts, "R": args.slots, "P": args.prompt, "T": args.cap}
        line |= {"layers": config.layers, "width": config.width}
        print(json.dumps(line | measure(decoder, params, n, args)), flush=True)


if __name__ == "__main__":
    main()
