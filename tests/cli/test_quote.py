"""`isojax quote` on a fit written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Isojax, error_of, write_timed_sweep


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    return write_timed_sweep(tmp_path / "sweep")


def test_the_table_and_the_document(isojax: Isojax, sweep: Path) -> None:
    code, out, err = isojax("quote", str(sweep), "--reward", "0.5")
    assert (
        (code, err) == (0, "")
        and "avg@4 0.5 costs" in out
        and "4 *" in out
        and "Never: not by C = 400,000" in out
    )
    code, out, _ = isojax("quote", str(sweep), "--reward", "0.5", "--price", "36", "--json")
    answer = json.loads(out)
    assert (
        code == 0
        and answer["best_n"] == 4
        and [cell["n"] for cell in answer["cells"]] == [4, 16, 64]
    )
    cell = answer["cells"][0]
    assert cell["low"] < cell["C"] < cell["high"] and cell["p_never"] == 0
    assert cell["hours"] == pytest.approx(cell["C"] * 0.001 / 3600)
    assert (
        cell["cost"]
        == pytest.approx(36 * cell["device_hours"])
        == pytest.approx(72 * cell["hours"])
    )


def test_on_other_devices(isojax: Isojax, sweep: Path) -> None:
    """As many device hours as on the 2 devices of the records."""
    of_records = json.loads(isojax("quote", str(sweep), "--reward", "0.5", "--json")[1])["cells"][0]
    code, out, _ = isojax("quote", str(sweep), "--reward", "0.5", "--devices", "8", "--json")
    on_8 = json.loads(out)["cells"][0]
    assert code == 0 and on_8["hours"] == pytest.approx(of_records["hours"] / 4)
    assert on_8["device_hours"] == pytest.approx(of_records["device_hours"])
    out = isojax("quote", str(sweep), "--reward", "0.5", "--devices", "8")[1]
    assert out.startswith(
        "time: on 8 devices, assumed to take as many device hours as these runs on 2 devices"
    )


def test_what_most_runs_never_reach(isojax: Isojax, sweep: Path) -> None:
    code, out, _ = isojax("quote", str(sweep), "--reward", "0.69")
    assert code == 0 and "never to never" in out and "100%" in out and out.count("*") == 1


def test_refusals(isojax: Isojax, sweep: Path) -> None:
    assert "expected one between 0 and 1" in error_of(isojax("quote", str(sweep), "--reward", "60"))
    words = ("quote", str(sweep), "--reward", "0.5", "--price", "-1")
    assert "--price: given -1; expected a price of more than 0" in error_of(isojax(*words))
    for timing in sweep.glob("cells/*/timing.jsonl"):
        timing.unlink()
    words = ("quote", str(sweep), "--reward", "0.5", "--price", "2.5")
    assert "--price: the records of" in error_of(isojax(*words)) and isojax(*words[:4])[0] == 0
