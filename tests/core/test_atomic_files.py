"""Files and folders written whole or not at all: names of any length, and no folder left by a
refusal."""

from __future__ import annotations

from pathlib import Path

from isojax.core.atomic_files import atomic_folder, write_text
from isojax.core.errors import InputError
from tests.refusals import refused


def test_the_longest_names(tmp_path: Path) -> None:
    write_text(tmp_path / ("a" * 255), "text")
    with atomic_folder(tmp_path / ("b" * 255)) as folder:
        (folder / "x").write_text("1")
    assert sorted(len(path.name) for path in tmp_path.iterdir()) == [255, 255]


def test_a_refusal_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with refused(), atomic_folder(tmp_path / "there" / "a" / "b" / "c"):
        raise InputError("Refused here.")
    assert list(tmp_path.rglob("*")) == [tmp_path / "there"]
    with atomic_folder(tmp_path / "a" / "b" / "c"):
        pass
    assert (tmp_path / "a" / "b" / "c").is_dir()
