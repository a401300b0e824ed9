"""A run's state on disk, bit for bit, written by Orbax: the arrays of the TrainState, a RunCursor,
and a checksum of every array's bits. A checkpoint that cannot be read, or whose checksums differ,
is moved aside, and the one before it is read. Nothing else is needed: all PRNG keys, and the order
of problems unless solved ones are left out, are functions of the seed and the step."""

import errno
import json
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from inspect import iscoroutine
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, cast
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax import lax
from jaxtyping import Array, UInt32

from isojax.core.atomic_files import read_file
from isojax.core.errors import InputError, RunFailed, is_out_of_memory
from isojax.core.preemption import Preempted
from isojax.core.terminal import warn
from isojax.distributed import multiprocess
from isojax.models.transformer import Params
from isojax.rl.metric import Metric, Metrics
from isojax.rl.optimizer import TrainState
from isojax.train.checkpoint_shards import fetch_shards


class RemoteCheckpoints(Protocol):
    """Where a cell's checkpoints are copied to, and their arrays come from
    (runs/mirrored_checkpoints.py)."""

    def start_upload(self, checkpoint: Path, is_writing: Callable[[], bool]) -> Future[None]:
        """Begin to copy a checkpoint's folder, once `is_writing()` is false."""
        ...

    def fetch(self, folder: Path, is_wanted: Callable[[str], bool]) -> None:
        """Bring the files of a checkpoint's folder that are not here yet; `is_wanted` is called
        with the name of each, relative to the folder."""
        ...


class RunSpan(NamedTuple):
    """The updates of a run with one B_p and n: where they begin, and their sizes. It is what
    happened, where core/schedule.py's Span is a plan. Checkpoints hold it as a list in this
    order."""

    M: int  # updates before it
    C: int  # rollouts before it
    batches: int  # of problems, drawn before it: M, or more with dynamic sampling
    B_p: int
    n: int


@dataclass(frozen=True)
class RunCursor:
    """How far a run has come: the part of a checkpoint that is plain data."""

    M: int  # updates done
    evaluation: int  # the last evaluation, an index into the grid of C; -1 before the first
    tokens: int  # response tokens sampled up to that evaluation
    # C, sampled so far; None in a checkpoint of a version that did not count them
    rollouts: int | None = None
    batches: int = 0  # of problems, drawn for these updates
    spans: tuple[RunSpan, ...] = ()  # so far; none before the first update
    # what the order of problems needs in addition to M (`EpochOrder.state_dict`)
    order: dict[str, Any] | None = None
    # the metrics of the updates since that evaluation, merged
    sums: Metrics = field(default_factory=dict)
    # rollouts in progress, as RolloutSource.save describes them
    pending: dict[str, Any] | None = None
    # where the gradient decides on n: the stages so far, and its signal (train/growth.py,
    # `growth_state`)
    growth: dict[str, Any] | None = None
    seconds: float = 0.0  # of wall clock since that evaluation


class CorruptCheckpoint(Exception):
    """A checkpoint cannot be read, or differs from what was saved; the caller reads the one before
    it."""


T = TypeVar("T")
CHECKSUM_KEY = "checksum"  # of the other values of a JSON object
MAX_ERROR_TEXT = 300  # characters of Orbax's own message that are shown whole
# What a file that cannot be opened says of the machine, not of the file
ENVIRONMENT_ERRNOS = (errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EPERM)
# Orbax's managers share state within a process, and cells run in threads
ORBAX_LOCK = threading.Lock()
# Orbax raises what it logs as errors with a stack for each of its threads; a user sees the
# exception alone.
logging.getLogger("absl").addFilter(lambda record: "orbax" not in record.pathname)
logging.getLogger("asyncio").addFilter(
    lambda record: not re.search("orbax|was never retrieved", record.getMessage())
)


def state_trees(state: TrainState) -> dict[str, Any]:
    """The fields of a state by name, without those that are None: a critic that the recipe
    lacks."""
    return {name: part for name, part in state._asdict().items() if part is not None}


class Checkpoints(AbstractContextManager["Checkpoints"]):
    """The checkpoints of one cell, of which the newest `max_to_keep` stay.

    A checkpoint after M updates is the folder `folder/M`, with the items "state", "pending" (only
    if rollouts are in progress), "host" (the cursor but its seconds, and the arrays' checksums) and
    "clock" (the seconds). A context manager: leaving it waits until all is written. All processes
    of a run call the same methods in the same order. They raise RunFailed where a checkpoint cannot
    be written.
    """

    def __init__(self, folder: Path, remote: RemoteCheckpoints | None = None, max_to_keep: int = 2):
        """`folder` is made if it is not there. `remote`: where each checkpoint is copied to; None:
        nowhere. With it, each of several processes has a folder on its machine, which holds the
        shards of its devices."""
        self.folder = folder.absolute()
        self.max_to_keep = max_to_keep
        self._remote = remote
        self._has_own_folder = remote is not None and multiprocess.is_multiprocess()
        self._upload: Future[None] | None = None  # of the last checkpoint
        _hide_late_errors()
        if self._has_own_folder:
            self.folder.mkdir(parents=True, exist_ok=True)
        else:
            multiprocess.run_on_primary(
                lambda: self.folder.mkdir(parents=True, exist_ok=True), None
            )
        self._open()

    def _open(self) -> None:
        """Open Orbax's manager: at first, and after a checkpoint was moved, as it lists the folder
        only when it is opened."""
        # With its processes named, Orbax synchronises no devices: a sampler may be at work on them.
        # With None as primary host, each process makes folders and files in its own folder.
        processes = ocp.options.MultiprocessingOptions(
            primary_host=None if self._has_own_folder else 0,
            active_processes=set(multiprocess.members()),
            barrier_sync_key_prefix="isojax",
        )
        options = ocp.CheckpointManagerOptions(
            max_to_keep=self.max_to_keep,
            create=False,  # not supported with the processes named
            cleanup_tmp_directories=True,  # torn by a kill
            async_options=ocp.AsyncOptions(
                barrier_sync_fn=_save_barrier,
                # else a process may take another one's folders for its own
                create_directories_asynchronously=not self._has_own_folder,
            ),
            multiprocessing_options=processes,
        )
        handlers = _handlers_of_parts(processes) if self._has_own_folder else None
        with ORBAX_LOCK:
            self._manager = ocp.CheckpointManager(
                self.folder, options=options, item_handlers=handlers
            )

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.wait()
        except RunFailed:
            # otherwise the error that ended the run is the one raised
            if kind is None or issubclass(kind, Preempted):
                raise
        finally:
            with ORBAX_LOCK, suppress(Exception):  # it raises the same again
                self._manager.close()

    def save(self, state: TrainState, cursor: RunCursor, pending_rollouts: Any = None) -> None:
        """Saves in the background, unless there is a checkpoint after as many updates; `wait` waits
        for it.

        pending_rollouts: a tree of arrays of rollouts in progress, which `cursor.pending`
        describes; None where there are none.
        """
        trees: dict[str, Any] = {"state": state_trees(state)}
        if pending_rollouts is not None:
            trees["pending"] = pending_rollouts

        # The clock is an item of its own: all others are equal, bit for bit, in equal runs.
        host_data = asdict(cursor) | {"checksums": array_checksums(trees)}
        clock = {"seconds": host_data.pop("seconds")}

        is_alone = not multiprocess.is_multiprocess()
        if is_alone and len(multiprocess.members()) < jax.process_count():
            # This process trains alone, and others only sample: where there are several processes,
            # Orbax saves no array of one of them, but host arrays.
            trees = jax.device_get(trees)
        save_args = ocp.args.PyTreeSave if self._has_own_folder else ocp.args.StandardSave
        items: dict[str, Any] = {name: save_args(part) for name, part in trees.items()}
        for name, data in (("clock", clock), ("host", host_data)):
            items[name] = ocp.args.JsonSave(data | {CHECKSUM_KEY: json_checksum(data)})

        self._wait_for_upload()
        with self._writing():
            if cursor.M not in self._manager.all_steps():
                self._manager.save(cursor.M, args=ocp.args.Composite(**items))
                if self._remote is not None:
                    self._upload = self._remote.start_upload(
                        self.folder / f"{cursor.M}", self._manager.is_saving_in_progress
                    )

    @property
    def is_writing(self) -> bool:
        """Whether this process still writes the newest checkpoint, or copies it elsewhere: the next
        save would wait for that."""
        is_uploading = self._upload is not None and not self._upload.done()
        return is_uploading or self._manager.is_saving_in_progress()

    def restore(self, abstract_state: TrainState) -> tuple[TrainState, RunCursor] | None:
        """The newest undamaged state and its cursor; None if there is none.

        The state is sharded as `abstract_state`, a TrainState of arrays or of ShapeDtypeStructs
        with shardings. A damaged checkpoint is moved aside with a warning.
        """
        while True:
            # Process 0 says which, so that all processes read the same.
            M = multiprocess.run_on_primary(self._manager.latest_step, int | None)
            if M is None:
                return None
            try:
                state, cursor = self._read(M, "state", state_trees(abstract_state))
                return TrainState(**state), cursor
            except CorruptCheckpoint as e:
                self.set_aside(M, f"is damaged ({e})")

    def restore_pending(self, M: int, template: Any) -> Any:
        """The arrays of the rollouts in progress after M updates, sharded as `template`.

        `template`: a tree like `pending_rollouts` of `save`, of arrays or of ShapeDtypeStructs with
        shardings. Raises CorruptCheckpoint, and moves the checkpoint aside, where the arrays differ
        from what was saved.
        """
        try:
            arrays, _ = self._read(M, "pending", template)
            return arrays
        except CorruptCheckpoint as e:
            self.set_aside(M, f"is damaged ({e})")
            raise

    def _read(self, M: int, name: str, template: Any) -> tuple[Any, RunCursor]:
        """`_read_arrays` of the checkpoint after M updates, whose arrays are fetched before."""
        path = self.folder / str(M)
        if self._remote is not None:
            fetch_shards(self._remote.fetch, path / name, template)
        return _read_arrays(path, name, template)

    def set_aside(self, M: int, reason: str) -> None:
        """Moves a checkpoint to another folder, where a person can look at it, and prints why.

        M: which one. reason: follows its path in the message, such as "is damaged (...)".
        """
        name = f"{self.folder.name}-damaged-{M}"
        earlier_copies = len(list(self.folder.parent.glob(f"{name}*")))
        new_path = self.folder.with_name(f"{name}-{earlier_copies}" if earlier_copies else name)

        older_steps = [step for step in self._manager.all_steps() if step < M]
        consequence = "there is none before it: the cell starts again"
        if older_steps:
            consequence = f"going on from the one of update {max(older_steps)}"

        with ORBAX_LOCK:
            self._manager.close()
        path = self.folder / str(M)
        if multiprocess.is_primary():
            warn(f"the checkpoint {path} {reason}; moved to {new_path}; {consequence}")
        if multiprocess.is_primary() or self._has_own_folder:
            path.rename(new_path)
        multiprocess.barrier("a checkpoint is moved aside")
        self._open()

    def wait(self) -> None:
        """Waits until all checkpoints are written, and copied where they are."""
        with self._writing():
            self._manager.wait_until_finished()
        self._wait_for_upload()

    def _wait_for_upload(self) -> None:
        upload, self._upload = self._upload, None
        if upload:
            upload.result()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """What is done in it writes a checkpoint; RunFailed where that fails."""
        with ORBAX_LOCK:
            try:
                yield
            except Exception as e:  # whatever the file system raises, or Orbax around it
                steps = self._manager.all_steps()
                fallback = "none was written before"
                if steps:
                    fallback = f"the one of update {max(steps)} is complete"
                raise RunFailed(
                    f"a checkpoint cannot be written to {self.folder} ({_shorten(e)}); {fallback}. "
                    "Solve that, and continue with --resume."
                ) from e


def _handlers_of_parts(processes: ocp.options.MultiprocessingOptions) -> dict[str, Any]:
    """Orbax's handlers of a checkpoint's items, for processes that share no folder.

    An array is a folder with a file for each shard, so that the files of all processes together are
    the array. Orbax's usual format is a database of all arrays, which one process makes of what the
    others have written.
    """
    # Handlers of its own for arrays: Orbax's shared ones keep what the last manager or reader has
    # set, and with process 0 as primary host the others would wait for a folder that it makes.
    array_types = ocp.type_handlers.create_type_handler_registry(
        (jax.Array, ocp.type_handlers.ArrayHandler(primary_host=None)),
        (np.ndarray, ocp.type_handlers.NumpyHandler()),
    )
    arrays = ocp.PyTreeCheckpointHandler(
        multiprocessing_options=processes, type_handler_registry=array_types, use_ocdbt=False
    )
    plain_data = ocp.JsonCheckpointHandler(multiprocessing_options=processes)
    return {"state": arrays, "pending": arrays, "host": plain_data, "clock": plain_data}


def _shorten(error: Exception) -> str:
    """What Orbax says, in a line of at most about MAX_ERROR_TEXT characters. Tensorstore's notes,
    of which either may come first, are left out."""
    without_notes = re.split(r"\[(?:source locations|tensorstore_spec)", str(error))[0]
    text = " ".join(without_notes.split())
    # its beginning says what was written, its end why that failed
    return text if len(text) <= MAX_ERROR_TEXT else f"{text[:100]} ... {text[-190:]}"


def has_checkpoint(folder: Path, M: int) -> bool:
    """Whether `folder` holds a checkpoint after M updates or more; also true if somebody has
    removed the folder, as for a run that is done (`isojax clean --all`)."""
    return not folder.exists() or any(step >= M for step in _saved_steps(folder))


def restore_params(folder: Path, template: Params) -> tuple[Params, int] | None:
    """The parameters alone of the newest checkpoint in `folder`, and the updates done.

    `template`: a tree of the trained parameters, arrays or ShapeDtypeStructs with the shardings
    that the result is to have. None if there is no checkpoint; InputError if the parameters differ
    from what was saved.
    """
    M = max(_saved_steps(folder), default=None) if folder.is_dir() else None
    if M is None:
        return None
    _hide_late_errors()
    try:
        state, _ = _read_arrays(folder.absolute() / str(M), "state", {"params": template})
    except CorruptCheckpoint as e:
        raise InputError(
            where=f"the checkpoint {folder / str(M)}",
            found=f"damaged ({e})",
            fix="Move that folder away to take the one before it.",
        ) from e
    return state["params"], M


def _saved_steps(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.iterdir() if path.name.isdigit()]


def _read_arrays(path: Path, name: str, template: Any) -> tuple[Any, RunCursor]:
    """A tree of arrays of a checkpoint, or a part of it, and the cursor.

    path: of the checkpoint, `folder/M`.
    name: "state" or "pending", the item of the checkpoint to read.
    template: what to read of it: a tree of arrays or of ShapeDtypeStructs with shardings. It may
        lack some of what is saved, such as all of the state but its parameters.

    Raises CorruptCheckpoint in all processes where one cannot read what was saved, or a checksum
    differs. The handler waits for no other process, as Orbax's manager would.
    """
    # The cursor, and the checksums of all arrays.
    host_data = _read_on_all_hosts(lambda: _read_host_data(path))
    expected_checksums = host_data.pop("checksums")
    host_data["sums"] = {key: Metric(**metric) for key, metric in host_data["sums"].items()}
    host_data["spans"] = tuple(RunSpan(*span) for span in host_data.get("spans", ()))

    # The arrays.
    abstract = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), template
    )
    restore_args = ocp.checkpoint_utils.construct_restore_args(abstract)
    args = ocp.args.PyTreeRestore(abstract, restore_args=restore_args, partial_restore=True)
    handler = ocp.PyTreeCheckpointHandler()
    restored = _read_on_all_hosts(lambda: handler.restore(epath.Path(path / name), args=args))
    if not all(isinstance(x, jax.Array) for x in jax.tree.leaves(restored)):
        raise CorruptCheckpoint("its metadata lacks some of the arrays")

    checksums = array_checksums({name: restored})
    mismatched = sorted(
        key for key, checksum in checksums.items() if expected_checksums.get(key) != checksum
    )
    if mismatched:
        raise CorruptCheckpoint(
            f"the bits of {mismatched[0]} and {len(mismatched) - 1} other arrays are not as saved"
        )
    return restored, RunCursor(**host_data)


def _read_host_data(path: Path) -> dict[str, Any]:
    """The plain data of a checkpoint: the fields of its RunCursor, and "checksums", which has a
    checksum of each array by its path, such as "['state']['params']['embed']".

    ValueError where it is not what was saved.
    """
    others = [p for p in path.rglob("*") if not (p.is_file() or p.is_dir())]
    if others:  # a pipe would be waited for
        raise ValueError(f"{others[0].relative_to(path)} is no file")

    names = ["host"]
    if (path / "clock").exists():  # older checkpoints have none
        names.append("clock")
    host_data: dict[str, Any] = {}
    for name in names:
        data = json.loads(read_file(path / name / "metadata"))
        if data.pop(CHECKSUM_KEY) != json_checksum(data):
            raise ValueError("the cursor is not what was saved")
        host_data |= data
    return host_data


def json_checksum(data: dict[str, Any]) -> int:
    """A checksum of plain data, equal for the data and for what JSON reads back of it."""
    return crc32(json.dumps(data, sort_keys=True).encode())


def array_checksums(tree: Any) -> dict[str, int]:
    """A checksum of each array's bits by its path in the tree, such as "['state']['step']". It does
    not depend on how the array is sharded."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    checksums = _leaf_checksums([x for _, x in leaves])
    return {
        jax.tree_util.keystr(path): int(checksum)
        for (path, _), checksum in zip(leaves, checksums, strict=True)
    }


@jax.jit
def _leaf_checksums(arrays: list[Array]) -> list[UInt32[Array, ""]]:
    return [_array_checksum(x) for x in arrays]


@jax.jit  # parameters, moments and reference have the same shapes: each shape is traced once
def _array_checksum(x: Array) -> UInt32[Array, ""]:
    """A checksum of an array's bits, which differs if a number changes or two are exchanged.

    x has any shape, and a dtype of at most 4 bytes. With its numbers in order taken as unsigned
    integers w[0], w[1], ..., the checksum is the sum of w[i] (2 i + 1), modulo 2^32. A factor is
    odd so that a change of w[i] alone always shows.
    """
    if jnp.issubdtype(x.dtype, jnp.bool_):
        words = x.astype(jnp.uint32)
    else:
        bits = lax.bitcast_convert_type(x, np.dtype(f"uint{8 * x.dtype.itemsize}"))
        words = bits.astype(jnp.uint32)

    # The position of each word in the whole array, of the array's shape. It is made of one iota for
    # each axis, so that it is sharded as x is: a flat `arange` would be whole on every device.
    word_index = jnp.uint32(0)
    stride = 1
    for axis in reversed(range(x.ndim)):
        word_index += lax.broadcasted_iota(jnp.uint32, x.shape, axis) * jnp.uint32(stride % 2**32)
        stride *= x.shape[axis]
    return (words * (2 * word_index + 1)).sum(dtype=jnp.uint32)


def _read_on_all_hosts(read: Callable[[], T]) -> T:
    """What `read` returns, if every process can read it; else CorruptCheckpoint in all processes.

    All processes call it, each with its own `read`. Lack of memory or permission is raised as it
    is, in that process alone.
    """
    result: T | None = None
    problem = ""
    try:
        result = read()
    except Exception as e:  # whatever a damaged file makes a reader raise
        # Lack of memory or permission is no damage.
        is_of_machine = isinstance(e, OSError) and e.errno in ENVIRONMENT_ERRNOS
        if is_out_of_memory(e) or is_of_machine:
            raise
        first_line = str(e).splitlines()[0][:200] if str(e) else ""
        problem = f"{type(e).__name__}: {first_line}"

    problems = [text for text in multiprocess.allgather(problem, str) if text]
    if problems:
        raise CorruptCheckpoint(problems[0])
    return cast(T, result)


def _save_barrier(*, key: str, timeout_ms: int) -> None:
    """Orbax's barrier between processes while it saves, which Orbax calls.

    It is skipped if saving has failed in this process (an exception is on its way). The process
    then ends, and the launcher's watchdog ends the others: else they would wait for each other for
    twenty minutes.
    """
    if multiprocess.is_multiprocess() and sys.exc_info()[0] is None:
        wait = ocp.multihost.get_barrier_sync_fn(processes=set(multiprocess.members()))
        wait(key=key, timeout_ms=timeout_ms)


@cache
def _hide_late_errors() -> None:
    """Prints nothing of what follows a failure, for the rest of this process.

    Tensorstore's threads go on to call an event loop that Orbax closed, and coroutines that nobody
    waits for fail as the first did. The caller raises the failure itself.
    """
    previous_hook = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        loop_closed = "Event loop is closed" in str(unraisable.exc_value)
        if not (loop_closed or iscoroutine(unraisable.object)):
            previous_hook(unraisable)

    sys.unraisablehook = hook
