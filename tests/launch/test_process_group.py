"""The options that make several processes one run."""

from __future__ import annotations

from pathlib import Path

import pytest

from isojax.launch.local.join_processes import check_even_devices, check_shared_folder
from isojax.launch.process_group import SINGLE_PROCESS, ProcessGroup, parse_process_group
from isojax.runs.storage import exclusive_lock
from tests.refusals import refused


def test_what_is_given() -> None:
    assert (
        parse_process_group(None, None, None)
        == SINGLE_PROCESS
        == parse_process_group(None, "1", None)
        and not SINGLE_PROCESS.is_multi_process
    )
    assert (
        parse_process_group("host:1234", "4", 3) == ProcessGroup("host:1234", 4, 3)
        and parse_process_group("host:1234", "4", 3).is_multi_process
    )
    assert parse_process_group(None, "auto", None) == ProcessGroup(auto=True)


@pytest.mark.parametrize(
    ("coordinator", "processes", "process", "expected_number"),
    [
        (None, "2", 0, "0 to 1"),
        ("host", "2", 0, "0 to 1"),
        ("host:abc", "2", 0, "0 to 1"),
        ("host:65536", "2", 0, "0 to 1"),
        ("host:0", "2", 0, "0 to 1"),
        ("host:1", "2", None, "0 to 1"),
        ("host:1", "2", 2, "0 to 1"),
        ("host:1", "two", 0, "from 0"),
        ("host:1", "0", 0, "from 0"),
        ("host:1", None, 0, "from 0"),
        ("host:1", "auto", None, "from 0"),
    ],
)
def test_refusals(
    coordinator: str | None, processes: str | None, process: int | None, expected_number: str
) -> None:
    with refused() as refusal:
        parse_process_group(coordinator, processes, process)
    text = str(refusal.value)
    assert text.startswith(
        f"given --processes {processes}, --coordinator {coordinator} and --process {process}; "
        "expected"
    )
    assert text.endswith(f"this one's number, {expected_number}.")


def test_as_many_devices_in_each() -> None:
    """Which JAX asks for; it would say so by an error of its own."""
    check_even_devices([0, 0, 1, 1])
    with refused():
        check_even_devices([0, 1, 0, 0])


def test_locks_that_do_not_hold_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with exclusive_lock(tmp_path):
        check_shared_folder(tmp_path)
    assert capsys.readouterr().err == ""
    check_shared_folder(tmp_path)  # as on another host, which does not see process 0's lock
    assert "warning: " in (err := capsys.readouterr().err) and "locks do not hold" in err
