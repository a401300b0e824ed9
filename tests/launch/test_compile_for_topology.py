"""A dry run for TPUs that are not here: XLA's figures and a verdict, and what is refused."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jax.errors import JaxRuntimeError

from isojax.core.config import load_config
from isojax.core.errors import RunFailed
from isojax.distributed.mesh_spec import MeshShape
from isojax.launch.device_budget import DeviceBudget
from isojax.launch.local.compile_for_topology import (
    CompiledProgram,
    compile_for_topology,
    confirm_sizes,
    host_bounds,
    program_peak,
    run_in_child_process,
    topology_budget,
    topology_devices,
)
from isojax.launch.local.topology_plan import (
    estimate_for_topology,
    larger_topologies,
    plan_topology,
    read_topology,
)
from isojax.launch.memory_model import SamplingPlan
from isojax.launch.time_estimate import GIB
from isojax.models.describe_sizes import describe_sizes
from tests.libtpu import needs_libtpu
from tests.refusals import refused

pytestmark = [pytest.mark.slow, pytest.mark.seconds(30)]

REPOSITORY = Path(__file__).resolve().parents[2]


def isojax(*words: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, because libtpu stays with the process that loaded it."""
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu", "COLUMNS": "100"}
    command = [sys.executable, "-m", "isojax.launch", *words]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=280, check=False
    )


@needs_libtpu
def test_the_table_has_xlas_figures_and_the_planners() -> None:
    """A small model on the eight chips of a v5e:2x4, the mesh of launch/'s ray_cluster.yaml."""
    small = (
        "cell.model.layers=2",
        "cell.model.width=256",
        "cell.model.mlp=1024",
        "sweep.n=[4]",
        "sweep.B_p=[8]",
    )
    words = ("--dry-run", "--compile", "--topology", "v5e:2x4", "--mesh", "fsdp=8")
    done = isojax("quickstart", *words, *small)
    assert done.returncode == 0, done.stderr
    printed = " ".join(done.stderr.split())
    assert (
        "8 of the 8 chips of v5e:2x4 (1 host, TPU v5 lite, 15.8 GiB each)" in printed
        and "Warning" not in printed
    )
    row = next(line for line in done.stderr.splitlines() if "train" in line)
    assert "fits" in row and len(re.findall(r"0\.\d\d", row)) == 3
    assert "it fits, by the compiler's figures" in printed and "sweep.remat=none" in printed
    assert "recipe: loss grpo, advantage group, aggregation token" in printed
    assert "rollouts/s" in printed and "from its compiler's cycles" in printed


@pytest.mark.nightly
@needs_libtpu
def test_the_mesh_of_the_templates_compiles() -> None:
    """Of launch/'s tpu_pod.sh and gke_kuberay.yaml; quickstart's responses have one width."""
    words = ("--dry-run", "--compile", "--topology", "v5e:4x4", "--mesh", "fsdp=16")
    done = isojax("quickstart", *words)
    assert done.returncode == 0 and " fits " in done.stderr, done.stderr


@needs_libtpu
def test_an_unknown_topology_is_refused() -> None:
    done = isojax("quickstart", "--dry-run", "--compile", "--topology", "v5e:3x3")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "error: --topology v5e:3x3: " in done.stderr and "such as v5e:4x4" in done.stderr


def test_a_topology_runs_nothing() -> None:
    done = isojax("quickstart", "--topology", "v5e:2x2")
    assert done.returncode == 2 and "without --dry-run" in done.stderr


def test_without_libtpu_it_says_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with refused():
        topology_devices("v5e:2x2")


@pytest.mark.parametrize(
    "word",
    [
        "run.sampler_mesh=data=4",
        "sweep.decode_attention=triton",
        "sweep.forward_attention=cudnn",
    ],
)
def test_what_a_plan_for_tpus_does_not_know_is_refused(word: str) -> None:
    with refused():
        topology_budget(load_config(["quickstart"], [word]), "v5e:2x2")


@pytest.mark.parametrize("plan", [compile_for_topology, estimate_for_topology])
def test_a_model_without_a_vocabulary_is_refused(plan: Any) -> None:
    with refused():
        plan(load_config(["gsm8k"], ["run.compilation_cache=false"]), "v5e:2x2")


def test_an_estimate_needs_no_libtpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 7.6B parameters on 16 chips; labels of GSM8K's 7,473 problems, 16 rollouts of each."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    config = load_config(["gsm8k", "models/qwen2.5-7b-instruct"], ["run.mesh=fsdp=4,tensor=4"])
    estimate_for_topology(config, "v5e:4x4", price=1.2)
    printed = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "it fits by the estimate" in printed and "chip hours of 16 chips" in printed
    assert "labels 119,568 rollouts" in printed and "compiling 3 programs" in printed
    assert "sweep.budget=209658 leaves none" in printed


def test_what_fits_no_chip_of_an_estimate_is_refused() -> None:
    """A 7.6B model on one v5e of 15.75 GiB: it takes four times as many at least."""
    config = load_config(["gsm8k", "models/qwen2.5-7b-instruct"], ["run.mesh=data=1"])
    with refused(fix="--topology v5e:"):
        estimate_for_topology(config, "v5e:1x1")


@pytest.mark.parametrize(
    ("topology", "devices", "chips"),
    [
        ("v5e:1x1", 1, 1),
        ("v5e:4x4", 16, 16),
        ("v6e:4x8", 32, 32),
        ("v4:2x2x1", 4, 4),
        ("v3:2x2", 8, 4),
    ],
)
def test_a_topology_is_read_by_its_name(topology: str, devices: int, chips: int) -> None:
    read = read_topology(topology)
    assert (read.count, read.chips) == (devices, chips)


@pytest.mark.parametrize(("topology", "attention"), [("v3:2x2", "plain"), ("v4:2x2x1", None)])
def test_a_v3_is_planned_without_kernels(topology: str, attention: str | None) -> None:
    config = load_config(["gsm8k", "models/smollm2-135m"])
    sweep = plan_topology(config, topology, read_topology(topology)).config.sweep
    assert (sweep.decode_attention, sweep.forward_attention) == (attention, attention)


@pytest.mark.parametrize("topology", ["v5e:3x3", "v5e:2x2x1", "v5p:4x4", "v9:2x2", "v5e", "v5e:4x"])
def test_a_topology_that_no_chips_have_is_refused(topology: str) -> None:
    with refused(where=f"--topology {topology}"):
        read_topology(topology)


def test_a_folder_that_only_the_hosts_have_needs_the_shape_in_the_config(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chips = [SimpleNamespace(device_kind="TPU v5 lite")] * 4
    monkeypatch.setattr(
        "isojax.launch.local.compile_for_topology.topology_devices", lambda _: chips
    )
    on_hosts = ["cell.model.path=/mnt/runs/models/qwen", "cell.task=jsonl:/mnt/runs/train.jsonl"]
    config, _, budget = topology_budget(
        load_config(["gsm8k", "models/qwen2.5-7b-instruct"], on_hosts), "v5e:2x2"
    )
    assert config.cell.model.path is None and budget.cell.model.layers == 28
    with refused():
        topology_budget(load_config(["gsm8k"], on_hosts), "v5e:2x2")


def test_what_the_compiler_finds_too_large_is_chosen_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first update takes 16.5 GiB of a chip's 15.75, the second one fits."""
    requests: list[tuple[Any, ...]] = []
    too_much, fitting = int(16.5 * GIB), 2 * GIB

    def compiler(
        _: Any, _config: Any, sweep: Any, _topology: Any, programs: list[str]
    ) -> dict[str, Any]:
        requests.append((sweep.microbatch, sweep.remat, programs))
        return {
            name: CompiledProgram(
                too_much if len(requests) == 1 and name == "learn" else fitting, name
            )
            for name in programs
        }

    sweep = confirmed_sizes(monkeypatch, compiler)
    assert (
        requests[0][2] == ["weights", "decode", "learn"]
        and "learn" in requests[1][2]
        and len(requests) == 2
    )
    assert (sweep.microbatch, sweep.remat) == requests[1][:2] != requests[0][:2]


def test_a_compiler_that_never_fits_is_asked_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[Any] = []

    def compiler(
        _: Any, _config: Any, sweep: Any, _topology: Any, programs: list[str]
    ) -> dict[str, Any]:
        requests.append(sweep)
        too_much = CompiledProgram(int(15.8 * GIB))
        fitting = CompiledProgram(0)
        return dict.fromkeys(programs, too_much) | {"weights": fitting, "decode": fitting}

    with refused():
        confirmed_sizes(monkeypatch, compiler)
    assert len(requests) == 3


def test_a_compiler_that_crashes_is_a_message_with_another_mesh(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compiler(*_: Any) -> dict[str, Any]:
        raise RunFailed("INTERNAL: RET_CHECK failure")

    with refused():
        confirmed_sizes(monkeypatch, compiler, "models/llama-3.1-8b-instruct")


def test_a_compiler_that_aborts_does_not_end_the_command() -> None:
    """As an assertion in its C++ does."""
    with pytest.raises(RunFailed, match="its process ended without an answer"):
        run_in_child_process(os.abort)


def confirmed_sizes(
    monkeypatch: pytest.MonkeyPatch, compiler: Any, preset: str = "models/qwen2.5-7b-instruct"
) -> Any:
    """The sizes chosen for 16 chips of v5e, by this compiler."""
    config = load_config(["gsm8k", preset], ["run.mesh=fsdp=4,tensor=4"])
    cell = config.cell.model_copy(update={"precision": config.cell.precision.for_platform("tpu")})
    pairs = [(32, n) for n in config.sweep.n]
    mesh, memory = MeshShape(fsdp=4, tensor=4), int(15.75 * GIB)
    budget = DeviceBudget(
        cell, pairs, mesh, describe_sizes(cell.model), SamplingPlan(), "tpu", memory
    )
    monkeypatch.setattr("isojax.launch.local.compile_for_topology.run_in_child_process", compiler)
    return confirm_sizes(config, budget, larger_topologies("v5e:4x4", 16)).sweep


@pytest.mark.parametrize(
    ("topology", "bounds"),
    [
        ("v5e:1x1", (1, 1, 1)),
        ("v5e:2x2", (2, 2, 1)),
        ("v6e:2x4", (2, 4, 1)),
        ("v4:2x2x1", (2, 2, 1)),
        ("v5p:2x2x2", None),
        ("v5e", None),
        ("v5e:1xx", None),
    ],
)
def test_a_part_of_a_host_has_its_own_bounds(
    topology: str, bounds: tuple[int, int, int] | None
) -> None:
    assert host_bounds(topology) == bounds


@needs_libtpu
def test_topologies_of_one_chip_and_of_one_host() -> None:
    """In a process of its own, because libtpu stays with the process that loaded it."""
    program = (
        "from isojax.launch.local.compile_for_topology import topology_devices\n"
        "from isojax.launch.tpu_hosts import num_hosts\n"
        "for topology in ('v5e:1x1', 'v6e:1x1', 'v5e:2x4', 'v4:2x2x1', 'v3:2x2', 'v5p:2x2x2',"
        " 'v6e:4x8'):\n"
        "    devices = topology_devices(topology)\n"
        "    hosts = len({device.process_index for device in devices})\n"
        "    print(len(devices), devices[0].device_kind, hosts, num_hosts(topology), sep=', ')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=280,
        check=True,
    )
    # Devices, their kind, their hosts by libtpu, and by our table.
    assert done.stdout.splitlines() == [
        "1, TPU v5 lite, 1, 1",
        "1, TPU v6 lite, 1, 1",
        "8, TPU v5 lite, 1, 1",
        "4, TPU v4, 1, 1",  # a device is a chip of two cores, as on a TPU
        "8, TPU v3, 1, 1",  # a device is a core, half a chip
        "8, TPU v5, 2, 2",
        "32, TPU v6 lite, 8, 8",
    ]


def test_without_a_mesh_the_fewest_chips_that_fit_are_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A model of 7.6B parameters, whose training state alone is 120 GiB, on chips of 31.25 GiB; of
    a small one, a chip suffices."""
    chips = [SimpleNamespace(device_kind="TPU v6 lite")] * 32
    monkeypatch.setattr(
        "isojax.launch.local.compile_for_topology.topology_devices", lambda _: chips
    )

    def planned_mesh(preset: str) -> MeshShape:
        config, _, budget = topology_budget(load_config(["gsm8k", preset], []), "v6e:4x8")
        assert config.run.mesh == str(budget.mesh)
        return budget.mesh

    assert planned_mesh("models/smollm2-135m") == MeshShape()
    large = planned_mesh("models/qwen2.5-7b-instruct")
    assert large.devices == 8 and large.fsdp * large.tensor == 8


def test_larger_topologies() -> None:
    names = [larger.name for larger in larger_topologies("v5e:4x4", 16)]
    assert names[:4] == ["v5e:4x4", "v5e:4x8", "v5e:8x8", "v5e:8x16"]
    assert [larger.name for larger in larger_topologies("v5e:1x1", 1)][:3] == [
        "v5e:1x1",
        "v5e:2x2",
        "v5e:2x4",
    ]
    assert larger_topologies("v5p:2x2x1", 4)[2] == ("v5p:2x2x4", 16)


class Refused:
    """A jitted function whose compiler says this."""

    def __init__(self, said: str):
        self.said = said

    def lower(self, *_: Any) -> Any:
        raise JaxRuntimeError(self.said)


def test_what_the_compiler_refuses_is_read_from_its_message() -> None:
    output = (
        "RESOURCE_EXHAUSTED: ... the total memory required for HLO temporaries (47.46G) exceeds "
        "available HBM (15.75G)."
    )
    assert program_peak(Refused(output), ()) == int(47.46 * GIB)
    output = (
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 33.50G of 15.75G hbm. "
        "Exceeded hbm capacity by 17.75G."
    )
    assert program_peak(Refused(output), ()) == int(33.5 * GIB)
    with pytest.raises(JaxRuntimeError, match="INTERNAL"):
        program_peak(Refused("INTERNAL: something else"), ())
