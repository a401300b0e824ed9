"""Where a sweep is worked on: a folder, or a scratch folder that mirrors a URL of fsspec's
(gs://bucket/runs, ...).

With `run.dir` a URL, a run works in a scratch folder of its machine, and whatever it writes there
is put to the URL in the same order, a checkpoint's mark after all its files: a kill at any instant
leaves at the URL what it could have left on a disk, and `--resume` on any machine continues from it
to the same bits.

Of several processes that train a run, each has a scratch folder. Process 0 writes to the URL; the
others read there what it has written, and add their parts of checkpoints
(runs/mirrored_checkpoints.py)."""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from itertools import count, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from isojax.core.errors import InputError, RunFailed
from isojax.core.mirrored_folders import MIRRORED_FOLDERS
from isojax.runs.storage import (
    FolderLocked,
    Lease,
    PeerLease,
    RemoteFolder,
    WriteGuard,
    error_summary,
    exclusive_lock,
    is_leased,
    is_locked,
)

CHECKPOINTS_FOLDER = "checkpoint"  # of a cell
# the object that says that a cell keeps checkpoints, as an empty folder does on a disk
STARTED_MARK = "started"
COMPLETE_SUFFIX = ".whole"  # of the mark of a whole checkpoint, checkpoint/16.whole
# Files of a checkpoint are ITEM/FILE at most; those that hold arrays are deeper.
FILE_DEPTH = 2


class Mirror:
    """A folder at a URL and its like on this machine."""

    def __init__(
        self,
        url: str,
        local: Path,
        remote: RemoteFolder | None = None,
        guard: WriteGuard | None = None,
        writes: bool = True,
    ):
        """`guard`: of the right to write there; None for a process that only reads, or that works
        for the holder. `writes`: whether what is written in the folder goes to the URL; not in the
        processes of a run other than process 0."""
        self.url = url
        self.local = local
        self.remote = remote or RemoteFolder(url)
        self.writes = writes
        self._guard = guard
        self._lease_stack = ExitStack()  # ends the lease that `take_lease` has taken
        # file -> (time of its last change, bytes) as it is at the URL
        self._uploaded: dict[Path, tuple[int, int]] = {}

    def auto_upload(self) -> AbstractContextManager[None]:
        """Put what core/atomic_files.py writes below the folder to the URL, as it is written."""
        return MIRRORED_FOLDERS.uploading(self)

    def pull(self, with_checkpoints: bool = True, cell_name: str = "") -> int:
        """Copy what is at the URL to the folder on this machine, and return the number of files.

        with_checkpoints: also the checkpoints that are whole, without their arrays, which are
        fetched when they are read (runs/mirrored_checkpoints.py). cell_name: of the cells only this
        one, such as "16x8-s0"; "" for all. InputError where the storage cannot be read.
        """
        remote_names = self.remote.find()
        downloads = []
        for name in sorted(remote_names):
            path = self.local / name
            # The mark only stands for the folder, which may be empty.
            if with_checkpoints and name.endswith(f"{CHECKPOINTS_FOLDER}/{STARTED_MARK}"):
                path.parent.mkdir(parents=True, exist_ok=True)
            elif _should_pull(name, remote_names, with_checkpoints, cell_name):
                path.parent.mkdir(parents=True, exist_ok=True)
                downloads.append((name, path))
        self.remote.get(downloads)
        self._uploaded |= {path: _stat_fingerprint(path) for _, path in downloads}
        return len(downloads)

    def push(self, path: Path) -> None:
        """Upload a file, or all files in a folder, if changed since the last upload or download.

        Checkpoints (runs/mirrored_checkpoints.py does these) and hidden files are left out, and so
        is what is not in the mirror's folder. RunFailed where the URL cannot be written, or another
        process has begun to write there.
        """
        if not self.writes:
            return
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if not file.is_relative_to(self.local) or not file.is_file():
                continue
            name = self.remote_name(file)
            if any(part.startswith((".", CHECKPOINTS_FOLDER)) for part in name.split("/")):
                continue

            # Taken before the file is read: what is written meanwhile is put the next time.
            fingerprint = _stat_fingerprint(file)
            if self._uploaded.get(file) != fingerprint:
                with self.guarded_write():
                    self.remote.write(name, file.read_bytes())
                self._uploaded[file] = fingerprint

    def fetch_below(self, path: Path) -> None:
        """Bring what process 0 has written below a folder; nothing in a process that writes."""
        if self.writes or not path.is_relative_to(self.local):
            return
        downloads = []
        for name in sorted(self.remote.find(self.remote_name(path))):
            file = self.local / name
            file.parent.mkdir(parents=True, exist_ok=True)
            downloads.append((name, file))
        self.remote.get(downloads)

    def remote_name(self, path: Path) -> str:
        """The name at the URL of a file or folder in the mirror's folder."""
        return path.relative_to(self.local).as_posix()

    def take_lease(self) -> str:
        """Take the right to write to the URL until `release_lease`, and return its token.

        It may wait until a process that was killed counts as dead. InputError where another process
        has it.
        """
        lease = self._lease_stack.enter_context(Lease(self.remote))
        self._guard = lease
        self.writes = True
        return lease.token

    def release_lease(self) -> None:
        """Give the right to write back, where this process has taken it by `take_lease`."""
        self._lease_stack.close()

    def follow_lease(self, token: str) -> None:
        """Write only parts of checkpoints, and these as long as process 0 has the lease.

        `token`: what `take_lease` has returned there.
        """
        self._guard = PeerLease(self.remote, token)

    @contextmanager
    def guarded_write(self) -> Iterator[None]:
        """RunFailed for whatever goes wrong while a run writes."""
        try:
            if self._guard is not None:
                self._guard.check()
            yield
        except RunFailed:
            raise
        except Exception as e:  # each library has errors of its own
            raise RunFailed(
                f"cannot write to {self.url}: {error_summary(e)}. "
                "What was recorded there is whole; solve that, and continue with --resume."
            ) from e


def _mirrors() -> list[Mirror]:
    """Of this process, the newest first, also those that nothing is written to any more."""
    return [folder for folder in MIRRORED_FOLDERS.folders if isinstance(folder, Mirror)]


def find_mirror(folder: Path) -> Mirror | None:
    """The mirror that a sweep's folder is; None of a folder on a disk."""
    return next((mirror for mirror in _mirrors() if mirror.local == folder), None)


def containing_mirror(path: Path) -> Mirror | None:
    """The mirror whose folder holds a path; None of a path on a disk."""
    return next((mirror for mirror in _mirrors() if path.is_relative_to(mirror.local)), None)


def _should_pull(name: str, remote_names: set[str], with_checkpoints: bool, cell_name: str) -> bool:
    """Whether `Mirror.pull` copies an object.

    Not a hidden file, not one of another cell than `cell_name` (if that is not ""), and of
    checkpoints only those that are whole, if asked for, without the files of arrays. name: relative
    to the URL, as "cells/8x4-s0/records.jsonl". remote_names: of all objects there, among them the
    marks of whole checkpoints.
    """
    *folders, file_name = name.split("/")
    if file_name.startswith("."):
        return False
    if cell_name and folders[:1] == ["cells"] and folders[1:2] != [cell_name]:
        return False
    if CHECKPOINTS_FOLDER not in folders:
        return True

    # cells/CELL/checkpoint/M, whose mark is beside it
    parts = name.split("/")
    end = folders.index(CHECKPOINTS_FOLDER) + 2
    checkpoint = "/".join(parts[:end])
    is_of_array = len(parts[end:]) > FILE_DEPTH
    is_complete = checkpoint + COMPLETE_SUFFIX in remote_names
    return with_checkpoints and is_complete and not is_of_array


def _stat_fingerprint(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size


NO_FOLDERS = ("--server",)  # options whose value is a URL, but of no folder
# of ORG/NAME; hf://datasets/... is storage
MODEL_URL = re.compile(r"https://huggingface\.co/|hf://(?=[^/]+/[^/]+/?$)")


def is_url(text: str) -> bool:
    """Whether a text begins as a URL does, such as "gs://"."""
    return re.match(r"[a-z][a-z0-9+.-]*://", text) is not None


def working_folder(run_dir: str, name: str) -> Path:
    """The folder that a sweep works in: run_dir/name, or its mirror where `run_dir` is a URL."""
    if not is_url(run_dir):
        return Path(run_dir) / name
    for mirror in _mirrors():
        if mirror.url == f"{run_dir.rstrip('/')}/{name}":
            return mirror.local
    raise InputError(
        where=f"run.dir = {run_dir}",
        found="only `isojax launch` and `isojax train` run at a URL",
        expected="a folder",
    )


@contextmanager
def remote_workspace(
    run_dir: str, name: str, multi_process: bool = False, dry_run: bool = False, cell_name: str = ""
) -> Iterator[None]:
    """While the context lasts, a scratch folder on this machine stands for a sweep at a URL.

    The URL is `run_dir`/`name`, and `working_folder` gives the folder: what is there is downloaded
    first, and what a run writes is uploaded as it is written. Where `run_dir` is a folder, nothing
    happens.

    `multi_process`: the run has several processes. They do not know one another yet, so each of
    them reads what is at the URL, and may not write there until `share_mirror` of
    launch/local/mirror_processes.py has brought them together. `dry_run`: read only, without
    checkpoints. `cell_name`: given by a worker of a sweep that another process runs; only the
    sweep's files and this cell are mirrored, and the lease (the right to write) is not taken.

    InputError where the storage cannot be reached, or another process writes there."""
    if not is_url(run_dir):
        yield
        return

    url = f"{run_dir.rstrip('/')}/{name}"
    remote = RemoteFolder(url)
    with ExitStack() as stack:
        lease = None
        if dry_run:
            scratch = Path(stack.enter_context(TemporaryDirectory(prefix="isojax-")))
        elif multi_process:
            scratch = stack.enter_context(_unused_scratch_folder(url))
        else:
            if not cell_name:
                lease = stack.enter_context(Lease(remote))
            scratch = _scratch_folder(url, cell_name)
            stack.enter_context(exclusive_lock(scratch))

        # of a run that was killed; the URL has what counts
        shutil.rmtree(scratch / name, ignore_errors=True)
        mirror = Mirror(url, scratch / name, remote, lease, writes=not multi_process)
        stack.callback(mirror.release_lease)
        mirror.pull(with_checkpoints=not (dry_run or multi_process), cell_name=cell_name)
        stack.enter_context(mirror.auto_upload())
        try:
            yield
        except Exception:
            # Whatever ended the run, what it has written goes to the URL. The user should see what
            # ended it, not what followed from that.
            with suppress(RunFailed):
                mirror.push(mirror.local)
            raise
        if not dry_run:
            mirror.push(mirror.local)
            shutil.rmtree(mirror.local, ignore_errors=True)


def _scratch_folder(url: str, cell_name: str) -> Path:
    """A folder below the user's cache for a sweep's URL, and for one of its cells.

    It is the same each time the sweep is run, so that a lock keeps two processes of one machine
    apart. cell_name: "" for the whole sweep.
    """
    cache_folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    digest = hashlib.sha256(f"{url} {cell_name}".encode()).hexdigest()[:12]
    return cache_folder / "isojax" / "runs" / digest


@contextmanager
def _unused_scratch_folder(url: str) -> Iterator[Path]:
    """A folder below the user's cache for a sweep's URL that no other process of this machine uses
    while the context lasts; those of processes that were killed are used again."""
    for number in count():
        folder = _scratch_folder(url, f"process {number}")
        with ExitStack() as stack:
            try:
                stack.enter_context(exclusive_lock(folder))
            except FolderLocked:
                continue
            yield folder
            return


def is_written(folder: Path) -> bool:
    """Whether a process writes to a sweep's folder, or to the URL that it is a mirror of."""
    mirror = find_mirror(folder)
    return is_locked(folder) if mirror is None else is_leased(mirror.remote)


def refresh(folder: Path, cell_name: str = "") -> None:
    """Bring a mirror to what other processes have put to its URL; nothing for a folder on a disk.

    Without `cell_name`, all cells without checkpoints; else this cell, with them.
    """
    mirror = find_mirror(folder)
    if mirror is None:
        return
    if cell_name:
        shutil.rmtree(folder / "cells" / cell_name, ignore_errors=True)
    mirror.pull(with_checkpoints=bool(cell_name), cell_name=cell_name)


@contextmanager
def localize(arguments: Sequence[str]) -> Iterator[list[str]]:
    """A command's arguments with a temporary folder in place of each URL of a sweep.

    ["gs://b/runs/x"] becomes ["/tmp/isojax-1a2b/runs/x"], a folder with what is at the URL, without
    checkpoints. What the command writes to it is uploaded. The last two parts of the URL are kept,
    as commands show them. InputError where there is nothing at a URL.
    """
    with ExitStack() as stack:
        localized = []
        for option, argument in pairwise(["", *arguments]):
            if not _names_folder_at_url(option, argument):
                localized.append(argument)
                continue

            url = argument.rstrip("/")
            scratch = Path(stack.enter_context(TemporaryDirectory(prefix="isojax-")))
            last_parts = url.partition("://")[2].split("/")[-2:]
            mirror = Mirror(url, scratch.joinpath(*last_parts))
            if not mirror.pull(with_checkpoints=False):
                raise InputError(
                    found=f"there is nothing at {url}",
                    expected="a sweep's folder, as gs://BUCKET/runs/x",
                )
            stack.enter_context(mirror.auto_upload())
            localized.append(str(mirror.local))
        yield localized


def _names_folder_at_url(option: str, argument: str) -> bool:
    """Whether an argument of a command is the URL of a sweep's folder, and no server or model.
    `option`: the argument before it, "" for the first."""
    if not is_url(argument) or option in NO_FOLDERS:
        return False
    return not argument.startswith("ray://") and MODEL_URL.match(argument) is None
