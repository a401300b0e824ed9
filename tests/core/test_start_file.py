"""start.json is read as it was written; a sweep says each symptom once."""

from pathlib import Path

import pytest

from isojax.core.nouns import StartReport, StartWarning
from isojax.core.start_file import describe_start, read_start_report, write_start_report
from tests.refusals import refused

CUT = StartWarning("cut_off", "9 of 16 responses are cut off")
WRONG = StartWarning("all_wrong", "all 16 rewards are 0")
WELL = StartReport({"responses": 16.0})


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    report = StartReport({"responses": 16.0, "cut_off": 0.5625}, (CUT, WRONG))
    write_start_report(tmp_path / "cells/8x2-s0", report)
    assert (
        read_start_report(tmp_path / "cells/8x2-s0") == report
        and read_start_report(tmp_path) is None
    )


def test_a_sweep_says_each_symptom_once(tmp_path: Path) -> None:
    """Of the first run that has it, and in how many; labels are told of where no run has what they
    had."""
    assert describe_start(tmp_path) == []
    for name, warnings in {
        "cells/8x2-s0": (CUT,),
        "cells/8x4-s0": (CUT, WRONG),
        "cells/8x8-s0": (),
    }.items():
        write_start_report(tmp_path / name, StartReport({}, warnings))
    write_start_report(
        tmp_path / "base",
        StartReport({}, (CUT, StartWarning("empty", "9 of 16 responses are empty"))),
    )
    assert describe_start(tmp_path) == [
        "before the first update of 8x2-s0: 9 of 16 responses are cut off (so in 2 of 3 runs)",
        "before the first update of 8x4-s0: all 16 rewards are 0",
        "of the first labels: 9 of 16 responses are empty",
    ]


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"shares": 3, "warnings": []}', '{"shares": {}, "warnings": [{}]}', "{"]
)
def test_a_broken_file_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "start.json").write_text(text)
    with refused(where="start.json"):
        read_start_report(tmp_path)
