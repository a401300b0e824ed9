"""What asks runs to end: a time limit, counted from the start of the process."""

from __future__ import annotations

import time

import pytest

from isojax.core import preemption
from isojax.core.durations import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("8h", 28800), ("1.5h", 5400), ("3d", 259200), (" 9h ", 32400)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "8", "h", "0h", "-1h", "8H", "8 hours", "1h30m", "1e999h"])
def test_what_is_no_duration(text: str) -> None:
    assert parse_duration(text) is None


def _wait_for_request(seconds: float) -> bool:
    return preemption.REQUESTED.wait(seconds)


def test_a_limit_counts_from_the_start_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption, "STARTED_AT", time.monotonic() - 100)
    assert 99 < preemption.seconds_left(200) <= 100

    with preemption.end_after(100.01):
        assert _wait_for_request(30)
        assert preemption.describe_request() == "run.time_limit"
    assert not preemption.REQUESTED.is_set()
    assert preemption.describe_request() == "SIGTERM"


def test_a_limit_that_has_passed_asks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption, "STARTED_AT", time.monotonic() - 100)
    with preemption.end_after(50):
        assert _wait_for_request(30)


def test_what_ends_before_its_limit_is_not_asked() -> None:
    with preemption.end_after(0.05 + time.monotonic() - preemption.STARTED_AT):
        pass
    assert not _wait_for_request(0.2)

    with preemption.end_after(None):
        assert not _wait_for_request(0.01)
