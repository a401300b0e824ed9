"""Several processes of a run whose `run.dir` is a URL: who writes there, and how they upload a
checkpoint together. They share nothing but the URL.

Process 0 has the lease and writes the ledger, the base policy and all other files. Each process
works in a folder of its machine, and uploads the shards that its devices hold.
"""

from pathlib import Path

from isojax.distributed import multiprocess
from isojax.runs.mirror import find_mirror
from isojax.runs.mirrored_checkpoints import (
    MirroredCheckpoints,
    UploadPeers,
    mirrored_checkpoints,
)


def share_mirror(folder: Path) -> None:
    """Let process 0 take the right to write to the URL, and give each process what is there.

    Nothing happens where the sweep's `folder` is on a disk, or for a single process, which has done
    so before. All processes call it, once they have met. InputError in all of them where another
    launch writes there.
    """
    mirror = find_mirror(folder)
    if mirror is None or not multiprocess.is_multiprocess():
        return

    token = multiprocess.run_on_primary(mirror.take_lease, str)
    if not multiprocess.is_primary():
        mirror.follow_lease(token)
    mirror.pull()
    # Nothing is written before all have read: all begin from the same.
    multiprocess.barrier("all have what is at the URL")


def write_by_primary_alone(folder: Path) -> None:
    """Of the processes that a Ray driver has started, let process 0 alone write to the URL.

    The driver has the lease. Nothing happens where the sweep's `folder` is on a disk.
    """
    mirror = find_mirror(folder)
    if mirror is not None:
        mirror.writes = multiprocess.is_primary()


def checkpoints_at_url(folder: Path) -> MirroredCheckpoints | None:
    """What copies a cell's checkpoints to the URL of its sweep; None where it is on a disk.

    folder: the one that holds the checkpoints.
    """
    return mirrored_checkpoints(folder, UploadPeers(multiprocess.is_primary(), _first_problem))


def _first_problem(problem: str) -> str:
    """What went wrong in the first process in which something did; "" where nothing did. All
    processes call it, in the thread that uploads."""
    problems = multiprocess.allgather(problem, str, channel="uploads")
    return next(filter(None, problems), "")
