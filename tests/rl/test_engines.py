"""Engines are plug-ins; the one of docs/extending.md is a file that an evaluation samples with."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from isojax.core.config import CellConfig
from isojax.core.nouns import Problem
from isojax.core.shapes import SamplerShapes
from isojax.rl.engines import rollout_engine
from isojax.tasks.task import build_task, is_on_device, tokenize
from isojax.train.evaluate import Evaluator
from tests.device import DECODER, mesh
from tests.tasks.tokenizer_folders import byte_level

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
PROBLEMS = [Problem(7, "1 + 2 = ", "3"), Problem(9, "4 + 4 = ", "8"), Problem(4, "5 + 5 = ", "10")]


def test_isojaxs_own_engines() -> None:
    """Each that `run.rollouts` may name is made of a setup alone."""
    assert rollout_engine.names() == ["local", "server"]
    for name in rollout_engine.names():
        plugin = rollout_engine.load(name)
        assert plugin.is_own and plugin.name == name
        inspect.signature(plugin.function).bind("setup")


def test_the_engine_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers each problem rightly; half of the answers are too long for responses of two
    tokens."""
    code = re.search(r"```python\n(# my_engine.py\n.*?)```", PAGE.read_text(), re.S)
    assert code is not None
    (tmp_path / "my_engine.py").write_text(code[1])
    monkeypatch.chdir(tmp_path)
    build_engine = rollout_engine.load("my_engine")

    model = {"path": str(byte_level(tmp_path / "lm"))}
    sections = {"model": model, "prompt": {"format": "raw"}, "verifier": {"use": "integer"}}
    lengths = {"prompt_length": 16, "response_length": 2}
    cell = CellConfig.model_validate({"task": "addition", "sampling": lengths, **sections})
    shapes = SamplerShapes([(2, 3)], 1, 1, 1, **lengths, prefill_batch=1)
    task = build_task(cell, 1)
    assert not is_on_device(task)
    evaluator = Evaluator(DECODER, task, mesh("data=1"), 2, 3, shapes, cell, build_engine)
    evaluator.compile()
    counts = evaluator.evaluate({}, tokenize(task, cell.sampling, PROBLEMS), seed=0, evaluation=0)
    task.close()

    assert counts.rewards.tolist() == [[1, 1, 1], [1, 1, 1], [1, 1, 1]]
    assert counts.ended == 6  # "10" and an end token are three tokens
