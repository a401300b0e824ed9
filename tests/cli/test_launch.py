"""`isojax launch` and `isojax train`: the config they hand on, and what follows the runs; training
is replaced."""

from __future__ import annotations

import io
import json
import os
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from isojax.cli import app
from isojax.cli.commands import report_command
from isojax.core.config import Config, load_config, save_config
from isojax.core.errors import InputError, RunFailed
from isojax.core.nouns import EvalPoint, Leg, RunRecord, Spending
from isojax.core.preemption import Preempted
from isojax.launch.planner import plan_cells
from isojax.runs.ledger import write_run
from isojax.runs.spend_file import write_spending
from isojax.scaling.curves.sweep_estimate import FitOptions
from tests.cli.conftest import Isojax, error_of, write_sweep
from tests.scaling.documents import document


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of two n, which is fitted and drawn in less time than one of five."""
    return write_sweep(tmp_path_factory.mktemp("known") / "runs" / "known", (2, 8))


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
        else isojax(*words, "--dry-run", main=partial(app.main_module, app.LAUNCH))
    )
    assert outcome[0] == 0
    [(config, resumed, dry_run)] = calls
    assert (config.name, config.sweep.seed, config.run.mesh, resumed, dry_run) == (
        name,
        seed,
        mesh,
        resume,
        True,
    )


def test_launch_takes_a_file_whose_name_has_an_equals_sign(
    isojax: Isojax, calls: list[tuple[Any, ...]]
) -> None:
    Path("a=b.yaml").write_text("name: odd")
    assert isojax("launch", "a=b.yaml", "--dry-run")[0] == 0
    assert calls[0][0].name == "odd"


def test_launch_takes_an_override_that_is_too_long_for_a_file(
    isojax: Isojax, calls: list[tuple[Any, ...]]
) -> None:
    assert isojax("launch", long := f"run.dir={'x' * 300}", "--dry-run")[0] == 0
    assert calls[0][0].run.dir == long.removeprefix("run.dir=")


def test_of_several_configs_later_ones_replace_settings_of_earlier_ones(
    isojax: Isojax, calls: list[tuple[Any, ...]]
) -> None:
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
    # of the first alone
    assert config.cell.base.steps == load_config("quickstart").cell.base.steps == 1000


@pytest.mark.slow
def test_launch_fits_reports_and_recommends(
    isojax: Isojax, calls: list[tuple[Any, ...]], known: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # no interval is looked at: few draws
    few_draws = partial(report_command.make_fit, options=FitOptions(replicates=20))
    monkeypatch.setattr(report_command, "make_fit", few_draws)
    monkeypatch.setattr(report_command, "OTHER_REPLICATES", 5)

    code, out, _ = isojax("launch")
    assert code == 0
    assert {path.name for path in known.iterdir()} >= {"fit.json", "report.html", "figures"}
    ends = [run["C_max"] for run in json.loads((known / "fit.json").read_text())["runs"]]
    budget = min(end for end in ends if end >= 0.95 * max(ends))  # what all runs had
    # The answer stands at the end, where it stays in sight; how to see more comes after it.
    answer, _, why, report = out.splitlines()[-4:]
    assert answer.startswith(f"for {budget:,.0f} rollouts: B_p = 16") and report.endswith(
        "report.html"
    )
    assert f"isojax recommend {known} --budget {4 * budget:.0f}" in why


def test_train_hands_the_config_on(isojax: Isojax, calls: list[tuple[Any, ...]]) -> None:
    one_cell = ("quickstart", "sweep.B_p=[16]", "sweep.seeds=1")
    assert isojax("train", *one_cell, "sweep.n=[8]")[0] == 0
    assert (
        isojax(
            *one_cell, "sweep.n=[4]", "--mesh", "data=2", main=partial(app.main_module, app.TRAIN)
        )[0]
        == 0
    )
    code, out, err = isojax("train", *one_cell, "sweep.n=[2]", "--dry-run")
    assert (code, out) == (0, "") and "run:" not in err
    assert [(config.sweep.n, dry_run) for config, _, dry_run in calls] == [
        ((8,), False),
        ((4,), False),
        ((2,), True),
    ]
    assert calls[1][0].run.mesh == "data=2"
    assert "no config given" in error_of(isojax("train"))
    assert "no config given" in error_of(isojax("train", "sweep.n=[8]"))


@pytest.mark.parametrize("strategy", ["adaptive", "spend"])
def test_train_runs_its_one_run_to_the_end_by_any_strategy(
    isojax: Isojax, calls: list[tuple[Any, ...]], strategy: str
) -> None:
    words = ("sweep.B_p=[16]", "sweep.n=[8]", "sweep.seeds=1", "sweep.total_rollouts=5000")
    assert isojax("train", "quickstart", *words, f"sweep.strategy={strategy}")[0] == 0
    [(config, *_)] = calls
    assert (config.sweep.strategy, config.sweep.total_rollouts, config.sweep.n) == (
        "grid",
        None,
        (8,),
    )


def test_an_error_inside_a_command_is_one_message(
    isojax: Isojax, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(config: Config, *_: Any) -> Path:
        raise InputError("the mesh data=3 does not fit 8 devices")

    monkeypatch.setitem(
        sys.modules, "isojax.launch.local.local_runner", SimpleNamespace(launch=launch)
    )
    assert error_of(isojax("launch")) == "error: the mesh data=3 does not fit 8 devices\n"


class PanicException(BaseException):
    """As libraries in Rust raise it."""


UNEXPECTED = (
    (PanicException("index out of bounds"), "did not expect this"),
    (OverflowError("too large"), "did not expect this"),
    (RecursionError("too deep"), "did not expect this"), (KeyError("n_max"), "did not expect this"),
    (UnicodeEncodeError("utf-8", "\udcff", 0, 1, "no"), "did not expect this"),
    (ZeroDivisionError(), "did not expect"),
    (MemoryError(), "this machine could not do it"),
    (OSError(28, "No space left on device", "/x"), "No space left"),
)  # fmt: skip


@pytest.mark.parametrize(("error", "part"), UNEXPECTED, ids=lambda value: type(value).__name__)
def test_what_nothing_foresees_is_one_message_and_its_traceback_a_file(
    isojax: Isojax, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: BaseException, part: str
) -> None:
    def launch(*_: Any) -> Path:
        raise error

    (tmp_path / "temp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temp"))
    monkeypatch.setitem(
        sys.modules, "isojax.launch.local.local_runner", SimpleNamespace(launch=launch)
    )
    code, out, err = isojax("launch")
    assert (code, out, err.count("\n")) == (1, "", 1) and err.startswith("error: ") and part in err
    (path,) = (tmp_path / "temp").iterdir()
    assert str(path) in err and "in launch" in path.read_text()
    monkeypatch.setenv(app.TRACEBACK_VARIABLE, "1")
    with pytest.raises(type(error)):
        isojax("launch")


FORMAT = "from isojax.runs.importers import importer\n\n@importer(fields={})\n"
EXPORT = "from isojax.report.exporters import exporter\n\n@exporter(how_to_run='')\n"


def test_an_error_in_a_plug_in_of_ones_own_names_its_file(isojax: Isojax, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("a\n")
    plugins = {
        "my_format": FORMAT
        + "def read(path):\n    return _rows(path)\ndef _rows(path):\n    return {}['rows']\n",
        "my_json": FORMAT
        + "def read(path):\n    import json\n    return json.loads(path.read_text())\n",
        "my_export": EXPORT
        + "def render(recommendation, config):\n    return recommendation.rollouts\n",
    }
    for name, text in plugins.items():
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "fit.json").write_text(document().model_dump_json())
    words = ("records", "import", "a.log", "--out", "runs/o", "--from")
    for command, place, cause in (
        ((*words, "my_format"), "my_format.py, line 7", "KeyError: 'rows'"),
        # of a function that it calls
        ((*words, "my_json"), "my_json.py, line 6", "JSONDecodeError: Expecting value"),
        (
            ("recommend", "fit.json", "--budget", "1e5", "--write", "x.txt", "--for", "my_export"),
            "my_export.py, line 5",
            "AttributeError: 'Recommendation' object has no attribute 'rollouts'",
        ),
    ):  # fmt: skip
        code, out, err = isojax(*command)
        assert (code, out) == (
            1,
            "",
        ) and f"error: the plug-in failed at {tmp_path / place} ({cause}" in err
        assert (
            "The traceback is in" in err
            and "report it" not in err
            and not (tmp_path / "x.txt").exists()
        )
    (tmp_path / "my_format.py").write_text(FORMAT + "def read(path):\n    return None\n")
    (tmp_path / "my_empty.py").write_text(FORMAT + "def read(path):\n    return None\n")
    error = error_of(isojax(*words, "my_empty"))
    assert "my_empty.py:3: the importer returned NoneType; expected a list" in error


def test_a_place_that_is_not_open_to_us_is_one_message(
    isojax: Isojax, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(*_: Any) -> Path:
        raise PermissionError(13, "Permission denied", "/root/runs")

    monkeypatch.setitem(
        sys.modules, "isojax.launch.local.local_runner", SimpleNamespace(launch=launch)
    )
    assert "Permission denied: '/root/runs'" in error_of(isojax("launch"))


def test_ctrl_c_leaves_at_once_with_all_that_was_printed(
    isojax: Isojax, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads inside XLA would abort the process while Python ends."""
    printed, left = io.BytesIO(), []
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed))

    def launch(*_: Any) -> Path:
        print("half a line", end="")
        raise KeyboardInterrupt

    def leave(code: int) -> NoReturn:
        left.append((code, printed.getvalue()))
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setitem(
        sys.modules, "isojax.launch.local.local_runner", SimpleNamespace(launch=launch)
    )
    code, _, err = isojax("launch", "quickstart")
    assert code == 130 and left == [(130, b"half a line")]
    assert err.endswith(
        "stopped: by Ctrl-C; a run that has begun goes on by: isojax launch quickstart --resume\n"
    )
    # by Python's own end
    assert isojax("--version")[0] == 0 and isojax("launch", "nothing")[0] == 2 and len(left) == 1
    labels = SimpleNamespace(label_difficulty=launch)
    monkeypatch.setitem(sys.modules, "isojax.launch.local.difficulty_run", labels)
    code, _, err = isojax("difficulty", "quickstart")  # has no --resume: called again it goes on
    assert code == 130 and err.endswith("goes on by: isojax difficulty quickstart\n")


def test_after_sigterm_the_whole_command_to_go_on_is_printed(
    isojax: Isojax, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was typed, as only its words name all processes of a run; 143 is the exit code."""

    def launch(*_: Any) -> Path:
        raise Preempted("runs/mine was asked to end (SIGTERM).")

    monkeypatch.setitem(
        sys.modules, "isojax.launch.local.local_runner", SimpleNamespace(launch=launch)
    )
    words = ["quickstart", "name=mine", "sweep.n=[2,4]", "--mesh", "data=2"]
    began = "isojax launch quickstart name=mine 'sweep.n=[2,4]' --mesh data=2"
    stopped = "stopped: runs/mine was asked to end (SIGTERM). Go on by:"
    assert isojax("launch", *words) == (143, "", f"{stopped} {began} --resume\n")
    assert isojax("launch", *words, "--resume") == (143, "", f"{stopped} {began} --resume\n")

    _, _, err = isojax(*words, main=partial(app.main_module, app.LAUNCH))
    assert err.endswith(f"python -m {began.replace(' ', '.', 1)} --resume\n")


def test_the_config_of_a_run_of_spend_keeps_its_name(
    isojax: Isojax, calls: list[tuple[Any, ...]]
) -> None:
    assert isojax("spend", "quickstart", "--budget", "139000", "--dry-run")[0] == 0
    [(first, *_)] = calls
    assert (first.name, first.sweep.strategy) == ("quickstart-spend", "spend")
    save_config(first, folder := Path("runs", first.name) / "config.yaml")
    assert isojax("spend", str(folder), "--resume", "--dry-run")[0] == 0
    assert calls[1] == (first, True, True)  # its budget too
    assert isojax("spend", str(folder), "name=other", "--budget", "139000", "--dry-run")[0] == 0
    assert calls[2][0].name == "other"


def test_spend_has_one_learning_rate_for_all_n(
    isojax: Isojax, calls: list[tuple[Any, ...]]
) -> None:
    """That of B = 32 sqrt(4 16) = 256, from 1e-3 at 1,024."""
    options = ("sweep.n=[4,8,16]", "--budget", "139000", "--dry-run")
    spend = ("spend", "quickstart", *options)
    out = isojax(*spend, "cell.rl.loss=ppo", "cell.rl.critic={learning_rate: 2e-3}")[1]
    assert "learning rate: 0.0005 for every n" in out
    rl = calls[0][0].cell.rl
    assert (rl.lr_scaling, rl.learning_rate, rl.critic.learning_rate) == ("constant", 0.0005, 0.001)
    isojax(*spend, "cell.rl.lr_scaling=linear")
    assert (calls[1][0].cell.rl.lr_scaling, calls[1][0].cell.rl.learning_rate) == ("linear", 0.001)
    save_config(calls[1][0], folder := Path("runs", calls[1][0].name) / "config.yaml")
    isojax("spend", str(folder), "--resume", "--dry-run")
    assert calls[2][0] == calls[1][0]
    # the default rate is given too
    Path("plain.yaml").write_text("sweep: {B_p: [32], n: [4, 16], B_max: 1024}")
    isojax("spend", "plain.yaml", "name=lr_scaling", "--budget", "139000", "--dry-run")
    assert (calls[3][0].cell.rl.lr_scaling, calls[3][0].cell.rl.learning_rate) == (
        "constant",
        0.0005,
    )
    code, _, err = isojax(*spend, "sweep.schedules.grow=32x2")
    assert code == 2 and "sweep.schedules.grow=32x2 has no effect" in err
    config = "sweep: {B_p: [2048], n: [64, 256], B_max: 524288}\ncell: {model: {path: lm}}"
    # whose own budget is less than an update; of text, it must set a rate
    Path("my.yaml").write_text(config)
    assert isojax("spend", "my.yaml", "--budget", "1e8", "--dry-run")[0] == 0
    assert "learning_rate" not in calls[4][0].cell.rl.model_fields_set


@pytest.mark.parametrize("is_ended", [True, False])
def test_spend_reports_what_it_has_spent_where_a_pilot_failed(
    isojax: Isojax, monkeypatch: pytest.MonkeyPatch, is_ended: bool
) -> None:
    def launch(config: Config, *_: Any) -> Path:
        first, second = plan_cells(config.sweep)
        folder = Path("runs", config.name)
        points = tuple(
            EvalPoint(128 * M, M, 128 * M, 0, {"avg@4": 0.3 + 0.01 * M}) for M in range(7)
        )
        write_run(folder / "cells" / first.name, RunRecord(first, points))
        legs = (
            Leg(first, 4, 0, 256),
            Leg(second, 8, 0, 256),
            Leg(first, 4, 256, 768, 0.4, (0.3, 0.5)),
        )
        write_spending(folder, Spending(1024, "avg@4", legs, is_ended))
        raise RunFailed(f"{second.name}: the loss is not finite")

    monkeypatch.setitem(
        sys.modules, "isojax.launch.local.local_runner", SimpleNamespace(launch=launch)
    )
    code, out, err = isojax("spend", "quickstart", "--budget", "139000", "sweep.n=[4,8]")
    assert code == 1 and err.count("the loss is not finite") == 1
    assert (
        "It reached avg@4 = 0.360" in out
        and "policy: runs/quickstart-spend/cells/from-n4-s0" in out
    ) == is_ended
    assert Path("runs/quickstart-spend/spend.html").exists() == is_ended


def test_spend_refuses_or_names_settings_of_a_sweep_without_effect(
    isojax: Isojax, calls: list[tuple[Any, ...]]
) -> None:
    spend = ("spend", "quickstart", "--budget", "139000", "--dry-run")
    schedules = "sweep.schedules={grow: '32x4, 32x8 from 5000'}"
    for word in (
        "sweep.seeds=2",
        schedules,
        "sweep.total_rollouts=5000",
        "sweep.strategy=adaptive",
        "sweep.budget=5000",
    ):
        assert f"{word} has no effect: `isojax spend` trains one policy" in error_of(
            isojax(*spend, word)
        )
    assert calls == []
    # another seed, and quickstart has three seeds and two B_p
    code, out, _ = isojax(*spend, "sweep.seed=2")
    assert code == 0 and calls[0][0].sweep.seed == 2
    assert "without effect, as `isojax spend` trains one policy: sweep.seeds of the config" in out
    assert "rollouts: 32x4, 32x8, " in out and " (B_p x n) to C = " in out
    assert "without effect" not in isojax(*spend, "sweep.seeds=1")[1]


@pytest.mark.parametrize(
    ("budget", "words"), [("abc", "given 'abc'; expected"), ("5usd", "is money"), ("0h", "'0h'")]
)
def test_a_budget_that_is_none_is_refused_on_resume_too(
    isojax: Isojax, calls: list[tuple[Any, ...]], budget: str, words: str
) -> None:
    config = load_config(
        "quickstart", ["name=quickstart-spend", "sweep.strategy=spend", "sweep.budget=7000"]
    )
    save_config(config, Path("runs", config.name) / "config.yaml")
    assert words in error_of(
        isojax("spend", "quickstart", "--budget", budget, "--resume", "--dry-run")
    )
    # as it began
    assert isojax("spend", "quickstart", "--budget", "1h", "--resume", "--dry-run")[0] == 0
    assert calls[0][0].sweep.budget == 7000
