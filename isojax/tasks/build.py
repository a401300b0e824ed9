"""From `cell.task` to a task: NAME or NAME:ARGUMENT, as in `solvers:ABCG`, `addition`, `jsonl:train.jsonl`."""

import numpy as np
from typing_extensions import TypeIs

from isojax.core import registry
from isojax.core.config import CellConfig, DataConfig
from isojax.core.config.sweep import require_lengths
from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.tasks.problem_sources import open_source
from isojax.tasks.protocol import DeviceTask
from isojax.tasks.text import TextTask

Task = DeviceTask | TextTask


def is_on_device(task: Task) -> TypeIs[DeviceTask]:
    """Whether a task is verified inside the compiled program."""
    return task.on_device


def build_task(cell: CellConfig, num_workers: int | None = None) -> Task:
    """The task of `cell.task`; `num_workers` processes check responses in text (None: one for each core)."""
    device_task = _build_device_task(cell.task)
    if device_task is None:
        require_lengths(cell)
        source = open_source(cell.task, cell.data)
        return TextTask(source, cell.model, cell.prompt, cell.verifier, num_workers, cell.sampling)
    if cell.sampling.interrupt is not None:
        raise InputError(
            f"cell.sampling.interrupt is set and cell.task = {cell.task} writes no text; expected a task in text with"
            " cell.model.path, such as cell.task=jsonl:FILE. Set cell.sampling.interrupt=null."
        )
    return device_task


def read_problem_set(task: str, data: DataConfig, count: int, rng: np.random.Generator) -> list[Problem]:
    """At most `count` problems of a task string."""
    source = _build_device_task(task) or open_source(task, data)
    return source.problems(count, rng)


def _build_device_task(task: str) -> DeviceTask | None:
    """The task on device that a task string names; None where it names a source of text."""
    name, _, argument = task.partition(":")
    module = registry.load(("tasks.device", "tasks.sources"), name, "build", "source")
    if "build" not in vars(module):
        return None
    return module.build(argument) if argument else module.build()
