"""What the processes of a cell's process group ask a Ray cluster for, and how many such groups the
cluster holds.

On TPUs the hosts of a slice, on GPUs as few processes as hold the mesh, on CPUs one process that
simulates it.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from isojax.core.config import Config
from isojax.core.config.sweep import ProcessGroupConfig
from isojax.core.errors import InputError
from isojax.distributed.mesh_spec import MeshShape, parse_mesh
from isojax.launch.process_group import sampler_processes

Node = Mapping[str, Any]  # as ray.nodes() describes it
# Labels of TPU hosts.
SLICE_LABEL = "ray.io/tpu-slice-name"
TOPOLOGY_LABEL = "ray.io/tpu-topology"
WORKER_LABEL = "ray.io/tpu-worker-id"
UNBOUNDED_DEVICES = 10**9  # devices, for a mesh that names how many it takes


class TpuSlice(NamedTuple):
    """As Ray names them, such as v5litepod and 4x4."""

    version: str
    topology: str


@dataclass(frozen=True)
class ProcessGroupSpec:
    """A process group, and what each of its processes asks of its node."""

    num_processes: int  # a multiple of num_slices
    resources: Mapping[str, float]  # of each process, such as {"GPU": 4, "CPU": 1}
    labels: Mapping[str, str] = field(default_factory=dict)
    cpu_devices: int | None = None  # that a CPU simulates in each process
    tpu_slice: TpuSlice | None = None
    num_slices: int = 1

    def __str__(self) -> str:
        resources_text = ", ".join(f"{amount:g} {name}" for name, amount in self.resources.items())
        labels_text = "".join(f", {key}={value}" for key, value in self.labels.items())
        slice_text = f" on {self.num_slices} x {':'.join(self.tpu_slice)}" if self.tpu_slice else ""
        asks = f"{slice_text} with {resources_text}{labels_text}"
        if self.num_processes > 1:
            return f"{self.num_processes} processes{asks} each"
        return f"{self.num_processes} process{asks}"


def process_group_spec(config: Config, nodes: Sequence[Node]) -> ProcessGroupSpec:
    """The process group that a cell asks for: on TPUs, GPUs or CPUs, in this order.

    nodes: of the cluster, as ray.nodes() describes them. InputError where run.process_group
    contradicts itself, the mesh or the cluster.
    """
    group = config.run.process_group
    if group.tpu is not None:
        return _tpu_group(config, group, group.tpu)
    if group.slices > 1:
        raise InputError(
            where="run.process_group.slices",
            found=f"given {group.slices} without run.process_group.tpu",
            expected="run.process_group.tpu=v5e:4x4 or another slice with it",
        )

    # Of the node with the most. A setting of cpus alone asks for cores, whatever GPUs there are.
    max_gpus = int(max((node["Resources"].get("GPU", 0) for node in nodes), default=0))
    if group.gpus or (max_gpus and group.cpus is None):
        return _gpu_group(config, group, max_gpus)

    has_tpus = any(node["Resources"].get("TPU", 0) for node in nodes)
    # All else is left at its default.
    asks_for_nothing = group == ProcessGroupConfig(retries=group.retries)
    if has_tpus and asks_for_nothing:
        raise InputError(
            where="run.process_group",
            found="the cluster has TPUs, and no setting tells what a run takes of it",
            expected=(
                "a slice, such as run.process_group.tpu=v5e:4x4, or cores of its hosts, "
                "run.process_group.cpus=1"
            ),
        )
    return _cpu_group(config, group)


def _cpu_group(config: Config, group: ProcessGroupConfig) -> ProcessGroupSpec:
    """Processes that simulate the mesh on CPUs; a process asks for a core for each of its devices.

    InputError where they cannot share the mesh evenly. group: config.run.process_group.
    """
    num_processes = group.processes or 1
    cpus_per_process = max(1, int(group.cpus or 1))
    devices = _cell_devices(config, num_processes * cpus_per_process, num_processes)
    if devices % num_processes:
        raise InputError(
            where="--mesh",
            found=(
                f"given {config.run.mesh}, which takes {devices} devices, which "
                f"{num_processes} processes (run.process_group.processes) cannot share alike"
            ),
            expected=f"a multiple of {num_processes}",
        )

    cpu_devices = devices // num_processes
    resources = {"CPU": group.cpus or float(cpu_devices), **group.resources}
    return ProcessGroupSpec(num_processes, resources, group.labels, cpu_devices)


def _cell_devices(config: Config, available_devices: int, num_processes: int) -> int:
    """How many devices a cell takes, to train and to sample.

    available_devices: of all processes of the group. A mesh with -1, or auto in several processes,
    takes all that the processes of its role (that train, or only sample) have of them. InputError
    where the two meshes take different numbers of devices from a process.
    """
    samplers = sampler_processes(config, num_processes)
    trainers = num_processes - samplers
    to_sample = available_devices * samplers // num_processes
    is_multi_process = num_processes > 1

    to_train = available_devices - to_sample
    training = _mesh_of_role(config.run.mesh, to_train, is_multi_process).devices
    if not samplers:
        return training

    sampling = _mesh_of_role(str(config.run.sampler_mesh), to_sample, is_multi_process).devices
    if training * samplers != sampling * trainers:
        raise InputError(
            where="--mesh",
            found=(
                f"given {config.run.mesh}, which takes {training} devices of the {trainers} "
                f"processes that train; run.sampler_mesh = {config.run.sampler_mesh} takes "
                f"{sampling} of the {samplers} that sample"
            ),
            expected="as many of each process",
            fix="Change one of the meshes.",
        )
    return training + sampling


def _mesh_of_role(text: str, available_devices: int, is_multi_process: bool) -> MeshShape:
    """The mesh of a text as --mesh takes it; "auto" is one device, or all in several processes.

    One without -1 says itself how many devices it takes, which need not be available.
    """
    if text == "auto":
        return MeshShape(data=available_devices if is_multi_process else 1)
    return parse_mesh(text, available_devices if "-1" in text else UNBOUNDED_DEVICES)


def _gpu_group(config: Config, group: ProcessGroupConfig, max_gpus: int) -> ProcessGroupSpec:
    """As few processes as hold the mesh, unless their number or their GPUs are set.

    group: config.run.process_group. max_gpus: of the node with the most. InputError where processes
    and GPUs of each do not make up the mesh.
    """
    available_gpus = (group.gpus or max_gpus) * (group.processes or 1)
    mesh_gpus = _cell_devices(config, available_gpus, group.processes or 1)

    gpus_per_process = group.gpus
    if not gpus_per_process:
        gpus_per_process = (
            mesh_gpus // group.processes if group.processes else min(mesh_gpus, max_gpus)
        )
    num_processes = group.processes or math.ceil(mesh_gpus / gpus_per_process)

    group_gpus = num_processes * gpus_per_process
    if group_gpus != mesh_gpus:
        available = f"{num_processes} processes of {gpus_per_process} have {group_gpus}"
        raise InputError(
            where="--mesh",
            found=f"given {config.run.mesh}, which takes {mesh_gpus} GPUs, {available}",
            expected="as many",
            fix="Change the mesh, run.process_group.processes or run.process_group.gpus.",
        )
    resources = {"GPU": gpus_per_process, "CPU": group.cpus or 1.0, **group.resources}
    return ProcessGroupSpec(num_processes, resources, group.labels)


def _tpu_group(config: Config, group: ProcessGroupConfig, slice_text: str) -> ProcessGroupSpec:
    """A process on each host of the slices. slice_text: such as "v5e:4x4".

    InputError where Ray knows no such slice, or the mesh does not take all chips.
    """
    from ray.util import tpu

    version, _, topology = slice_text.partition(":")
    if group.processes or group.gpus:
        reason = "a slice's chips belong to one run, with a process on each of its hosts"
        raise InputError(
            where="run.process_group.tpu with processes or gpus",
            found=reason,
            fix="Leave them out.",
        )
    try:
        # Ray calls a v5e v5litepod.
        version = tpu.get_tpu_version_from_type(version.replace("v5e", "v5litepod"))
        # The hosts of all slices together, and what each has, such as {"TPU": 4}.
        num_hosts, resources = tpu.get_tpu_worker_resources(
            topology=topology, accelerator_type=version, num_slices=group.slices
        )
    except ValueError as e:
        raise InputError(
            where="run.process_group.tpu",
            found=f"given {slice_text!r}",
            expected=f"such as v5e:4x4 ({e})",
        ) from e

    chips = int(resources["TPU"]) * num_hosts
    mesh_chips = _cell_devices(config, chips, num_hosts)
    if mesh_chips != chips:
        raise InputError(
            where="--mesh",
            found=(
                f"given {config.run.mesh}, which takes {mesh_chips} of the {chips} chips of "
                f"{group.slices} x {slice_text}"
            ),
            expected="all of them (data=-1)",
        )
    return ProcessGroupSpec(
        num_processes=num_hosts,
        resources=resources | group.resources,
        labels=group.labels,
        tpu_slice=TpuSlice(version, topology),
        num_slices=group.slices,
    )


def capacity(spec: ProcessGroupSpec, nodes: Sequence[Node]) -> int:
    """How many process groups the cluster's living nodes hold at a time, were nothing else on them.

    nodes: as ray.nodes() describes them, dead ones included.
    """
    # By the name of the slice; of what is no TPU slice, all nodes are one.
    processes_by_slice: dict[str, int] = defaultdict(int)
    for node in nodes:
        labels = node.get("Labels", {})
        has_labels = all(labels.get(key) == value for key, value in spec.labels.items())
        is_of_topology = (
            spec.tpu_slice is None or labels.get(TOPOLOGY_LABEL) == spec.tpu_slice.topology
        )
        if not (node["Alive"] and has_labels and is_of_topology):
            continue

        # The addend lets 0.3 hold three times 0.1.
        processes = min(
            int(node["Resources"].get(name, 0) / amount + 1e-9)
            for name, amount in spec.resources.items()
        )
        slice_name = labels.get(SLICE_LABEL, "") if spec.tpu_slice else ""
        processes_by_slice[slice_name] += processes

    # Where there are no slices, num_slices is 1: a group is its processes, on any nodes.
    hosts_per_slice = spec.num_processes // spec.num_slices
    whole_slices = sum(processes // hosts_per_slice for processes in processes_by_slice.values())
    return whole_slices // spec.num_slices


def require_capacity(spec: ProcessGroupSpec, nodes: Sequence[Node]) -> int:
    """How many process groups the cluster holds (`capacity`); InputError where it holds none."""
    num_groups = capacity(spec, nodes)
    if num_groups:
        return num_groups

    living = [node["Resources"] for node in nodes if node["Alive"]]
    shown_names = {"CPU", "GPU", "TPU", *spec.resources}
    names = sorted({name for resources in living for name in resources} & shown_names)
    node_texts = []
    for resources in living:
        node_texts.append(", ".join(f"{resources.get(name, 0):g} {name}" for name in names))
    raise InputError(
        found=(
            f"a run asks for {spec}, and the cluster's {len(living)} nodes have "
            f"{'; '.join(node_texts)}"
        ),
        fix="Make the mesh smaller, change run.process_group (docs/clusters.md), or add nodes.",
    )
