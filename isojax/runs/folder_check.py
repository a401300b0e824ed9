"""Whether the disk of a sweep's folder can do what a run asks of it, tried before any work.

A run appends to its ledgers, replaces files, and renames the folder of a checkpoint when all of it
is written. A bucket that is mounted as a folder may refuse some of that, hours later.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

from isojax.core.errors import InputError

CONTENT = "written, and appended to"


@contextmanager
def trial_folder(folder: Path) -> Iterator[Path]:
    """A folder in this one, with the file `trial`, made in all the ways in which a run makes its
    files; removed at the end.

    Its name is a new one each time: a client of a file server may remember that a name was not
    there. InputError where the disk cannot do it.
    """
    trial = folder / f".trial-{token_hex(8)}"
    try:
        try:
            _make_trial(trial)
        except OSError as e:
            raise _refusal(folder, f"cannot keep a run: {e.strerror or e}") from e
        if not is_whole(trial):
            raise _refusal(folder, "does not hold what was written there a moment ago")
        yield trial
    finally:
        for path in (_unfinished(trial), trial):
            with suppress(OSError):  # of a disk that cannot even do that: refused above
                shutil.rmtree(path)


def is_whole(trial: Path) -> bool:
    """Whether this process sees a folder of `trial_folder` with all that was written to it."""
    try:
        return (trial / "trial").read_text() == CONTENT
    except OSError:
        return False


def _unfinished(trial: Path) -> Path:
    return trial.with_name(f"{trial.name}.unfinished")


def _make_trial(trial: Path) -> None:
    """Make the folder under another name, write to it, and rename it. OSError as the disk says."""
    unfinished = _unfinished(trial)
    unfinished.mkdir()
    beginning, _, end = CONTENT.partition(",")

    # A file is written under another name, and replaces the one that is there.
    path = unfinished / "trial"
    path.write_text("an older one")
    with (unfinished / "newer").open("w") as file:
        file.write(beginning)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished / "newer", path)

    with path.open("a") as file:
        file.write(f",{end}")
        file.flush()
        os.fsync(file.fileno())
    os.rename(unfinished, trial)


def _refusal(folder: Path, found: str) -> InputError:
    return InputError(
        where="run.dir",
        found=f"{folder} {found}",
        expected="a disk where files can be appended to and replaced, and folders renamed",
        fix=(
            "Choose one by run.dir=FOLDER. A bucket that gcsfuse mounts needs --rename-dir-limit, "
            "or hierarchical namespaces (docs/hosts.md)."
        ),
    )
