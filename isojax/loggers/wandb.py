"""Weights & Biases: a run a cell, grouped by sweep, at step C (rollouts); extra wandb. WANDB_MODE, WANDB_PROJECT and WANDB_ENTITY hold.

A run's id stands in cells/<cell>/wandb/id, so that a resume goes on in it: online from the first step that the server has not got. Offline,
where there is no server to ask, a resume writes the whole run once more, and the cell's files from before it are removed.
"""

from __future__ import annotations

import os
import secrets
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from isojax.config import Config
from isojax.files import write_text
from isojax.loggers import scalars, settings
from isojax.types import Cell, InputError, RunRecord

FINISH_SECONDS = 60.0  # that the end of a cell waits for an upload; what is left stays in the cell's folder, for `wandb sync`


def check() -> None:
    """InputError where the package is missing, or nobody is logged in."""
    if find_spec("wandb") is None:
        raise InputError("run.loggers asks for wandb, which is not installed; install it with: pip install 'isojax[wandb]'.")
    import wandb
    from wandb.errors import Error

    try:
        if wandb.setup().settings.mode == "online":
            wandb.login(verify=False)
    except Error as e:
        raise InputError(
            f"run.loggers asks for wandb, where nobody is logged in ({e}); call `wandb login`, or set WANDB_API_KEY, or WANDB_MODE=offline."
        ) from e


def begin(folder: Path, cell: Cell, config: Config) -> Wandb:
    """A cell's run, new or gone on with."""
    import wandb

    path = folder / "wandb" / "id"
    if not path.exists():
        write_text(path, f"{cell.name}-{secrets.token_hex(4)}")
    before = list(path.parent.glob("offline-run-*"))
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "isojax"),
        group=config.name,
        name=cell.name,
        id=path.read_text(),
        dir=str(folder),
        config=settings(cell, config),
        resume="allow",
        reinit="create_new",
        settings=wandb.Settings(silent=True, console="off", save_code=False, disable_git=True, finish_timeout=FINISH_SECONDS),
    )
    if run.offline:
        for old in before:
            shutil.rmtree(old)
    return Wandb(run)


class Wandb:
    """A run that grows with a ledger."""

    def __init__(self, run: Any):
        self.run, self.next = run, run.starting_step

    def tell(self, run: RunRecord) -> None:
        """Log the points that the run has not got; its steps only rise."""
        for point in run.points:
            if point.rollouts >= self.next:
                self.run.log({**scalars(point), "rollouts": point.rollouts}, step=point.rollouts)
                self.next = point.rollouts + 1

    def close(self) -> None:
        """Ends the run, once all has been sent or the time for it is over."""
        self.run.finish()
