"""Prints the optimized HLO of an update, compiled for a v5e:2x2: a model of four layers, responses
of two widths."""

from isojax.core.config import load_config
from isojax.launch.local.compile_for_topology import programs_on_topology, topology_budget

SETTINGS = (
    *("cell.model.layers=4", "cell.model.width=512", "cell.model.heads=4", "cell.model.kv_heads=2"),
    *("cell.model.mlp=2048", "cell.sampling.prompt_length=128", "cell.sampling.response_length=32"),
    *(
        "sweep.remat=layer",
        "sweep.microbatch=2",
        "sweep.n=[16]",
        "sweep.B_p=[8]",
        "run.mesh=fsdp=2,tensor=2",
    ),
)
TOPOLOGY = "v5e:2x2"

if __name__ == "__main__":
    config, _, budget = topology_budget(
        load_config(["gsm8k", "models/qwen2.5-7b-instruct"], SETTINGS), TOPOLOGY
    )
    program, arguments = programs_on_topology(
        config, budget.smallest_sizes(config.sweep), TOPOLOGY
    )["learn"]
    print(program.lower(*arguments).compile().as_text())
