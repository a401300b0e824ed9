"""What is refused before a sweep begins: precision, problems and batch sizes that cannot work."""

from __future__ import annotations

import numpy as np

from isojax.core.config import Config, DataConfig, PrecisionConfig
from isojax.core.config.sweep import require_learning_rate
from isojax.core.errors import InputError
from isojax.distributed.mesh_spec import MeshShape
from isojax.tasks.problem_selection import preview_selection
from isojax.tasks.protocol import Task, is_on_device
from isojax.train.base_policy import encode_problems


def check_problems(config: Config, task: Task, pairs: list[tuple[int, int]]) -> None:
    """Check, before any work, that the problems fit the sampler, suffice for a batch and can be graded.

    Raises:
        InputError: they do not.
    """
    cell = config.cell
    if is_on_device(task):
        check_batch(pairs, cell.data.candidates - cell.data.validation)
        encode_problems(task, cell, task.problems(cell.data.candidates, np.random.default_rng(0)))
        return
    require_learning_rate(cell)
    split_problems = preview_selection(cell, task)
    if split_problems is None:
        problem_sets = [task.problems(cell.data.candidates, np.random.default_rng([cell.data.seed, 0]))]
        check_batch(pairs, len(problem_sets[0]) - (0 if cell.data.held_out else cell.data.validation))
    else:
        check_batch(pairs, len(split_problems.training))
        problem_sets = [split_problems.training, split_problems.validation, *split_problems.extra_sets.values()]
    for problems in problem_sets:
        task.check_problems(problems)


def check_precision(precision: PrecisionConfig, mesh_shape: MeshShape, backend: str) -> None:
    """InputError where XLA:CPU would abort: it cannot compile a bfloat16 sum over the devices that split prompts."""
    if (backend, precision.compute) == ("cpu", "bfloat16") and mesh_shape.sequence > 1:
        raise InputError(
            f"cell.precision.compute=bfloat16 on a mesh with sequence={mesh_shape.sequence}: a CPU cannot train so; "
            "expected float32 (or auto, which is float32 on a CPU), or a mesh without sequence."
        )


def check_data(data: DataConfig) -> None:
    """InputError where no training and validation set can be made of these numbers."""
    low, high = data.difficulty
    if low > high:
        raise InputError(f"cell.data.difficulty: given [{low}, {high}], expected the lower end first.")
    if data.candidates < 2 * data.validation and not (data.held_out or data.mixture):
        raise InputError(
            f"cell.data.candidates = {data.candidates} and cell.data.validation = {data.validation}; "
            "expected at least twice as many candidates as are held out."
        )


def check_batch(pairs: list[tuple[int, int]], problems: int) -> None:
    """InputError where a batch takes more problems than there are to train on.

    Before problems are labelled, `problems` is how many there can be.
    """
    B_p = max(B_p for B_p, _ in pairs)
    if B_p > problems:
        raise InputError(
            f"sweep.B_p holds {B_p}, and the training set has {problems} problems, of which a batch takes each once. "
            "Lower B_p or raise cell.data.candidates."
        )
