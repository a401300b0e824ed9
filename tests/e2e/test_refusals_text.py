"""What a language model's run cannot use ends with exit code 2 and one clear message, before any
work, with nothing written or changed; what a verifier does wrong ends no run, and is counted and
reported."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file, save_file

from isojax.core.nouns import Problem
from isojax.tasks.sources.tfds import write_dataset
from tests.e2e.tiny_lm import make_model
from tests.tasks.tokenizer_folders import byte_level

pytestmark = [pytest.mark.slow, pytest.mark.seconds(30)]

SETTINGS = """\
name: text
cell:
  task: addition
  model: {path: lm}
  prompt: {stop: ["\\n"]}
  verifier: {use: integer, timeout: 0.5, memory_gib: 0.5}
  data: {attempts: 0, candidates: 60, validation: 8}
  sampling: {prompt_length: 24, response_length: 3}
  rl: {learning_rate: 1.0e-3}
  eval: {samples: 2, start: 8, ratio: 2}
sweep: {B_p: [4], n: [2], budget: 16, decode_slots: 8, microbatch: 8, prefill_batch: 4}
run: {verifier_workers: 1, cells_at_once: 1}
"""

Prepare = Callable[[Path], Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "lm")


@pytest.fixture
def text(isojax: Any, model: Path) -> Any:
    """The command line in a folder with a language model and text.yaml."""
    shutil.copytree(model, isojax.folder / "lm")
    (isojax.folder / "text.yaml").write_text(SETTINGS)
    return isojax


def without_settings(section: str) -> Prepare:
    """text.yaml without a section of the cell."""

    def prepare(folder: Path) -> None:
        lines = (folder / "text.yaml").read_text().splitlines()
        (folder / "text.yaml").write_text(
            "\n".join(line for line in lines if not line.startswith(f"  {section}:"))
        )

    return prepare


def weights(change: Callable[[dict[str, np.ndarray]], Any]) -> Prepare:
    def prepare(folder: Path) -> None:
        stored = dict(load_file(folder / "lm" / "model.safetensors"))
        change(stored)
        save_file(stored, folder / "lm" / "model.safetensors")

    return prepare


def config(**changes: Any) -> Prepare:
    def prepare(folder: Path) -> None:
        path = folder / "lm" / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return prepare


def file(name: str, content: str) -> Prepare:
    return lambda folder: (folder / name).write_text(content)


def rows(count: int) -> str:
    return "".join(json.dumps({"question": f"q{i}", "answer": str(i)}) + "\n" for i in range(count))


def table(**columns: list[Any]) -> Prepare:
    return lambda folder: pq.write_table(pa.table(columns), folder / "p.parquet")


def splits(folder: Path) -> None:
    problems = [Problem(i, f"q{i}", str(i), i % 8, 16) for i in range(40)]
    parts = {
        "all": problems,
        "hard_train": problems[:20],
        "hard_validation": problems[20:30],
        "easy_train": problems[30:],
    }
    write_dataset(folder / "s", parts, {})


def without_chat(folder: Path) -> None:
    byte_level(folder / "bare", chat=None)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(folder / "lm" / name, folder / "bare")


def nothing(folder: Path) -> None:
    pass


UP = "model.layers.1.mlp.up_proj.weight"
PICKLE: Prepare = lambda f: (f / "lm" / "model.safetensors").rename(f / "lm" / "pytorch_model.bin")  # noqa: E731
FUNCTION = "cell.verifier.use=function:rewards.py:reward"
LAUNCH = ("launch", "text.yaml", "sweep.budget=64")
DIFFICULTY = ("difficulty", "text.yaml", "cell.data.attempts=2")

CASES: dict[str, tuple[Prepare, tuple[str, ...], tuple[str, ...]]] = {
    "missing weight": (
        weights(lambda s: s.pop(UP)),
        LAUNCH,
        (
            UP,
            "expected shape [32, 16]",
        ),
    ),
    "missing weight, dry run": (
        weights(lambda s: s.pop(UP)),
        (*LAUNCH, "--dry-run"),
        (UP,),
    ),
    "missing weight, labelling": (weights(lambda s: s.pop(UP)), DIFFICULTY, (UP,)),
    "wrong shape": (
        weights(lambda s: s.update({"model.norm.weight": np.ones(9, np.float32)})),
        LAUNCH,
        ("model.norm.weight has shape [9]", "expected [16]"),
    ),
    "pickles": (PICKLE, LAUNCH, ("pytorch_model.bin", "only safetensors are read")),
    "unknown architecture": (
        config(architectures=["GPT2LMHeadModel"]),
        LAUNCH,
        ("'GPT2LMHeadModel'", "Qwen3ForCausalLM"),
    ),
    "no model": (nothing, (*LAUNCH, "cell.model.path=nowhere"), ("nowhere: no such folder",)),
    "no tokenizer": (
        lambda f: (f / "lm" / "tokenizer.json").unlink(),
        LAUNCH,
        ("lm", "tokenizer.json"),
    ),
    "another shape": (
        nothing,
        (*LAUNCH, "cell.model.layers=7"),
        ("cell.model.layers: given 7", "says 2"),
    ),
    "a task on device": (
        without_settings("verifier"),
        (*LAUNCH, "cell.task=solvers"),
        ("24 tokens of its own", "384"),
    ),
    "no chat template": (
        without_chat,
        (*LAUNCH, "cell.model.path=bare", "cell.prompt.format=chat"),
        ("bare", "no chat template", "cell.prompt.format=raw"),
    ),
    "prompts too long": (
        nothing,
        (*LAUNCH, "cell.sampling.prompt_length=1"),
        ("cell.sampling.prompt_length", "none of 60 prompts"),
    ),
    "no lengths": (
        without_settings("sampling"),
        LAUNCH,
        (
            "cell.sampling.prompt_length and cell.sampling.response_length",
            (
                "begin with: cell.sampling.prompt_length=16 cell.sampling.response_length=496 "
                "(of 60 prompts"
            ),
        ),
    ),
    "no learning rate": (
        without_settings("rl"),
        LAUNCH,
        ("cell.rl.learning_rate", "isojax lr-search"),
    ),
    "unknown task": (
        nothing,
        (*LAUNCH, "cell.task=additon"),
        ("'additon'", "Did you mean 'addition'?"),
    ),
    "unknown verifier": (
        nothing,
        (*LAUNCH, "cell.verifier.use=mth"),
        ("'mth'", "Did you mean 'math'?"),
    ),
    "a broken line": (
        file("p.jsonl", rows(5) + '{"question": \n' + rows(9)),
        (*LAUNCH, "cell.task=jsonl:p.jsonl"),
        ("p.jsonl, line 6: not JSON",),
    ),
    "an answer that cannot be": (
        file("p.jsonl", rows(17) + '{"question": "q", "answer": "blue"}\n'),
        (*LAUNCH, "cell.task=jsonl:p.jsonl"),
        ("p.jsonl, line 18", "'blue'"),
    ),
    "the same, to be labelled": (
        file("p.jsonl", rows(17) + '{"question": "q", "answer": "blue"}\n'),
        (*LAUNCH, "cell.task=jsonl:p.jsonl", "cell.data.attempts=2"),
        ("p.jsonl, line 18", "'blue'"),
    ),
    "too few problems": (
        file("p.jsonl", rows(18)),
        (*LAUNCH, "cell.task=jsonl:p.jsonl", "sweep.B_p=[16]", "sweep.budget=256"),
        ("sweep.B_p: holds 16", "10 problems"),
    ),
    "too few to label": (
        nothing,
        (*LAUNCH, "cell.data.attempts=2", "sweep.B_p=[64]", "sweep.budget=2000"),
        ("sweep.B_p: holds 64", "52 problems"),
    ),
    "no such columns": (
        table(a=[1], b=[2]),
        (*LAUNCH, "cell.task=parquet:p.parquet"),
        ("columns a, b", "cell.data.prompt_key"),
    ),
    "an empty range": (
        splits,
        (*LAUNCH, "cell.task=tfds:s", "cell.data.attempts=16", "cell.data.difficulty=[0.9,1.0]"),
        ("0 of 40 problems", "[0.9, 1.0]"),
    ),
    "no such part": (
        splits,
        (*LAUNCH, "cell.task=tfds:s", "cell.data.mixture={hard: 1, esy: 1}"),
        ("'esy_train'", "easy_train"),
    ),
    "parts of something else": (
        nothing,
        (*LAUNCH, "cell.data.mixture={hard: 1}"),
        ("cell.data.mixture", "cell.task=tfds:FOLDER"),
    ),
    "no data set": (nothing, (*LAUNCH, "cell.task=tfds:lm"), ("lm: no TFDS data set",)),
    "a set's file": (nothing, (*LAUNCH, "cell.eval.extra={x: 'jsonl:no.jsonl'}"), ("no.jsonl",)),
    "no Python": (
        file("rewards.py", "def reward(x:\n"),
        (*LAUNCH, FUNCTION),
        ("rewards.py:1: SyntaxError",),
    ),
    "no package": (
        file("rewards.py", "import nopackage\n"),
        (*LAUNCH, FUNCTION),
        ("rewards.py:1: ModuleNotFoundError", "nopackage"),
    ),
    "no column": (
        file("rewards.py", "def reward(gold, **k): return [1]\n"),
        (*LAUNCH, FUNCTION),
        ("takes gold", "prompts"),
    ),
    "not verl's": (
        file("rewards.py", "def compute_score(text): return 1\n"),
        (*LAUNCH, "cell.verifier.use=verl:rewards.py"),
        ("missing a required argument: 'text'", "solution_str"),
    ),
    "a file in the way": (
        file("taken", ""),
        (*DIFFICULTY, "--out", "taken"),
        ("cannot make the folder taken",),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_used(text: Any, case: str) -> None:
    prepare, words, saying = CASES[case]
    prepare(text.folder)
    text.refused(*words, saying=saying)


REWARDS = """\
import os, time
def reward(completions, answer, **columns):
    kind = int(answer[0]) % 5
    if kind == 0:
        time.sleep(1e6)
    if kind == 1:
        os._exit(3)
    if kind == 2:
        raise ZeroDivisionError("no such luck")
    if kind == 3:
        bytearray(10**10)
    return [1]
"""
KINDS = ("timeout", "crash", "error", "memory")


def test_a_verifier_that_fails_costs_its_own_rollouts(text: Any) -> None:
    """The first failure of each kind is reported, and all are counted: over all updates of an
    interval in `train`, over the set in `metrics`."""
    (text.folder / "rewards.py").write_text(REWARDS)
    (text.folder / "p.jsonl").write_text(rows(5))
    (text.folder / "v.jsonl").write_text(
        "".join(json.dumps({"question": f"v{i}", "answer": str(i)}) + "\n" for i in (4, 9, 2, 7))
    )
    words = (
        "cell.task=jsonl:p.jsonl",
        "cell.data.held_out=jsonl:v.jsonl",
        "sweep.B_p=[5]",
        "sweep.n=[1]",
        "cell.rl.loss=reinforce_pp",
        "sweep.budget=8",
    )
    done = text.quick_ok("train", "text.yaml", FUNCTION, *words)
    report = re.findall(
        r"^warning: verifier (\w+): problem (\d): (.*) \(reward 0", done.stderr, re.MULTILINE
    )
    assert {kind: int(problem) % 5 for kind, problem, _ in report} == {
        kind: i for i, kind in enumerate(KINDS)
    } and len(report) == 4
    assert "ZeroDivisionError: no such luck" in done.stderr and "exited with 3" in done.stderr
    first, last = text.rows("5x1-s0", "text")
    for row in (first, last):  # answers 4 and 9 are right, 2 raises, 7 (mod 5: 2) raises too
        assert (
            row["metrics"]["verifier_failures"] == 4
            and row["metrics"]["avg@2"] == 0.5
            and sorted(row["counts"]) == [0, 0, 2, 2]
        )
    assert last["M"] == 2  # two updates, each of all five problems
    assert {k: v for k, v in last["train"].items() if k.startswith("verifier_")} == {
        "verifier_failures": 8,
        **{f"verifier_{kind}": 2 for kind in KINDS},
    }
    assert last["train"]["reward"] == pytest.approx(0.2) and last["train"][
        "parsed_fraction"
    ] == pytest.approx(0.2)


CHECKS = """\
from isojax.tasks.verifiers import Verdict, verifier
@verifier(isolated=True, pure=True)
def build(argument):
    return lambda problem, prompt, response: Verdict(response.strip() == problem.answer, True)
"""
SUMS = """\
from isojax.core.nouns import Problem
from isojax.tasks.problem_sources import InMemorySource
from isojax.tasks.sources import source
@source
def sums(argument, data):
    return InMemorySource([Problem(i, f"{i} + 1 =", str(i + 1)) for i in range(60)])
"""


def test_a_source_and_a_verifier_beside_the_config_need_no_package(text: Any) -> None:
    """The verifier is imported in a process of checks."""
    (project := text.folder / "project").mkdir()
    (text.folder / "text.yaml").rename(project / "text.yaml")
    (project / "my_sums.py").write_text(SUMS)
    words = (
        "launch",
        "project/text.yaml",
        "sweep.budget=64",
        "cell.task=my_sums",
        "cell.verifier.use=my_checks",
    )
    text.refused(*words, saying=["'my_checks'", "project/my_checks.py"])
    (project / "my_checks.py").write_text(CHECKS)
    text.quick_ok(*words, "--dry-run")
