"""The work of a process of a process group, loaded with jax by RayActor: it prepares the sweep and
trains cells."""

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from isojax.core import registry
from isojax.core.config import Config
from isojax.core.errors import DeadStart, InputError, RunFailed
from isojax.core.nouns import Cell
from isojax.core.terminal import warn
from isojax.distributed import multiprocess
from isojax.distributed.roles import Link, divide_roles, processes_of_roles
from isojax.launch.local.join_processes import join_processes
from isojax.launch.local.local_runner import train_cell
from isojax.launch.local.mirror_processes import write_by_primary_alone
from isojax.launch.local.setup import SweepSetup, open_sweep, start_jax
from isojax.launch.process_group import ProcessGroup
from isojax.launch.ray.process_status import TOKEN_FILE, StatusCollector, WorkerLost
from isojax.launch.ray.sampler_process import sampling
from isojax.launch.strategies import CellTarget
from isojax.runs.mirror import is_url, refresh, remote_workspace, working_folder
from isojax.runs.storage import FolderLocked, exclusive_lock
from isojax.train.base_policy import BasePolicy

# Seconds within which the process that had a cell before is gone, and what an NFS server kept for
# it.
LOCK_TIMEOUT = 150.0


@contextmanager
def prepare_sweep(
    config: Config,
    cells: list[Cell],
    token: str,
    group: ProcessGroup,
    name: str,
    status: StatusCollector,
    links: Mapping[int, Link],
) -> Iterator[Callable[[CellTarget], None]]:
    """Join the other processes and prepare the sweep; gives the function that trains a cell.

    All ends with the context. In a process that only samples, that function does nothing, as a
    thread samples until training ends. token: the content of TOKEN_FILE in the driver's folder.
    cells: all of the sweep. group: as this process is part of it. name: of this process, in the
    mirror of a sweep at a URL. status: collects what the driver shows. links: of `make_links`.
    InputError where the sweep is refused.
    """
    registry.set_plugin_folders(config.run.plugin_folders)
    # For a sweep at a URL, a folder of this machine that stands for it; else nothing. No cell has
    # the name of a process, so none is fetched yet: `train_target` fetches the one that it trains.
    with remote_workspace(config.run.dir, config.name, cell_name=name):
        folder = working_folder(config.run.dir, config.name)
        if not is_url(config.run.dir):
            _check_token(folder, token)

        start_jax(config)
        with join_processes(group), divide_roles(config.run.sampler_processes, links) as role:
            write_by_primary_alone(folder)
            if role is not None and not role.trains:
                with sampling(role):
                    yield lambda target: None
                return

            # The driver has decided whether the sweep may go on; here its folder exists.
            with open_sweep(config, cells, resume=True, role=role) as setup:
                base_policy = setup.prepare(status.show_preparation, status.show_verifier_failure)
                yield partial(train_target, setup, base_policy, status)


def _check_token(folder: Path, token: str) -> None:
    """InputError where this node sees another folder at the sweep's path than the driver does.

    token: what the driver has written there, which no other folder can have by chance.
    """
    token_file = folder / TOKEN_FILE
    if token_file.exists() and token_file.read_text() == token:
        return
    raise InputError(
        where="run.dir",
        found=f"the node {socket.gethostname()} does not see {folder} as the driver does",
        expected="a folder that all nodes share, such as on NFS, or the URL of a bucket",
        fix="Choose one by run.dir=FOLDER or run.dir=gs://BUCKET/runs.",
    )


def make_links(config: Config, group: ProcessGroup, actors: Sequence[Any]) -> dict[int, Link]:
    """Links with the processes of the other role (that train, or only sample), by their number.

    group: as this process is part of it. actors: Ray's handles of all its processes, in their
    order. Without processes that only sample there are no links. Ray carries a message to the other
    process as a call of RayActor.receive, and keeps a large one once for all processes of a host.
    """
    trainers, samplers = processes_of_roles(group.num_processes, config.run.sampler_processes)
    other_role = samplers if group.process_id in trainers else trainers

    def link_with(process: int) -> Link:
        return Link(
            lambda number, message: actors[process].receive.remote(
                group.process_id, number, message
            )
        )

    return {process: link_with(process) for process in other_role}


def train_target(
    setup: SweepSetup, base_policy: BasePolicy, status: StatusCollector, target: CellTarget
) -> None:
    """Train a cell up to its target; the errors are those that RayActor.train names."""
    cell = target.cell
    cell_folder = setup.folder / "cells" / cell.name
    refresh(setup.folder, cell.name)  # of a sweep at a URL: what another node has trained of it

    with ExitStack() as stack:
        if multiprocess.is_primary():
            # A process that was cut off, and not killed, may still write.
            try:
                stack.enter_context(exclusive_lock(cell_folder, LOCK_TIMEOUT))
            except FolderLocked as e:
                raise WorkerLost(f"another process still writes to {cell_folder}") from e
            except InputError as e:
                raise RunFailed(str(e)) from e
        error = train_cell(setup, setup.programs[0], base_policy, target, status)

    if error is None:
        return
    if isinstance(error, DeadStart):
        raise error  # the driver ends the sweep

    warn(f"{cell.name}: {type(error).__name__}: {error}")
    message = str(error) or type(error).__name__
    if isinstance(error, (FloatingPointError, InputError, RunFailed)):
        raise RunFailed(message) from error  # it would fail again
    raise WorkerLost(message) from error
