"""What this machine's GPU or TPU does with isojax: kernels, sampler and update of one model's
shape, on random weights.

    make accelerator                                  on jax's first device; some minutes
    python benchmarks/accelerator.py --out FOLDER     accelerator.json and accelerator.md there
    python benchmarks/accelerator.py --shape NAME     of one model; else the largest that fits

Kernels: each attention that the device has, its distance from float32 and its time at the run's own
shapes. Sampler and update: the programs of a text task, with responses of full length and random
rewards. The share of the roofline compares the sampler's time with that of reading the weights and
the live cache once for each token; MFU counts the products of an update without what is computed
again. Both are shares of the published rates of a TPU, an H100 or an H200, and of measured ones
elsewhere. A CPU runs a small model; its figures say nothing about an accelerator.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from isojax.core.config import Config
from isojax.core.config.load import load_config
from isojax.core.machine import reserve_gpu_memory
from isojax.distributed.device_probe import device_memory, measure_rates
from isojax.distributed.mesh_spec import MeshShape
from isojax.distributed.sharding import make_mesh, replicated
from isojax.launch import device_budget
from isojax.launch.local.compile_for_topology import AbstractTask
from isojax.launch.memory_model import SamplingPlan
from isojax.launch.time_estimate import CHIPS, GIB, TYPICAL_RATES
from isojax.models.attention_autotune import (
    attention_seconds,
    attention_shapes,
    float32_errors,
    implementations,
    select_attention,
)
from isojax.models.describe_sizes import describe_sizes
from isojax.rl.metric import values
from isojax.rl.rollout_source import RolloutBatch
from isojax.sampling.batch import ProblemArrays
from isojax.sampling.layout import Layout
from isojax.tasks.protocol import StopConditions
from isojax.train.programs import SweepPrograms

REPEATS = 3  # of which the median counts
EMBEDDING_SCALE = 0.04
LENGTHS = (
    "cell.sampling.prompt_length=256",
    "cell.sampling.response_length=512",
    "sweep.B_p=[16]",
    "sweep.n=[16]",
    "sweep.decode_slots=128",
)


class MeasuredShape(NamedTuple):
    """A model's shape and the sizes that it is measured with, as settings of a config."""

    min_gib: int  # of the device's memory
    words: tuple[str, ...]


SHAPES = {
    "Qwen3-1.7B": MeasuredShape(
        60,
        (
            "cell.model.family=qwen3",
            "cell.model.layers=28",
            "cell.model.width=2048",
            "cell.model.heads=16",
            "cell.model.kv_heads=8",
            "cell.model.head_dim=128",
            "cell.model.mlp=6144",
            "cell.model.vocab=151936",
            "cell.model.tied=true",
            "cell.model.qk_norm=true",
            *LENGTHS,
        ),
    ),
    "Qwen2.5-0.5B": MeasuredShape(
        14,
        (
            "cell.model.family=qwen2",
            "cell.model.layers=24",
            "cell.model.width=896",
            "cell.model.heads=14",
            "cell.model.kv_heads=2",
            "cell.model.head_dim=64",
            "cell.model.mlp=4864",
            "cell.model.vocab=151936",
            "cell.model.tied=true",
            "cell.model.qkv_bias=true",
            *LENGTHS,
        ),
    ),
    "small": MeasuredShape(
        0,
        (
            "cell.model.layers=4",
            "cell.model.width=128",
            "cell.model.heads=4",
            "cell.model.kv_heads=2",
            "cell.model.head_dim=32",
            "cell.model.mlp=512",
            "cell.model.vocab=1024",
            "cell.sampling.prompt_length=32",
            "cell.sampling.response_length=32",
            "sweep.B_p=[4]",
            "sweep.n=[8]",
            "sweep.decode_slots=16",
        ),
    ),
}
HOPPER_BANDWIDTH = {"H100": 3350, "H200": 4800}  # GB/s


class RandomTask(AbstractTask):
    """Nothing ends a response, so that all have the full length; the rewards are drawn at random
    below."""

    stops = StopConditions((), None)


def kernel_lines(config: Config, mesh: Any) -> Iterator[dict[str, Any]]:
    """Each attention of the device at the run's shapes."""
    device = mesh.devices.flat[0]
    shapes = attention_shapes(config.cell, config.sweep, mesh)
    for part, shape in zip(("update", "decode"), shapes, strict=True):
        for name in implementations(shape, device.platform):
            line = {"attention": part, "implementation": name}
            try:
                error = max(float32_errors(shape, name))
                seconds = attention_seconds(shape, name)
            # Whatever a compiler says of one kernel, the others can be measured.
            except Exception as e:
                yield {**line, "failed": f"{type(e).__name__}: {str(e).partition(chr(10))[0]}"}
                continue
            yield {
                **line,
                "distance_from_float32": float(f"{error:.2g}"),
                "us": round(1e6 * seconds, 1),
            }


def chip_rates(config: Config, device: Any) -> tuple[float, float, str]:
    """Operations and bytes per second, and where they are from."""
    if device.device_kind in CHIPS:
        rates = CHIPS[device.device_kind][1]
        return rates.update_flops, rates.bandwidth, "published"
    for name, bandwidth in HOPPER_BANDWIDTH.items():
        if name in device.device_kind:
            return TYPICAL_RATES["gpu"].update_flops, 1e9 * bandwidth, "published"
    model = config.cell.model
    dtype = config.cell.precision.for_platform(device.platform).compute
    _, flops, bandwidth = measure_rates([device], (128, 2048), model.width, model.mlp, dtype)
    return flops, bandwidth, "measured"


def median_seconds(call: Any) -> float:
    times = []
    for _ in range(1 + REPEATS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


class Run:
    """A run of one cell on random weights: its programs, compiled, and the parts that a batch
    passes through."""

    def __init__(self, config: Config, mesh: Any):
        (self.B_p,), (self.n,) = config.sweep.B_p, config.sweep.n
        cell, vocab = config.cell, config.cell.model.vocab or 0
        task: Any = RandomTask(vocab)
        self.programs = SweepPrograms(cell, config.sweep, [(self.B_p, self.n)], mesh, task)
        self.inline: Any = self.programs.rollout_programs
        start = time.perf_counter()
        self.inline.compile(self.programs.update_shapes(self.B_p))
        self.compile_seconds = time.perf_counter() - start
        shapes, P = self.programs.shapes, cell.sampling.prompt_length
        decoder = self.programs.decoder
        params = jax.jit(decoder.init, out_shardings=decoder.shardings(mesh))(jax.random.key(0))
        # As `init` draws them, a tied model all but repeats its last token, and log-probabilities
        # are 0.
        self.state = self.programs.init({**params, "embed": EMBEDDING_SCALE * params["embed"]})
        prompts = np.random.default_rng(0).integers(0, vocab, (shapes.problem_rows, P), np.int32)
        Q = shapes.problem_rows
        problems = ProblemArrays(
            prompts,
            np.full(Q, P, np.int32),
            np.zeros((Q, 0), np.int32),
            np.arange(Q, dtype=np.int32),
        )
        self.problems = jax.device_put(problems, replicated(mesh))
        self.rewards = Layout(self.B_p, self.n, shapes.shards).to_buffer(
            np.random.default_rng(1).integers(0, 2, self.B_p * self.n), shapes.buffer_rows
        )
        self.rollouts: Any = None
        self.metrics: dict[str, float] = {}

    def sample(self) -> None:
        stream, key = self.inline.graded_sampler.engine.stream, jax.random.key(1)
        rollouts = stream.run(
            self.state.params, self.problems, self.B_p, self.n, key, lambda *_: None
        )
        self.rollouts = jax.block_until_ready(rollouts)

    def update(self) -> None:
        key_data = jax.random.key_data(jax.random.key(2))
        batch = RolloutBatch(
            self.problems,
            self.rollouts,
            self.rewards,
            np.int32(self.B_p),
            np.int32(self.n),
            key_data,
        )
        result = self.inline.update(self.state, {}, batch, self.programs.coefficients)
        self.state, update = jax.block_until_ready(result)
        # of the first: the policy that sampled
        self.metrics = self.metrics or dict(values(update.metrics))


def roofline_seconds(config: Config, run: Run, bandwidth: float) -> float:
    """In which the weights of all layers, the unembedding and the live cache are read for each
    token of the slots."""
    model = config.cell.model
    P = config.cell.sampling.prompt_length
    T = config.cell.sampling.response_length
    R = config.sweep.decode_slots or 1
    precision = config.cell.precision.for_platform(jax.default_backend())

    # An embedding that is not the unembedding too is only looked up in.
    sizes = {
        name: sum(x.size for x in jax.tree.leaves(weights))
        for name, weights in run.programs.decoder.shapes().items()
    }
    weights_read = sum(sizes.values()) - (0 if model.tied else sizes["embed"])
    weight_bytes = jnp.dtype(precision.compute).itemsize * weights_read

    numbers_per_position = 2 * model.layers * model.kv_heads * model.head_dim  # keys and values
    position_bytes = jnp.dtype(precision.cache).itemsize * numbers_per_position
    cache_bytes = R * position_bytes * (P + T / 2)  # with the mean of live positions
    steps = run.B_p * run.n / R * T
    return steps * (weight_bytes + cache_bytes) / bandwidth


def update_operations(config: Config, run: Run) -> float:
    """Of the products of an update, forwards and backwards: each prompt once for a block of its
    rollouts."""
    model = config.cell.model
    P = config.cell.sampling.prompt_length
    T = config.cell.sampling.response_length
    blocks = sum(x.size for x in jax.tree.leaves(run.programs.decoder.shapes()["blocks"]))
    unembedding = model.width * (model.vocab or 0)
    # for each pair of positions: 2 operations of the scores and 2 of the mixed values
    attention = 4 * model.layers * model.heads * model.head_dim

    of_prompts = run.B_p * P * (2 * blocks + attention * P / 2)
    per_token = 2 * blocks + 2 * unembedding + attention * (P + T / 2)
    of_responses = run.B_p * run.n * T * per_token
    return 3 * (of_prompts + of_responses)  # backwards takes twice as many as forwards


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "words", nargs="*", metavar="KEY=VALUE", help="another model's shape, lengths or sizes"
    )
    parser.add_argument(
        "--shape", choices=SHAPES, help="a model's (default: the largest that fits the device)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/accelerator"), help="a folder (default %(default)s)"
    )
    arguments = parser.parse_intermixed_args()
    reserve_gpu_memory()
    device = jax.devices()[0]
    mesh = make_mesh(MeshShape(), [device])
    memory = device_memory(device) or device_budget.host_memory()
    gib = 0 if device.platform == "cpu" else memory / GIB
    fitting = [name for name, shape in SHAPES.items() if gib >= shape.min_gib]
    name = arguments.shape or fitting[0]  # of the largest model
    cell = (
        "cell.task=jsonl:none",
        "cell.rl.kl=0",
        "cell.rl.entropy=0",
        "cell.rl.learning_rate=1e-6",
    )
    config = load_config(["quickstart"], [*cell, *SHAPES[name].words, *arguments.words])
    pairs = [(config.sweep.B_p[0], config.sweep.n[0])]
    vocab = config.cell.model.vocab or 0
    budget = device_budget.DeviceBudget(
        config.cell,
        pairs,
        MeshShape(),
        describe_sizes(config.cell.model, vocab),
        SamplingPlan(),
        device.platform,
        memory,
    )
    sweep = device_budget.autosize_sweep(config.sweep, budget, is_new_run=True)
    sweep = select_attention(config.cell, sweep, mesh)
    config = config.model_copy(update={"sweep": sweep})

    kernels = []
    for line in kernel_lines(config, mesh):
        kernels.append(line)
        print(json.dumps(line), flush=True)
    flops, bandwidth, origin = chip_rates(config, device)
    run = Run(config, mesh)
    print(
        json.dumps(
            {"compile_s": round(run.compile_seconds, 1), "sizes": device_budget.format_sizes(sweep)}
        ),
        flush=True,
    )
    sampling_seconds = median_seconds(run.sample)
    print(json.dumps({"sampling_s": round(sampling_seconds, 3)}), flush=True)
    update_seconds = median_seconds(run.update)
    tokens = run.B_p * run.n * config.cell.sampling.response_length
    peak = (device.memory_stats() or {}).get("peak_bytes_in_use")
    figures = {
        "device": device.device_kind,
        "jax": jax.__version__,
        "shape": name,
        "sizes": device_budget.format_sizes(sweep),
        "rates": f"{origin}: {flops / 1e12:.3g} TFLOP/s, {bandwidth / 1e9:.4g} GB/s",
        "decode_attention": sweep.decode_attention,
        "forward_attention": sweep.forward_attention,
        "compile_s": round(run.compile_seconds, 1),
        "sampled_tokens_per_s": round(tokens / sampling_seconds),
        "share_of_roofline": round(roofline_seconds(config, run, bandwidth) / sampling_seconds, 3),
        "trained_tokens_per_s": round(tokens / update_seconds),
        "mfu": round(update_operations(config, run) / flops / update_seconds, 3),
        "sampler_logp_gap": float(f"{run.metrics['sampler_logp_gap']:.2g}"),
        "sampler_logp_gap_max": float(f"{run.metrics['sampler_logp_gap_max']:.2g}"),
        "peak_gib": round(peak / GIB, 2) if peak else None,
        "planned_peak_gib": round(budget.estimate(sweep).peak / GIB, 2),
    }
    print(json.dumps(figures))
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "accelerator.json").write_text(
        json.dumps({**figures, "kernels": kernels}, indent=2) + "\n"
    )
    rows = [f"| {name.replace('_', ' ')} | {value} |" for name, value in figures.items()]
    rows += [
        f"| {x['attention']} attention, {x['implementation']} | {_describe(x)} |" for x in kernels
    ]
    (arguments.out / "accelerator.md").write_text("\n".join(["| | |", "|---|---|", *rows]) + "\n")


def _describe(kernel: dict[str, Any]) -> str:
    return (
        kernel.get("failed") or f"{kernel['us']} us, {kernel['distance_from_float32']} from float32"
    )


if __name__ == "__main__":
    main()
