"""What the end-to-end tests share: the process that commands are forked from, and one finished run
of the small sweep."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.command_line import Isojax, Nursery


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all workers of this run of the tests."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def nursery(shared: Path) -> Iterator[Nursery]:
    """The process that commands are forked from."""
    made = Nursery(shared)
    with made.process:
        yield made
        made.process.communicate()


@pytest.fixture
def isojax(tmp_path: Path, nursery: Nursery) -> Isojax:
    """The command line in a folder where nothing has run."""
    return Isojax(tmp_path / "work", nursery)


@pytest.fixture(scope="session")
def whole(shared: Path, nursery: Nursery) -> Isojax:
    """The command line in a folder where the sweep has run from end to end, once for all workers;
    to be read only."""
    said = shared / "whole.said"
    with (shared / "whole.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        location = Isojax(shared / "whole", nursery)
        if not said.exists():
            said.write_text(location.ok("launch", "tiny.yaml").stdout)
    location.said = said.read_text()
    return location
