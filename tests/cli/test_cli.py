"""The command line: what each command hands on and prints, exit codes, and that nothing a user keeps is overwritten.

A sweep is made here from a world whose law is known; only training, which needs jax, is replaced.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isojax import __version__
from isojax.cli import app
from isojax.cli.commands import report_command
from isojax.cli.commands.recommend_command import parse_fixed_values
from isojax.cli.formatting import parse_count, to_json_value
from isojax.core.atomic_files import write_text
from isojax.core.config import Config, config_hash, load_config, read_saved_config, save_config
from isojax.core.errors import InputError
from isojax.launch.planner import plan_cells
from isojax.launch.process_group import SINGLE_PROCESS, ProcessGroup
from isojax.report import write
from isojax.report.figures.catalogue import FIGURES
from isojax.runs.ledger import RECORDS_FILE, Ledger
from tests.scaling.synthetic import world

Outcome = tuple[int, str, str]
Isojax = Callable[..., Outcome]


@pytest.fixture
def isojax(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Isojax:
    """Run a command in an empty folder: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")

    def run(*words: str, main: Callable[[], Any] = app.main) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["isojax", *words])
        with pytest.raises(SystemExit) as e:
            main()
        assert isinstance(e.value.code, int)
        return (e.value.code, *capsys.readouterr())

    return run


def write_sweep(folder: Path, n: tuple[int, ...] = (2, 4, 8, 16, 32)) -> Path:
    """runs/NAME of a sweep whose n*(C) rises: config.yaml and ledgers. Few n are fitted, and drawn, in less time."""
    config = load_config("quickstart", ["name=known", "sweep.B_p=[16]", "sweep.decode_slots=32", "sweep.microbatch=32"])
    save_config(config, folder / "config.yaml")
    write_text(folder / "base" / "about.json", json.dumps({"checkpoint": "", "notes": []}))
    for run in world(seeds=2, problems=100, n=n).runs:
        ledger = Ledger(folder / "cells" / run.cell.name, run.cell, config_hash(config.cell))
        for point in run.points:
            ledger.append(point, seconds=1.0, devices=1)
    return folder


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sweep(tmp_path_factory.mktemp("known") / "runs" / "known")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, known: Path) -> list[tuple[Any, ...]]:
    """Stands in for the module that needs jax, and remembers what they were given."""
    seen: list[tuple[Any, ...]] = []

    def launch(config: Config, resume: bool, dry_run: bool, process_group: ProcessGroup) -> Path:
        assert process_group == SINGLE_PROCESS
        seen.append((config, resume, dry_run))
        return known

    def train(config: Config, resume: bool, process_group: ProcessGroup) -> Path:
        assert process_group == SINGLE_PROCESS
        seen.append((config, resume))
        return known

    monkeypatch.setitem(sys.modules, "isojax.launch.local.local_runner", SimpleNamespace(launch=launch, train=train))
    return seen


def error_of(outcome: Outcome) -> str:
    """The one message of a refused command."""
    code, out, err = outcome
    assert code == 2 and out == ""
    assert err.startswith("error: ") and err.count("\n") == 1, err
    return err


@pytest.mark.parametrize(
    ("words", "name", "seed", "mesh", "resume"),
    [
        ([], "quickstart", 0, "auto", False),
        (["sweep.seed=1"], "quickstart", 1, "auto", False),
        (["quickstart", "sweep.seed=1", "name=mine"], "mine", 1, "auto", False),
        (["--resume", "sweep.seed=2"], "quickstart", 2, "auto", True),
        (["sweep.seed=2", "--mesh", "data=2,tensor=1"], "quickstart", 2, "data=2,tensor=1", False),
        (["quickstart", "--mesh=auto", "run.mesh=data=8"], "quickstart", 0, "auto", False),
    ],
)
@pytest.mark.parametrize("program", ["isojax launch", "python -m isojax.launch"])
def test_launch_reads_config_and_overrides(
    isojax: Isojax,
    calls: list[tuple[Any, ...]],
    words: list[str],
    name: str,
    seed: int,
    mesh: str,
    resume: bool,
    program: str,
) -> None:
    outcome = (
        isojax("launch", *words, "--dry-run")
        if program == "isojax launch"
        else isojax(*words, "--dry-run", main=app.main_launch)
    )
    assert outcome[0] == 0
    [(config, resumed, dry_run)] = calls
    assert (config.name, config.sweep.seed, config.run.mesh, resumed, dry_run) == (name, seed, mesh, resume, True)


def test_launch_takes_a_file_whose_name_has_an_equals_sign(isojax: Isojax, calls: list[tuple[Any, ...]]) -> None:
    Path("a=b.yaml").write_text("name: odd")
    assert isojax("launch", "a=b.yaml", "--dry-run")[0] == 0
    assert calls[0][0].name == "odd"


def test_launch_takes_an_override_that_is_too_long_for_a_file(isojax: Isojax, calls: list[tuple[Any, ...]]) -> None:
    assert isojax("launch", long := f"run.dir={'x' * 300}", "--dry-run")[0] == 0
    assert calls[0][0].run.dir == long.removeprefix("run.dir=")


def test_of_several_configs_later_ones_lie_over_earlier_ones(isojax: Isojax, calls: list[tuple[Any, ...]]) -> None:
    Path("top.yaml").write_text("sweep: {n: [4], seeds: 5}\ncell: {rl: {kl: 0.125}}\n")
    assert isojax("launch", "quickstart", "hard", "top.yaml", "sweep.seeds=7", "--dry-run")[0] == 0
    [(config, *_)] = calls
    hard = load_config("hard")
    assert config.name == "hard"  # the last that sets one
    assert (config.sweep.n, config.sweep.seeds, config.sweep.B_p, config.sweep.budget) == (
        (4,),
        7,
        hard.sweep.B_p,
        hard.sweep.budget,
    )
    assert config.cell.rl == hard.cell.rl.model_copy(update={"kl": 0.125})
    assert config.cell.base.steps == load_config("quickstart").cell.base.steps == 1000  # of the first alone


def test_launch_fits_reports_and_recommends(isojax: Isojax, calls: list[tuple[Any, ...]], known: Path) -> None:
    code, out, _ = isojax("launch")
    assert code == 0
    assert {path.name for path in known.iterdir()} >= {"fit.json", "report.html", "figures"}
    assert "for 139,000 rollouts: B_p = 16" in out and "for 556,000 rollouts" in out and "report.html" in out


def test_train_hands_the_config_on(isojax: Isojax, calls: list[tuple[Any, ...]]) -> None:
    assert isojax("train", "quickstart", "sweep.n=[8]")[0] == 0
    assert isojax("quickstart", "sweep.n=[4]", "--mesh", "data=2", main=app.main_train)[0] == 0
    assert [config.sweep.n for config, _ in calls] == [(8,), (4,)]
    assert calls[1][0].run.mesh == "data=2"
    assert "no config given" in error_of(isojax("train"))
    assert "no config given" in error_of(isojax("train", "sweep.n=[8]"))


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["launch", "sweep.sed=1"], "nearest known key is 'sweep.seed'"),
        (["launch", "quickstart", "more"], "no such config: given 'more'"),
        (
            ["launch", "quickstart", "sweep.seed=1", "hard"],
            "given 'hard' after the override 'sweep.seed=1'; expected key=value there",
        ),
        (["difficulty"], "no config given"),
        (["difficulty", "quickstart", "cell.task=addition", "hard"], "Configs come first: hard cell.task=addition"),
        (["launch", "nothing"], "no such config"),
        (["launch", "sweep.budget=x"], "sweep.budget: given 'x'"),
        (["train", "quickstart", "cell.rl.kl=x"], "cell.rl.kl"),
        (["fit", "none"], "no such run"),
        (["report", "none"], "no sweep's folder"),
        (["recommend", "none", "--budget", "1e6"], "cannot read none"),
        (["recommend", "none", "--budget", "0"], "--budget: given '0'"),
        (["recommend", "none", "--budget", "1", "--fix", "n=3"], "--fix: given 'n=3'"),
    ],
)
def test_what_cannot_be_used_is_one_message_and_exit_code_2(
    isojax: Isojax, calls: list[Any], words: list[str], part: str
) -> None:
    assert part in error_of(isojax(*words))
    assert calls == [] and list(Path().iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ["launch", "--bogus"],
        ["fit"],
        ["recommend", "x"],
        ["fit", "x", "--compute", "hours"],
        ["fit", "x", "--mode", "best"],
        ["no"],
    ],
)
def test_wrong_usage_is_exit_code_2(isojax: Isojax, words: list[str]) -> None:
    code, out, err = isojax(*words)
    assert code == 2 and out == "" and "Usage" in err and "Traceback" not in err


def test_an_error_inside_a_command_is_one_message(isojax: Isojax, monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(config: Config, resume: bool, dry_run: bool, process_group: ProcessGroup) -> Path:
        raise InputError("the mesh data=3 does not fit 8 devices")

    monkeypatch.setitem(sys.modules, "isojax.launch.local.local_runner", SimpleNamespace(launch=launch))
    assert error_of(isojax("launch")) == "error: the mesh data=3 does not fit 8 devices\n"


def test_a_place_that_is_not_open_to_us_is_one_message(isojax: Isojax, monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(*_: Any) -> Path:
        raise PermissionError(13, "Permission denied", "/root/runs")

    monkeypatch.setitem(sys.modules, "isojax.launch.local.local_runner", SimpleNamespace(launch=launch))
    assert "Permission denied: '/root/runs'" in error_of(isojax("launch"))


def test_fit_writes_what_it_prints_and_json_is_all_of_standard_output(isojax: Isojax, tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "runs" / "known")
    code, out, err = isojax("fit", str(folder), "--json")
    assert code == 0 and err == ""
    document = json.loads(out)
    assert {"curves", "joint", "by_B_p", "flags"} <= set(document)
    assert {"frontier", "crossovers", "n_star"} <= set(document["joint"])
    assert {"B_p", "n", "R0", "A", "exponent", "C_mid"} <= set(document["curves"][0])
    assert document["compute"] == "rollouts" and document["metric"] == "avg@4"
    assert json.loads((folder / "fit.json").read_text()) == document
    leaders = [point["n"] for point in document["joint"]["frontier"]]
    assert leaders == sorted(leaders) and len(set(leaders)) >= 3  # the world's n* rises
    first = (folder / "fit.json").read_bytes()
    code, out, _ = isojax("fit", str(folder))
    assert code == 0 and "frontier" in out and "n*(C)" in out
    assert (folder / "fit.json").read_bytes() == first


def test_fit_of_cells_writes_nothing(isojax: Isojax, known: Path) -> None:
    cells = sorted((known / "cells").iterdir())
    before = sorted(known.rglob("*"))
    assert isojax("fit", *map(str, cells), "--json")[0] == 0
    assert sorted(known.rglob("*")) == before


def test_fit_refuses_an_unknown_metric_and_warns_of_a_torn_line(isojax: Isojax, tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "runs" / "known")
    assert "avg@9" in error_of(isojax("fit", str(folder), "--metric", "avg@9"))
    assert not (folder / "fit.json").exists()
    path = folder / "cells" / "16x4-s0" / RECORDS_FILE
    path.write_bytes(path.read_bytes()[:-9])
    code, out, err = isojax("fit", str(folder), "--json")
    assert code == 0 and json.loads(out)
    assert err.startswith("warning: ") and "16x4-s0" in err and "torn" in err
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b"{broken\n", *lines[2:]]))
    before = (folder / "fit.json").read_bytes()
    assert "line 2 is broken" in error_of(isojax("fit", str(folder)))
    assert (folder / "fit.json").read_bytes() == before


def test_recommend_spends_the_budget_and_fits_where_there_is_no_fit(isojax: Isojax, tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "runs" / "known")
    code, out, err = isojax("recommend", str(folder), "--budget", "1.9e5", "--json")
    assert code == 0 and err == ""
    answer = json.loads(out)
    assert answer["budget"] == 190_000 and answer["B_p"] == 16
    assert answer["M"] == 190_000 // (16 * answer["n"]) and answer["C"] == answer["B"] * answer["M"] <= 190_000
    assert answer["reasons"] and answer["candidates"] and answer["extrapolated"] is False
    assert json.loads(isojax("recommend", str(folder / "fit.json"), "--budget", "190_000", "--json")[1]) == answer
    small = json.loads(isojax("recommend", str(folder), "--budget", "1.9e5", "--B-max", "64", "--json")[1])
    assert small["B"] <= 64
    fixed = json.loads(isojax("recommend", str(folder), "--budget", "1.9e5", "--fix", "M=100", "--json")[1])
    assert fixed["M"] == 100
    assert "times the largest measured C" in error_of(isojax("recommend", str(folder), "--budget", "1e6"))
    code, out, _ = isojax("recommend", str(folder), "--budget", "1e6", "--extrapolate")
    assert code == 0 and "for 1,000,000 rollouts" in out and "beyond the measured range" in out


def test_a_fit_made_again_answers_the_same_question(isojax: Isojax, tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "runs" / "known")
    assert isojax("fit", str(folder), "--run-sd", "0.03", "--bootstrap", "7", "--seed", "5")[0] == 0
    path = folder / "cells" / "16x4-s0" / RECORDS_FILE
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    code, _, err = isojax("recommend", str(folder), "--budget", "1e5")
    made = json.loads((folder / "fit.json").read_text())["intervals"]
    assert code == 0 and "is made again" in err
    assert (made["run_sd"], made["run_sd_source"], made["replicates"], made["seed"]) == (0.03, "as stated", 7, 5)


def test_recommend_writes_a_config_for_train_and_keeps_what_is_there(
    isojax: Isojax, known: Path, tmp_path: Path
) -> None:
    words = ["recommend", str(known), "--budget", "3e5", "--B-max", "128", "--write", "best.yaml", "--json"]
    code, out, _ = isojax(*words)
    answer = json.loads(out)
    assert code == 0
    best, sweep = load_config("best.yaml"), read_saved_config(known / "config.yaml")
    assert [(cell.B_p, cell.n) for cell in plan_cells(best.sweep)] == [(answer["B_p"], answer["n"])]
    assert best.sweep.budget == answer["C"] and best.sweep.decode_slots is None and best.name != sweep.name
    assert best.cell.model_copy(update={"eval": sweep.cell.eval}) == sweep.cell
    assert best.cell.eval.evaluation_targets(best.sweep.budget)[-1] == answer["C"]  # the run ends where it was told to
    assert 1 <= best.cell.eval.start / sweep.cell.eval.start < sweep.cell.eval.ratio
    before = Path("best.yaml").read_bytes()
    assert "best.yaml exists already" in error_of(isojax(*words))
    assert Path("best.yaml").read_bytes() == before


def test_recommend_refuses_a_file_that_is_no_fit(isojax: Isojax) -> None:
    for text in ("{", "[]", '{"a": 1}'):
        Path("fit.json").write_text(text)
        assert "fit.json" in error_of(isojax("recommend", "fit.json", "--budget", "1e6"))


def test_report_rebuilds_the_page(isojax: Isojax, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "FIGURES", dict([*FIGURES.items()][:1]))  # all of them are drawn where launch reports
    folder = write_sweep(tmp_path / "runs" / "known", (2, 8))
    code, out, _ = isojax("report", str(folder))
    assert code == 0 and "report.html" in out
    assert (folder / "report.html").stat().st_size > 1000 and list((folder / "figures").glob("*.png"))


def test_report_says_what_it_cannot_write_and_names_odd_folders(
    isojax: Isojax, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "FIGURES", dict([*FIGURES.items()][:1]))  # one is enough here, and one fit
    monkeypatch.setattr(report_command, "other_fits", lambda *_: [])
    folder = write_sweep(tmp_path / "runs" / "a [/red] b", (2, 8))
    isojax("fit", str(folder), "--bootstrap", "0", "--mode", "paper")
    (folder / "figures").touch()
    assert "figures is no folder" in error_of(isojax("report", str(folder)))
    (folder / "figures").unlink()
    (folder / "report.html").mkdir()
    assert "cannot write" in error_of(isojax("report", str(folder))) and not list(folder.rglob(".*"))
    (folder / "report.html").rmdir()
    code, out, _ = isojax("report", str(folder))
    assert code == 0 and "a [/red] b" in out


@pytest.mark.parametrize(
    ("text", "number"), [("1e6", 10**6), ("2.5e5", 250_000), ("1_000", 1000), ("9007199254740993", 2**53 + 1)]
)
def test_budgets_people_type(text: str, number: int) -> None:
    assert parse_count(text) == number


@pytest.mark.parametrize("text", ["0", "-5", "1.5", "nan", "inf", "1e999", "many", ""])
def test_budgets_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="--budget: given"):
        parse_count(text)


def test_fixed_values_and_plain_data() -> None:
    import numpy as np

    assert parse_fixed_values(["M=1e2", "B_p=16"]) == {"M": 100, "B_p": 16}
    for wrong in (["M"], ["M=x"], ["M=1", "M=2"]):
        with pytest.raises(InputError, match="--fix"):
            parse_fixed_values(wrong)
    given = {"a": np.float64(0.5), "b": np.arange(2), "c": float("nan"), 4: (1, None, True), "d": np.float32("inf")}
    assert to_json_value(given) == {"a": 0.5, "b": [0, 1], "c": None, "4": [1, None, True], "d": None}


def test_help_teaches_with_examples_and_the_right_name(isojax: Isojax) -> None:
    for command in ("launch", "train", "fit", "fit-law", "fit-curve", "recommend", "report", "lr-search"):
        code, out, _ = isojax(command, "--help")
        assert code == 0 and "Example" in out and f"isojax {command} " in out
    assert "Usage: python -m isojax.launch" in isojax("--help", main=app.main_launch)[1]
    assert "Usage: python -m isojax.train" in isojax("--help", main=app.main_train)[1]
    assert isojax("--version") == (0, f"{__version__}\n", "")


def test_every_command_is_listed_with_what_its_help_says_first(isojax: Isojax, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    listed = " ".join(isojax("--help")[1].split())
    for command in app.COMMANDS:
        code, out, _ = isojax(command.name, "--help")
        opening = " ".join(out.split())
        assert code == 0 and f"Usage: isojax {command.name} " in opening
        assert command.summary.rstrip(".") in opening and f" {command.name} {command.summary}" in listed


def test_fit_recommend_and_report_load_no_jax(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "runs" / "known", (2, 8))
    program = (
        "import sys\nfrom isojax.cli.app import main\n"
        "for words in (['fit', RUN, '--json'], ['recommend', RUN, '--budget', '1e5', '--json'], ['report', RUN]):\n"
        "    sys.argv = ['isojax', *words]\n"
        "    try:\n        main()\n    except SystemExit as e:\n        assert e.code == 0, words\n"
        "print([m for m in ('jax', 'jaxlib', 'flax') if m in sys.modules], file=sys.stderr)\n"
    ).replace("RUN", repr(str(folder)))
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0 and done.stderr.splitlines()[-1] == "[]", done.stderr
