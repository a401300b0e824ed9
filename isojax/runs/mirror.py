"""Where a sweep is worked on: a folder, or a scratch folder that mirrors a URL of fsspec's
(gs://bucket/runs, ...).

With `run.dir` a URL, a run works in a scratch folder of its machine, and whatever it writes there
is put to the URL in the same order, a checkpoint's mark after all its files: a kill at any instant
leaves at the URL what it could have left on a disk, and `--resume` on any machine continues from it
to the same bits."""

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from isojax.core.errors import InputError, RunFailed
from isojax.core.mirrored_folders import MIRRORED_FOLDERS
from isojax.runs.storage import (
    Lease,
    RemoteFolder,
    error_summary,
    exclusive_lock,
    is_leased,
    is_locked,
    run_in_thread,
)

CHECKPOINTS_FOLDER = "checkpoint"  # of a cell
# the object that says that a cell keeps checkpoints, as an empty folder does on a disk
STARTED_MARK = "started"
COMPLETE_SUFFIX = ".whole"  # of the mark of a whole checkpoint, checkpoint/16.whole


class Mirror:
    """A folder at a URL and its like on this machine."""

    def __init__(
        self, url: str, local: Path, remote: RemoteFolder | None = None, lease: Lease | None = None
    ):
        """`lease`: the right to write there; None for a process that only reads, or that works for
        the holder."""
        self.url = url
        self.local = local
        self.remote = remote or RemoteFolder(url)
        self._lease = lease
        # file -> (time of its last change, bytes) as it is at the URL
        self._uploaded: dict[Path, tuple[int, int]] = {}

    def auto_upload(self) -> AbstractContextManager[None]:
        """Put what core/atomic_files.py writes below the folder to the URL, as it is written."""
        return MIRRORED_FOLDERS.uploading(self)

    def pull(self, with_checkpoints: bool = True, cell_name: str = "") -> int:
        """Copy what is at the URL to the folder on this machine, and return the number of files.

        with_checkpoints: also the checkpoints that are whole. cell_name: of the cells only this
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

        Checkpoints (`push_checkpoint` does these) and hidden files are left out, and so is what is
        not in the mirror's folder. RunFailed where the URL cannot be written, or another process
        has begun to write there.
        """
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if not file.is_relative_to(self.local) or not file.is_file():
                continue
            name = self._remote_name(file)
            if any(part.startswith((".", CHECKPOINTS_FOLDER)) for part in name.split("/")):
                continue

            # Taken before the file is read: what is written meanwhile is put the next time.
            fingerprint = _stat_fingerprint(file)
            if self._uploaded.get(file) != fingerprint:
                with self._guarded_write():
                    self.remote.write(name, file.read_bytes())
                self._uploaded[file] = fingerprint

    def push_checkpoint(self, folder: Path) -> None:
        """Upload one checkpoint, a folder checkpoint/M that is complete on this machine.

        After all its files comes its mark, M.whole; then the checkpoints that are no longer on this
        machine are removed from the URL. RunFailed as by `push`.
        """
        name = self._remote_name(folder)
        checkpoints_name = self._remote_name(folder.parent)
        with self._guarded_write():
            # The mark is removed before the files, and written after them, so that a process that
            # is killed leaves no mark at a part of a checkpoint.
            self._remove_checkpoint(name)
            files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
            self.remote.put_all((self._remote_name(file), file) for file in files)
            self.remote.write(name + COMPLETE_SUFFIX, b"whole\n")

            local_names = {path.name for path in folder.parent.iterdir()}
            remote_names = {
                remote_name.removesuffix(COMPLETE_SUFFIX)
                for remote_name in self.remote.list_folder(checkpoints_name)
            }
            for stale_name in remote_names - local_names - {STARTED_MARK}:
                self._remove_checkpoint(f"{checkpoints_name}/{stale_name}")

    def mark_started(self, checkpoints_folder: Path) -> None:
        """Say at the URL that a cell keeps its checkpoints in this folder."""
        with self._guarded_write():
            self.remote.write(
                f"{self._remote_name(checkpoints_folder)}/{STARTED_MARK}", b"started\n"
            )

    def _remove_checkpoint(self, name: str) -> None:
        self.remote.remove(name + COMPLETE_SUFFIX)
        self.remote.remove(name)

    def _remote_name(self, path: Path) -> str:
        return path.relative_to(self.local).as_posix()

    @contextmanager
    def _guarded_write(self) -> Iterator[None]:
        """RunFailed for whatever goes wrong while a run writes."""
        try:
            if self._lease is not None:
                self._lease.check()
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


def _should_pull(name: str, remote_names: set[str], with_checkpoints: bool, cell_name: str) -> bool:
    """Whether `Mirror.pull` copies an object.

    Not a hidden file, not one of another cell than `cell_name` (if that is not ""), and of
    checkpoints only those that are whole, if asked for. name: relative to the URL, as
    "cells/8x4-s0/records.jsonl". remote_names: of all objects there, among them the marks of whole
    checkpoints.
    """
    *folders, file_name = name.split("/")
    if file_name.startswith("."):
        return False
    if cell_name and folders[:1] == ["cells"] and folders[1:2] != [cell_name]:
        return False
    if CHECKPOINTS_FOLDER not in folders:
        return True

    # cells/CELL/checkpoint/M, whose mark is beside it
    depth = folders.index(CHECKPOINTS_FOLDER)
    checkpoint = "/".join(name.split("/")[: depth + 2])
    return with_checkpoints and checkpoint + COMPLETE_SUFFIX in remote_names


def _stat_fingerprint(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size


CheckpointUploader = Callable[[Path, Callable[[], bool]], Future[None]]


def checkpoint_uploader(folder: Path) -> CheckpointUploader | None:
    """A function that uploads a cell's checkpoints to the URL of its sweep in the background.

    None where the sweep is not at a URL. folder: the one that holds the cell's checkpoints.
    The function takes a checkpoint's folder, and a function that is true while the checkpoint is
    still being written. It returns a future at once; its thread waits for that to end, and uploads.
    """
    mirror = next((one for one in _mirrors() if folder.is_relative_to(one.local)), None)
    if mirror is None:
        return None
    mirror.mark_started(folder)

    def push_when_written(checkpoint_folder: Path, is_writing: Callable[[], bool]) -> None:
        while is_writing():
            time.sleep(0.02)
        if checkpoint_folder.exists():  # otherwise its writer reports why not
            mirror.push_checkpoint(checkpoint_folder)

    def start(checkpoint_folder: Path, is_writing: Callable[[], bool]) -> Future[None]:
        return run_in_thread(lambda: push_when_written(checkpoint_folder, is_writing))

    return start


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

    `multi_process`: the run has several processes, which is an InputError at a URL, as is storage
    that cannot be reached, or another process that writes there. `dry_run`: read only, without
    checkpoints. `cell_name`: given by a worker of a sweep that another process runs; only the
    sweep's files and this cell are mirrored, and the lease (the right to write) is not taken."""
    if not is_url(run_dir):
        yield
        return
    if multi_process:
        raise InputError(
            where="run.dir",
            found=f"given {run_dir} with several processes",
            expected="a folder that all share, for checkpoints",
            fix="Mount the bucket and give run.dir=FOLDER, or run one process (docs/hosts.md).",
        )

    url = f"{run_dir.rstrip('/')}/{name}"
    remote = RemoteFolder(url)
    lease = None
    with ExitStack() as stack:
        if dry_run:
            scratch = Path(stack.enter_context(TemporaryDirectory(prefix="isojax-")))
        else:
            scratch = _scratch_folder(url, cell_name)
            if not cell_name:
                lease = stack.enter_context(Lease(remote))
            stack.enter_context(exclusive_lock(scratch))
            # of a run that was killed; the URL has what counts
            shutil.rmtree(scratch / name, ignore_errors=True)

        mirror = Mirror(url, scratch / name, remote, lease)
        mirror.pull(with_checkpoints=not dry_run, cell_name=cell_name)
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
