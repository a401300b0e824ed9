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
from isojax.tasks.verifiers.answers import gold
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

    held_out = data.held_out
    if data.mixture:
        if not cell.task.startswith("tfds:") or "#" in cell.task:
            raise InputError(
                f"cell.data.mixture = {dict(data.mixture)} takes parts of what `isojax difficulty` has written, and cell.task is "
                f"{cell.task}; expected cell.task=tfds:FOLDER, without a split."
            )
        largest = min(data.mixture.items(), key=lambda item: (-item[1], item[0]))[0]
        held_out = held_out or f"{cell.task}#{largest}_validation"
    # Whatever is to be read is read before anything is labelled: a missing file is told at once.
    parts = {part: read(f"{cell.task}#{part}_train", ALL, f"{part} problems") for part in data.mixture or {}}
    apart = read(held_out, data.validation, "validation problems") if held_out else None
    extra = {name: read(text, data.validation, f"problems of {name}") for name, text in cell.eval.extra.items()}
    if data.mixture:
        inside = mix(parts, data.mixture, data.size, np.random.default_rng([data.seed, 3]))
        notes.append(f"{len(inside)} of {sum(map(len, parts.values()))} problems make the mixture {dict(data.mixture)}")
    else:
        inside = fitting(task.problems(data.candidates, np.random.default_rng([data.seed, 0])), "problems")
        if data.attempts and not all(p.attempts for p in inside):
            inside = label(inside)
        if data.attempts:
            (low, high), problems = data.difficulty, inside
            left_out = [p for p in problems if not low <= p.difficulty <= high]
            if left_out:
                notes.append(f"{len(left_out)} of {len(problems)} problems left out: their avg@k is outside [{low}, {high}]")
            inside = problems if apart is None else [p for p in problems if low <= p.difficulty <= high]
    training, validation = split(inside, data) if apart is None else (inside, apart)
    training, shared = drop_overlap(training, validation)
    if shared:
        notes.append(f"{shared} training problems also stand in the validation set: they are not trained on")
    if len(validation) < data.validation:
        notes.append(f"{held_out} holds {len(validation)} problems, and cell.data.validation = {data.validation}: all of them validate")
    if not training:
        raise InputError(f"no training problem is left of {cell.task} for cell.data; widen cell.data.difficulty or take another set.")
    kept = limit(training, data.size, np.random.default_rng([data.seed, 4]))
    if len(kept) < len(training):
        notes.append(f"{len(training) - len(kept)} of {len(training)} training problems left out: cell.data.size = {data.size}")
    for name, problems in extra.items():
        both = len(problems) - len(drop_overlap(problems, kept)[0])
        if both:
            notes.append(f"{both} of {len(problems)} problems of {name} also stand in the training set")
    return Chosen(kept, validation, left_out, extra, notes)


def fit_prompts(cell: CellConfig, task: Task, problems: list[Problem], where: str) -> tuple[list[Problem], list[str]]:
    """The problems whose prompts fit the sampler, and, where some do not, a note that says how many.

    Raises:
        InputError: none fits.
    """
    if on_device(task):
        return problems, []
    P = cell.sampling.prompt_length
    if not problems:
        raise InputError(f"there are no {where}; expected at least one. Take another set.")
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


def best_constant(problems: list[Problem]) -> tuple[str, float] | None:
    """The answer that most problems have, and the reward of a policy that always gives it; None where a problem's answer is not told."""
    answers = Counter(short_answer(p) for p in problems)
    answer, count = answers.most_common(1)[0]
    return None if answers[""] else (answer, count / len(problems))


def short_answer(problem: Problem) -> str:
    """The answer without the solution that leads to it: after `####`, or in its last `\\boxed{}`."""
    return gold(problem.answer)
