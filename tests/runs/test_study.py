"""The open data without what it needs; tests/benchmarks/test_reproduce.py reads it."""

from __future__ import annotations

import pytest

from isojax.core import registry
from isojax.core.errors import InputError
from isojax.runs import study


def test_without_pyarrow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name="pyarrow")

    monkeypatch.setitem(registry.__builtins__, "__import__", missing)  # type: ignore[index]
    with pytest.raises(
        InputError,
        match=r"isojax\.load_study needs the package pyarrow; pip install \"isojax\[parquet\]",
    ):
        study.load_study()
