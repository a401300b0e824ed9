"""From `cell.task` to a task: NAME or NAME:ARGUMENT, as in `solvers:ABCG`, `addition`, `jsonl:train.jsonl`."""

from types import ModuleType

import numpy as np

from isojax.core import registry
from isojax.core.config import CellConfig, DataConfig
from isojax.core.config.sweep import require_lengths
from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.tasks.problem_sources import open_source
from isojax.tasks.protocol import DeviceTask, Task
from isojax.tasks.text import TextTask


def build_task(cell: CellConfig, num_workers: int | None = None) -> Task:
    """The task of `cell.task`; `num_workers` processes check responses in text (None: one for each core).

    InputError: no such task, or an argument, data, a tokenizer or lengths that it cannot work with.
    """
    module, argument = _load_plugin(cell.task)
    if "build" not in vars(module):
        require_lengths(cell)
        source = open_source(cell.task, cell.data)
        return TextTask(source, cell.model, cell.prompt, cell.verifier, num_workers, cell.sampling)
    if cell.sampling.interrupt is not None:
        raise InputError(
            f"cell.sampling.interrupt is set and cell.task = {cell.task} writes no text; expected a task in text with"
            " cell.model.path, such as cell.task=jsonl:FILE. Set cell.sampling.interrupt=null."
        )
    return _build_device_task(module, argument)


def read_problem_set(task: str, data: DataConfig, count: int, rng: np.random.Generator) -> list[Problem]:
    """At most `count` problems of a task string."""
    module, argument = _load_plugin(task)
    is_device_task = "build" in vars(module)
    source = _build_device_task(module, argument) if is_device_task else open_source(task, data)
    return source.problems(count, rng)


def _load_plugin(task: str) -> tuple[ModuleType, str]:
    """The plug-in that a task string names, a task on device or a source of text, and its argument."""
    name, _, argument = task.partition(":")
    return registry.load(("tasks.device", "tasks.sources"), name, "build", "source"), argument


def _build_device_task(module: ModuleType, argument: str) -> DeviceTask:
    return module.build(argument) if argument else module.build()
