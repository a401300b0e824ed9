"""Problems from JSON lines: which columns are read, what may stand in them, and what is said of a
file that cannot be used.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isojax.core.config import DataConfig
from isojax.core.nouns import Problem
from isojax.tasks.problem_sources import open_source
from tests.refusals import refused


def write(folder: Path, *rows: Any, name: str = "p.jsonl") -> Path:
    path = folder / name
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    )
    return path


def read(path: Path, **data: Any) -> list[Problem]:
    """All of a file's problems in its order."""
    result = open_source(f"jsonl:{path}", DataConfig(**data)).problems(
        10**6, np.random.default_rng(0)
    )
    return sorted(result, key=lambda p: p.id)


def refusal_text(path: Path, **data: Any) -> str:
    with refused() as e:
        read(path, **data)
    return str(e.value)


def test_a_file_as_the_world_writes_it(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"question": "2+2?", "answer": "2+2=4\n#### 4", "level": 3},
        "",
        {"question": "1+1?", "answer": 2, "level": None},
    )
    assert read(path) == [
        Problem(0, "2+2?", "2+2=4\n#### 4", columns={"level": 3}),
        Problem(2, "1+1?", "2", columns={"level": None}),
    ]


def test_the_same_from_a_gzipped_file(tmp_path: Path) -> None:
    rows = [{"problem": "é?", "solution": "1"}, {"problem": "b?", "solution": "2"}]
    content = "\n".join(map(json.dumps, rows)).encode("utf-8-sig")
    (tmp_path / "p.jsonl.gz").write_bytes(gzip.compress(content))
    assert [(p.id, p.prompt, p.answer) for p in read(tmp_path / "p.jsonl.gz")] == [
        (0, "é?", "1"),
        (1, "b?", "2"),
    ]


def test_which_columns_are_read(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"instruction": "i", "query": "q", "target": "t", "final_answer": "f", "x": {"y": "deep"}},
    )
    assert [(p.prompt, p.answer, sorted(p.columns)) for p in read(path)] == [
        ("q", "f", ["instruction", "target", "x"])
    ]
    assert [
        (p.prompt, p.answer) for p in read(path, prompt_key="instruction", answer_key="x.y")
    ] == [("i", "deep")]
    assert (
        "no answer: there are the columns instruction, query, target, final_answer, x; expected 'z'"
        in refusal_text(path, answer_key="z")
    )
    assert [
        p.answer for p in read(write(tmp_path, {"prompt": "p", "answer": None, "solution": "s"}))
    ] == ["s"]
    assert "line 1: 'answer': missing or empty" in refusal_text(
        write(tmp_path, {"prompt": "p", "answer": None})
    )
    other = refusal_text(write(tmp_path, {"text": "a", "label": "b"}, name="other.jsonl"))
    assert (
        "other.jsonl, line 1: no prompt: there are the columns text, label; expected one of "
        "prompt, question"
    ) in other
    assert "cell.data.prompt_key=COLUMN" in other


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (7, "7"),
        (-0.5, "-0.5"),
        (72.0, "72"),
        (10**30, str(10**30)),
        (" a ", " a "),
        (["7"], "7"),
        (["7", 8], '["7", 8]'),
    ],
)
def test_answers_as_text(tmp_path: Path, given: Any, text: str) -> None:
    assert read(write(tmp_path, {"prompt": "p", "answer": given}))[0].answer == text


def test_a_conversation(tmp_path: Path) -> None:
    turns = [{"role": "system", "content": ""}, {"role": "user", "content": "2+2?", "name": None}]
    assert read(write(tmp_path, {"prompt": turns, "answer": "4"})) == [
        Problem(
            0,
            "2+2?",
            "4",
            messages=({"role": "system", "content": ""}, {"role": "user", "content": "2+2?"}),
        )
    ]
    for bad in ([], [{"role": "assistant", "content": "hi"}], turns[:1]):
        assert "the conversation in 'prompt' ends with" in refusal_text(
            write(tmp_path, {"prompt": bad, "answer": "4"})
        )
    for bad in ([{"content": "hi"}], ["hi"], [{"role": "user", "content": [{"type": "image"}]}]):
        assert "expected text or a list of {role, content}" in refusal_text(
            write(tmp_path, {"prompt": bad, "answer": "4"})
        )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"prompt": "b", "answer": "1"', "line 3: not JSON (Expecting ',' delimiter at column "),
        ('{"prompt": "b", "answer": "1"} {}', "line 3: not JSON (Extra data at column "),
        ("[1, 2]", "line 3: given '[1, 2]' (list); expected a JSON object"),
        ('{"answer": "1"}', "line 3: 'prompt': missing or empty"),
        ('{"prompt": "b", "answer": " "}', "line 3: 'answer': missing or empty"),
        ('{"prompt": "b", "answer": null}', "line 3: 'answer': missing or empty"),
        (
            '{"prompt": "b", "answer": true}',
            "line 3: 'answer': given 'True' (bool); expected text or a number",
        ),
        (
            '{"prompt": "b", "answer": false}',
            "line 3: 'answer': given 'False' (bool); expected text or a number. "
            'Write it as text, in every row that has one: "false".',
        ),
        ('{"prompt": "b", "answer": NaN}', "line 3: 'answer': given 'nan' (float)"),
        ('{"prompt": {"x": 1}, "answer": "1"}', "line 3: 'prompt': given \"{'x': 1}\" (dict)"),
        ('{"prompt": "\\ud800", "answer": "1"}', "line 3: 'prompt': holds half a surrogate pair"),
        (
            '{"prompt": ' + "9" * 5000 + ', "answer": "1"}',
            "line 3: cannot be read (Exceeds the limit",
        ),
        ("[" * 100_000, "line 3: cannot be read ("),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, row: str, message: str) -> None:
    path = write(tmp_path, {"prompt": "a", "answer": "1"}, "", row)
    assert refusal_text(path).startswith(f"{path}, {message}")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "No such file" in refusal_text(tmp_path / "none.jsonl")
    assert "Is a directory" in refusal_text(tmp_path)
    assert "no problem" in refusal_text(write(tmp_path, "", ""))
    assert "line 1: given '[1]' (list); expected a JSON object on each line" in refusal_text(
        write(tmp_path, [1])
    )
    plain = write(tmp_path, {"prompt": "a", "answer": "1"}, name="q.jsonl.gz")
    assert "cannot be read" in refusal_text(plain) and "Not a gzipped file" in refusal_text(plain)
    full = gzip.compress(
        "".join(json.dumps({"prompt": f"{i}", "answer": "1"}) + "\n" for i in range(5000)).encode()
    )
    plain.write_bytes(full[:-2000])
    assert "cannot be read" in refusal_text(plain) and ", line " in refusal_text(plain)
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b'{"prompt": "a", "answer": "1"}\n{"prompt": "\xe9", "answer": "1"}\n')
    assert "latin.jsonl, line 2: not UTF-8 (byte 0xe9 at position 13)" in refusal_text(path)


def test_a_prompt_met_twice_is_kept_once_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"prompt": p, "answer": a}
        for p, a in [("x", "1"), ("y", "2"), ("x", "1"), ("x", "9"), ("y", "2"), ("z", "3")]
    ]
    assert [(p.id, p.prompt, p.answer) for p in read(write(tmp_path, *rows))] == [
        (0, "x", "1"),
        (1, "y", "2"),
        (5, "z", "3"),
    ]
    output = capsys.readouterr().err
    assert "note: " in output and "2 rows repeat an earlier prompt with the same answer" in output
    assert "warning: " in output and "1 rows repeat an earlier prompt with ANOTHER answer" in output
    read(write(tmp_path, *rows[:2]))
    assert capsys.readouterr().err == ""


def test_the_first_rows_with_another_answer_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"prompt": "x", "answer": "1"}, {"prompt": "y", "answer": "2"}]
    rows += [{"prompt": "y", "answer": str(10 + i)} for i in range(5)]
    path = write(tmp_path, *rows)
    read(path)
    output = " ".join(capsys.readouterr().err.split())
    assert f"{path}, line 3 has '10', where {path}, line 2 has '2'; " in output
    assert f"{path}, line 5 has '12', where {path}, line 2 has '2'; and 2 more." in output
    assert "line 6" not in output
