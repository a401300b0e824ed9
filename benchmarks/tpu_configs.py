"""What the configs of configs/tpu take of the TPUs that they are for: memory and hours, by the
planner and by the TPU's compiler. The table is in docs/models.md.

    python benchmarks/tpu_configs.py                               the planner's, half a minute
    python benchmarks/tpu_configs.py --compile qwen2.5-0.5b        also the compiler's: minutes
    python benchmarks/tpu_configs.py --compile --out FOLDER        all; a later call goes on

The first lines of a config name the command that plans it, once for each topology. No TPU, weights
or problems are needed; --compile needs libtpu. What the compiler has found of a config is kept in
FOLDER. One row of a Markdown table for each command.
"""

import argparse
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from isojax.core.config import Config, SweepConfig
from isojax.core.config.load import load_config
from isojax.launch.device_budget import DeviceBudget, fit_to_memory, format_sizes
from isojax.launch.forecast import Forecast, forecast_sweep_times, label_rollouts
from isojax.launch.local.compile_for_topology import compile_programs, run_in_child_process
from isojax.launch.local.compiled_times import compiled_times
from isojax.launch.local.topology_plan import plan_topology, read_topology
from isojax.launch.memory_model import MemoryEstimate
from isojax.launch.planner import plan_cells
from isojax.launch.time_estimate import GIB, ProgramTimes, find_chip, program_times

FOLDER = Path(__file__).parents[1] / "configs" / "tpu"


@dataclass(frozen=True)
class PlanCommand:
    """`isojax launch WORDS --dry-run --topology TOPOLOGY`, as a config's first lines have it."""

    words: tuple[str, ...]  # configs, and settings as KEY=VALUE
    topology: str

    @property
    def title(self) -> str:
        """Such as "qwen2.5-0.5b on v5e:1x1"."""
        return f"{self.words[0].removeprefix('tpu/')} on {self.topology}"

    def load(self) -> Config:
        names = [word for word in self.words if "=" not in word]
        settings = [word for word in self.words if "=" in word]
        return load_config(names, settings)


def read_commands(path: Path) -> list[PlanCommand]:
    """The commands in a config's comment that plan it for a topology, in their order."""
    comment = re.findall(r"^#\s+isojax launch (.*--topology.*)$", path.read_text(), re.M)
    commands = []
    for line in comment:
        words = shlex.split(line)
        topology = words[words.index("--topology") + 1]
        options = {"--dry-run", "--topology", topology}
        commands.append(PlanCommand(tuple(x for x in words if x not in options), topology))
    return commands


def all_commands(folder: Path = FOLDER) -> Iterator[PlanCommand]:
    """The commands of all configs of a folder."""
    for path in sorted(folder.glob("*.yaml")):
        yield from read_commands(path)


@dataclass(frozen=True)
class Plan:
    """A config's plan for a topology, by the planner alone."""

    config: Config  # with the sizes of the sweep chosen
    topology: str
    kind: str  # jax's name for the devices
    num_devices: int
    budget: DeviceBudget

    @property
    def sweep(self) -> SweepConfig:
        return self.config.sweep

    @property
    def memory(self) -> MemoryEstimate:
        return self.budget.estimate(self.sweep)

    @property
    def times(self) -> ProgramTimes:
        """At the published rates of the chip."""
        _, rates = find_chip(self.kind)
        return program_times(self.budget.sizes(self.sweep), rates)

    def forecast(self, times: ProgramTimes) -> Forecast:
        """The sweep's hours, if the parts of its programs take these times."""
        cells = plan_cells(self.sweep)
        at_once = min(len(cells), self.num_devices // self.budget.mesh.devices)
        return forecast_sweep_times(
            self.budget.sizes(self.sweep),
            cells,
            self.sweep.budget,
            at_once,
            times,
            source="",
            labels=label_rollouts(self.config.cell, has_labels=False),
        )


def plan(command: PlanCommand) -> Plan:
    """The planner's choice of sizes. AssertionError where none fits."""
    devices = read_topology(command.topology)
    config, devices, budget = plan_topology(command.load(), command.topology, devices)
    sweep = fit_to_memory(config.sweep, budget)
    assert sweep is not None, f"{command.title} does not fit by the estimate"
    config = config.model_copy(update={"sweep": sweep})
    return Plan(config, command.topology, devices.kind, devices.count, budget)


@dataclass(frozen=True)
class CompilerFigures:
    """What the TPU's compiler says of a plan."""

    # Bytes of a device while a program runs, by its name, with all that a run holds meanwhile.
    needed: dict[str, int]
    times: ProgramTimes | None  # by its cycles; None where the clock of the chip is not known


def compile_plan(planned: Plan) -> CompilerFigures:
    """Compile the programs of a plan for its topology. RunFailed where the compiler fails."""
    memory = planned.memory
    names = list(memory.program_bytes)
    compiled = run_in_child_process(
        compile_programs, planned.config, planned.sweep, planned.topology, names
    )
    needed = {
        name: program.peak_bytes + memory.resident_bytes(name) for name, program in compiled.items()
    }
    hlo = {name: program.hlo for name, program in compiled.items()}
    return CompilerFigures(needed, compiled_times(hlo, planned.config.cell, planned.kind))


def planned_bytes(memory: MemoryEstimate) -> dict[str, int]:
    """As `CompilerFigures.needed`, by the estimate."""
    return {
        name: program_bytes + memory.resident_bytes(name)
        for name, program_bytes in memory.program_bytes.items()
    }


def figures_of(command: PlanCommand, planned: Plan, out: Path | None) -> CompilerFigures:
    """`compile_plan`, or what an earlier call with the same sizes wrote into the folder `out`."""
    if out is None:
        return compile_plan(planned)

    sizes = f"{planned.budget.mesh} {format_sizes(planned.sweep)}"
    file = out / f"{re.sub('[: ]+', '-', command.title)}.json"
    if file.is_file():
        saved = json.loads(file.read_text())
        if saved["sizes"] == sizes:
            times = saved["times"] and ProgramTimes(**saved["times"])
            return CompilerFigures(saved["needed"], times)

    figures = compile_plan(planned)
    out.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"sizes": sizes, **asdict(figures)}))
    return figures


def table_row(command: PlanCommand, planned: Plan, figures: CompilerFigures | None) -> list[str]:
    """The cells of a table's row; a dash for what was not compiled."""
    by_plan = planned_bytes(planned.memory)
    memory = f"{_gib(max(by_plan.values()))} of {_gib(planned.budget.device_memory)}"
    memory_of_compiler = "–" if figures is None else _gib(max(figures.needed.values()))
    hours_of_compiler = "–"
    if figures is not None and figures.times is not None:
        hours_of_compiler = _hours(planned.forecast(figures.times))
    return [
        f"`{command.words[0]}`",
        command.topology,
        f"`{planned.budget.mesh}`",
        memory,
        memory_of_compiler,
        _hours(planned.forecast(planned.times)),
        hours_of_compiler,
    ]


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f}"


def _hours(forecast: Forecast) -> str:
    return f"{forecast.sweep_seconds / 3600:.1f}"


COLUMNS = [
    "config",
    "topology",
    "mesh",
    "GiB of a device, planned",
    "by the compiler",
    "hours, planned",
    "by the compiler's cycles",
]


def print_row(cells: Sequence[Any]) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("configs", nargs="*", help="such as qwen2.5-0.5b (default: all)")
    parser.add_argument("--topology", help="of this topology alone, such as v5e:1x1")
    parser.add_argument("--compile", action="store_true", help="ask the TPU's compiler too")
    parser.add_argument("--out", type=Path, help="a folder for what the compiler has said")
    arguments = parser.parse_args()

    print_row(COLUMNS)
    print_row(["---"] * len(COLUMNS))
    for command in all_commands():
        is_wanted = not arguments.configs or Path(command.words[0]).name in arguments.configs
        if not is_wanted or arguments.topology not in (None, command.topology):
            continue
        planned = plan(command)
        figures = figures_of(command, planned, arguments.out) if arguments.compile else None
        print_row(table_row(command, planned, figures))


if __name__ == "__main__":
    main()
