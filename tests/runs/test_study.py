"""The open data without what it needs; tests/benchmarks/test_reproduce.py reads it."""

from __future__ import annotations

import pytest

from isojax.core import registry
from isojax.runs import study
from tests.refusals import refused


def test_without_pyarrow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name="pyarrow")

    with refused(), monkeypatch.context() as patch:
        patch.setitem(registry.__builtins__, "__import__", missing)  # type: ignore[index]
        study.load_study()
