"""Control characters and megabytes of users' data, in names, ledgers, logs and configs, never reach
a terminal."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from isojax.core.config import load_config
from isojax.core.nouns import Cell
from isojax.launch import display
from tests.cli.conftest import Isojax, Outcome

ESCAPES = "\x1b]0;title\x07\x1b[2J\r\x9b31m"
LONG = "z" * 2_000_000


def check(outcome: Outcome, *codes: int) -> str:
    """Both streams of a command, which end with one of the codes."""
    code, out, err = outcome
    shown = out + err
    assert code in codes and "Traceback" not in shown, shown[-2000:]
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown) and len(shown) < 200_000
    return shown


@pytest.fixture
def hostile_run(known: Path, tmp_path: Path) -> Path:
    """A sweep whose folder and metrics have such names."""
    folder = tmp_path / f"run{ESCAPES}[/red]"
    shutil.copytree(known, folder)
    for ledger in folder.glob("cells/*/records.jsonl"):
        rows = [json.loads(line) for line in ledger.read_text().splitlines()]
        for row in rows:
            if "metrics" in row:
                row["metrics"] |= {f"set{ESCAPES}/avg@4": 0.5, LONG[:100_000]: 0.5}
        ledger.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.parametrize("width", ["60", "160"])
def test_status_and_check_of_hostile_ledgers(
    hostile_run: Path, isojax: Isojax, monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    assert r"\x1b]0;title\x07" in check(isojax("status", str(hostile_run)), 0)
    check(isojax("status", str(hostile_run), "--json"), 0)
    shown = check(isojax("records", "check", str(hostile_run)), 0, 2)
    assert "characters) ..." in re.sub(r"\s+", " ", shown)


def test_fit_and_recommend_of_hostile_ledgers(hostile_run: Path, isojax: Isojax) -> None:
    check(isojax("fit", str(hostile_run), "--metric", f"no{ESCAPES}"), 2)
    check(isojax("fit", str(hostile_run), "--metric", LONG[:100_000]), 0, 2)
    check(isojax("recommend", str(hostile_run), "--budget", "1000", "--metric", ESCAPES), 2)


def test_ledgers_that_cannot_be_read(hostile_run: Path, isojax: Isojax) -> None:
    ledger = next(hostile_run.glob("cells/*/records.jsonl"))
    for row in (
        f'{{"kind": "{LONG}"}}',
        json.dumps({"kind": ESCAPES}),
        LONG,
        f'{{"kind": {ESCAPES}}}',
    ):
        ledger.write_text(row + "\n")
        for command in (["status"], ["records", "check"], ["fit"]):
            check(isojax(*command, str(hostile_run)), 0, 2)


def test_hostile_configs(isojax: Isojax, tmp_path: Path) -> None:
    for name, text in {
        "key": json.dumps({ESCAPES: 1}),
        "long": f"name: {LONG}",
        "value": json.dumps({"sweep": {"budget": ESCAPES, "n": [LONG]}}),
        "raw": f"name: {ESCAPES}",
    }.items():
        (tmp_path / f"{name}.yaml").write_text(text)
        check(isojax("launch", f"{name}.yaml", "--dry-run"), 2)


def test_hostile_logs(isojax: Isojax, tmp_path: Path) -> None:
    log = tmp_path / f"log{ESCAPES}.csv"
    log.write_text(
        f'B_p,n,seed,C,"reward{ESCAPES}",{LONG}\n1,{ESCAPES.replace(chr(13), "")},0,1,{LONG},2\n'
    )
    check(isojax("records", "import", str(log), "--from", "csv", "--out", "out"), 2)
    check(
        isojax(
            "records",
            "import",
            str(log),
            "--from",
            "csv",
            "--map",
            f"reward=reward{ESCAPES}",
            "--out",
            "out",
        ),
        2,
    )
    check(isojax("fit-curve", str(log)), 2)
    check(isojax("fit-law", str(log)), 2)


def test_a_plan_and_what_verifiers_say(capsys: pytest.CaptureFixture[str]) -> None:
    config = load_config("quickstart")
    display.print_cells(config, [Cell(8, 2, 0)], Path(f"runs{ESCAPES}[/red]"))
    live = display.Display(config)
    live.show_verifier_failure(f"crash{ESCAPES}", LONG)
    live.show_flags(Cell(8, 2, 0), [ESCAPES + "[/red]"])
    live.show_preparation(f"reading {ESCAPES}[/red]", 0.5)
    shown = check((0, *capsys.readouterr()), 0)
    assert "(2,0" in shown and r"\x1b]0;title\x07" in shown and "[/red]" in shown
