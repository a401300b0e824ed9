"""Which columns hold prompt and answer: all rows decide, and where two columns compete the rows are
named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isojax.core.config import DataConfig
from isojax.core.nouns import Problem
from isojax.tasks.problem_sources import open_source
from tests.refusals import refused


def read(path: Path, *rows: dict[str, Any], **data: Any) -> list[Problem]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    problems = open_source(f"jsonl:{path}", DataConfig(**data)).problems(
        10**6, np.random.default_rng(0)
    )
    return sorted(problems, key=lambda p: p.id)


def rows_with_drafts(*lacking: int, count: int = 8) -> list[dict[str, Any]]:
    """Rows with an answer and a model's draft in `output`; those of the numbers `lacking` have the
    draft alone."""
    rows: list[dict[str, Any]] = [
        {"question": f"{i}?", "answer": str(i), "output": "a draft"} for i in range(count)
    ]
    for i in lacking:
        del rows[i]["answer"]
    return rows


def test_a_first_row_without_answer_makes_no_draft_the_answer(tmp_path: Path) -> None:
    with refused(where="p.jsonl, line 1") as e:
        read(tmp_path / "p.jsonl", *rows_with_drafts(0, 3))
    assert str(e.value).startswith(
        f"{tmp_path / 'p.jsonl'}, line 1: the answer 'answer' is missing or empty"
    )
    assert "so is that of line 4" in str(e.value) and "'output' (in 8 of 8 rows)" in str(e.value)
    assert "cell.data.answer_key=COLUMN" in str(e.value)


@pytest.mark.parametrize("lacking", [[2], [7], [0, 1, 2, 3, 4, 5, 6]])
@pytest.mark.parametrize("gap", ["absent", None, "", " ", float("nan"), []])
def test_a_gap_anywhere_and_of_any_kind_is_named(
    tmp_path: Path, lacking: list[int], gap: Any
) -> None:
    rows = rows_with_drafts(*lacking)
    if gap != "absent":
        rows = [{**row, "answer": row.get("answer", gap)} for row in rows]
    with refused(where="p.jsonl"):
        read(tmp_path / "p.jsonl", *rows)


def test_the_named_column_is_the_one_that_is_read(tmp_path: Path) -> None:
    problems = read(tmp_path / "p.jsonl", *rows_with_drafts(0), answer_key="output")
    assert {p.answer for p in problems} == {"a draft"}
    with refused(where="p.jsonl, line 1: 'answer'"):
        read(tmp_path / "p.jsonl", *rows_with_drafts(0), answer_key="answer")


def test_columns_that_all_rows_fill_are_read_in_the_usual_order(tmp_path: Path) -> None:
    rows = [{"solution": "so 3", "answer": "3", "output": None, "question": "q", "prompt": "p"}]
    assert [(p.prompt, p.answer) for p in read(tmp_path / "p.jsonl", *rows)] == [("p", "3")]
    # What a later column lacks is of no matter.
    assert [
        p.answer for p in read(tmp_path / "p.jsonl", *rows, {"answer": "4", "prompt": "r"})
    ] == ["3", "4"]


def test_prompts_compete_as_answers_do(tmp_path: Path) -> None:
    """Alpaca's rows have an instruction, and some an input beside it."""
    rows = [{"instruction": f"{i}?", "input": "", "output": str(i)} for i in range(3)]
    assert [p.prompt for p in read(tmp_path / "p.jsonl", *rows)] == ["0?", "1?", "2?"]
    rows[1]["input"] = "of this text"
    with refused(where="p.jsonl, line 1"):
        read(tmp_path / "p.jsonl", *rows)


def test_two_files_in_one_have_no_common_column(tmp_path: Path) -> None:
    rows = [{"question": "1?", "answer": "1"}, {"problem": "2?", "solution": "2"}]
    with refused(where="p.jsonl, line 2"):
        read(tmp_path / "p.jsonl", *rows)


def test_many_gaps_are_counted(tmp_path: Path) -> None:
    with refused(where="p.jsonl, line 1"):
        read(tmp_path / "p.jsonl", *rows_with_drafts(*range(9), count=20))


def test_a_column_that_is_empty_everywhere_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"question": f"{i}?", "answer": "", "final_answer": str(i)} for i in range(3)]
    assert [p.answer for p in read(tmp_path / "p.jsonl", *rows)] == ["0", "1", "2"]
    assert (
        "'answer' is empty in every row; the answer is read from 'final_answer'"
        in capsys.readouterr().err
    )


def test_rows_of_parquet_are_named(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(rows_with_drafts(1)), tmp_path / "p.parquet")
    with refused(where="p.parquet, row 1"):
        open_source(f"parquet:{tmp_path}/p.parquet", DataConfig())


def test_verls_object_written_as_text(tmp_path: Path) -> None:
    """As pandas.to_csv writes verl's schema."""
    row = {
        "prompt": "2?",
        "answer": "a draft",
        "reward_model": "{'ground_truth': '2', 'style': 'rule'}",
    }
    (problem,) = read(tmp_path / "p.jsonl", row)
    assert problem.answer == problem.columns["ground_truth"] == "2"


def test_lists_of_numbers_are_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their text may be an interval, so that no later check tells them from one."""
    rows = [{"question": f"{i}?", "answer": [i, i + 1] if i > 1 else [i]} for i in range(4)]
    assert [p.answer for p in read(tmp_path / "p.jsonl", *rows)] == ["0", "1", "[2, 3]", "[3, 4]"]
    assert (
        "p.jsonl, line 3: 'answer' is a list of several numbers, as in 2 of 4 rows"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("other", ["ground_truth", "final_answer"])
def test_another_answer_in_another_column_is_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], other: str
) -> None:
    rows = [{"question": f"{i}?", "answer": str(i), other: "0"} for i in range(4)]
    assert [p.answer for p in read(tmp_path / "p.jsonl", *rows)] == ["0", "1", "2", "3"]
    output = " ".join(capsys.readouterr().err.split())
    assert (
        f"note: {tmp_path}/p.jsonl: the answer is read from 'answer', and {other!r} differs"
        in output
    )
    assert "in 3 of 4 rows, the first of them line 2: '1' and '0'" in output
    assert output.count(f"cell.data.answer_key={other} takes the other") == 1

    # Who names the column knows it.
    for name, answers in {"answer": ["0", "1", "2", "3"], other: ["0"] * 4}.items():
        assert [p.answer for p in read(tmp_path / "q.jsonl", *rows, answer_key=name)] == answers
        assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("7", " 7\n"), ("7", 7), ("7", 7.0), ("7", ["7"]), ("x + 1", "x+1"), ("1,234", "1234"),
        ("7", None), ("7", ""),
        ("3 + 4 = 7\n#### 7", "7"), ("7", "So it is \\boxed{7}."), ("7", {"value": "8"}),
    ],
)  # fmt: skip
def test_the_same_answer_written_otherwise_is_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], answer: str, truth: Any
) -> None:
    rows = [{"question": "3 + 4?", "answer": answer, "ground_truth": truth}]
    assert [p.answer for p in read(tmp_path / "p.jsonl", *rows)] == [answer]
    verl = {"question": "4 + 3?", "answer": "a sum\n#### 7", "reward_model": {"ground_truth": "7"}}
    assert [p.answer for p in read(tmp_path / "v.jsonl", verl)] == ["7"]
    assert capsys.readouterr().err == ""


def test_drafts_beside_an_answer_are_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read(
        tmp_path / "p.jsonl",
        {"question": "q", "answer": "1", "output": "a draft", "solution": "by parts"},
    )
    assert capsys.readouterr().err == ""


SYSTEM = "You are a helpful assistant."
SYSTEM_MESSAGES = [{"role": "user", "content": SYSTEM}]


def same_prompts(other: str, prompt: Any = SYSTEM, count: int = 6) -> list[dict[str, Any]]:
    return [{"prompt": prompt, other: f"{i} + {i}?", "answer": str(2 * i)} for i in range(count)]


@pytest.mark.parametrize("other", ["question", "input", "Problem", "instruction"])
@pytest.mark.parametrize("prompt", [SYSTEM, SYSTEM_MESSAGES])
def test_a_prompt_that_is_the_same_in_every_row_is_refused_with_the_column_that_differs(
    tmp_path: Path, other: str, prompt: Any
) -> None:
    rows = same_prompts(other, prompt)
    with refused() as e:
        read(tmp_path / "p.jsonl", *rows)
    assert (
        f"the prompt 'prompt' is the same in all 6 rows ({SYSTEM!r})" in str(e.value)
        or prompt != SYSTEM
    )
    assert f"and {other!r} differs from row to row" in str(e.value)
    assert f"set cell.data.prompt_key={other};" in str(e.value)
    assert [p.prompt for p in read(tmp_path / "p.jsonl", *rows, prompt_key=other)] == [
        row[other] for row in rows
    ]


def test_a_prompt_that_is_the_same_in_every_row_is_kept_where_it_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problems = read(tmp_path / "p.jsonl", *same_prompts("question"), prompt_key="prompt")
    assert [p.prompt for p in problems] == [SYSTEM]
    assert "warning: " in (printed := capsys.readouterr().err) and "prompt_key=question" in printed


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        (same_prompts("task_text"), "prompt_key=task_text"),  # an unusual name may be anything
        (
            [
                {"prompt": f"Solve {i % 2}.", "query": "", "input": f"{i}?", "answer": i}
                for i in range(8)
            ],
            "prompt_key=input",
        ),
    ],
)
def test_prompts_that_most_rows_repeat_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: list[dict[str, Any]], named: str
) -> None:
    read(tmp_path / "p.jsonl", *rows)
    assert "differs from row to row" in (printed := capsys.readouterr().err) and named in printed


@pytest.mark.parametrize(
    "rows",
    [
        # one row
        [{"prompt": "1 + 1?", "answer": "2", "input": "x", "id": f"row-{i % 3}"} for i in range(4)][
            :1
        ],
        # one problem for one-shot training
        [{"prompt": "1 + 1?", "answer": "2", "input": "x"}] * 4,
        [{"prompt": f"{i}?", "input": "x", "answer": str(i)} for i in range(4)],
        [{"prompt": f"{i // 2}?", "question": f"{i % 2}?", "answer": "1"} for i in range(8)],
        [{"prompt": "1?", "answer": "1", "level": i} for i in range(4)],  # numbers are no problems
        [{"prompt": "1?", "answer": f"{i}"} for i in range(4)],
    ],
)
def test_prompts_of_which_nothing_is_to_be_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: list[dict[str, Any]]
) -> None:
    read(tmp_path / "p.jsonl", *rows)
    assert "differs from row to row" not in capsys.readouterr().err
