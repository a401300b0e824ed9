"""The command line: exit codes, one message per refusal, numbers as typed, and help that
teaches."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from isojax import __version__
from isojax.cli import app
from isojax.cli.commands.recommend_command import parse_fixed_values
from isojax.cli.formatting import parse_count, to_json_value
from isojax.core.errors import RunFailed
from isojax.core.exit_codes import ExitCode
from tests.cli.conftest import Isojax, error_of, write_sweep
from tests.refusals import refused


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["launch", "sweep.sed=1"], "nearest known key is 'sweep.seed'"),
        (["launch", "quickstart", "more"], "'more'"),
        (
            ["launch", "quickstart", "sweep.seed=1", "hard"],
            "given 'hard' after the override 'sweep.seed=1'; expected key=value there",
        ),
        (["difficulty"], "no config given"),
        (
            ["difficulty", "quickstart", "cell.task=addition", "hard"],
            "Configs come first: hard cell.task=addition",
        ),
        (["launch", "nothing"], "'nothing'"),
        (["launch", "sweep.budget=x"], "sweep.budget: given 'x'"),
        (["train", "quickstart", "cell.rl.kl=x"], "cell.rl.kl"),
        (["fit", "none"], "none: "),
        (["report", "none"], "no sweep's folder"),
        (["recommend", "none", "--budget", "1e6"], "none: cannot be read"),
        (["recommend", "none", "--budget", "0"], "--budget: given '0'"),
        (["recommend", "none", "--budget", "1", "--fix", "n=3"], "--fix: given 'n=3'"),
        (["fit", "a" * 300], "File name too long"),
        (["status", "a" * 300], "File name too long"),
        (["report", "a" * 300], "File name too long"),
        (["launch", "a" * 300], "File name too long"),
        (["launch", "--dry-run", "--topology", "a\udcffb"], "expected text in UTF-8"),
        (["launch", 'cell.task="jsonl:a\\0b"'], "cell.task: given"),
        (
            ["launch", "sweep.budget=99999999999999999999"],
            "sweep.budget: given 99999999999999999999",
        ),
        (["launch", "cell.eval.ratio=1.0000000001", "--dry-run"], "expected at most 10,000"),
        (["status", "a\nerror: forged"], r"a\nerror: forged"),
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
        ["x" * 100_000],
        ["fit", "--" + "x" * 100_000],
        ["fit", "x", "--mode", "x" * 100_000],
        ["status\nerror: forged"],
        ["fit", "--x\nerror: forged"],
    ],
)
def test_wrong_usage_is_exit_code_2(isojax: Isojax, words: list[str]) -> None:
    code, out, err = isojax(*words)
    assert code == 2 and out == "" and "Usage" in err and "Traceback" not in err
    assert len(err) < 5000 and "\nerror" not in err


@pytest.mark.parametrize(
    ("text", "number"),
    [("1e6", 10**6), ("2.5e5", 250_000), ("1_000", 1000), ("999_999_999_999_999", 10**15 - 1)],
)
def test_budgets_people_type(text: str, number: int) -> None:
    assert parse_count(text) == number


@pytest.mark.parametrize(
    "text", ["0", "-5", "1.5", "nan", "inf", "1e16", "9007199254740993", "1e999", "many", ""]
)
def test_budgets_that_are_none(text: str) -> None:
    with refused(where="--budget"):
        parse_count(text)


def test_fixed_values_and_plain_data() -> None:
    import numpy as np

    assert parse_fixed_values(["M=1e2", "B_p=16"]) == {"M": 100, "B_p": 16}
    for wrong in (["M"], ["M=x"], ["M=1", "M=2"]):
        with refused(where="--fix"):
            parse_fixed_values(wrong)
    inputs = {
        "a": np.float64(0.5),
        "b": np.arange(2),
        "c": float("nan"),
        4: (1, None, True),
        "d": np.float32("inf"),
    }
    assert to_json_value(inputs) == {
        "a": 0.5,
        "b": [0, 1],
        "c": None,
        "4": [1, None, True],
        "d": None,
    }


def test_help_teaches_with_examples_and_the_right_name(isojax: Isojax) -> None:
    for command in (
        "launch",
        "train",
        "fit",
        "fit-law",
        "fit-curve",
        "watch",
        "recommend",
        "report",
        "lr-search",
        "accelerator",
    ):
        code, out, _ = isojax(command, "--help")
        assert code == 0 and "Example" in out and f"isojax {command} " in out
    assert (
        "Usage: python -m isojax.launch"
        in isojax("--help", main=partial(app.main_module, app.LAUNCH))[1]
    )
    assert (
        "Usage: python -m isojax.train"
        in isojax("--help", main=partial(app.main_module, app.TRAIN))[1]
    )
    assert isojax("--version") == (0, f"{__version__}\n", "")


def test_every_command_is_listed_with_what_its_help_says_first(
    isojax: Isojax, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    listed = " ".join(isojax("--help")[1].split())
    for command in app.COMMANDS:
        code, out, _ = isojax(command.name, "--help")
        opening = " ".join(out.split())
        assert code == 0 and f"Usage: isojax {command.name} " in opening
        assert (
            command.summary.rstrip(".") in opening
            and f" {command.name} {command.summary}" in listed
        )


def test_help_and_docs_have_every_exit_code(isojax: Isojax) -> None:
    """The same ones, and no others; 137 is of the kill that no process survives."""
    codes = {str(code.value) for code in ExitCode}
    _, help_text, _ = isojax("launch", "--help")
    _, _, listed = help_text.partition("Exit codes")
    assert set(re.findall(r"^ +(\d+) ", listed, re.M)) == codes
    page = (Path(__file__).parents[2] / "docs/faults.md").read_text()
    _, _, table = page.partition("| exit code |")
    rows = re.findall(r"^\| (\d+) \|", table, re.M)
    assert set(rows) == codes | {"137"}


@pytest.mark.slow
def test_fit_recommend_and_report_load_no_jax(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "runs" / "known", (2, 8))
    program = (
        "import sys\nfrom isojax.cli.app import main\n"
        "FIT = ['fit', RUN, '--replicates', '20', '--json']\n"
        "for words in (FIT, ['recommend', RUN, '--budget', '1e5', '--json'], ['report', RUN]):\n"
        "    sys.argv = ['isojax', *words]\n"
        "    try:\n        main()\n    except SystemExit as e:\n        assert e.code == 0, words\n"
        "print([m for m in ('jax', 'jaxlib', 'flax') if m in sys.modules], file=sys.stderr)\n"
    ).replace("RUN", repr(str(folder)))
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0 and done.stderr.splitlines()[-1] == "[]", done.stderr


def test_a_sweeps_failures_have_lines_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    """They are indented, so that no value of theirs looks like a message."""
    with pytest.raises(SystemExit):
        app._exit(
            "error", RunFailed("2 of 3 cells failed:", "4x2-s0: a\nerror: forged", "4x4-s0: b"), 1
        )
    assert (
        capsys.readouterr().err
        == "error: 2 of 3 cells failed:\n  4x2-s0: a\\nerror: forged\n  4x4-s0: b\n"
    )
