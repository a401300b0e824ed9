"""Which problems a run trains, validates and is further evaluated on: read, labelled, cut to a difficulty, mixed, held out.

Nothing is left out in silence: prompts too long for the sampler, training problems that also stand in a validation set, problems of
another difficulty are counted, and `Chosen.notes` says how many.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from isojax import registry
from isojax.config import CellConfig
from isojax.tasks.base import Task, on_device
from isojax.tasks.data import drop_overlap, limit, mix, split
from isojax.tasks.sources import open_source
from isojax.types import InputError, Problem

ALL = 2**31 - 1  # every problem of a source

Label = Callable[[list[Problem]], list[Problem]]


@dataclass
class Chosen:
    """The problems of a sweep.

    Attributes:
        left_out: labelled problems of another difficulty. extra: further sets to evaluate on. notes: what was dropped and why, to be shown.
    """

    training: list[Problem]
    validation: list[Problem]
    left_out: list[Problem] = field(default_factory=list)
    extra: dict[str, list[Problem]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def choose(cell: CellConfig, task: Task, label: Label) -> Chosen:
    """The problems that `cell.data` asks for; `label` is called where they are to be labelled and are not.

    Raises:
        InputError: too few problems of the wanted difficulty, an empty part or split, a problem set that cannot be read.
    """
    data, notes = cell.data, []
    left_out: list[Problem] = []

    def fitting(problems: list[Problem], where: str) -> list[Problem]:
        kept, note = fit_prompts(cell, task, problems, where)
        notes.extend(note)
        return kept

    def read(text: str, count: int, where: str) -> list[Problem]:
        return fitting(_read(cell, text, count, np.random.default_rng([data.seed, 2])), where)

    if data.mixture:
        if not cell.task.startswith("tfds:") or "#" in cell.task:
            raise InputError(
                f"cell.data.mixture = {dict(data.mixture)} takes parts of what `isojax difficulty` has written, and cell.task is "
                f"{cell.task}; expected cell.task=tfds:FOLDER, without a split."
            )
        parts = {part: read(f"{cell.task}#{part}_train", ALL, f"{part} problems") for part in data.mixture}
        training = mix(parts, data.mixture, data.size, np.random.default_rng([data.seed, 3]))
        held_out = data.held_out or f"{cell.task}#{next(iter(data.mixture))}_validation"
    else:
        problems = fitting(task.problems(data.candidates, np.random.default_rng([data.seed, 0])), "problems")
        if data.attempts and not all(p.attempts for p in problems):
            problems = label(problems)
        low, high = data.difficulty if data.attempts else (0.0, 1.0)
        left_out = [p for p in problems if data.attempts and not low <= p.difficulty <= high]
        training, held_out = problems, data.held_out
    if held_out is not None:
        validation = read(held_out, data.validation, "validation problems")
        outside = {p.id for p in left_out}
        training, shared = drop_overlap([p for p in training if p.id not in outside], validation)
        if shared:
            notes.append(f"{shared} training problems also stand in the validation set {held_out}: they are not trained on")
    else:
        training, validation = split(training, data)
    if held_out is not None and len(validation) < data.validation:
        notes.append(f"{held_out} holds {len(validation)} problems, and cell.data.validation = {data.validation}: all of them validate")
    training = limit(training, data.size, np.random.default_rng([data.seed, 4]))
    if not training:
        raise InputError(f"no training problem is left of {cell.task} for cell.data; widen cell.data.difficulty or take another set.")
    extra = {name: read(text, data.validation, f"problems of {name}") for name, text in cell.eval.extra.items()}
    for name, problems in extra.items():
        both = len(problems) - len(drop_overlap(problems, training)[0])
        if both:
            notes.append(f"{both} of {len(problems)} problems of {name} also stand in the training set")
    return Chosen(training, validation, left_out, extra, notes)


def fit_prompts(cell: CellConfig, task: Task, problems: list[Problem], where: str) -> tuple[list[Problem], list[str]]:
    """The problems whose prompts fit the sampler, and, where some do not, a note that says how many.

    Raises:
        InputError: none fits.
    """
    if on_device(task):
        return problems, []
    P = cell.sampling.prompt_length
    kept = task.fits(problems, P)
    if not kept:
        raise InputError(f"{where}: none of {len(problems)} prompts has at most cell.sampling.prompt_length = {P} tokens; raise it.")
    dropped = len(problems) - len(kept)
    said = f"{dropped} of {len(problems)} {where} dropped: their prompts have more than cell.sampling.prompt_length = {P} tokens"
    return kept, [said] if dropped else []


def preview(cell: CellConfig, task: Task) -> Chosen | None:
    """The problems that a run would take, where that can be told before any work; None where they are to be labelled first.

    Raises:
        InputError: as `choose`.
    """
    labelling = False

    def label(problems: list[Problem]) -> list[Problem]:
        nonlocal labelling
        labelling = True
        return [replace(p, attempts=1) for p in problems]

    try:
        chosen = choose(cell, task, label)
    except InputError:
        if not labelling:
            raise
        return None
    return None if labelling else chosen


def _read(cell: CellConfig, text: str, count: int, rng: np.random.Generator) -> list[Problem]:
    """At most `count` problems of a task string, of a task on device or of a source of text."""
    name, _, argument = text.partition(":")
    if "build" in vars(module := registry.load("tasks", name, "build", "source")):
        return (module.build(argument) if argument else module.build()).problems(count, rng)
    return open_source(text, cell.data).problems(count, rng)


def best_constant(problems: list[Problem]) -> tuple[str, float]:
    """The answer that most problems have, and the reward of a policy that always gives it."""
    answer, count = Counter(short_answer(p) for p in problems).most_common(1)[0]
    return answer, count / len(problems)


def short_answer(problem: Problem) -> str:
    """The answer without the solution that leads to it, where it is written as GSM8K's are: `...#### 18`."""
    return problem.answer.rpartition("####")[2].strip()
