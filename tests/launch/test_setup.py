"""A sweep made ready: which devices and which programs each cell at a time gets, and what is
refused before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isojax.core.config import (
    CellConfig,
    Config,
    DataConfig,
    EvalConfig,
    ModelConfig,
    RLConfig,
    SamplingConfig,
    VerifierConfig,
    load_config,
    save_config,
)
from isojax.launch.local.local_runner import rollouts_within
from isojax.launch.local.setup import open_sweep, open_task
from isojax.launch.local.sweep_checks import check_problems
from isojax.launch.planner import plan_cells
from isojax.tasks.device import solvers
from tests.refusals import refused
from tests.tasks.tokenizer_folders import byte_level


@pytest.mark.parametrize(
    ("mesh", "devices"), [("data=1", [[0], [0], [0]]), ("data=2", [[0, 1], [2, 3], [4, 5]])]
)
def test_cells_of_one_cpu_device_share_its_programs(
    mesh: str, devices: list[list[int]], tmp_path: Path
) -> None:
    config = load_config(
        "quickstart", [f"run.dir={tmp_path}", f"run.mesh={mesh}", "run.cells_at_once=3"]
    )
    with open_sweep(config, plan_cells(config.sweep), resume=False) as setup:
        assert [
            [d.id for d in programs.mesh.devices.flat] for programs in setup.programs
        ] == devices
        assert len({id(programs) for programs in setup.programs}) == (1 if mesh == "data=1" else 3)


def test_held_out_problems_are_not_taken_from_the_candidates() -> None:
    """64 candidates, of which 300 validate unless these have a source of their own."""
    config = load_config("quickstart", ["cell.data.candidates=64", "cell.data.validation=300"])
    task = solvers.build()
    held_out = config.with_settings(cell={"data": {"held_out": "solvers"}})
    check_problems(held_out, task, [(64, 4)])
    with refused(where="sweep.B_p"):
        check_problems(held_out, task, [(65, 4)])
    with refused(where="sweep.B_p"):
        check_problems(config, task, [(64, 4)])


def problem_file(path: Path, *problems: tuple[str, str]) -> str:
    path.write_text(
        "".join(
            json.dumps({"prompt": prompt, "answer": answer}) + "\n" for prompt, answer in problems
        )
    )
    return f"jsonl:{path}"


@pytest.mark.parametrize("which", ["held_out", "ood"])
def test_all_sets_are_graded_before_labels_are_made(which: str, tmp_path: Path) -> None:
    """The verifier `integer` cannot use the answer of a validation problem, whose labels would come
    first."""
    task = problem_file(tmp_path / "train.jsonl", *((f"{i} + 1 =", str(i + 1)) for i in range(20)))

    def check(answer: str) -> None:
        source = problem_file(tmp_path / "other.jsonl", ("1 + 20 =", "21"), ("1 / 2 =", answer))
        data: dict[str, Any] = {"attempts": 4, "validation": 2} | (
            {"held_out": source} if which == "held_out" else {}
        )
        cell = CellConfig(
            task=task,
            model=ModelConfig(path=str(byte_level(tmp_path / "model"))),
            data=DataConfig(**data),
            sampling=SamplingConfig(prompt_length=20, response_length=9),
            eval=EvalConfig(extra={} if which == "held_out" else {which: source}),
            rl=RLConfig(learning_rate=1e-4),
            verifier=VerifierConfig(use="integer"),
        )
        config = Config(cell=cell)
        with open_task(config) as text_task:
            check_problems(config, text_task, [(8, 2)])

    check("0")
    with refused():
        check("1/2")


@pytest.mark.parametrize("attempts", [0, 4])
def test_a_batch_of_more_problems_than_the_size_is_refused(attempts: int) -> None:
    """Labels or not: a training set of cell.data.size = 32 is too small, and the message says what
    to raise."""
    words = [
        "candidates=200",
        "validation=40",
        "size=32",
        "difficulty=[0,1]",
        f"attempts={attempts}",
    ]
    config = load_config("quickstart", [f"cell.data.{word}" for word in words])
    check_problems(config, solvers.build(), [(32, 4)])
    with refused(where="sweep.B_p"):
        check_problems(config, solvers.build(), [(33, 4)])


@pytest.mark.parametrize(
    "problem",
    [
        None,
        ("07H12" * 9 + "=", "4"),
        ("07H12=", "130" * 9),
    ],
)
def test_held_out_problems_of_a_device_task_are_looked_at(
    problem: tuple[str, str] | None, tmp_path: Path
) -> None:
    """A file that is not there, or a prompt or an answer without room, is refused before the base
    policy is made."""
    source = (
        problem_file(tmp_path / "other.jsonl", problem)
        if problem
        else f"jsonl:{tmp_path}/nowhere.jsonl"
    )
    config = load_config("quickstart", [f"cell.data.held_out={source}"])
    with refused():
        check_problems(config, solvers.build(), [(8, 4)])


def test_a_time_is_no_budget_for_a_folder_that_holds_a_run(tmp_path: Path) -> None:
    """It is refused before the devices are measured."""
    config = load_config("quickstart", [f"run.dir={tmp_path}", "run.compilation_cache=false"])
    save_config(config, tmp_path / config.name / "config.yaml")
    with refused(where="quickstart"):
        rollouts_within(config, 60.0)
