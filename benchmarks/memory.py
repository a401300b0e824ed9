"""The planner's memory estimate against XLA's: one JSON line for each program, with their ratio.

    python benchmarks/memory.py [--random 20] [--seed 0] [--only smollm2]

Each case is a model's shape, sizes and a mesh of simulated devices; its programs are lowered from
shapes and compiled, nothing is run. `planner` and `xla` are bytes a device: arguments, outputs that
are not updated in place, and temporaries. The last line is the worst and the mean of |ratio - 1|.
`--random N` adds N cases drawn at random to the fixed ones.
"""

import argparse
import itertools
import json
import os
import random
import time
from collections.abc import Iterator
from typing import Any

os.environ["XLA_FLAGS"] = (
    f"--xla_force_host_platform_device_count=4 {os.environ.get('XLA_FLAGS', '')}"
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# Half of the compile time, and the same memory
FAST_COMPILE_OPTIONS = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}
TINY = ("quickstart",)
TEXT = (
    "quickstart",
    "cell.task=jsonl:none",
    "cell.model.vocab=1000",
    "cell.rl.kl=0.0",
    "cell.rl.entropy=0.0",
)  # a tiny model whose host verifies
SMOL = ("smollm2_cpu", "models/smollm2-135m", "cell.model.path=null")
LORA = "cell.model.lora={rank: 16}"
FIXED = (
    ("auto", *TINY),
    ("auto", *TINY, "cell.rl.kl=0.0", "cell.rl.entropy=0.0"),
    ("data=2", *TINY),
    ("fsdp=2", *TINY),
    ("tensor=2", *TINY),
    ("data=2,tensor=2", *TINY),
    (
        "sequence=2",
        *TINY,
        "cell.model.layers=12",
        "cell.sampling.prompt_length=1024",
        "sweep.remat=layer",
    ),
    (
        "sequence=4",
        *TINY,
        "cell.model.layers=12",
        "cell.sampling.prompt_length=1024",
        "sweep.remat=layer",
    ),
    ("data=2,fsdp=2", *TINY),
    ("auto", *TINY, "sweep.decode_slots=512", "sweep.microbatch=16"),
    ("auto", *TINY, "sweep.remat=layer"),
    ("auto", *TINY, "cell.sampling.top_p=0.9"),
    ("auto", *TINY, "cell.rl.loss=ppo", "cell.rl.critic={}"),
    ("auto", *TINY, "cell.model.width=256", "cell.model.mlp=1024", "cell.model.layers=12"),
    (
        "auto",
        *TINY,
        "cell.model.width=256",
        "cell.model.mlp=768",
        "cell.sampling.response_length=64",
        "cell.sampling.prompt_length=32",
    ),
    ("auto", *TEXT),
    ("data=2", *TEXT),
    ("fsdp=2", *TEXT),
    ("tensor=2", *TEXT),
    ("auto", *TEXT, "cell.model.vocab=30000"),
    ("auto", *TEXT, "cell.model.vocab=30000", "cell.model.tied=true", "sweep.microbatch=8"),
    ("auto", *TEXT, "cell.sampling.response_length=64", "cell.sampling.prompt_length=100"),
    (
        "auto",
        *TEXT,
        "cell.model.layers=12",
        "cell.sampling.response_length=32",
        "sweep.remat=layer",
    ),
    (
        "auto",
        *TEXT,
        "cell.model.kv_heads=1",
        "cell.model.layers=24",
        "cell.sampling.prompt_length=48",
        "cell.sampling.response_length=200",
    ),
    (
        "data=2,tensor=2",
        *TEXT,
        "cell.model.kv_heads=2",
        "cell.model.heads=4",
        "cell.sampling.response_length=200",
    ),
    ("auto", *TEXT, "cell.rl.kl=0.1", "cell.sampling.top_p=0.9", "cell.model.vocab=8000"),
    ("auto", *TEXT, "cell.rl.loss=ppo", "cell.rl.critic={}", "cell.model.layers=12"),
    ("auto", *SMOL),
    (
        "auto",
        *SMOL,
        "sweep.decode_slots=16",
        "sweep.microbatch=4",
        "cell.sampling.response_length=128",
        "cell.sampling.prompt_length=64",
    ),
    (
        "auto",
        *SMOL,
        "sweep.decode_slots=32",
        "sweep.microbatch=8",
        "cell.sampling.response_length=64",
        "cell.sampling.prompt_length=256",
    ),
    ("auto", *SMOL, "cell.rl.kl=0.1"),
    ("auto", *SMOL, "cell.sampling.top_p=0.9", "sweep.microbatch=16"),
    ("auto", *SMOL, "sweep.remat=layer"),
    ("auto", *SMOL, "cell.rl.loss=ppo", "cell.rl.critic={}", "sweep.microbatch=32"),
    ("auto", *SMOL, LORA),
    ("auto", *SMOL, LORA, "sweep.microbatch=8", "cell.rl.kl=0.1"),
    ("fsdp=2", *SMOL, LORA),
    ("auto", *TINY, LORA),
    ("tensor=2", *TEXT, LORA),
    ("data=2", *SMOL),
    ("fsdp=2", *SMOL),
    ("tensor=2", *SMOL),
    ("fsdp=2", *SMOL, "cell.sampling.response_length=32", "sweep.microbatch=16"),
    (
        "tensor=2",
        *SMOL,
        "cell.model.heads=10",
        "cell.model.kv_heads=2",
        "cell.sampling.response_length=32",
        "sweep.microbatch=8",
    ),
    ("auto", *SMOL, "cell.task=solvers:ABCG", "cell.model.vocab=49152", "cell.prompt.stop=[]"),
    (
        "auto",
        *SMOL,
        "cell.task=solvers:ABCG",
        "cell.model.vocab=49152",
        "cell.prompt.stop=[]",
        "sweep.decode_slots=16",
        "sweep.microbatch=16",
    ),
)


def drawn(seed: int) -> Iterator[tuple[str, ...]]:
    """Cases without end: any sizes, either verifier, any mesh of at most 4 devices."""
    rng = random.Random(seed)
    while True:
        kv_heads = rng.choice((1, 2, 3, 4))
        head_dim = rng.choice((8, 16, 32, 64))
        model = {
            "layers": rng.choice((2, 4, 6, 9, 12, 24)),
            "width": rng.choice((48, 64, 128, 192, 320)),
            "kv_heads": kv_heads,
            "heads": kv_heads * rng.choice((1, 2, 4)),
            "head_dim": head_dim,
            "mlp": rng.choice((96, 128, 384, 768)),
            "tied": rng.choice(("true", "false")),
        }
        sampling = {
            "prompt_length": rng.choice((6, 20, 48, 130, 400)),
            "response_length": rng.choice((4, 10, 32, 64, 200)),
            "top_p": rng.choice((1.0, 1.0, 1.0, 0.9)),
        }
        n = rng.choice((2, 4, 8, 16))
        sweep = {
            "B_p": f"[{rng.choice((4, 16, 64))}]",
            "n": f"[{n},{2 * n}]",
            "B_max": 4096,
            "remat": rng.choice(("none", "none", "layer")),
            "microbatch": rng.choice((2, 8, 16, 64)),
            "decode_slots": rng.choice((8, 32, 64, 128)),
            "slots_per_prefix": 1,
        }
        rl = {"kl": rng.choice((0.0, 0.0, 0.1)), "entropy": rng.choice((0.0, 0.0, 0.01))}

        on_device = rng.random() < 0.5
        task = {
            "cell.task": "solvers:ABCG" if on_device else "jsonl:none",
            "cell.model.vocab": rng.choice((100, 1000, 8000, 32000, 50000)),
        }
        one_axis = ("data=2", "fsdp=2", "tensor=2")
        two_axes = ("data=2,fsdp=2", "data=2,tensor=2")
        mesh = rng.choice(("auto", "auto", "auto", *one_axis, *two_axes))

        sections = {
            "cell.model.": model,
            "cell.sampling.": sampling,
            "sweep.": sweep,
            "cell.rl.": rl,
            "": task,
        }
        words = []
        for prefix, settings in sections.items():
            words += [f"{prefix}{key}={value}" for key, value in settings.items()]
        yield (mesh, "quickstart", *words)


def measure(case: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """What planner and XLA say of each program of a case."""
    import jax

    from isojax.core.config import load_config
    from isojax.distributed.mesh_spec import parse_mesh
    from isojax.distributed.sharding import make_mesh
    from isojax.launch.device_budget import DeviceBudget
    from isojax.launch.local.compile_for_topology import (
        AbstractTask,
        build_abstract_programs,
    )
    from isojax.launch.memory_model import SamplingPlan
    from isojax.launch.planner import plan_cells, resolve_sweep_sizes
    from isojax.models.describe_sizes import describe_sizes
    from isojax.tasks.task import build_task

    mesh_text, *words = case
    names = [word for word in words if "=" not in word]
    config = load_config(names, words[len(names) :])
    cell = config.cell.model_copy(update={"precision": config.cell.precision.for_platform("cpu")})
    text = cell.task.startswith("jsonl") or cell.task == "addition"
    task = AbstractTask(cell.model.vocab or 0) if text else build_task(cell)
    shape = parse_mesh(mesh_text, 4)
    sweep = resolve_sweep_sizes(config.sweep, shape.shards, cell)
    pairs = sorted({(c.B_p, c.n) for c in plan_cells(sweep)})
    budget = DeviceBudget(
        cell,
        pairs,
        shape,
        describe_sizes(cell.model, cell.model.vocab or task.vocab),
        SamplingPlan(on_device=not text),
        "cpu",
        device_memory=0,
    )
    planned = budget.estimate(sweep).program_bytes

    mesh = make_mesh(shape, jax.devices())
    programs = build_abstract_programs(cell, sweep, pairs, mesh, task)
    for name, (function, arguments) in programs.items():
        began = time.perf_counter()
        used = function.lower(*arguments).compile(FAST_COMPILE_OPTIONS).memory_analysis()
        figures = {
            "arguments": used.argument_size_in_bytes,
            # without what is updated in place
            "outputs": used.output_size_in_bytes - used.alias_size_in_bytes,
            "temporaries": used.temp_size_in_bytes,
        }
        total = sum(figures.values())
        yield {
            "case": " ".join(case),
            "program": name,
            "planner": planned[name],
            "xla": total,
            "ratio": round(planned[name] / total, 3),
            **figures,
            "peak": used.peak_memory_in_bytes,
            "compiled_in": round(time.perf_counter() - began, 1),
        }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--random", type=int, default=0, help="so many cases more, at random")
    parser.add_argument("--seed", type=int, default=0, help="of the random cases")
    parser.add_argument(
        "--only",
        default="",
        help="cases that hold this word; none of the fixed ones: --only nothing",
    )
    args = parser.parse_args()
    fixed = [case for case in FIXED if args.only in " ".join(case)]
    off = []
    for case in itertools.chain(fixed, itertools.islice(drawn(args.seed), args.random)):
        for line in measure(case):
            print(json.dumps(line), flush=True)
            off.append(abs(line["ratio"] - 1))
    print(
        json.dumps(
            {
                "programs": len(off),
                "worst": round(max(off), 3),
                "mean": round(sum(off) / len(off), 3),
            }
        )
    )


if __name__ == "__main__":
    main()
