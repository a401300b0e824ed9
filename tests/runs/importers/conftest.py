"""Small logs as text, imported as the command does."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from isojax.runs.logs.column_map import parse_field_map
from isojax.runs.logs.import_logs import ImportedRuns, read_logs

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture
def logged(tmp_path: Path) -> Callable[..., ImportedRuns]:
    """`logged(format, text or rows, *maps)`: one log, or several in a dictionary by file name."""

    def run(format: str, logs: Any, *maps: str, resumed: bool = False) -> ImportedRuns:
        files = []
        for name, content in (logs if isinstance(logs, dict) else {f"log.{format}": logs}).items():
            file = tmp_path / name
            file.write_bytes(content if isinstance(content, bytes) else _text(content).encode())
            files.append(file)
        return read_logs(files, format, parse_field_map(maps), resumed=resumed)

    return run


def _text(content: str | Sequence[Any]) -> str:
    return (
        content if isinstance(content, str) else "".join(json.dumps(row) + "\n" for row in content)
    )
