"""A task's file brings its prompt, stop strings and verifier; what a config or an override sets
counts more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from isojax.core.config import (
    CellConfig,
    ModelConfig,
    PromptConfig,
    SamplingConfig,
    VerifierConfig,
    load_config,
)
from isojax.tasks.problem_sources import open_source
from isojax.tasks.task import TextTask
from isojax.tasks.task_defaults import with_task_defaults
from tests.refusals import refused
from tests.tasks.tokenizer_folders import byte_level

FILE = """
from isojax.core.config import PromptConfig
from isojax.core.nouns import Problem
from isojax.tasks.problem_sources import InMemorySource
from isojax.tasks.sources import source

PROMPT = PromptConfig(template="Q: {prompt} A:", stop=("\\n",))


@source(prompt=PROMPT, verifier=f"function:{__name__}:same")
def pairs(argument, data):
    return InMemorySource([Problem(0, "ab", "ba")])


def same(completions, answer, **columns):
    return [float(completions[0].strip() == answer[0])]
"""


@pytest.fixture
def task_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = f"task_of_defaults_{abs(hash(tmp_path))}"  # modules are imported once
    (tmp_path / f"{name}.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    yield name


def test_the_file_decides_what_nothing_else_sets(
    task_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = with_task_defaults(CellConfig(task=f"{task_name}:7"))
    assert cell.prompt == PromptConfig(template="Q: {prompt} A:", stop=("\n",))
    assert cell.verifier == VerifierConfig(use=f"function:{task_name}:same")
    message = capsys.readouterr().err
    assert all(
        key in message for key in ("cell.prompt.template", "cell.prompt.stop", "cell.verifier.use")
    )
    assert with_task_defaults(cell) == cell  # of a saved config nothing changes


def test_a_setting_of_the_config_counts_more(task_name: str) -> None:
    # both a default
    prompt = PromptConfig(template="{prompt}")
    verifier = VerifierConfig(use="math", timeout=1.0)
    cell = with_task_defaults(CellConfig(task=task_name, prompt=prompt, verifier=verifier))
    assert (cell.prompt.template, cell.prompt.stop) == ("{prompt}", ("\n",))
    assert (cell.verifier.use, cell.verifier.timeout) == ("math", 1.0)
    slow = CellConfig(task=task_name, verifier=VerifierConfig(timeout=9.0))
    assert with_task_defaults(slow).verifier == VerifierConfig(
        use=f"function:{task_name}:same", timeout=9.0
    )


def test_overrides_count_more_too(task_name: str) -> None:
    config = load_config("quickstart", [f"cell.task={task_name}", "cell.prompt.stop=[]"])
    cell = with_task_defaults(config.cell)
    assert (cell.prompt.template, cell.prompt.stop) == ("Q: {prompt} A:", ())


def test_the_verifier_of_the_file_judges(task_name: str, tmp_path: Path) -> None:
    cell = CellConfig(
        task=task_name,
        model=ModelConfig(path=str(byte_level(tmp_path / "model"))),
        sampling=SamplingConfig(prompt_length=20, response_length=9),
    )
    cell = with_task_defaults(cell)
    task = TextTask(open_source(cell.task, cell.data), cell, num_workers=1)
    try:
        problems = task.problems(1, np.random.default_rng(0))
        grades = task.start_verifier().grade(problems * 2, [""] * 2, [" ba", "ab"])
        assert grades.rewards.tolist() == [1, 0] and task.prompt_texts(problems) == ["Q: ab A:"]
    finally:
        task.close()


@pytest.mark.parametrize("task", ["solvers", "addition", "calculator"])
def test_tasks_that_bring_nothing(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert with_task_defaults(CellConfig(task=task)) == CellConfig(task=task)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("right", "wrong", "setting", "expected"),
    [
        ("prompt=PROMPT", "prompt='Q: {prompt}'", "prompt", "PromptConfig or None"),
        ('verifier=f"function:{__name__}:same"', "verifier=len", "verifier", "str or None"),
        ("prompt=PROMPT", "reply='yes'", "reply", "or None"),
    ],
)
def test_what_is_no_setting_is_refused(
    task_name: str, tmp_path: Path, right: str, wrong: str, setting: str, expected: str
) -> None:
    path = tmp_path / f"{task_name}.py"
    path.write_text(path.read_text().replace(right, wrong))
    # A module is imported once, so its name differs from one test to another.
    with refused(
        where=f"sources plug-in '{task_name}': {task_name}.py:10: @source",
        found=f"{setting} = ",
        expected=expected,
        recorded=False,
    ):
        with_task_defaults(CellConfig(task=task_name))
