"""A run's state to disk and back, bit for bit, by Orbax. What is saved last is found by its marker; a torn save is never taken.

Beside the arrays stands what the host knew: the index of the evaluation, the tokens sampled so far, and where solved problems are left
out, how often each was solved. Everything else follows from them (the order of problems and all keys are functions of the seed and the
step).
"""

import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from isojax.models.decoder import Params
from isojax.rl.step import State


@dataclass(frozen=True)
class Position:
    """Where a run stands: updates done, the evaluation done last (an index into the grid of C), response tokens sampled so far, and what
    the order of problems needs beside M (tasks/data.py)."""

    M: int
    evaluation: int
    tokens: int
    order: dict[str, Any] | None = None


ORBAX = threading.Lock()  # Orbax's managers share state within a process; cells run side by side in threads


def present(state: State) -> dict[str, Any]:
    """A state's parts by name, without a critic where there is none."""
    return {name: part for name, part in state._asdict().items() if part is not None}


class Checkpoints:
    """The saved states of one cell; the newest is kept. A context: leaving it waits for what is being saved."""

    def __init__(self, folder: Path):
        self._folder = folder.absolute()
        self._open()

    def _open(self) -> None:
        with ORBAX:
            self._manager = ocp.CheckpointManager(self._folder, options=ocp.CheckpointManagerOptions(max_to_keep=1, create=True))

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def save(self, state: State, position: Position) -> None:
        """Save in the background; `close` waits for it."""
        host = {"evaluation": position.evaluation, "tokens": position.tokens}
        host |= {} if position.order is None else {"order": position.order}
        args = ocp.args.Composite(state=ocp.args.StandardSave(present(state)), host=ocp.args.JsonSave(host))
        with ORBAX:
            self._manager.save(position.M, args=args)

    def restore(self, like: State) -> tuple[State, Position] | None:
        """The newest state, laid out as `like` (arrays or ShapeDtypeStructs with shardings), or None where none was saved."""
        M = self._manager.latest_step()
        if M is None:
            return None
        abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), present(like))
        args = ocp.args.Composite(state=ocp.args.StandardRestore(abstract), host=ocp.args.JsonRestore())
        with ORBAX:
            saved = self._manager.restore(M, args=args)
        return State(**saved["state"]), Position(M, **saved["host"])

    def clear(self) -> None:
        """Forget every saved state."""
        self._manager.close()
        shutil.rmtree(self._folder)
        self._open()

    def close(self) -> None:
        """Wait for what is being saved."""
        with ORBAX:
            self._manager.wait_until_finished()
            self._manager.close()


def restore_params(folder: Path, like: Params) -> tuple[Params, int] | None:
    """The parameters alone of the newest state in `folder`, laid out as `like`, and the updates done; None where none was saved."""
    if not folder.is_dir():
        return None
    wanted = {"params": like}
    args = ocp.args.PyTreeRestore(wanted, restore_args=ocp.checkpoint_utils.construct_restore_args(wanted), partial_restore=True)
    with ORBAX, ocp.CheckpointManager(folder.absolute(), options=ocp.CheckpointManagerOptions(create=False)) as manager:
        M = manager.latest_step()
        return None if M is None else (manager.restore(M, args=ocp.args.Composite(state=args))["state"]["params"], M)
