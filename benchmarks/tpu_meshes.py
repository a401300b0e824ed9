"""Which meshes the TPU's own compiler takes, for a small model and both ways of sampling; needs
libtpu and no TPU.

    python benchmarks/tpu_meshes.py                     meshes of v5e:2x2 and v5e:4x4; an hour
    python benchmarks/tpu_meshes.py --topology v5e:2x2 KEY=VALUE ...

One JSON line for each mesh: `fused`, the program whose responses the device verifies, and `hosted`,
those of a task in text (sampler and update); each the GiB of a chip at its peak, or what the
compiler says. Responses of odd and of even length, shorter than a chunk of the sampler, and of
32,767 tokens: XLA's passes and the kernels' blocks depend on these.
"""

import argparse
import json

from isojax.core.config.load import load_config
from isojax.core.errors import RunFailed
from isojax.launch.device_budget import fit_to_memory
from isojax.launch.local.compile_for_topology import (
    compile_programs,
    run_in_child_process,
    topology_budget,
)
from isojax.launch.time_estimate import GIB

CASES = {  # topology -> (mesh, response length)
    "v5e:2x2": [
        ("data=4", 31),
        ("fsdp=4", 31),
        ("fsdp=4", 64),
        ("tensor=4", 65),
        ("sequence=4", 64),
        ("data=2,fsdp=2", 65),
        ("data=2,tensor=2", 64),
        ("data=2,sequence=2", 31),
        ("fsdp=2,tensor=2", 32767),
        ("fsdp=2,tensor=2", 31),
        ("fsdp=2,sequence=2", 65),
        ("tensor=2,sequence=2", 64),
    ],
    "v5e:4x4": [
        ("data=16", 64),
        ("fsdp=16", 65),
        ("fsdp=16", 31),
        ("data=4,tensor=4", 31),
        ("sequence=16", 65),
        ("data=4,fsdp=4", 64),
        ("fsdp=4,tensor=4", 32767),
        ("fsdp=4,tensor=4", 31),
        ("fsdp=4,sequence=4", 64),
        ("tensor=4,sequence=4", 31),
        ("data=2,fsdp=2,tensor=4", 65),
        ("data=2,fsdp=2,tensor=2,sequence=2", 64),
    ],
}
MODEL = (
    "cell.model.layers=2",
    "cell.model.width=512",
    "cell.model.heads=8",
    "cell.model.kv_heads=4",
    "cell.model.head_dim=64",
    "cell.model.mlp=1024",
    "sweep.B_p=[16]",
    "sweep.n=[4]",
)
WAYS = {
    "fused": (),
    "hosted": ("cell.task=jsonl:none", "cell.model.vocab=4096", "cell.rl.learning_rate=1e-6"),
}


def compile_mesh(
    topology: str, mesh: str, length: int, words: list[str]
) -> dict[str, str | dict[str, float]]:
    """The peaks of each way's programs, or the compiler's message."""
    results: dict[str, str | dict[str, float]] = {}
    for way, of_way in WAYS.items():
        lengths = ("cell.sampling.prompt_length=64", f"cell.sampling.response_length={length}")
        config = load_config(
            ["quickstart"], [*MODEL, *of_way, *lengths, f"run.mesh={mesh}", *words]
        )
        config, _, budget = topology_budget(config, topology)
        # What the planner refuses is compiled too, with the smallest sizes.
        sweep = fit_to_memory(config.sweep, budget) or budget.smallest_sizes(config.sweep)

        programs = list(budget.estimate(sweep).program_bytes)
        try:
            peaks = compile_programs(config, sweep, topology, programs)
            results[way] = {name: round(peak / GIB, 3) for name, peak in peaks.items()}
        except RunFailed as e:
            results[way] = str(e)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "words", nargs="*", metavar="KEY=VALUE", help="another model's shape or sizes"
    )
    parser.add_argument("--topology", choices=CASES, help="one of them (default: both)")
    arguments = parser.parse_intermixed_args()
    for topology in [arguments.topology] if arguments.topology else CASES:
        for mesh, length in CASES[topology]:
            try:
                results = run_in_child_process(
                    compile_mesh, topology, mesh, length, arguments.words
                )
            except RunFailed as e:
                results = {"error": str(e)}
            print(
                json.dumps(
                    {"topology": topology, "mesh": mesh, "response_length": length, **results}
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
