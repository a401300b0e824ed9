"""What the processes of a gang ask a Ray cluster for, and how many gangs it holds. Neither jax nor ray here.

A cell asks for a mesh. On TPUs its gang are the hosts of a slice; on GPUs as few processes as have the mesh's devices; on CPUs one process
that simulates them, unless `run.gang.processes` says otherwise.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from isojax.config import Config, GangConfig
from isojax.meshes import MeshShape, parse_mesh
from isojax.types import InputError

Node = Mapping[str, Any]  # as ray.nodes() describes it
SLICE, TOPOLOGY, WORKER = "ray.io/tpu-slice-name", "ray.io/tpu-topology", "ray.io/tpu-worker-id"  # labels of TPU hosts
UNBOUNDED = 10**9  # devices, for a mesh that names how many it takes


@dataclass(frozen=True)
class Shape:
    """A gang: its processes, what each asks of its node, how many devices a CPU simulates in each (else None); or a TPU slice."""

    processes: int
    needs: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)
    devices: int | None = None
    tpu: tuple[str, str] | None = None  # accelerator, topology
    slices: int = 1

    def __str__(self) -> str:
        what = ", ".join(f"{amount:g} {name}" for name, amount in self.needs.items())
        labels = "".join(f", {key}={value}" for key, value in self.labels.items())
        where = f" on {self.slices} x {':'.join(self.tpu)}" if self.tpu else ""
        many, each = ("es", " each") if self.processes > 1 else ("", "")
        return f"{self.processes} process{many}{where} with {what}{labels}{each}"


def shape_of(config: Config, nodes: Sequence[Node]) -> Shape:
    """The gang that a cell of this config asks for; on GPUs where the cluster has any, and the config does not ask for cores. TPUs are
    asked for by their slice.

    Raises:
        InputError: the settings of run.gang contradict one another or the mesh.
    """
    gang = config.run.gang
    if gang.tpu is not None:
        return _slice(config, gang)
    if config.run.gang.slices > 1:
        raise InputError(f"run.gang.slices = {gang.slices} without run.gang.tpu; expected run.gang.tpu=v5e:4x4 or another slice beside it.")
    most = int(max((node["Resources"].get("GPU", 0) for node in nodes), default=0))
    if gang.gpus or (most and gang.cpus is None):
        return _gpus(config, gang, most)
    if any(node["Resources"].get("TPU", 0) for node in nodes) and gang == GangConfig(retries=gang.retries):
        raise InputError(
            "run.gang: the cluster has TPUs, and nothing says what a cell takes of it; expected a slice, such as run.gang.tpu=v5e:4x4, or "
            "cores of its hosts, run.gang.cpus=1."
        )
    if gang.share > 1:
        raise InputError(f"run.gang.share = {gang.share} where a cell takes no accelerator; expected GPUs, or run.gang.share=1.")
    processes = gang.processes or 1
    devices = _mesh(config, processes * max(1, int(gang.cpus or 1)), processes).devices
    if devices % processes:
        raise InputError(
            f"--mesh {config.run.mesh} takes {devices} devices, which {processes} processes (run.gang.processes) cannot share alike; "
            f"expected a multiple of {processes}."
        )
    needs = {"CPU": gang.cpus or float(devices // processes), **gang.resources}
    return Shape(processes, needs, gang.labels, devices // processes)


def _mesh(config: Config, available: int, processes: int) -> MeshShape:
    """The mesh of a cell; where it does not say how many devices it takes, it is all of a gang's."""
    text = config.run.mesh
    if text == "auto":
        return MeshShape(data=available if processes > 1 else 1)
    return parse_mesh(text, available if "-1" in text else UNBOUNDED)


def _gpus(config: Config, gang: GangConfig, most: int) -> Shape:
    """As few nodes as hold the mesh's GPUs; several cells on one where that is asked for."""
    given = (gang.gpus or most) * (gang.processes or 1)
    wanted = _mesh(config, given, gang.processes or 1).devices
    each = gang.gpus or (wanted // gang.processes if gang.processes else min(wanted, most))
    processes = gang.processes or math.ceil(wanted / each)
    if processes * each != wanted:
        raise InputError(
            f"--mesh {config.run.mesh} takes {wanted} GPUs, {processes} processes of {each} have {processes * each}; expected as many. "
            "Change the mesh, run.gang.processes or run.gang.gpus."
        )
    if gang.share > 1 and wanted > 1:
        raise InputError(f"run.gang.share = {gang.share} with cells of {wanted} GPUs; expected cells of one GPU, which several may share.")
    return Shape(processes, {"GPU": each / gang.share, "CPU": gang.cpus or 1.0, **gang.resources}, gang.labels)


def _slice(config: Config, gang: GangConfig) -> Shape:
    from ray.util import tpu

    assert gang.tpu is not None
    version, _, topology = gang.tpu.partition(":")
    if gang.share > 1 or gang.processes or gang.gpus:
        raise InputError(
            "run.gang.tpu with share, processes or gpus: a slice's chips belong to one cell, with a process on each of its hosts; leave "
            "them out."
        )
    try:
        version = tpu.get_tpu_version_from_type(version.replace("v5e", "v5litepod"))
        hosts, needs = tpu.get_tpu_worker_resources(topology=topology, accelerator_type=version, num_slices=gang.slices)
    except ValueError as e:
        raise InputError(f"run.gang.tpu: given {gang.tpu!r}, expected such as v5e:4x4 or v6e:2x4 ({e}).") from e
    chips = int(needs["TPU"]) * hosts
    wanted = parse_mesh("data=-1" if config.run.mesh == "auto" and hosts > 1 else config.run.mesh, chips).devices
    if wanted != chips:
        raise InputError(
            f"--mesh {config.run.mesh} takes {wanted} of the {chips} chips of {gang.slices} x {gang.tpu}; expected all of them (data=-1)."
        )
    return Shape(hosts, {**needs, **gang.resources}, gang.labels, None, (version, topology), gang.slices)


def capacity(shape: Shape, nodes: Sequence[Node]) -> int:
    """How many gangs all of the cluster's living nodes hold at a time, were nothing else on them."""
    holds: dict[str, int] = defaultdict(int)
    for node in nodes:
        labels = node.get("Labels", {})
        if not node["Alive"] or any(labels.get(key) != value for key, value in shape.labels.items()):
            continue
        if shape.tpu and labels.get(TOPOLOGY) != shape.tpu[1]:
            continue
        own = min(int(node["Resources"].get(name, 0) / amount + 1e-9) for name, amount in shape.needs.items())
        holds[labels.get(SLICE, "") if shape.tpu else ""] += own
    if not shape.tpu:
        return holds[""] // shape.processes
    hosts = shape.processes // shape.slices
    return sum(own // hosts for own in holds.values()) // shape.slices


def check(shape: Shape, nodes: Sequence[Node]) -> int:
    """`capacity`, where that is not nothing.

    Raises:
        InputError: the cluster holds no gang; it says what a gang asks for and what there is.
    """
    if found := capacity(shape, nodes):
        return found
    alive = [node for node in nodes if node["Alive"]]
    kinds = sorted({name for node in alive for name in node["Resources"]} & {"CPU", "GPU", "TPU", *shape.needs})
    has = "; ".join(", ".join(f"{node['Resources'].get(name, 0):g} {name}" for name in kinds) for node in alive)
    raise InputError(
        f"a cell asks for {shape}, and the cluster's {len(alive)} nodes have {has}. Make the mesh smaller, change run.gang "
        "(docs/clusters.md), or add nodes."
    )
