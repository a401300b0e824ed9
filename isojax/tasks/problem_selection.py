"""Which problems a run trains, validates and is further evaluated on: read, labelled, cut to a difficulty, mixed, held
out.

Every problem left out is counted: prompts too long for the sampler, training problems that are also in a validation
set, problems of another difficulty. `ProblemSelection.notes` says how many.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from isojax.core.config import CellConfig
from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.tasks.build import read_problem_set
from isojax.tasks.epochs import drop_overlap, limit_size, mix_parts, split_by_difficulty
from isojax.tasks.grading.math_answers import reference_answer
from isojax.tasks.protocol import Task, is_on_device

ALL_PROBLEMS = 2**31 - 1  # every problem of a source

LabelFunction = Callable[[list[Problem]], list[Problem]]


@dataclass
class ProblemSelection:
    """The problems of a sweep.

    Attributes:
        training: the problems to train on.
        validation: the held-out problems.
        out_of_range: labelled problems of another difficulty.
        extra_sets: further sets to evaluate on, by name.
        notes: what was dropped and why, to be shown.
    """

    training: list[Problem]
    validation: list[Problem]
    out_of_range: list[Problem] = field(default_factory=list)
    extra_sets: dict[str, list[Problem]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def select_problems(cell: CellConfig, task: Task, label: LabelFunction) -> ProblemSelection:
    """The problems that `cell.data` asks for; `label` is called where they must be labelled and are not.

    Raises:
        InputError: too few problems of the wanted difficulty, an empty part or split, a problem set that cannot be
        read.
    """
    data, reader = cell.data, _ProblemReader(cell, task)
    largest_part_validation = _largest_part_validation(cell) if data.mixture else None
    held_out = data.held_out or largest_part_validation
    # Every set is read before anything is labelled, so that a missing file is reported at once.
    mixture_parts = {
        part: reader.read(f"{cell.task}#{part}_train", ALL_PROBLEMS, f"{part} problems") for part in data.mixture or {}
    }
    separate_validation = reader.read(held_out, data.validation, "validation problems") if held_out else None
    extra_sets = {
        name: reader.read(source, data.validation, f"problems of {name}") for name, source in cell.eval.extra.items()
    }
    notes, out_of_range = reader.notes, []
    if data.mixture:
        candidates = mix_parts(mixture_parts, data.mixture, data.size, np.random.default_rng([data.seed, 3]))
        total = sum(map(len, mixture_parts.values()))
        notes.append(f"{len(candidates)} of {total} problems make the mixture {dict(data.mixture)}")
    else:
        candidates = reader.drop_long(task.problems(data.candidates, np.random.default_rng([data.seed, 0])), "problems")
        candidates, out_of_range = _label_candidates(cell, candidates, label, notes, separate_validation is not None)
    training, validation = (
        split_by_difficulty(candidates, data) if separate_validation is None else (candidates, separate_validation)
    )
    training, overlapping = drop_overlap(training, validation)
    if overlapping:
        notes.append(f"{overlapping} training problems are also in the validation set: they are not trained on")
    if len(validation) < data.validation:
        notes.append(
            f"{held_out} holds {len(validation)} problems, and cell.data.validation = {data.validation}: all of them"
            " validate"
        )
    training = _limit_training(cell, training, notes)
    notes += _extra_overlap_notes(extra_sets, training)
    return ProblemSelection(training, validation, out_of_range, extra_sets, notes)


class _ProblemReader:
    """Reads problem sets without prompts that are too long, and notes how many these are."""

    def __init__(self, cell: CellConfig, task: Task):
        self.cell, self.task = cell, task
        self.notes: list[str] = []

    def read(self, source: str, count: int, description: str) -> list[Problem]:
        """At most `count` problems of a task string whose prompts fit the sampler."""
        data = self.cell.data
        return self.drop_long(read_problem_set(source, data, count, np.random.default_rng([data.seed, 2])), description)

    def drop_long(self, problems: list[Problem], description: str) -> list[Problem]:
        """The problems whose prompts fit the sampler."""
        fitting_problems, notes = drop_long_prompts(self.cell, self.task, problems, description)
        self.notes += notes
        return fitting_problems


def _largest_part_validation(cell: CellConfig) -> str:
    """The task string of the held-out problems of a mixture: those of its largest part, the first by name of equal
    ones.
    """
    mixture = cell.data.mixture or {}
    if not cell.task.startswith("tfds:") or "#" in cell.task:
        raise InputError(
            f"cell.data.mixture = {dict(mixture)} takes parts of what `isojax difficulty` has written, and cell.task is"
            f" {cell.task}; expected cell.task=tfds:FOLDER, without a split."
        )
    largest_part = min(mixture.items(), key=lambda item: (-item[1], item[0]))[0]
    return f"{cell.task}#{largest_part}_validation"


def _label_candidates(
    cell: CellConfig, problems: list[Problem], label: LabelFunction, notes: list[str], drop_out_of_range: bool
) -> tuple[list[Problem], list[Problem]]:
    """(the labelled problems, those of another difficulty), where `cell.data` asks for labels. The latter stay among
    the former unless `drop_out_of_range`: `split_by_difficulty` leaves them out.
    """
    data = cell.data
    if not data.attempts:
        return problems, []
    if not all(p.attempts for p in problems):
        problems = label(problems)
    low, high = data.difficulty
    out_of_range = [p for p in problems if not low <= p.difficulty <= high]
    if out_of_range:
        notes.append(
            f"{len(out_of_range)} of {len(problems)} problems left out: their avg@k is outside [{low}, {high}]"
        )
    if drop_out_of_range:
        problems = [p for p in problems if low <= p.difficulty <= high]
    return problems, out_of_range


def _limit_training(cell: CellConfig, training: list[Problem], notes: list[str]) -> list[Problem]:
    """At most `cell.data.size` training problems; InputError where there is none at all."""
    data = cell.data
    if not training:
        raise InputError(
            f"no training problem is left of {cell.task} for cell.data; widen cell.data.difficulty or take another set."
        )
    limited_training = limit_size(training, data.size, np.random.default_rng([data.seed, 4]))
    if len(limited_training) < len(training):
        notes.append(
            f"{len(training) - len(limited_training)} of {len(training)} training problems left out: cell.data.size ="
            f" {data.size}"
        )
    return limited_training


def _extra_overlap_notes(extra_sets: dict[str, list[Problem]], training: list[Problem]) -> list[str]:
    """How many problems of each extra set are also trained on."""
    notes = []
    for name, problems in extra_sets.items():
        overlapping = len(problems) - len(drop_overlap(problems, training)[0])
        if overlapping:
            notes.append(f"{overlapping} of {len(problems)} problems of {name} are also in the training set")
    return notes


def drop_long_prompts(
    cell: CellConfig, task: Task, problems: list[Problem], description: str
) -> tuple[list[Problem], list[str]]:
    """The problems whose prompts fit the sampler, and, where some do not, a note that says how many.

    Raises:
        InputError: none fits.
    """
    if is_on_device(task):
        return problems, []
    prompt_length = cell.sampling.prompt_length
    if not problems:
        raise InputError(f"there are no {description}; expected at least one. Take another set.")
    fitting_problems = task.filter_by_length(problems, prompt_length)
    if not fitting_problems:
        raise InputError(
            f"{description}: none of {len(problems)} prompts has at most cell.sampling.prompt_length = {prompt_length}"
            " tokens; raise it."
        )
    dropped_count = len(problems) - len(fitting_problems)
    note = (
        f"{dropped_count} of {len(problems)} {description} dropped: their prompts have more than"
        f" cell.sampling.prompt_length = {prompt_length} tokens"
    )
    return fitting_problems, [note] if dropped_count else []


def preview_selection(cell: CellConfig, task: Task) -> ProblemSelection | None:
    """The problems that a run would take, where that is known before any work; None where they must be labelled first.

    Raises:
        InputError: as `select_problems`.
    """
    labelling = False

    def label(problems: list[Problem]) -> list[Problem]:
        nonlocal labelling
        labelling = True
        return [replace(p, attempts=1) for p in problems]

    try:
        selection = select_problems(cell, task, label)
    except InputError:
        if not labelling:
            raise
        return None
    return None if labelling else selection


def best_constant(problems: list[Problem]) -> tuple[str, float] | None:
    """The answer that most problems have, and the reward of a policy that always gives it; None where the answer of a
    problem is not known.
    """
    answers = Counter(final_answer(p) for p in problems)
    answer, count = answers.most_common(1)[0]
    return None if answers[""] else (answer, count / len(problems))


def final_answer(problem: Problem) -> str:
    """The answer without the solution that leads to it: after `####`, or in its last `\\boxed{}`."""
    return reference_answer(problem.answer)
