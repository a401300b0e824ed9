"""Git LFS: a clone without it holds, in place of a large file, a pointer of three lines."""

from contextlib import suppress
from pathlib import Path

from isojax.core.errors import InputError

POINTER_START = b"version https://git-lfs"


def refuse_pointer(path: Path, content: str = "the file itself") -> None:
    """InputError where a file, if it is there, is such a pointer, and not its `content`."""
    with suppress(OSError), path.open("rb") as file:
        if file.read(len(POINTER_START)) == POINTER_START:
            raise pointer_error(path, content)


def pointer_error(path: Path, content: str = "the file itself") -> InputError:
    """The error for a file that is a pointer, and not its `content`."""
    return InputError(
        where=path,
        found=f"a pointer of Git LFS, not {content}",
        fix="In the clone of the repository: git lfs pull; elsewhere fetch the file again.",
    )
