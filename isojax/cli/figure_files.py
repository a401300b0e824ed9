"""Figures that a command writes where it is told: PNG or PDF, and never over a file that is there."""

from __future__ import annotations

from pathlib import Path

from isojax.core.errors import InputError


def check_figure_path(path: Path, option: str) -> None:
    """Before any work: the file can be drawn, and is not there yet.

    Raises:
        InputError: another suffix than .png and .pdf, or an existing file.
    """
    if path.suffix not in (".png", ".pdf"):
        raise InputError(f"{option} {path}: expected a file named .png or .pdf.")
    if path.exists():
        raise InputError(f"{path} exists already and is kept; give {option} another name, or remove it.")


def write_figure(path: Path, png: bytes, pdf: bytes, option: str) -> None:
    """Write the one that the name asks for; its folder is made.

    Raises:
        InputError: it cannot be written, or has come to be there meanwhile.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as f:
            f.write(pdf if path.suffix == ".pdf" else png)
    except OSError as e:
        raise InputError(f"cannot write {path}: {e.strerror or e}. Give {option} another name.") from e
