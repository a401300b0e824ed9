"""Before a cluster trains: what the checkpoints of a sweep take. The policy is described in a
process of its own, as the driver never imports jax."""

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from isojax.core.config import Config
from isojax.core.errors import InputError
from isojax.core.nouns import Cell
from isojax.launch.checkpoint_plan import fit_to_disk, plan_checkpoints
from isojax.launch.display import print_line
from isojax.runs.mirror import is_url


def plan_room(config: Config, cells: Sequence[Cell], folder: Path, concurrent_runs: int) -> Config:
    """Print what the checkpoints take; the config with how many are kept of each run.

    folder: the sweep's, which the nodes share, so that its disk is the one that is looked at; not
    where the sweep is at a URL. concurrent_runs: that train at a time. InputError where the disk
    has no room.
    """
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            size = pool.submit(checkpoint_bytes_there, config).result()
    except InputError as e:
        # The nodes have what is missing here, such as the model's folder.
        print_line(f"checkpoints: their size is not known here ({e})")
        return config

    if not is_url(config.run.dir):
        kept = fit_to_disk(config, cells, folder, size, concurrent_runs)
        config = config.with_settings(run={"keep_checkpoints": kept})
    plan = plan_checkpoints(
        config.run, size, runs=len(cells), concurrent_runs=concurrent_runs, folder=None
    )
    print_line(plan.describe())
    return config


def checkpoint_bytes_there(config: Config) -> int:
    """In the child process, which may load jax."""
    from isojax.launch.local.checkpoint_bytes import checkpoint_bytes

    return checkpoint_bytes(config)
