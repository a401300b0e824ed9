"""The files of a user's verifier as they were when a sweep began, kept in `base/`.

A resumed sweep that judged by others would compare runs of two rewards. What such a file imports is
not compared."""

import difflib
from collections.abc import Mapping
from pathlib import Path

from isojax.core.atomic_files import read_file, write_bytes
from isojax.core.errors import InputError
from isojax.tasks.verifiers import verifier_files

COPIES_FOLDER = "verifier_files"  # in the folder of the base policy


def keep_verifier_files(base_folder: Path, use: str | Mapping[str, str]) -> None:
    """Copy the files that `cell.verifier.use` names.

    use: such as "math" (a verifier of isojax, which names no file) or "function:rewards.py:score";
        or one of these for each score, by the scores' names.
    """
    for file, copy in _copies(base_folder, use):
        write_bytes(copy, read_file(file))


def changed_verifier_files(
    base_folder: Path, use: str | Mapping[str, str]
) -> list[tuple[Path, Path]]:
    """The files of the verifier that have changed since, as (file, copy).

    base_folder: `base/` of the sweep. A sweep of an older version has kept no copies; then nothing
    is known, and [] returned.
    """
    copies = _copies(base_folder, use)
    return [
        (file, copy)
        for file, copy in copies
        if copy.is_file() and read_file(copy) != read_file(file)
    ]


def check_verifier_files(base_folder: Path, use: str | Mapping[str, str]) -> None:
    """InputError where a file of the verifier has changed since the sweep began."""
    for file, copy in changed_verifier_files(base_folder, use):
        lines_before = read_file(copy).decode(errors="replace").splitlines()
        lines_now = read_file(file).decode(errors="replace").splitlines()
        matcher = difflib.SequenceMatcher(None, lines_before, lines_now, autojunk=False)
        # Numbers, from 1, of the lines of the file as it is now at which a change begins.
        changed_lines = [line + 1 for tag, _, _, line, _ in matcher.get_opcodes() if tag != "equal"]
        place = " (in its line ends)"
        if changed_lines:
            place = f", first in line {changed_lines[0]}"

        problem = f"cell.verifier.use: {file} has changed since this sweep began{place}"
        reason = "its runs would be judged by two rewards"
        raise InputError(
            found=f"{problem} (diff {copy} {file}); {reason}",
            fix=(
                f"Put the old one back (cp {copy} {file}), or choose another name=NAME for a new "
                "sweep."
            ),
        )


def _copies(base_folder: Path, use: str | Mapping[str, str]) -> list[tuple[Path, Path]]:
    """Each file of the verifier, and where its copy is. A number keeps two files of one name apart,
    so the files must stay in the order of `verifier_files`."""
    return [
        (file, base_folder / COPIES_FOLDER / f"{i}-{file.name}")
        for i, file in enumerate(verifier_files(use))
    ]
