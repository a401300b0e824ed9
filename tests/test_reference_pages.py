"""The pages of docs/reference are those that the code makes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "docs" / "reference_pages.py"


@pytest.fixture(scope="module")
def reference_pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_pages", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_pages_are_todays(reference_pages: ModuleType) -> None:
    for path, page in reference_pages.updated_pages().items():
        assert path.read_text() == page, f"{path.name}: run python docs/reference_pages.py"


def test_every_part_has_its_place(reference_pages: ModuleType) -> None:
    texts = [path.read_text() for path in reference_pages.PAGES]
    names = [part[2] for text in texts for part in reference_pages.PART.finditer(text)]
    assert sorted(names) == sorted(reference_pages.PARTS)
