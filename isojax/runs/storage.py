"""Where runs are stored: folders at a URL, by fsspec, and one writer at a time for a folder: on a
disk by a lock on the file `.lock` in it, at a URL by the object `.lock` there, which names the
holder, who renews it while alive."""

import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, Self, TypeVar
from uuid import uuid4

from isojax.core.atomic_files import write_bytes
from isojax.core.errors import InputError, RunFailed
from isojax.core.terminal import note

T = TypeVar("T")
CONNECT_TIMEOUT = 20.0  # seconds to wait for storage to answer, before any work
LOCK_FILE = ".lock"
# seconds; `isojax status` locks a folder while it looks
LOCK_TIMEOUT = 0.1
LOCK_RETRY_INTERVAL = 0.05
RENEW_SECONDS = 10.0  # seconds between two renewals
STALE_SECONDS = 60.0  # seconds without a renewal after which another process may take the lease


class RemoteFolder:
    """A folder (or a file) at a URL; names are relative to it. Methods raise what the storage's
    library raises."""

    def __init__(self, url: str):
        """Raises InputError where fsspec, or this machine, does not know the protocol."""
        from fsspec.core import url_to_fs
        from fsspec.implementations.local import LocalFileSystem

        self.url = url
        options = {"auto_mkdir": True} if url.startswith(("file://", "local://")) else {}
        self._fs, self._root = self.call_with_timeout(lambda: url_to_fs(url, **options))
        self._is_disk = isinstance(self._fs, LocalFileSystem)

    def call_with_timeout(self, operation: Callable[[], T]) -> T:
        """The result of an operation, called in a thread before a sweep does any work.

        InputError where it fails, or takes longer than CONNECT_TIMEOUT.
        """
        try:
            return run_in_thread(operation).result(CONNECT_TIMEOUT)
        except Exception as e:  # each library has errors of its own
            reason = error_summary(e)
            if isinstance(e, TimeoutError):
                reason = f"no answer within {CONNECT_TIMEOUT:g} seconds"
            fix = "check its name, the network and your credentials, or give another run.dir"
            raise InputError(
                where=self.url,
                found=f"cannot be used: {reason}",
                expected=f"a place you may write: {fix}",
            ) from e

    def find(self, folder: str = "") -> set[str]:
        """The names of all objects below a folder, "" for all; of a file, an empty name. Raises
        InputError."""
        self._fs.invalidate_cache()
        start = self._full_path(folder)
        paths: list[str] = self.call_with_timeout(lambda: self._fs.find(start))
        return {
            name.removeprefix(self._root).removeprefix("/")
            for name in paths
            if not name.endswith("/")
        }

    def get(self, pairs: Sequence[tuple[str, Path]]) -> None:
        """Copy objects, each to its file, in a folder that is there. Raises InputError."""
        if not pairs:
            return
        remote_paths = [self._full_path(name) for name, _ in pairs]
        local_paths = [str(path) for _, path in pairs]
        try:
            self._fs.get(remote_paths, local_paths)
        except Exception as e:  # each library has errors of its own
            raise InputError(
                where=self.url,
                found=f"cannot be read: {error_summary(e)}",
                fix="Check the network and your credentials, and try again.",
            ) from e

    def read(self, name: str) -> bytes | None:
        """An object; None where there is none."""
        try:
            return self._fs.cat_file(self._full_path(name))
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Write an object, whole or not at all."""
        if self._is_disk:
            write_bytes(Path(self._full_path(name)), data)
        else:
            self._fs.pipe_file(self._full_path(name), data)

    def put_all(self, pairs: Iterable[tuple[str, Path]]) -> None:
        """Write files, one or more, at once; a kill may leave some of them, and a part of one."""
        remote_paths = []
        local_paths = []
        for name, path in pairs:
            remote_paths.append(self._full_path(name))
            local_paths.append(str(path))
        self._fs.put(local_paths, remote_paths)

    def list_folder(self, folder: str) -> set[str]:
        """The names of what is in a folder, files and folders, without the path to it."""
        self._fs.invalidate_cache()
        return {
            path.rstrip("/").rpartition("/")[2]
            for path in self._fs.ls(self._full_path(folder), detail=False)
        }

    def remove(self, name: str) -> None:
        """Remove an object, or a folder with all in it, where there is one."""
        self._fs.invalidate_cache()
        if self._fs.exists(self._full_path(name)):
            self._fs.rm(self._full_path(name), recursive=True)

    def _full_path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root


def run_in_thread(operation: Callable[[], T]) -> Future[T]:
    """An operation in a thread that does not keep the process from ending."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(operation())
        except BaseException as e:  # for `result` to raise
            future.set_exception(e)

    threading.Thread(target=run, daemon=True).start()
    return future


def error_summary(error: BaseException) -> str:
    """An error's message in one line of at most 300 characters, with its type if it is not ours."""
    message = " ".join(str(error).split())[:300].removesuffix(".")
    if isinstance(error, InputError | RunFailed):
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


class FolderLocked(InputError):
    """Another process writes to a folder."""


@contextmanager
def exclusive_lock(folder: Path, timeout: float = LOCK_TIMEOUT) -> Iterator[None]:
    """While the context lasts, no other process may write to the folder, which is made if need be.

    InputError where it cannot be written; FolderLocked where another process still holds it after
    `timeout` seconds. The lock is on a file in the folder, because NFS shares locks on files among
    its clients, but not locks on folders.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock_fd = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as e:
        raise InputError(
            found=f"cannot make the folder {folder}, or write in it: {e.strerror or e}",
            fix="Choose a place that you may write.",
        ) from e
    try:
        deadline = time.monotonic() + timeout
        while not try_flock(lock_fd, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise FolderLocked(
                    where=folder,
                    found="being written by another process",
                    fix=(
                        "Wait for it, stop it, or choose another name=NAME. If its machine is "
                        f"lost, a file server may keep its lock: remove {folder / LOCK_FILE}."
                    ),
                )
            time.sleep(LOCK_RETRY_INTERVAL)
        yield
    finally:
        os.close(lock_fd)


def is_locked(folder: Path) -> bool:
    """Whether a process is writing to the folder, as far as this machine can tell."""
    try:
        lock_fd = os.open(folder / LOCK_FILE, os.O_RDONLY)
    except OSError:  # no process ever was
        return False
    try:
        return not try_flock(lock_fd, fcntl.LOCK_SH)
    finally:
        os.close(lock_fd)


def try_flock(lock_fd: int, lock_type: int) -> bool:
    """Whether a lock of this kind (fcntl.LOCK_EX or LOCK_SH) could be taken on an open file."""
    try:
        fcntl.flock(lock_fd, lock_type | fcntl.LOCK_NB)
    except OSError as e:
        return not isinstance(e, BlockingIOError)  # another error: a file system without locks
    return True


@dataclass(frozen=True)
class LeaseHolder:
    """The process that writes to a URL, as its lock there names it."""

    host: str  # its machine, or its container
    pid: int
    token: str  # of this lease alone
    time: float  # when it was last renewed, in seconds of the epoch

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """ValueError, TypeError or KeyError of what is no lock; other fields are no lock's."""
        document = json.loads(data)
        return cls(
            host=str(document["host"]),
            pid=int(document["pid"]),
            token=str(document["token"]),
            time=float(document["time"]),
        )

    @property
    def name(self) -> str:
        """What a message calls it."""
        return f"process {self.pid} on {self.host.partition(' ')[0]}"

    @property
    def is_stale(self) -> bool:
        return time.time() - self.time >= STALE_SECONDS

    @property
    def is_dead(self) -> bool:
        """Whether it was a process of this machine that has ended."""
        if self.host != _host_id():
            return False
        try:
            os.kill(self.pid, 0)
        except (OSError, OverflowError) as e:
            return not isinstance(e, PermissionError)
        return False


class WriteGuard(Protocol):
    def check(self) -> None:
        """RunFailed where this process may not write to a URL any more."""


class Lease:
    """The right to write, as a context. Entering may wait until a process that was killed counts as
    dead. A thread renews it until the context ends."""

    def __init__(self, remote: RemoteFolder):
        self._remote = remote
        self.token = uuid4().hex  # names this lease at the URL
        self._renewed_at = 0.0
        self._taken_over_by = ""  # the name of another holder, from when on nothing is written
        self._closed = threading.Event()
        self._renew_thread = threading.Thread(target=self._renew_loop, daemon=True)

    def __enter__(self) -> Self:
        self._wait_for_holder()
        self._remote.call_with_timeout(self._write_lock)
        # Of two processes that wrote at once, the one whose lock stands has the lease.
        self._remote.call_with_timeout(self._check_holder)
        if self._taken_over_by:
            raise self._locked_error(self._taken_over_by)
        self._renew_thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._renew_thread.join(RENEW_SECONDS)
        with suppress(Exception):  # without removal it grows stale
            if not self._taken_over_by:
                self._remote.remove(LOCK_FILE)

    def check(self) -> None:
        """RunFailed where another process has taken the lease.

        The lock at the URL is read only where this process has not renewed it for STALE_SECONDS, as
        after it was frozen.
        """
        if time.time() - self._renewed_at > STALE_SECONDS:
            self._check_holder()
        if self._taken_over_by:
            raise RunFailed(
                f"{self._remote.url} was taken over by {self._taken_over_by}, because this process "
                f"did not renew its lease for {STALE_SECONDS:.0f} seconds; it ends."
            )

    def _wait_for_holder(self) -> None:
        """Return once no other process holds the lease.

        At once, or after up to STALE_SECONDS, by when a process that was killed counts as dead.
        InputError where the holder renews its lease meanwhile, so that it is alive.
        """
        first_holder = self._remote.call_with_timeout(self.read_holder)
        if first_holder is None or first_holder.is_dead or first_holder.is_stale:
            return

        note(
            f"waiting to see whether {first_holder.name}, which has written to "
            f"{self._remote.url}, is alive"
        )
        holder: LeaseHolder | None = first_holder
        # The holder's clock may be ahead of this machine's, so its time alone cannot end the wait.
        deadline = time.monotonic() + STALE_SECONDS
        while holder is not None and not holder.is_stale and time.monotonic() < deadline:
            if holder != first_holder:  # a newer time: it was renewed
                raise self._locked_error(holder.name)
            time.sleep(1)
            holder = self._remote.call_with_timeout(self.read_holder)

    def _locked_error(self, holder_name: str) -> InputError:
        return InputError(
            found=f"{self._remote.url} is being written by {holder_name}",
            expected="one writer at a time",
            fix="Wait for it, stop it, or choose another name=NAME.",
        )

    def read_holder(self) -> LeaseHolder | None:
        """Who has the lease; None where nobody has.

        None also for the empty lock of `exclusive_lock`, in a folder that was copied there.
        ValueError, TypeError or KeyError where the lock is none.
        """
        data = self._remote.read(LOCK_FILE)
        return LeaseHolder.parse(data) if data else None

    def _write_lock(self) -> None:
        now = time.time()
        holder = LeaseHolder(_host_id(), os.getpid(), self.token, now)
        self._remote.write(LOCK_FILE, json.dumps(asdict(holder)).encode())
        self._renewed_at = now

    def _check_holder(self) -> None:
        holder = self.read_holder()
        if holder is not None and holder.token != self.token:
            self._taken_over_by = holder.name

    def _renew_loop(self) -> None:
        while not self._taken_over_by and not self._closed.wait(RENEW_SECONDS):
            # the next renewal may succeed; the run's own writes report storage that is lost
            with suppress(Exception):
                self._check_holder()
                if not self._taken_over_by:
                    self._write_lock()


class PeerLease:
    """The lease of process 0, as another process of the same run sees it, which writes its part of
    checkpoints."""

    def __init__(self, remote: RemoteFolder, token: str):
        """`token`: of the lease that process 0 holds."""
        self._remote = remote
        self._token = token

    def check(self) -> None:
        """RunFailed where process 0 has not the lease any more. The lock at the URL is read at each
        call: this process does not know when it was renewed last."""
        holder = Lease(self._remote).read_holder()
        if holder is None or holder.token != self._token:
            new_holder = "" if holder is None else f"; {holder.name} has it"
            raise RunFailed(
                f"process 0 of this run has lost the lease of {self._remote.url}{new_holder}. This "
                "process ends."
            )


def _host_id() -> str:
    """This machine; each container counts as one."""
    with suppress(OSError):
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()


def is_leased(remote: RemoteFolder) -> bool:
    """Whether a process is writing to a URL, as far as its lock there tells."""
    holder = None
    with suppress(ValueError, TypeError, KeyError):  # what is no lease
        holder = remote.call_with_timeout(Lease(remote).read_holder)
    return holder is not None and not holder.is_dead and not holder.is_stale
