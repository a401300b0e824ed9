"""Which problems a run trains, validates and is further evaluated on: read, labelled, cut to a difficulty, mixed, held
out.

Nothing is left out in silence: prompts too long for the sampler, training problems that also stand in a validation set,
problems of another difficulty are counted, and `Chosen.notes` says how many.
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
        left_out: labelled problems of another difficulty. extra: further sets to evaluate on. notes: what was dropped
        and why, to be shown.
    """

    training: list[Problem]
    validation: list[Problem]
    out_of_range: list[Problem] = field(default_factory=list)
    extra_sets: dict[str, list[Problem]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def select_problems(cell: CellConfig, task: Task, label: LabelFunction) -> ProblemSelection:
    """The problems that `cell.data` asks for; `label` is called where they are to be labelled and are not.

    Raises:
        InputError: too few problems of the wanted difficulty, an empty part or split, a problem set that cannot be
        read.
    """
    data, notes = cell.data, []
    out_of_range: list[Problem] = []

    def keep_fitting(problems: list[Problem], description: str) -> list[Problem]:
        fitting_problems, length_notes = drop_long_prompts(cell, task, problems, description)
        notes.extend(length_notes)
        return fitting_problems

    def read_fitting(source: str, count: int, description: str) -> list[Problem]:
        return keep_fitting(read_problem_set(source, data, count, np.random.default_rng([data.seed, 2])), description)

    held_out = data.held_out
    if data.mixture:
        if not cell.task.startswith("tfds:") or "#" in cell.task:
            raise InputError(
                f"cell.data.mixture = {dict(data.mixture)} takes parts of what `isojax difficulty` has written, and cell.task is "
                f"{cell.task}; expected cell.task=tfds:FOLDER, without a split."
            )
        largest_part = min(data.mixture.items(), key=lambda item: (-item[1], item[0]))[0]
        held_out = held_out or f"{cell.task}#{largest_part}_validation"
    # Whatever is to be read is read before anything is labelled: a missing file is told at once.
    mixture_parts = {
        part: read_fitting(f"{cell.task}#{part}_train", ALL_PROBLEMS, f"{part} problems") for part in data.mixture or {}
    }
    separate_validation = read_fitting(held_out, data.validation, "validation problems") if held_out else None
    extra_sets = {
        name: read_fitting(text, data.validation, f"problems of {name}") for name, text in cell.eval.extra.items()
    }
    if data.mixture:
        candidates = mix_parts(mixture_parts, data.mixture, data.size, np.random.default_rng([data.seed, 3]))
        notes.append(
            f"{len(candidates)} of {sum(map(len, mixture_parts.values()))} problems make the mixture {dict(data.mixture)}"
        )
    else:
        candidates = keep_fitting(task.problems(data.candidates, np.random.default_rng([data.seed, 0])), "problems")
        if data.attempts and not all(p.attempts for p in candidates):
            candidates = label(candidates)
        if data.attempts:
            (low, high), problems = data.difficulty, candidates
            out_of_range = [p for p in problems if not low <= p.difficulty <= high]
            if out_of_range:
                notes.append(
                    f"{len(out_of_range)} of {len(problems)} problems left out: their avg@k is outside [{low}, {high}]"
                )
            candidates = (
                problems if separate_validation is None else [p for p in problems if low <= p.difficulty <= high]
            )
    training, validation = (
        split_by_difficulty(candidates, data) if separate_validation is None else (candidates, separate_validation)
    )
    training, overlapping = drop_overlap(training, validation)
    if overlapping:
        notes.append(f"{overlapping} training problems also stand in the validation set: they are not trained on")
    if len(validation) < data.validation:
        notes.append(
            f"{held_out} holds {len(validation)} problems, and cell.data.validation = {data.validation}: all of them validate"
        )
    if not training:
        raise InputError(
            f"no training problem is left of {cell.task} for cell.data; widen cell.data.difficulty or take another set."
        )
    limited_training = limit_size(training, data.size, np.random.default_rng([data.seed, 4]))
    if len(limited_training) < len(training):
        notes.append(
            f"{len(training) - len(limited_training)} of {len(training)} training problems left out: cell.data.size = {data.size}"
        )
    for name, problems in extra_sets.items():
        also_training = len(problems) - len(drop_overlap(problems, limited_training)[0])
        if also_training:
            notes.append(f"{also_training} of {len(problems)} problems of {name} also stand in the training set")
    return ProblemSelection(limited_training, validation, out_of_range, extra_sets, notes)


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
            f"{description}: none of {len(problems)} prompts has at most cell.sampling.prompt_length = {prompt_length} tokens; raise it."
        )
    dropped_count = len(problems) - len(fitting_problems)
    note = f"{dropped_count} of {len(problems)} {description} dropped: their prompts have more than cell.sampling.prompt_length = {prompt_length} tokens"
    return fitting_problems, [note] if dropped_count else []


def preview_selection(cell: CellConfig, task: Task) -> ProblemSelection | None:
    """The problems that a run would take, where that can be told before any work; None where they are to be labelled
    first.

    Raises:
        InputError: as `choose`.
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
    """The answer that most problems have, and the reward of a policy that always gives it; None where a problem's
    answer is not told.
    """
    answers = Counter(final_answer(p) for p in problems)
    answer, count = answers.most_common(1)[0]
    return None if answers[""] else (answer, count / len(problems))


def final_answer(problem: Problem) -> str:
    """The answer without the solution that leads to it: after `####`, or in its last `\\boxed{}`."""
    return reference_answer(problem.answer)
