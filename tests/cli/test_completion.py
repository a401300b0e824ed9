"""What a shell completes, and how a mistyped word is answered; neither loads jax."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from isojax.cli import app
from isojax.cli.options import setting_values
from isojax.core.config.load import SHARE
from tests.cli.conftest import Isojax
from tests.e2e.command_line import REPOSITORY

# What a command line holds, whose last word is completed, and some of what is offered for it.
OFFERED: dict[tuple[str, ...], list[str]] = {
    ("la",): ["launch"],
    ("launch", "models/q"): ["models/qwen2.5-7b-instruct", "models/qwen3-4b-instruct"],
    ("launch", "quickstart", "m"): ["mine.yaml"],
    ("launch", "quickstart", "cell.rl.l"): ["cell.rl.learning_rate=", "cell.rl.loss="],
    ("launch", "quickstart", "cell.rl.loss", "=", "g"): ["grpo", "gspo"],  # as bash splits it
    ("train", "quickstart", "cell.rl.advantage=lea"): ["cell.rl.advantage=leave_one_out"],
    ("train", "quickstart", "sweep.bud"): ["sweep.budget=", "sweep.budget=VALUE"],
    ("launch", "--res"): ["--resume"],
    ("train", "smol"): ["smollm2_cpu"],
    ("fit", "r"): ["runs/first", "runs/second"],
    ("status", "runs/s"): ["runs/second"],
    ("fit", "--mode", "p"): ["paper"],
    ("records", "import", "--from", "t"): ["tensorboard", "trl"],
}
WITHOUT_SCIPY = ("la", "launch", "train", "status")  # the commands whose options need no fit


@pytest.fixture(scope="module")
def completed(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], list[str]]:
    """What is offered in a folder of a config and two runs, where an import of jax would end the
    command, and one of matplotlib or scipy too where no fit is needed."""
    folder = tmp_path_factory.mktemp("completion")
    (folder / "mine.yaml").write_text("name: mine\n")
    for name in ("first", "second"):
        (folder / "runs" / name / "cells").mkdir(parents=True)
    (folder / "runs" / "notes").mkdir()

    result = {}
    for few, absent in ((True, ("jax", "matplotlib", "scipy")), (False, ("jax",))):
        requests = [words for words in OFFERED if (words[0] in WITHOUT_SCIPY) == few]
        done = subprocess.run(
            [sys.executable, "-m", "tests.cli.complete_words"],
            input=json.dumps([absent, requests]),
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stderr == ""
        result |= dict(zip(requests, json.loads(done.stdout), strict=True))
    return result


@pytest.mark.parametrize("words", OFFERED, ids=" ".join)
def test_a_shell_completes(
    completed: dict[tuple[str, ...], list[str]], words: tuple[str, ...]
) -> None:
    found = completed[words]
    assert set(OFFERED[words]) <= set(found) and all(name.startswith(words[-1]) for name in found)
    assert "runs/notes" not in found  # holds no cells


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("cell.rl.aggregation", ["constant", "prompt", "sequence", "token"]),
        ("cell.rl.kl_estimator", ["k1", "k2", "k3"]),
        (
            "cell.task",
            ["addition", "calculator", "guess", "gym", "jsonl", "parquet", "solvers", "tfds"],
        ),
        ("cell.verifier.use", ["exact", "function", "gym", "integer", "math", "verl"]),
        ("cell.reward.kind", ["binary", "graded"]),
        ("sweep.remat", ["none", "layer"]),
        ("cell.rl.measure_kl", ["false", "true"]),
        ("cell.rl.clip", []),
        ("run.rollouts", ["local", "server"]),
        ("run.loggers", []),  # a list, which is written in brackets
    ],
)
def test_settings_of_few_values(key: str, values: list[str]) -> None:
    assert setting_values(key) == values


def test_the_completion_installs_itself(
    isojax: Isojax, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))
    assert "_ISOJAX_COMPLETE=complete_bash" in isojax("--show-completion", "bash")[1]
    assert isojax("--install-completion", "bash")[0] == 0
    assert "isojax.sh" in (tmp_path / ".bashrc").read_text()


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["lanch"], "launch"),
        (["recomend", "runs/x"], "recommend"),
        (["records", "chek"], "check"),
        (["launch", "--dryrun"], "--dry-run"),
        (["fit", "--josn", "runs/x"], "--json"),
        (["launch", "quickstat"], "quickstart"),
        (["launch", "sweep.sed=1"], "sweep.seed"),
    ],
)
def test_a_mistyped_word_is_answered_by_the_one_meant(
    isojax: Isojax, words: list[str], meant: str
) -> None:
    code, _, err = isojax(*words)
    assert code == 2 and meant in err


COMMANDS = [command.name for command in app.COMMANDS]


@pytest.mark.parametrize("width", ["60", "80"])
@pytest.mark.parametrize(
    "words",
    [
        [],
        *([name] for name in COMMANDS),
        ["records", "import"],
        ["records", "check"],
        ["model", "import"],
    ],
    ids=" ".join,
)
def test_help_holds_in_a_narrow_terminal(
    isojax: Isojax, monkeypatch: pytest.MonkeyPatch, words: list[str], width: str
) -> None:
    """Nothing is cut, and but for examples and a path to copy, and their tables, no line is
    longer."""
    monkeypatch.setenv("COLUMNS", width)
    code, out, _ = isojax(*words, "--help")
    assert code == 0 and "…" not in out and not re.search(r"\w\.\.\.$", out, re.MULTILINE)
    long_lines = [
        line for line in out.splitlines() if len(line) > int(width) and line.strip() != str(SHARE)
    ]
    start, _, rest = out.partition("  Example")
    assert not [
        line
        for line in long_lines
        if line in start or line in rest.partition("\n\n")[2].partition("\n\n")[2]
    ]
