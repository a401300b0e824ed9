"""Files that are no JSON lines: what is said of each, and that following it gives the problems."""

import gzip
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isojax.core.config import DataConfig
from isojax.tasks.problem_sources import open_source
from tests.refusals import refused

PROBLEMS = {"What is 1/2, in words?": "half", "2+2?": "04"}
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12345\n"


def read(task: str) -> dict[str, str]:
    problems = open_source(task, DataConfig()).problems(100, np.random.default_rng(0))
    return {problem.prompt: problem.answer for problem in problems}


def refusal_text(task: str) -> str:
    with refused() as e:
        read(task)
    return str(e.value)


def table(delimiter: str = ",") -> str:
    rows = [
        ("question", "answer"),
        *((json.dumps(prompt), answer) for prompt, answer in PROBLEMS.items()),
    ]
    return "".join(delimiter.join(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("p.csv", table(), "line 1: the header of a table in CSV (question, answer)"),
        ("p.tsv", table("\t"), "line 1: the header of a table in CSV (question, answer)"),
        (
            "excel.csv",
            "\ufeff" + table(";"),
            "line 1: the header of a table in CSV (question, answer)",
        ),
        ("bars.csv", table("|"), "line 1: the header of a table in CSV (question, answer)"),
        ("it's $HOME.csv", table(), "line 1: the header of a table in CSV (question, answer)"),
        ("wrong-name.jsonl", table(), "line 1: the header of a table in CSV (question, answer)"),
        (
            "array.json",
            json.dumps([{"question": q, "answer": a} for q, a in PROBLEMS.items()]),
            "begins a JSON array",
        ),
        (
            "pretty.jsonl",
            json.dumps([{"question": q, "answer": a} for q, a in PROBLEMS.items()], indent=2),
            "line 1: begins a JSON array",
        ),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_format_with_a_conversion(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    content: str,
    found: str,
    suffix: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    text = content.encode()
    Path(name + suffix).write_bytes(gzip.compress(text) if suffix else text)
    message = refusal_text(f"jsonl:{name}{suffix}")
    assert message.startswith(f"{name}{suffix}, line ") and found in message

    command, _, output = message.partition("Convert it: ")[2].rpartition(" > ")
    command = command.replace("python", shlex.quote(sys.executable), 1)
    subprocess.run(["bash", "-c", f"{command} > {output}"], check=True)
    (new_name,) = shlex.split(output)
    assert new_name != name + suffix and read(f"jsonl:{new_name}") == PROBLEMS


def test_parquet_has_a_source_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_bytes(b"PAR1\x15\x04")
    assert f"Set cell.task=parquet:{tmp_path}/p.jsonl." in refusal_text(f"jsonl:{tmp_path}/p.jsonl")


@pytest.mark.parametrize(
    "first_line",
    [
        "What is 1+1, please?",
        "question,answer\rx,y",
        "question: 1, answer: 2",
        '{"question": "a, b", "answer": "c"',
        "question,,answer",
    ],
)
def test_a_line_that_is_wrong_alone_is_named_alone(tmp_path: Path, first_line: str) -> None:
    row: dict[str, Any] = {"question": "2+2?", "answer": 4}
    (tmp_path / "p.jsonl").write_text(f"{first_line}\n{json.dumps(row)}\n")
    message = refusal_text(f"jsonl:{tmp_path}/p.jsonl")
    assert "line 1: not JSON" in message and "CSV" not in message


@pytest.mark.parametrize("task", ["jsonl:p.jsonl", "jsonl:p.jsonl.gz", "parquet:p.parquet"])
def test_a_pointer_of_git_lfs_in_place_of_the_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    monkeypatch.chdir(tmp_path)
    name = task.partition(":")[2]
    Path(name).write_text(POINTER)
    message = refusal_text(task)
    assert (
        message.startswith(f"{name}: a pointer of Git LFS, not the file itself")
        and "git lfs pull" in message
    )
