"""Starts of a sweep that recorded nothing, counted in its folder.

A script that starts a sweep again after each preemption pays for every start, also where the sweep
never comes to its first checkpoint: because preemptions follow too closely, or because the system
kills it each time at the same place. `run.max_idle_starts` ends such a loop.
"""

import hashlib
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from isojax.core.atomic_files import write_text
from isojax.core.errors import InputError
from isojax.core.limits import MAX_COUNT
from isojax.launch.resume import BASE_FOLDER, STARTS_FILE
from isojax.runs.ledger import RECORDS_FILE
from isojax.runs.mirror import CHECKPOINTS_FOLDER


class Starts(BaseModel):
    """How often a sweep has begun, or gone on, with the same things recorded."""

    recorded: str  # a hash of what the folder held at these starts
    count: Annotated[int, Field(ge=0, le=MAX_COUNT)]


def count_start(folder: Path, max_idle_starts: int | None) -> None:
    """Note in the sweep's folder that it begins, or goes on; nothing where there is no limit.

    InputError where it has begun `max_idle_starts` times in a row with nothing new in the folder;
    the count then starts again at 0, so that a user who has read why may go on.
    """
    if max_idle_starts is None:
        return

    path = folder / STARTS_FILE
    recorded = hash_of_records(folder)
    idle_starts = _idle_starts(path, recorded)
    if idle_starts >= max_idle_starts:
        # Not removed, as that would leave it where the folder is at a URL.
        write_text(path, Starts(recorded=recorded, count=0).model_dump_json())
        raise InputError(
            where="run.max_idle_starts",
            found=f"starts in a row that recorded nothing in {folder}: {idle_starts}",
            expected="a new label, checkpoint or evaluation from each",
            fix="Read why in what they printed; the next start is not refused.",
        )
    write_text(path, Starts(recorded=recorded, count=idle_starts + 1).model_dump_json())


def _idle_starts(path: Path, recorded: str) -> int:
    """How many starts have recorded nothing new by now. recorded: by `hash_of_records`."""
    try:
        starts = Starts.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):  # the first start, or a file that is not ours
        return 0
    return starts.count if starts.recorded == recorded else 0


def hash_of_records(folder: Path) -> str:
    """A text that changes whenever a label, a checkpoint or an evaluation is added to a sweep."""
    growing_files = [
        *(path for path in (folder / BASE_FOLDER).rglob("*") if path.is_file()),
        *folder.glob(f"cells/*/{RECORDS_FILE}"),
    ]
    # Folders M, not what a kill in the middle of a save has left.
    checkpoints = [
        path for path in folder.glob(f"cells/*/{CHECKPOINTS_FOLDER}/*") if path.name.isdecimal()
    ]
    entries = [f"{path.relative_to(folder)} {path.stat().st_size}" for path in growing_files]
    entries += [str(path.relative_to(folder)) for path in checkpoints]
    return hashlib.sha256("\n".join(sorted(entries)).encode()).hexdigest()
