"""Problems from Parquet: verl's schema, flat columns, several files."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isojax.core import limits
from isojax.core.config import DataConfig
from isojax.core.nouns import Problem
from isojax.tasks.problem_sources import open_source
from tests.refusals import refused


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=2)
    return path


def read(argument: object, **data: Any) -> list[Problem]:
    """All problems in the order of the files."""
    result = open_source(f"parquet:{argument}", DataConfig(**data)).problems(
        10**6, np.random.default_rng(0)
    )
    return sorted(result, key=lambda p: p.id)


def verl(i: int, truth: Any) -> dict[str, Any]:
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "system", "content": "Think."}, {"role": "user", "content": f"{i}?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"index": i, "answer": "long", "split": "train"},
    }


def test_verls_schema(tmp_path: Path) -> None:
    first, second = read(write(tmp_path / "v.parquet", [verl(0, "72"), verl(1, "8")]))
    assert (first.id, first.prompt, first.answer) == (0, "0?", "72")
    assert second == Problem(
        1,
        "1?",
        "8",
        messages=({"role": "system", "content": "Think."}, {"role": "user", "content": "1?"}),
        columns={
            "data_source": "openai/gsm8k",
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "8"},
            "extra_info": {"index": 1, "answer": "long", "split": "train"},
            "ground_truth": "8",
        },
    )


def test_a_ground_truth_that_is_a_list(tmp_path: Path) -> None:
    one, two = read(write(tmp_path / "v.parquet", [verl(0, ["72"]), verl(1, ["1", "2"])]))
    assert (one.answer, one.columns["ground_truth"]) == ("72", ["72"])
    assert (two.answer, two.columns["ground_truth"]) == ('["1", "2"]', ["1", "2"])


def test_flat_columns_are_plain_json(tmp_path: Path) -> None:
    rows = [
        {
            "problem": "p",
            "answer": 3.0,
            "day": datetime.date(2026, 1, 2),
            "cost": decimal.Decimal("1.50"),
            "raw": b"\xc3\xa9",
        }
    ]
    assert read(write(tmp_path / "f.parquet", rows)) == [
        Problem(0, "p", "3", columns={"day": "2026-01-02", "cost": "1.50", "raw": "é"})
    ]


@pytest.mark.parametrize("argument", ["d", "d/part-*.parquet"])
def test_several_files_are_numbered_through(tmp_path: Path, argument: str) -> None:
    for k in (1, 0):
        write(
            tmp_path / "d" / f"part-{k}.parquet",
            [{"prompt": f"{k}{i}", "answer": str(i)} for i in range(3)],
        )
    (tmp_path / "d" / "notes.txt").write_text("x")
    assert [(p.id, p.prompt) for p in read(tmp_path / argument)] == [
        (0, "00"),
        (1, "01"),
        (2, "02"),
        (3, "10"),
        (4, "11"),
        (5, "12"),
    ]


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    def refusal_text(argument: object, **data: Any) -> str:
        with refused() as e:
            read(argument, **data)
        return str(e.value)

    bare = write(tmp_path / "x.parquet", [{"text": "a", "label": 1}])
    assert (
        f"{bare}, row 0: no prompt: there are the columns text, label; expected one of "
        f"prompt, question"
    ) in refusal_text(bare)
    assert (
        "no answer: there are the columns text, label; expected one of "
        "reward_model.ground_truth, answer"
    ) in refusal_text(bare, prompt_key="text")
    assert read(bare, prompt_key="text", answer_key="label")[0].answer == "1"
    gap = write(
        tmp_path / "gap.parquet",
        [{"prompt": "a", "answer": "1"}] * 3 + [{"prompt": "b", "answer": None}],
    )
    assert f"{gap}, row 3: 'answer': missing or empty" in refusal_text(gap)
    assert "no problem" in refusal_text(
        write(tmp_path / "empty.parquet", [{"prompt": "a", "answer": "1"}][:0])
    )
    (tmp_path / "text.parquet").write_text('{"prompt": "a"}')
    assert "expected a Parquet file" in refusal_text(tmp_path / "text.parquet")
    assert "no such file" in refusal_text(tmp_path / "none.parquet")
    no_text = pa.array([b"\xff"], pa.binary())
    for name, column in {
        "utf8": pa.StringArray.from_buffers(1, *no_text.buffers()[1:]),
        "late": pa.array([3 * 10**17], pa.timestamp("us")),
    }.items():
        pq.write_table(pa.table({"prompt": ["a"], "answer": column}), tmp_path / f"{name}.parquet")
        assert f"{tmp_path / name}.parquet: cannot be read" in refusal_text(
            tmp_path / f"{name}.parquet"
        )
    (tmp_path / "bare").mkdir()
    assert "a folder without .parquet files" in refusal_text(tmp_path / "bare")
    assert "takes a file, a folder or a pattern" in refusal_text("")
    write(tmp_path / "m" / "a.parquet", [{"prompt": "a", "answer": "1"}])
    write(tmp_path / "m" / "b.parquet", [{"question": "a", "answer": "1"}])
    assert "b.parquet: its columns are question, answer, those of" in refusal_text(tmp_path / "m")


@pytest.mark.parametrize(
    "column",
    [
        pa.Array.from_buffers(
            pa.string(), 1, [None, pa.py_buffer(bytes(4) + b"\1\0\0\0"), pa.py_buffer(b"\xff")]
        ),
        pa.array([3_000_000], pa.int32()).cast(pa.date32()),
        pa.array([2**62], pa.int64()).cast(pa.timestamp("us")),
    ],
)
def test_values_that_python_does_not_have(tmp_path: Path, column: pa.Array) -> None:
    pq.write_table(
        pa.table({"prompt": ["a"], "answer": ["1"], "x": column}), tmp_path / "x.parquet"
    )
    with refused(where="x.parquet"):
        read(tmp_path / "x.parquet")


def test_a_small_file_of_many_rows_is_refused_by_their_number(tmp_path: Path) -> None:
    """Ten million rows of one value, in 50 KB."""
    same = pa.DictionaryArray.from_arrays(pa.array(np.zeros(10**7, np.int32)), pa.array(["same"]))
    pq.write_table(pa.table({"prompt": same, "answer": same}), tmp_path / "x.parquet")
    with refused(where="x.parquet"):
        read(tmp_path / "x.parquet")


def test_a_small_file_of_long_rows_is_refused_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_ROW_BYTES", 10**6)
    write(tmp_path / "x.parquet", [{"prompt": "x" * 1000, "answer": "1"}] * 2000)
    with refused(where="x.parquet"):
        read(tmp_path / "x.parquet")


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with refused(where="cell.task: parquet"):
        read(tmp_path / "x.parquet")
