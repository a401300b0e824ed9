"""`isojax records import|check` as a user meets them: what is written, what is printed, exit codes,
nothing lost."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from isojax.cli import app
from isojax.runs.ledger import read_runs
from tests.runs.importers.conftest import FIXTURES


@pytest.fixture
def isojax(monkeypatch, capsys, tmp_path):
    """Run a command in an empty folder: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["isojax", *map(str, words)])
        with pytest.raises(SystemExit) as e:
            app.main()
        return (e.value.code, *capsys.readouterr())

    return run


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


CSV = (
    "records",
    "import",
    FIXTURES / "runs.csv",
    "--from",
    "csv",
    "--map",
    "reward=reward_heldout",
)


def test_one_command_imports_and_the_rest_takes_it_like_a_run(isojax, tmp_path):
    code, out, err = isojax(*CSV, "--out", "runs/real")
    assert (code, err) == (0, "") and "3 runs in runs/real" in out and "isojax fit runs/real" in out
    runs = read_runs([tmp_path / "runs/real"])
    assert [(r.cell.name, len(r.points)) for r in runs] == [
        ("16x4-s0", 11),
        ("16x8-s0", 11),
        ("16x16-s0", 11),
    ]
    assert [p.rollouts for p in runs[0].points] == [64 * step for step in range(2, 13)]
    output = json.loads((tmp_path / "runs/real/import.json").read_text())
    assert output["map"] == {"reward": "reward_heldout"} and output["cells"]["16x8-s0"].endswith(
        "runs.csv, line 13"
    )
    code, out, err = isojax("fit", "runs/real", "--json", "--mode", "paper")
    assert code == 0, err
    assert json.loads(out)["metric"] == "reward_heldout" and [
        c["n"] for c in json.loads(out)["curves"]
    ] == [4, 8, 16]


def test_the_next_commands_quote_a_folder_with_a_space(isojax):
    code, out, _ = isojax(*CSV, "--out", "my runs/a b")
    assert (
        code == 0
        and "next: isojax records check 'my runs/a b', then isojax fit 'my runs/a b'" in out
    )


def test_the_same_log_gives_the_same_bytes(isojax, tmp_path):
    for name in ("a", "b"):
        assert isojax(*CSV, "--out", name)[0] == 0
    assert files(tmp_path / "a") == files(tmp_path / "b")


@pytest.mark.parametrize("kept", ["folder", "file"])
def test_what_is_there_is_kept(isojax, tmp_path, kept):
    out = tmp_path / "runs"
    if kept == "folder":
        out.mkdir()
        (out / "notes.txt").write_text("mine")
    else:
        out.write_text("mine")
    before = files(tmp_path)
    code, printed, err = isojax(*CSV, "--out", "runs")
    assert (
        code == 2
        and printed == ""
        and err.startswith("error: --out: given runs, which is there")
        and "it is kept" in err
    )
    assert files(tmp_path) == before


def test_an_empty_folder_is_taken(isojax, tmp_path):
    (tmp_path / "runs").mkdir()
    assert isojax(*CSV, "--out", "runs")[0] == 0
    assert (tmp_path / "runs/cells/16x4-s0/records.jsonl").is_file()


def test_a_broken_log_writes_nothing(isojax, tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("step,reward,n,B_p\n1,.1,4,2\n2,1.5,4,2\n")
    before = sorted(tmp_path.rglob("*"))
    code, out, err = isojax("records", "import", log, "--from", "csv", "--out", "deep/runs")
    assert (
        (code, out) == (2, "")
        and err.startswith(f"error: {log}, line 3: reward: given 1.5")
        and "Traceback" not in err
    )
    assert sorted(tmp_path.rglob("*")) == before


def test_a_disk_that_fails_leaves_nothing(isojax, tmp_path, monkeypatch):
    from isojax.runs.logs import import_logs

    written = []

    def full(folder, run):
        written.append(folder)
        folder.mkdir(parents=True)
        if len(written) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(import_logs, "write_run", full)
    code, _, err = isojax(*CSV, "--out", "runs")
    assert code == 2 and "No space left" in err and list(tmp_path.iterdir()) == []


def test_check_of_an_import(isojax):
    assert isojax(*CSV, "--out", "runs")[0] == 0
    code, out, err = isojax("records", "check", "runs")
    assert (code, err) == (0, "") and "3 runs, metric reward_heldout" in out
    assert (
        "unequal length: the longest ends at C = 3,072; 16x4 (768), 16x8 (1,536) end earlier" in out
        and "no run was evaluated at C = 0" in out
    )
    code, out, _ = isojax("records", "check", "runs", "--json")
    document = json.loads(out)
    assert code == 0 and document["problems"] == [] and document["cells"][1]["C"] == [256, 1536]


def test_check_says_only_one_n(isojax, tmp_path):
    rows = [{"step": s, "reward": 0.1 + s / 200} for s in range(12)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert (
        isojax(
            "records", "import", "a.jsonl", "--from", "jsonl", "--map", "n=4,B_p=2", "--out", "runs"
        )[0]
        == 0
    )
    code, out, _ = isojax("records", "check", "runs", "--json")
    notes = json.loads(out)["notes"]
    assert code == 0 and any("only one n (4)" in note for note in notes)


HEADER = {"kind": "cell", "schema": 1, "B_p": 2, "n": 4, "seed": 0, "cell_hash": "x"}


def point(C, **changes):
    return {
        "kind": "eval",
        "target": C,
        "M": C // 8,
        "rollouts": C,
        "tokens": 0,
        "metrics": {"acc": 0.25},
    } | changes


BROKEN = {
    "NaN": ([point(8), point(16, metrics={"acc": float("nan")})], r"line 3: acc is nan"),
    "outside": (
        [point(8), {"kind": "failed"}, point(16, metrics={"acc": 1.5})],
        r"line 4: acc is 1\.5",
    ),
    "missing metric": (
        [point(8), point(16, metrics={"other": 0.5})],
        r"line 3 \(C = 16\) has no metric 'acc'",
    ),
    "negative": ([point(-8), point(8)], r"line 2: not an evaluation \(target is -8"),
    "not whole": (
        [point(8), point(16, rollouts=16.5)],
        r"line 3: not an evaluation.*rollouts is 16\.5",
    ),
    "infinite": (
        [point(8), point(16, tokens=float("inf"))],
        r"line 3: not an evaluation.*tokens is inf",
    ),
    "twice": (
        [point(8), {"kind": "failed"}, point(8)],
        r"line 4: the point at 8 rollouts is there twice",
    ),
    "falling": ([point(16), point(8)], r"line 3: rollouts fall from 16 to 8"),
    "two runs in a file": (
        [point(8), {**HEADER, "n": 8}, point(16)],
        r"line 3: begins another run .*'n': 8.* in the ledger of .*'n': 4",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_ledger_is_refused_by_check_and_fit_with_its_line(isojax, tmp_path, name):
    rows, match = BROKEN[name]
    folder = tmp_path / "runs/cells/2x4-s0"
    folder.mkdir(parents=True)
    (folder / "records.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in [HEADER, *rows])
    )
    for command in (("records", "check"), ("fit",)):
        metric = ("--metric", "acc") if command == ("fit",) else ()
        code, out, err = isojax(*command, "runs", *metric)
        assert code == 2, out
        assert "2x4-s0/records.jsonl, " in err.splitlines()[-1]
        assert re.search(match, err.splitlines()[-1]), err
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["cells"]


def test_check_names_every_problem(isojax, tmp_path):
    for seed, rows in enumerate(
        (
            [point(8), point(8)],
            [point(8), point(16, metrics={"acc": 2})],
            [point(8 * i) for i in range(1, 6)],
        )
    ):
        folder = tmp_path / f"runs/cells/2x4-s{seed}"
        folder.mkdir(parents=True)
        (folder / "records.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in [{**HEADER, "seed": seed}, *rows])
        )
    other = tmp_path / "runs/cells/2x8-s0"
    other.mkdir()
    lines = [
        {**HEADER, "n": 8, "cell_hash": "y"},
        *(point(16 * i, counts=[1, 2], samples=2) for i in range(1, 6)),
    ]
    (other / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    code, out, err = isojax("records", "check", "runs", "--json")
    problems = json.loads(out)["problems"]
    assert (
        code == 2
        and len(problems) == 3
        and err.startswith("error: 3 problems that `isojax fit` would refuse")
    )
    assert [
        ("line 3: the point at 8" in p, "different `cell` settings" in p, "acc is 2" in p)
        for p in problems
    ] == [
        (True, False, False),
        (False, True, False),
        (False, False, True),
    ]


def test_check_shows_twenty_problems_and_counts_all(isojax, tmp_path):
    for seed in range(31):
        folder = tmp_path / f"runs/cells/2x4-s{seed}"
        folder.mkdir(parents=True)
        (folder / "records.jsonl").write_text(json.dumps(HEADER | {"seed": seed}) + "\n")
    code, out, err = isojax("records", "check", "runs")
    assert (
        code == 2
        and out.count("problem: runs/cells") == 20
        and "and 11 more; --json has all of them" in out
    )
    assert err.startswith("error: 31 problems") and len(out.splitlines()) == 21
    assert len(json.loads(isojax("records", "check", "runs", "--json")[1])["problems"]) == 31


def test_check_of_nothing(isojax, tmp_path):
    (tmp_path / "empty").mkdir()
    code, _, err = isojax("records", "check", "empty")
    assert code == 2 and "empty: no records.jsonl" in err and "isojax records import LOG" in err


def test_help_teaches(isojax):
    code, out, _ = isojax("records", "import", "--help")
    assert code == 0
    for words in ("--from trl", "n=n{}", "B_p", "rollouts per update", "metric:NAME", "is kept"):
        assert words in out
    code, out, _ = isojax("records", "check", "--help")
    assert code == 0 and "isojax records check runs/real" in out


def test_text_from_logs_is_no_markup(isojax, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"step": 1, "[red]x[/red]": 0.5}\n')
    code, out, _ = isojax(
        "records",
        "import",
        "a.jsonl",
        "--from",
        "jsonl",
        "--map",
        "n=2,B_p=2,reward=[red]x[/red]",
        "--out",
        "runs",
    )
    assert code == 0 and "[red]x[/red]" in out


def test_a_folder_of_logs_needs_no_format_and_says_what_it_skips(isojax, tmp_path):
    code, out, err = isojax(
        "records",
        "import",
        FIXTURES / "wandb_resumed",
        "--map",
        "reward=val/acc,n=n{}",
        "--out",
        "runs",
    )
    assert code == 0 and "2 runs in runs" in out, err
    assert "warning: skipped: " in err and "nothingn4.wandb: no step" in err
    assert "note: cut-n8 was resumed (" in err
    code, out, err = isojax("recommend", "runs", "--budget", "3000")
    assert code == 0 and "for 3,000 rollouts: B_p = 16, n = " in out, err


def test_settings_and_resumed_runs(isojax, tmp_path):
    Path("log.csv").write_text("run,step,reward\na,0,.1\na,1,.2\na,2,.3\na,1,.25\na,2,.35\n")
    Path("settings.csv").write_text("run,n,B_p\na,4,2\n")
    words = ("records", "import", "log.csv", "--settings", "settings.csv", "--out", "runs")
    code, _, err = isojax(*words)
    assert code == 2 and "line 5: step falls from 2 (line 4) to 1" in err
    assert "or add --resumed where the run was resumed" in err
    assert not Path("runs").exists()
    assert isojax(*words, "--resumed")[0] == 0
    (run,) = read_runs([tmp_path / "runs"])
    assert [p.metrics["reward"] for p in run.points] == [0.1, 0.25, 0.35]
