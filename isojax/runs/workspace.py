"""Where a sweep is worked on: a folder, or a scratch folder that mirrors a URL (gs://bucket/runs, s3://...,
file://...)."""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from isojax.core.errors import InputError, RunFailed
from isojax.runs.folder_lock import exclusive_lock
from isojax.runs.lease import Lease
from isojax.runs.mirror import MIRRORS, Mirror
from isojax.runs.object_store import RemoteFolder

RAY_SCHEME = "ray://"  # the address of a cluster, not storage


def is_url(text: str) -> bool:
    """Whether a place is written as a URL."""
    return re.match(r"[a-z][a-z0-9+.-]*://", text) is not None


def working_folder(run_dir: str, name: str) -> Path:
    """The folder that a sweep works in: run_dir/name, or its mirror where `run_dir` is a URL."""
    if not is_url(run_dir):
        return Path(run_dir) / name
    for mirror in MIRRORS:
        if mirror.url == f"{run_dir.rstrip('/')}/{name}":
            return mirror.local
    raise InputError(
        f"run.dir = {run_dir}: only `isojax launch` and `isojax train` run at a URL; expected a folder. Give"
        " run.dir=FOLDER."
    )


def display_path(text: object) -> str:
    """A path or a message as a user knows it: with URLs in place of their mirrors."""
    message = str(text)
    for mirror in MIRRORS:
        message = message.replace(str(mirror.local), mirror.url)
    return message


@contextmanager
def remote_workspace(
    run_dir: str, name: str, multi_process: bool = False, dry_run: bool = False, cell_name: str = ""
) -> Iterator[None]:
    """A sweep at a URL, mirrored while the context lasts (`working_folder`); where `run_dir` is a folder, nothing.

    InputError for several processes, storage that cannot be reached, or another process that writes there. A worker
    that trains one cell of another process's sweep gives `cell_name`: it mirrors the sweep's own files and this cell's,
    and takes no lease."""
    if not is_url(run_dir):
        yield
        return
    if multi_process:
        raise InputError(
            f"run.dir = {run_dir} with several processes; expected a folder that all of them share, for each writes its"
            " part of a checkpoint. Mount the bucket and give run.dir=FOLDER, or run one process (docs/hosts.md)."
        )
    url = f"{run_dir.rstrip('/')}/{name}"
    remote, lease = RemoteFolder(url), None
    with ExitStack() as stack:
        if dry_run:
            scratch = Path(stack.enter_context(TemporaryDirectory(prefix="isojax-")))
        else:
            cache_folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
            scratch = cache_folder / "isojax" / "runs" / hashlib.sha256(f"{url} {cell_name}".encode()).hexdigest()[:12]
            if not cell_name:
                lease = stack.enter_context(Lease(remote))
            stack.enter_context(exclusive_lock(scratch))
            shutil.rmtree(scratch / name, ignore_errors=True)  # of a run that was killed; the URL has what counts
        mirror = Mirror(url, scratch / name, remote, lease)
        mirror.pull(with_checkpoints=not dry_run, cell_name=cell_name)
        stack.enter_context(mirror.auto_upload())
        try:
            yield
        except Exception:  # whatever ended the run, what it has written goes to the URL; then it is raised
            with suppress(RunFailed):  # the user should see what ended the run, not what followed from it
                mirror.push(mirror.local)
            raise
        if not dry_run:
            mirror.push(mirror.local)
            shutil.rmtree(mirror.local, ignore_errors=True)


def refresh(folder: Path, cell_name: str = "") -> None:
    """Bring a mirror to what other processes have put to its URL: the cells without their checkpoints, or one with
    them."""
    for mirror in MIRRORS:
        if mirror.local == folder:
            if cell_name:
                shutil.rmtree(folder / "cells" / cell_name, ignore_errors=True)
            mirror.pull(with_checkpoints=bool(cell_name), cell_name=cell_name)


@contextmanager
def localize(arguments: Sequence[str]) -> Iterator[list[str]]:
    """A command's arguments with mirrors in place of URLs; what the command writes there goes to the URL."""
    with ExitStack() as stack:
        localized = []
        for argument in arguments:
            if is_url(argument) and not argument.startswith(RAY_SCHEME):
                argument = str(_mirror_url(argument.rstrip("/"), stack))
            localized.append(argument)
        yield localized


def _mirror_url(url: str, stack: ExitStack) -> Path:
    """A temporary folder that mirrors the URL, named as the last two parts of it."""
    scratch = Path(stack.enter_context(TemporaryDirectory(prefix="isojax-")))
    mirror = Mirror(url, scratch.joinpath(*url.partition("://")[2].split("/")[-2:]))
    if not mirror.pull(with_checkpoints=False):
        raise InputError(f"there is nothing at {url}; expected a sweep's folder, such as gs://BUCKET/runs/quickstart.")
    stack.enter_context(mirror.auto_upload())
    return mirror.local
