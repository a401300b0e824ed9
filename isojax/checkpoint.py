"""A run's state to disk and back, bit for bit, by Orbax. What is saved last is found by its marker; a torn save is never taken.

Beside the arrays stands what the host knew (`Position`), and a checksum of every array's bits, which does not depend on how the array
lies on devices. A checkpoint that cannot be read, or whose bits are others, is put aside, and the one before it is taken. Everything
else follows from these (the order of problems and all keys are functions of the seed and the step).
"""

import errno
import json
import logging
import re
import shutil
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from inspect import iscoroutine
from pathlib import Path
from typing import Any, TypeVar, cast
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax import lax
from jaxtyping import Array, UInt32

from isojax import hosts
from isojax.models.decoder import Params
from isojax.rl.step import State
from isojax.stopping import Stopped
from isojax.storage import Uploads
from isojax.types import InputError, RunFailed, lacks_memory


@dataclass(frozen=True)
class Position:
    """Where a run stands, beside its arrays; plain data.

    Attributes:
        M: updates done.
        evaluation: the evaluation done last, an index into the grid of C; -1 before the first.
        tokens: response tokens sampled up to that evaluation.
        order: what the order of problems needs beside M (tasks/data.py).
        sums: the sums of the metrics of the updates since that evaluation.
        pending: what the host knows of rollouts that a pipeline has begun (rl/pipeline.py).
    """

    M: int
    evaluation: int
    tokens: int
    order: dict[str, Any] | None = None
    sums: dict[str, float] = field(default_factory=dict)
    pending: dict[str, Any] | None = None


class Damaged(Exception):
    """A checkpoint cannot be read, or is not what was saved: the one before it is to be taken."""


NOT_DAMAGE = (errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EPERM)
T = TypeVar("T")
ITSELF = "checksum"  # of what the host knew
ORBAX = threading.Lock()  # Orbax's managers share state within a process; cells run side by side in threads
# What Orbax logs as errors, with a stack for each of its threads, it raises too, and a user is told of that once.
logging.getLogger("absl").addFilter(lambda record: "orbax" not in record.pathname)
logging.getLogger("asyncio").addFilter(lambda record: not re.search("orbax|was never retrieved", record.getMessage()))


def present(state: State) -> dict[str, Any]:
    """A state's parts by name, without a critic where there is none."""
    return {name: part for name, part in state._asdict().items() if part is not None}


class Checkpoints:
    """The saved states of one cell, of which the newest `keep` stay. A context: leaving it waits for what is being saved."""

    def __init__(self, folder: Path, keep: int = 2):
        self.folder, self.keep = folder.absolute(), keep
        _pass_late_calls()
        self._open()
        self._uploads = Uploads(self.folder)

    def _open(self) -> None:
        with ORBAX:
            options = ocp.CheckpointManagerOptions(
                max_to_keep=self.keep,
                create=True,
                cleanup_tmp_directories=True,  # torn by a kill
                async_options=ocp.AsyncOptions(barrier_sync_fn=_meet),
            )
            self._manager = ocp.CheckpointManager(self.folder, options=options)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except RunFailed:
            if kind is None or issubclass(kind, Stopped):  # else what has ended the run is told, not what followed from it
                raise

    def save(self, state: State, position: Position, pending: Any = None) -> None:
        """Save in the background, unless there is a checkpoint of as many updates; `close` waits for it. `pending`: arrays of rollouts that
        are under way.

        Raises:
            RunFailed: it, or the one before, cannot be written.
        """
        parts = {"state": present(state)} | ({} if pending is None else {"pending": pending})
        told = asdict(position) | {"checksums": checksums(parts)}
        host = ocp.args.JsonSave(told | {ITSELF: text_checksum(told)})
        args = ocp.args.Composite(host=host, **{name: ocp.args.StandardSave(part) for name, part in parts.items()})
        self._uploads.wait()
        with ORBAX:
            try:
                if position.M not in self._manager.all_steps():
                    self._manager.save(position.M, args=args)
                    self._uploads.send(self.folder / str(position.M), self._manager.is_saving_in_progress)
            except Exception as e:  # whatever the file system, or the library that wraps its errors, says
                raise self._unwritten(e) from e

    def restore(self, like: State) -> tuple[State, Position] | None:
        """The newest state that is whole, laid out as `like` (arrays or ShapeDtypeStructs with shardings), and its position; None where
        there is none. What is not whole is put aside, and told of."""
        while (M := hosts.by_first(self._manager.latest_step)) is not None:
            if (restored := self._whole(M, lambda M=M: self._state(M, like))) is not None:
                return restored
        return None

    def pending(self, M: int, like: Any) -> Any:
        """The arrays of rollouts that were under way after M updates, laid out as `like`.

        Raises:
            Damaged: they are not those that were saved, or of other shapes; the checkpoint is put aside, and told of.
        """
        if (found := self._whole(M, lambda: self._part(M, "pending", like, self._host(M)["checksums"]))) is None:
            raise Damaged
        return found

    def _whole(self, M: int, read: Callable[[], T]) -> T | None:
        """What `read` gives; None where a process cannot read it, and the checkpoint is then put aside."""
        try:
            return read()
        except Damaged as e:
            self._put_aside(M, str(e))
            return None

    def _state(self, M: int, like: State) -> tuple[State, Position]:
        host = self._host(M)
        expected = host.pop("checksums")
        return State(**self._part(M, "state", present(like), expected)), Position(**host)

    def _host(self, M: int) -> dict[str, Any]:
        def read() -> dict[str, Any]:
            place = epath.Path(self.folder / str(M) / "host")
            told = dict(ocp.JsonCheckpointHandler().restore(place, args=ocp.args.JsonRestore()))
            if told.pop(ITSELF) != text_checksum(told):
                raise ValueError("what the host knew is not what was saved")
            return told

        return _agreed(read)

    def _part(self, M: int, name: str, like: Any, expected: dict[str, int]) -> Any:
        """One tree of arrays, with the bits that were saved."""
        abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), like)
        place, args = epath.Path(self.folder / str(M) / name), ocp.args.StandardRestore(abstract)
        found = _agreed(lambda: ocp.StandardCheckpointHandler().restore(place, args=args))
        if wrong := sorted(place for place, value in checksums({name: found}).items() if expected.get(place) != value):
            raise Damaged(f"the bits of {wrong[0]} and {len(wrong) - 1} other arrays are not those that were saved")
        return found

    def _put_aside(self, M: int, problem: str) -> None:
        """Moves a checkpoint out of the way, where a person can look at it."""
        name = f"{self.folder.name}-damaged-{M}"
        same = len(list(self.folder.parent.glob(f"{name}*")))
        aside = self.folder.with_name(f"{name}-{same}" if same else name)
        self._without(M, f"is damaged ({problem}); moved to {aside}", lambda: (self.folder / str(M)).rename(aside))

    def drop(self, M: int, why: str) -> None:
        """Forget the newest state, which is of update M, and say why."""
        self._without(M, f"is of no use: {why}", lambda: shutil.rmtree(self.folder / str(M)))

    def _without(self, M: int, said: str, away: Callable[[], object]) -> None:
        """Tells what is `said` of a checkpoint, and takes it away."""
        before = [step for step in self._manager.all_steps() if step < M]
        follows = f"going on from the one of update {max(before)}" if before else "there is none before it: the cell starts anew"
        with ORBAX:
            self._manager.close()
        if hosts.writes():
            print(f"warning: the checkpoint {self.folder / str(M)} {said}; {follows}", file=sys.stderr)
            away()
        hosts.wait("a checkpoint is taken away")
        self._open()

    def wait(self) -> None:
        """Until all is written; raises as `save`."""
        with ORBAX:
            try:
                self._manager.wait_until_finished()
            except Exception as e:  # as in `save`
                raise self._unwritten(e) from e
        self._uploads.wait()

    def close(self) -> None:
        """Wait for what is being saved; raises as `save`."""
        with ORBAX:
            try:
                self._manager.wait_until_finished()
                self._manager.close()
            except Exception as e:  # as in `save`
                with suppress(Exception):  # which says the same again
                    self._manager.close()
                raise self._unwritten(e) from e
        self._uploads.wait()

    def _unwritten(self, error: Exception) -> RunFailed:
        whole = max(self._manager.all_steps(), default=None)
        kept = "none was written before" if whole is None else f"the one of update {whole} is whole"
        said = " ".join(re.split(r"\[(?:source locations|tensorstore_spec)", str(error))[0].split())  # either may come first
        said = said if len(said) <= 300 else f"{said[:100]} ... {said[-190:]}"  # what was written, and why it could not be
        return RunFailed(f"a checkpoint cannot be written to {self.folder} ({said}); {kept}. Mend that, and go on by --resume.")


def _agreed(read: Callable[[], T]) -> T:
    """What `read` gives, where it gives that in every process. Its handlers wait for no other process, as the manager's do.

    Raises:
        Damaged: in all of them, where one cannot read it.
    """
    found, problem = None, ""
    try:
        found = read()
    except Exception as e:  # a damaged file may show in any way; but where memory or permission lacks, the files are not to blame
        if lacks_memory(e) or (isinstance(e, OSError) and e.errno in NOT_DAMAGE):
            raise
        problem = f"{type(e).__name__}: {str(e).splitlines()[0][:200] if str(e) else ''}"
    if problem := next(filter(None, hosts.everyone(problem)), ""):
        raise Damaged(problem)
    return cast(T, found)


def _meet(*, key: str, timeout_ms: int) -> None:
    """Waits for the other processes, where Orbax does so while it saves; but not where saving has failed here. They would wait elsewhere,
    and this process for them, for twenty minutes; so it ends, and they are told (launch/sentinel.py)."""
    if hosts.several() and sys.exc_info()[0] is None:
        ocp.multihost.get_barrier_sync_fn()(key=key, timeout_ms=timeout_ms)


@cache
def _pass_late_calls() -> None:
    """Print nothing of what follows a failure: tensorstore's threads go on to call an event loop that Orbax has closed, at once and before
    the failure is heard of, and coroutines that nobody waits for fail as the first did. What has failed is told once, by whoever called."""
    told_of = sys.unraisablehook

    def unheard(unraisable: Any) -> None:
        late = isinstance(unraisable.exc_value, RuntimeError) and str(unraisable.exc_value) == "Event loop is closed"
        if not (late or iscoroutine(unraisable.object)):
            told_of(unraisable)

    sys.unraisablehook = unheard


def text_checksum(data: dict[str, Any]) -> int:
    """A checksum of plain data, as JSON gives it back."""
    return crc32(json.dumps(data, sort_keys=True).encode())


def checksums(tree: Any) -> dict[str, int]:
    """A checksum of each array's bits, by its place in the tree; the same however the array lies on devices."""
    flat = jax.tree_util.tree_leaves_with_path(tree)
    sums = _checksums([x for _, x in flat])
    return {jax.tree_util.keystr(path): int(value) for (path, _), value in zip(flat, sums, strict=True)}


@jax.jit
def _checksums(arrays: list[Array]) -> list[UInt32[Array, ""]]:
    return [_checksum(x) for x in arrays]


def _checksum(x: Array) -> UInt32[Array, ""]:
    """The sum modulo 2^32 of all words, each times an odd number of its place: any one word changed, or two exchanged, shows."""
    if jnp.issubdtype(x.dtype, jnp.bool_):
        words = x.astype(jnp.uint32)
    else:
        words = lax.bitcast_convert_type(x, np.dtype(f"uint{8 * x.dtype.itemsize}")).astype(jnp.uint32)
    place, stride = jnp.uint32(0), 1
    for axis in reversed(range(x.ndim)):
        place += lax.broadcasted_iota(jnp.uint32, x.shape, axis) * jnp.uint32(stride % 2**32)
        stride *= x.shape[axis]
    return (words * (2 * place + 1)).sum(dtype=jnp.uint32)


def is_saved(folder: Path, M: int) -> bool:
    """Whether a state after M updates or more lies in `folder`; also where that is gone, which somebody has removed."""
    return not folder.exists() or any(int(path.name) >= M for path in folder.iterdir() if path.name.isdigit())


def restore_params(folder: Path, like: Params) -> tuple[Params, int] | None:
    """The parameters alone of the newest state in `folder`, laid out as `like`, and the updates done; None where none was saved.

    Raises:
        InputError: they are not those that were saved.
    """
    if not folder.is_dir():
        return None
    _pass_late_calls()
    wanted = {"params": like}
    args = ocp.args.PyTreeRestore(wanted, restore_args=ocp.checkpoint_utils.construct_restore_args(wanted), partial_restore=True)
    with ORBAX, ocp.CheckpointManager(folder.absolute(), options=ocp.CheckpointManagerOptions(create=False)) as manager:
        if (M := manager.latest_step()) is None:
            return None
        try:
            found = manager.restore(M, args=ocp.args.Composite(state=args, host=ocp.args.JsonRestore()))
            params, expected = found["state"]["params"], found["host"]["checksums"]
            problem = (
                "" if checksums({"state": {"params": params}}).items() <= expected.items() else "its bits are not those that were saved"
            )
        except Exception as e:  # a damaged file may show in any way
            problem = " ".join(f"{type(e).__name__}: {e}".split())[:200]
    if problem:
        raise InputError(f"the checkpoint {folder / str(M)} is damaged ({problem}). Move that folder away to take the one before it.")
    return params, M
