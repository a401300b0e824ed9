"""Several processes that are one run: which of them this one is, and what such a run cannot
have."""

import re
from dataclasses import dataclass

from isojax.core.config import Config
from isojax.core.errors import InputError

SHUTDOWN_TIMEOUT = 20  # seconds that a process which fails waits for the others


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of a run, as one of them knows them."""

    coordinator: str = ""  # HOST:PORT at which the others reach process 0
    num_processes: int = 1
    process_id: int = 0
    auto: bool = False  # all of this is as the cluster's environment says
    # What is not given, such as a process's share of its host's devices, is as the environment
    # (SLURM's) says.
    detect_cluster: bool = True

    @property
    def is_multi_process(self) -> bool:
        """Whether there may be more than this one."""
        return self.auto or self.num_processes > 1


SINGLE_PROCESS = ProcessGroup()


def parse_process_group(
    coordinator: str | None, num_processes: str | None, process_id: int | None
) -> ProcessGroup:
    """The process group that --coordinator, --processes and --process describe.

    coordinator: HOST:PORT of process 0. num_processes: a number, or "auto" alone, which asks the
    cluster. process_id: from 0. InputError where they contradict one another.
    """
    if num_processes is None and coordinator is None and process_id is None:
        return SINGLE_PROCESS
    if num_processes == "auto" and coordinator is None and process_id is None:
        return ProcessGroup(auto=True)

    is_number = num_processes is not None and re.fullmatch(r"\d{1,6}", num_processes)
    count = int(num_processes) if num_processes and is_number else 0
    if count == 1:
        return SINGLE_PROCESS

    address = re.fullmatch(r".+:(\d{1,5})", coordinator or "")
    is_reachable = address is not None and 0 < int(address[1]) < 2**16
    if coordinator and is_reachable and process_id is not None and 0 <= process_id < count:
        return ProcessGroup(coordinator, count, process_id)

    numbers = f"0 to {count - 1}" if count else "from 0"
    raise InputError(
        found=(
            f"given --processes {num_processes}, --coordinator {coordinator} and --process "
            f"{process_id}"
        ),
        expected=(
            "--processes auto alone, which asks the cluster, or all three: how many processes "
            "there are, HOST:PORT of process 0 as all reach it, and this one's number, "
            f"{numbers}"
        ),
    )


def refuse_sampler_processes(config: Config) -> None:
    """InputError for run.sampler_processes in a run without Ray, which carries their messages."""
    if config.run.sampler_processes:
        raise InputError(
            where="run.sampler_processes",
            found=f"given {config.run.sampler_processes} without --ray",
            expected="it with Ray, which starts these processes",
            fix=(
                "Add --ray local on one machine or --ray auto on a cluster, and say by "
                "run.process_group.processes how many processes a run has. Or leave "
                "run.sampler_processes out: with run.sampler_mesh alone, each process trains "
                "on some of its devices and samples on the others."
            ),
        )


def sampler_processes(config: Config, num_processes: int) -> int:
    """How many of so many processes only sample (run.sampler_processes), while the others train.

    InputError where none is left to train, or those that sample have no mesh.
    """
    if config.run.sampler_processes >= num_processes:
        raise InputError(
            where="run.sampler_processes",
            found=(
                f"given {config.run.sampler_processes} of the {num_processes} processes of this run"
            ),
            expected="fewer, as the others train",
            fix="Start more (run.process_group.processes), or leave it out.",
        )

    if config.run.sampler_processes and config.run.sampler_mesh is None:
        raise InputError(
            where="run.sampler_processes",
            found=(
                f"given {config.run.sampler_processes} without run.sampler_mesh, "
                "the mesh of their devices"
            ),
            fix="Set it to data=-1 for all of them on data, or leave run.sampler_processes out.",
        )

    return config.run.sampler_processes


def check_multi_process(
    config: Config, mesh_devices: int, sampler_devices: int, devices: int, num_processes: int
) -> None:
    """InputError where the meshes do not use all devices of all processes, or not evenly.

    mesh_devices: how many the mesh of training takes. sampler_devices: the mesh of the sampler, 0
    where it has none. devices: how many all processes have together, as many each.
    """
    trainers = num_processes - config.run.sampler_processes
    if trainers < num_processes:  # some processes only sample
        # The share of the devices that the mesh takes is the share of processes that train.
        splits_evenly = mesh_devices * num_processes == devices * trainers
        expected = (
            f"all of them: --mesh those of the {trainers} processes that train, run.sampler_mesh"
            " those of the others"
        )
    else:
        # Every process has as many devices of each mesh.
        splits_evenly = mesh_devices % num_processes == 0
        expected = "all of them"
        if sampler_devices:
            expected += f", and of each mesh as many from each of the {num_processes} processes"

    if mesh_devices + sampler_devices != devices or not splits_evenly:
        taken = f"--mesh {config.run.mesh} takes {mesh_devices}"
        products = "product is"
        if sampler_devices:
            taken += f" and run.sampler_mesh = {config.run.sampler_mesh} {sampler_devices}"
            products = "products add up to"
        raise InputError(
            found=f"{taken} of the {devices} devices of {num_processes} processes",
            expected=expected,
            fix=f"Choose sizes whose {products} {devices}, or start fewer processes.",
        )
    if config.run.cells_at_once not in (None, 1):
        raise InputError(
            where="run.cells_at_once",
            found=f"given {config.run.cells_at_once} with {num_processes} processes",
            fix="Leave it out, or run it on one host.",
        )
