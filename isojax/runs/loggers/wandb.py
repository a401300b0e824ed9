"""Weights & Biases: one run per cell, grouped by sweep, at step C (rollouts). WANDB_MODE,
WANDB_PROJECT and WANDB_ENTITY apply. cells/<cell>/wandb/id holds the run's id, so that a resumed
cell continues it: online from the first step that the server does not have; offline it writes the
whole run again, and removes its earlier files."""

import os
import secrets
import shutil
from pathlib import Path
from typing import Any

from isojax.core.atomic_files import write_text
from isojax.core.config import Config
from isojax.core.errors import InputError
from isojax.core.nouns import Cell, RunRecord
from isojax.core.registry import import_extra
from isojax.runs.loggers import cell_hparams, logger, point_scalars

# How long the end of a cell waits for an upload; what is left stays in the cell's folder, for
# `wandb sync`.
FINISH_SECONDS = 60.0
PURPOSE = "run.loggers = wandb"


def check() -> None:
    """InputError where the package is missing, or nobody is logged in."""
    wandb = import_extra("wandb", PURPOSE, "wandb")
    try:
        if wandb.setup().settings.mode == "online":
            wandb.login(verify=False)
    except wandb.Error as e:
        raise InputError(
            where="run.loggers",
            found=f"has wandb, where nobody is logged in ({e})",
            fix="Call `wandb login`, or set WANDB_MODE=offline.",
        ) from e


class WandbLogger:
    """Sends the points of one cell to its W&B run."""

    def __init__(self, run: Any):
        """run: what wandb.init returned."""
        self.run = run
        self.next_step = run.starting_step

    def update(self, run: RunRecord) -> None:
        """Log the points that the run does not have; its steps only rise."""
        for point in run.points:
            if point.rollouts >= self.next_step:
                scalars = {**point_scalars(point), "rollouts": point.rollouts}
                self.run.log(scalars, step=point.rollouts)
                self.next_step = point.rollouts + 1  # this point is not sent again

    def close(self) -> None:
        """Ends the run, once all has been sent or the time for it is over."""
        self.run.finish()


@logger(check=check)
def begin(folder: Path, cell: Cell, config: Config) -> WandbLogger:
    """Begin the W&B run of a cell, or continue it by the id that an earlier start has written."""
    wandb = import_extra("wandb", PURPOSE, "wandb")

    id_path = folder / "wandb" / "id"
    if not id_path.exists():
        write_text(id_path, f"{cell.name}-{secrets.token_hex(4)}")
    earlier_runs = list(id_path.parent.glob("offline-run-*"))
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "isojax"),
        group=config.name,
        name=cell.name,
        id=id_path.read_text(),
        dir=str(folder),
        config=cell_hparams(cell, config),
        resume="allow",
        reinit="create_new",
        settings=wandb.Settings(
            silent=True,
            console="off",
            save_code=False,
            disable_git=True,
            finish_timeout=FINISH_SECONDS,
        ),
    )
    if run.offline:  # all of the run is written again
        for earlier_run in earlier_runs:
            shutil.rmtree(earlier_run)
    return WandbLogger(run)
