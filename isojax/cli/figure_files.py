"""Figures that a command writes to a path given by the user: PNG or PDF, and never over an existing file."""

from __future__ import annotations

from pathlib import Path

from isojax.core.errors import InputError


def check_figure_path(path: Path, option: str) -> None:
    """Check before any work that the file can be drawn and does not exist."""
    if path.suffix not in (".png", ".pdf"):
        raise InputError(f"{option} {path}: expected a file named .png or .pdf.")
    if path.exists():
        raise InputError(f"{path} exists already and is kept; give {option} another name, or remove it.")


def write_figure(path: Path, png: bytes, pdf: bytes, option: str) -> None:
    """Write PNG or PDF, by the suffix of the path; its folder is created."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as f:
            f.write(pdf if path.suffix == ".pdf" else png)
    except OSError as e:
        raise InputError(f"cannot write {path}: {e.strerror or e}. Give {option} another name.") from e
