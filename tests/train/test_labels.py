"""Labels continue where a kill left them, belong to a policy and its problems, and nothing torn is
taken for one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from isojax.core.config import CellConfig, DataConfig, PromptConfig, RLConfig, VerifierConfig
from isojax.core.errors import DeadStart
from isojax.core.nouns import Problem
from isojax.core.start_file import read_start_report
from isojax.train.base_policy import compute_label_key, label_problems
from isojax.train.evaluate import EvalCounts
from tests.device import DECODER
from tests.refusals import refused

PROBLEMS = [Problem(7 * i, f"p{i}", str(i)) for i in range(20)]


class FakeLabeller:
    """Programs whose labeller solves problem i in i mod 5 of 4 rollouts, 6 problems per call, and
    remembers what it was asked.
    """

    problems_per_call, samples_per_problem = 6, 4
    cell_config = CellConfig(task="addition")
    task, decoder = SimpleNamespace(on_device=True), DECODER

    def __init__(self) -> None:
        self.labeller, self.asked = self, list[int]()

    def compile(self) -> None: ...

    def tokenize(self, problems: list[Problem]) -> SimpleNamespace:
        return SimpleNamespace(select=lambda indices: [problems[i].id for i in indices])

    def evaluate(
        self, params: None, ids: list[int], seed: int, evaluation: int, repeats: int, **_: int
    ) -> Any:
        self.asked += ids
        rewards = np.array([[float(sample < i % 5) for sample in range(4)] * repeats for i in ids])
        return EvalCounts(rewards, [], ended=rewards.size, parsed=rewards.size, failures=Counter())


def label(path: Path, programs: Any, key: str = "key", attempts: int = 7) -> list[Problem]:
    return label_problems(path, key, PROBLEMS, attempts, programs, {}, lambda text, done: None)


def test_a_label_for_each_problem_by_whole_evaluations(tmp_path: Path) -> None:
    got = label(tmp_path / "l", FakeLabeller())  # 7 attempts are two evaluations of 4
    assert [(p.id, p.solved, p.attempts) for p in got] == [
        (p.id, 2 * (p.id % 5), 8) for p in PROBLEMS
    ]


def test_cut_at_any_byte_it_goes_on_to_the_same(tmp_path: Path) -> None:
    full = label(tmp_path / "whole", FakeLabeller())
    data = (tmp_path / "whole").read_bytes()
    for size in (*range(0, len(data), 37), len(data) - 1, len(data)):
        path = tmp_path / f"cut{size}"
        path.write_bytes(data[:size])
        labeller = FakeLabeller()
        assert label(path, labeller) == full
        remaining = max(0, data[:size].count(b"\n") - 1)
        assert len(labeller.asked) == len(PROBLEMS) - remaining  # nothing is sampled twice
        assert sorted(path.read_bytes().splitlines()) == sorted(data.splitlines())


class DeadLabeller(FakeLabeller):
    """All of whose checks fail from a call on."""

    def __init__(self, first_failed_call: int) -> None:
        super().__init__()
        self.calls, self.first_failed_call = 0, first_failed_call

    def evaluate(self, *words: Any, **others: Any) -> Any:
        counts, self.calls = super().evaluate(*words, **others), self.calls + 1
        failed = {"error": counts.rewards.size} if self.calls >= self.first_failed_call else {}
        return replace(counts, failures=Counter(failed), failed_checks=failed)


def test_first_labels_of_which_no_check_ends_are_refused_and_not_saved(tmp_path: Path) -> None:
    """Of later ones, which are of other problems, the failures count as 0."""
    with refused(where="cell.verifier.use = math", kind=DeadStart):
        label(tmp_path / "l", DeadLabeller(1))
    assert not list(tmp_path.iterdir())
    got = label(tmp_path / "l", DeadLabeller(2))
    assert len(got) == 20


def test_what_the_first_labels_make_doubtful_is_said_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once: labelling that goes on says no more."""

    class Endless(FakeLabeller):
        def evaluate(self, *words: Any, **others: Any) -> Any:
            return replace(super().evaluate(*words, **others), ended=0)

    label(tmp_path / "l", Endless())
    warnings = [
        line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")
    ]
    assert len(warnings) == 1 and warnings[0].startswith(
        "warning: of the first labels: 48 of 48 responses are cut off"
    )
    report = read_start_report(tmp_path)
    assert report is not None and [w.name for w in report.warnings] == ["cut_off"]
    assert (report.shares["responses"], report.shares["cut_off"]) == (48, 1)
    lines = (tmp_path / "l").read_bytes().splitlines(keepends=True)
    (tmp_path / "l").write_bytes(b"".join(lines[:7]))
    label(tmp_path / "l", Endless())
    assert not capsys.readouterr().err


def test_other_labels_are_refused(tmp_path: Path) -> None:
    label(tmp_path / "l", FakeLabeller())
    before = (tmp_path / "l").read_bytes()
    with refused(where="l"):
        label(tmp_path / "l", FakeLabeller(), key="other")
    with refused(where="l, line 2"):
        label(tmp_path / "l", FakeLabeller(), attempts=16)
    assert (tmp_path / "l").read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [
        (b'"checksum"', b'"checksu"'),
        (b'"id": 7, "solved": 4', b'"id": 7, "solved": 5'),
        (b'"id": 0, "solved": 0', b'"id": 7, "solved": 0'),
        (b'"id": 0', b'"id": Infinity'),
        (b'{"id": 0', b'{"x": ' + b"[" * 3000 + b'"id": 0'),
        (b'"id": 0', b'"id": \xff'),
    ],
)
def test_a_line_that_is_no_label(tmp_path: Path, change: tuple[bytes, bytes]) -> None:
    label(tmp_path / "l", FakeLabeller())
    (tmp_path / "l").write_bytes((tmp_path / "l").read_bytes().replace(*change, 1))
    with refused():
        label(tmp_path / "l", FakeLabeller())


def test_a_key_hangs_on_the_server_that_samples_if_any() -> None:
    cell = CellConfig(task="addition")
    engines = [
        None,
        {"server": "vllm", "model": "a"},
        {"server": "vllm", "model": "b"},
        {"server": "me", "model": "a"},
    ]
    keys = [compute_label_key(cell, "print", PROBLEMS, engine) for engine in engines]
    assert len(set(keys)) == 4 and keys[0] == compute_label_key(cell, "print", PROBLEMS)


def test_what_a_key_hangs_on() -> None:
    cell = CellConfig(task="addition")
    key = compute_label_key(cell, "print", PROBLEMS)
    assert key == compute_label_key(
        cell.model_copy(update={"rl": RLConfig(learning_rate=1.0)}), "print", PROBLEMS
    )  # no label hangs on that
    others = [
        compute_label_key(cell, "another checkpoint", PROBLEMS),
        compute_label_key(cell, "print", [replace(PROBLEMS[0], prompt="edited"), *PROBLEMS[1:]]),
        compute_label_key(cell, "print", [replace(PROBLEMS[0], answer="9"), *PROBLEMS[1:]]),
        compute_label_key(
            cell.model_copy(update={"prompt": PromptConfig(template="Q: {prompt}")}),
            "print",
            PROBLEMS,
        ),
        compute_label_key(cell.model_copy(update={"data": DataConfig(seed=1)}), "print", PROBLEMS),
    ]
    assert len({key, *others}) == 6
    assert len(key) == 16


def test_other_columns_are_other_problems_and_none_are_as_before() -> None:
    """A verifier reads them. Labels on disk are found by the key, which is that of before columns
    were in it."""
    cell = CellConfig(task="addition")
    keys = [
        compute_label_key(cell, "print", [replace(PROBLEMS[0], columns=columns), *PROBLEMS[1:]])
        for columns in (
            {},
            {"tests": "1 == 1"},
            {"tests": "1 == 2"},
            {"tests": "1 == 1", "level": 2},
        )
    ]
    assert (
        len(set(keys)) == 4
        and keys[0] == compute_label_key(cell, "print", PROBLEMS) == "b3ac0fd1e6f54ec7"
    )


@pytest.mark.parametrize("use", ["function:{}.py:f", "function:{}:f", "verl:{}", "{}"])
def test_labels_hang_on_what_the_users_verifier_says(
    use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit of its file, however `cell.verifier.use` names it, makes labels of another key."""
    name = f"verifier_of_labels_{abs(hash(tmp_path))}"  # modules are imported once
    path = tmp_path / f"{name}.py"
    decorated = (
        "from isojax.tasks.verifiers import verifier\n@verifier(isolated=False, pure=True)\n"
    )
    path.write_text(decorated + "def build(argument): return None\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    cell = CellConfig(task="addition", verifier=VerifierConfig(use=use.format(name)))
    key = compute_label_key(cell, "print", PROBLEMS)
    assert key == compute_label_key(cell, "print", PROBLEMS)
    path.write_text(path.read_text() + "LIMIT = 2\n")
    assert key != compute_label_key(cell, "print", PROBLEMS)
