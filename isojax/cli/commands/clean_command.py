"""Remove checkpoints of runs that are done."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from isojax.cli.formatting import print_line
from isojax.cli.options import complete_run
from isojax.core.errors import InputError
from isojax.launch.checkpoint_cleanup import plan_removals, remove
from isojax.launch.device_budget import format_bytes

RUNS_HELP = "Sweeps' folders, such as runs/quickstart."
ALL_HELP = (
    "The newest checkpoint of a run too: then its policy can't be exported, "
    "and a larger budget starts it from C = 0."
)
YES_HELP = "Do not ask."


def clean(
    runs: Annotated[
        list[Path], Argument(metavar="RUN", help=RUNS_HELP, autocompletion=complete_run)
    ],
    newest_too: Annotated[bool, Option("--all", help=ALL_HELP)] = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Say what would be removed; remove nothing.")
    ] = False,
    yes: Annotated[bool, Option("--yes", "-y", help=YES_HELP)] = False,
) -> None:
    """Remove checkpoints of runs that are done, which keep their newest one.

    Ledgers, samples and fits stay, and so does every checkpoint of a run that is not done.

    \b
    Examples
      isojax clean runs/quickstart --dry-run
      isojax clean runs/quickstart runs/hard --all --yes
    """
    removals = [removal for run in runs for removal in plan_removals(run, newest_too)]
    if not removals:
        print_line("nothing to remove: no run that is done has a checkpoint besides its newest")
        return

    for removal in removals:
        count = f"{len(removal.folders)} older" if not newest_too else "all checkpoints"
        print_line(f"{removal.run}: {format_bytes(removal.bytes)} ({count})")
    total = format_bytes(sum(removal.bytes for removal in removals))
    if dry_run:
        print_line(f"{total} in all; nothing is removed by --dry-run")
        return

    if not yes and not typer.confirm(f"Remove {total}?"):
        raise InputError(
            where="nothing was removed",
            expected="y, or --yes",
        )
    remove(removals)
    print_line(f"removed {total}")
