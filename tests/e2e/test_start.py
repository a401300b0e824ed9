"""A run that cannot learn is refused before its first update, and goes on once it is mended; what
is doubtful is said before the first update, at the end, by `status` and in the report."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.e2e.test_refusals_text import SETTINGS
from tests.e2e.tiny_lm import make_model

# Half of the problems are solved by the half of all responses.
MENDED = """\
from zlib import crc32
def reward(prompts, completions, **columns):
    return [float(crc32(f"{prompts[0]}{completions[0]}".encode()) % 2)]
"""
RAISES = "def reward(completions, **k):\n    return [k['gold'] == completions]\n"
HANGS = "import time\ndef reward(completions, **k):\n    time.sleep(9)\n"
WORDS = ("text.yaml", "cell.verifier.use=function:rewards.py:reward", "cell.verifier.timeout=0.1")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "lm")


@pytest.fixture
def text(isojax: Any, model: Path) -> Any:
    """The command line in a folder with a language model and text.yaml."""
    shutil.copytree(model, isojax.folder / "lm")
    (isojax.folder / "text.yaml").write_text(SETTINGS)
    return isojax


def last_line(done: Any) -> str:
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_checks_that_all_fail_end_the_run_before_its_first_update(text: Any) -> None:
    """Nothing of the dead rewards is recorded: once they are corrected, --resume begins at C = 0.

    Here they hang, below they raise. What is said of each failure is in tests/tasks, and what their
    counts mean in tests/train/test_start_check.py.
    """
    (text.folder / "rewards.py").write_text(HANGS)
    message = last_line(text.quick("train", *WORDS))
    assert message.startswith(
        "error: cell.verifier.use = function:rewards.py:reward: none of its first "
    )
    assert "checks ended within cell.verifier.timeout = 0.1 s" in message and "--resume" in message
    assert not text.rows("4x2-s0", "text")

    (text.folder / "rewards.py").write_text(MENDED)
    text.swept("train", *WORDS, "--resume")
    rows = text.rows("4x2-s0", "text")
    assert [row["target"] for row in rows] == [0, 8, 16]
    assert all(row["metrics"]["verifier_failures"] == 0 for row in rows)
    assert 0 < rows[0]["metrics"]["avg@2"] < 1


@pytest.mark.slow
def test_a_sweep_and_its_labels_are_refused_alike(text: Any) -> None:
    """One message for all runs; labels of dead rewards are not kept, by `launch` and by
    `difficulty`."""
    (text.folder / "rewards.py").write_text(RAISES)
    sweep = ("sweep.n=[2,4]", "sweep.budget=64")
    done = text.quick("launch", *WORDS, *sweep, fit=False)
    message = last_line(done)
    assert "none of its first 16 checks" in message and "rewards.py:2: KeyError: 'gold'" in message
    assert done.stderr.count(": failed") == 1  # the other is not begun
    labels = "cell.data.attempts=2"
    assert "none of its first 120 checks" in last_line(
        text.quick("launch", *WORDS, *sweep, labels, "name=labelled")
    )
    assert "none of its first 120 checks" in last_line(text.quick("difficulty", *WORDS, labels))
    assert not list(text.folder.glob("**/labels.jsonl"))
    (text.folder / "rewards.py").write_text(MENDED)
    text.swept("launch", *WORDS, *sweep, "--resume")
    assert all(len(text.rows(cell, "text")) > 1 for cell in ("4x2-s0", "4x4-s0"))
    text.quick_ok("difficulty", *WORDS, labels)


def change_weights(folder: Path, change: Callable[[dict[str, np.ndarray]], Any]) -> None:
    stored = dict(load_file(folder / "model.safetensors"))
    change(stored)
    save_file(stored, folder / "model.safetensors")


@pytest.mark.slow
def test_weights_whose_products_overflow_are_refused(text: Any) -> None:
    """Each is a number, and no log-probability is; with top-p, which hides NaN."""
    change_weights(
        text.folder / "lm", lambda stored: stored["model.layers.1.mlp.up_proj.weight"].fill(3e38)
    )
    message = last_line(text.quick("train", "text.yaml", "cell.sampling.top_p=0.9"))
    assert (
        "the base policy's log-probabilities are no numbers in 16 of its first 16 responses"
        in message
    )
    assert "its weights are finite, so numbers overflow" in message
    assert not text.rows("4x2-s0", "text")


@pytest.mark.slow
def test_what_is_doubtful_is_said_before_and_after_and_where_a_run_is_looked_at(text: Any) -> None:
    """A function that knows some problems alone, and responses that are all cut off: of each one
    warning before the first update, of all runs, and one at the end."""
    (text.folder / "rewards.py").write_text(
        "def reward(completions, answer, **k):\n"
        "    if int(answer[0]) % 2:\n"
        "        raise ValueError('an odd one')\n"
        "    return [float(len(completions[0]) % 2)]\n"
    )
    words = (
        "launch",
        *WORDS,
        "cell.prompt.stop=[never]",
        "sweep.n=[2,4]",
        "sweep.budget=64",
    )
    done = text.quick_ok(*words, fit=True, report=True)
    lines = done.stderr.splitlines()
    start, end = (
        [
            i
            for i, line in enumerate(lines)
            if line.startswith("warning: before the first update") and part in line
        ]
        for part in (" responses are cut off at ", " checks failed (error ")
    )
    first_run, last_run = (
        next(i for i, line in enumerate(lines) if line.startswith(f"run {cell}: reward "))
        for cell in ("4x2-s0", "4x4-s0")
    )
    for found in (start, end):
        before, after = found
        assert before < first_run and after > last_run
        assert "(so in 2 of 2 runs)" in lines[after] and "4x2-s0" in lines[before]

    shares = json.loads((text.run("text") / "cells/4x2-s0/start.json").read_text())["shares"]
    assert shares["responses"] == 16 and shares["cut_off"] == 1 and 0 < shares["failed_checks"] < 1
    status = text.quick_ok("status", "runs/text").stdout
    page = (text.run("text") / "report.html").read_text()
    for shown in (status, page):
        assert "16 of 16 responses are cut off" in shown and "checks failed (error " in shown
    assert (
        len(json.loads(text.quick_ok("status", "runs/text", "--json").stdout)["sweeps"][0]["start"])
        == 2
    )
