"""Selects the problems on which a run is trained, validated and evaluated. ProblemSelection.notes
lists what was left out.

A text task must set the lengths of prompt and response and a learning rate, since the defaults are
for the toy task; `require_settings` suggests values for its model and problems (docs/problems.md).
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from isojax.core.config import CellConfig, DataConfig, ModelConfig
from isojax.core.config.load import LEARNING_RATE, PROMPT_LENGTH, RESPONSE_LENGTH
from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.tasks.answers.final_answer import reference_answer
from isojax.tasks.context_limit import model_positions
from isojax.tasks.device_tasks import build_device_task
from isojax.tasks.problem_sources import dedup_text, open_source, random_subset
from isojax.tasks.task import Task, TextTask, is_on_device
from isojax.tasks.turns import find_reply

ALL_PROBLEMS = 2**31 - 1  # every problem of a source
LENGTHS = (PROMPT_LENGTH, RESPONSE_LENGTH)
MEASURED_PROBLEMS = 1000  # whose prompts are measured to suggest lengths
PROMPT_QUANTILE = 0.99  # a suggested prompt_length holds this share of the prompts
PROMPT_MULTIPLE = 16  # tokens; the suggestion is rounded up to a multiple of it
REASONING_TOKENS = 512  # the suggested response_length, where the model's context has room
# The paper's learning rate, for a model of so many parameters and a batch of so many rollouts.
REFERENCE_RATE = 1e-6
REFERENCE_PARAMETERS = 7e9
REFERENCE_BATCH = 1024

# Measures how often the base policy solves each problem, and gives the problems with that label.
LabelFunction = Callable[[list[Problem]], list[Problem]]


class RemainingProblems(NamedTuple):
    """The problems that remain of a set, and notes of what was dropped and why."""

    problems: list[Problem]
    notes: Sequence[str] = ()


class LabelsNeeded(Exception):
    """Problems must be labelled before they can be selected. Its argument is the list of the sets
    that were read: the candidates for training first, then validation and extra sets."""


@dataclass
class ProblemSelection:
    """The problems of a run."""

    training: list[Problem]
    validation: list[Problem]
    out_of_range: list[Problem] = field(default_factory=list)  # labelled, of another difficulty
    extra_sets: dict[str, list[Problem]] = field(default_factory=dict)  # also evaluated on, by name
    notes: list[str] = field(default_factory=list)  # what was dropped and why, to be shown


def select_problems(
    cell: CellConfig, task: Task, label: LabelFunction | None = None
) -> ProblemSelection:
    """Select the problems that `cell.data` asks for: training, validation and extra sets, without
    prompts that are too long, of the wanted difficulty, and with no problem in both training and
    validation. label: measures the difficulty of problems that have no label; without it,
    LabelsNeeded is raised for these. task: that of `cell.task`. InputError where sources, settings
    or labels leave too few problems.

    Each random draw has a seed [cell.data.seed, k] with another k (0 for the candidates, 1 for the
    split, 2 for other sets, 3 for a mixture, 4 for the limit), so that no two draw the same
    numbers. A k must not be changed or used again: the problems of a run would change."""
    data = cell.data
    notes: list[str] = []

    def read(source: str, count: int, description: str) -> list[Problem]:
        """At most `count` problems of a source whose prompts fit; notes what was dropped."""
        fitting = _read_set(cell, task, source, count, description)
        notes.extend(fitting.notes)
        return fitting.problems

    # Every set is read before anything is labelled, so that a missing file is reported at once.
    # Parts of a mixture are splits of a tfds data set: tfds:FOLDER#hard_train.
    parts: dict[str, list[Problem]] = {}
    held_out = data.held_out
    if data.mixture:
        held_out = _largest_part_validation(cell, held_out)  # `held_out` itself where it is set
        for part in data.mixture:
            parts[part] = read(f"{cell.task}#{part}_train", ALL_PROBLEMS, f"{part} problems")
    validation = read(held_out, data.validation, "validation problems") if held_out else None
    extra_sets: dict[str, list[Problem]] = {}
    for name, source in cell.eval.extra.items():
        extra_sets[name] = read(source, data.validation, f"problems of {name}")

    # Training problems: a mixture, or the candidates of the wanted difficulty.
    out_of_range: list[Problem] = []
    if data.mixture:
        training = mix_parts(parts, data.mixture, data.size, np.random.default_rng([data.seed, 3]))
        total = sum(map(len, parts.values()))
        notes.append(f"{len(training)} of {total} problems make the mixture {dict(data.mixture)}")
    else:
        candidates = task.problems(data.candidates, np.random.default_rng([data.seed, 0]))
        fitting = drop_long_prompts(cell, task, candidates, "problems")
        notes += fitting.notes
        other_sets = [validation or [], *extra_sets.values()]
        # With their avg@k; LabelsNeeded carries the other sets too.
        candidates = _with_labels(fitting.problems, data, label, other_sets)
        wanted = within_difficulty(candidates, data)

        wanted_ids = {problem.id for problem in wanted}
        out_of_range = [problem for problem in candidates if problem.id not in wanted_ids]
        if out_of_range:
            notes.append(
                f"{len(out_of_range)} of {len(candidates)} problems left out: their avg@k is"
                f" outside [{data.difficulty[0]}, {data.difficulty[1]}]"
            )
        if validation is not None:
            training = wanted
        else:  # no source of validation problems is named: split the wanted ones
            training, validation = split_by_difficulty(candidates, data)
    assert validation is not None  # a mixture validates on problems of a part

    # Problems of the validation set are not trained on.
    remaining = _without_validation(cell, training, validation, held_out)
    notes += remaining.notes
    if len(validation) < data.validation:  # of a source; a split gives as many as are asked for
        notes.append(
            f"what was taken from {held_out} holds {len(validation)} problems, and"
            f" cell.data.validation = {data.validation}: all of them validate"
        )
    limited = _limit_training(cell, remaining.problems)
    notes += limited.notes
    for name, problems in extra_sets.items():
        _, num_overlapping = drop_overlap(problems, limited.problems)
        if num_overlapping:
            notes.append(
                f"{num_overlapping} of {len(problems)} problems of {name} are also in the training"
                f" set"
            )
    return ProblemSelection(limited.problems, validation, out_of_range, extra_sets, notes)


def _read_set(
    cell: CellConfig, task: Task, source: str, count: int, description: str
) -> RemainingProblems:
    """At most `count` problems of a source such as "jsonl:test.jsonl", without prompts that are too
    long. InputError for a task of turns whose replies are not those of the task that is trained.
    task: the one that is trained, which writes the prompts; source: a task string, which may also
    name a task on device; description: of the problems, for messages."""
    problem_set = build_device_task(source)
    if problem_set is None:
        problem_set = open_source(source, cell.data)
        # Of tasks in text only: the replies of a task on device are part of that task.
        reply = None if is_on_device(task) else find_reply(source)
        if reply is not None and reply != find_reply(cell.task):
            raise InputError(
                found=(
                    f"{source} replies to responses, by {reply}, and cell.task = {cell.task} does"
                    f" not"
                ),
                expected=f"{description} that need no other replies than those of the task",
            )
    problems = problem_set.problems(count, np.random.default_rng([cell.data.seed, 2]))
    return drop_long_prompts(cell, task, problems, description)


def _with_labels(
    candidates: list[Problem],
    data: DataConfig,
    label: LabelFunction | None,
    other_sets: Sequence[list[Problem]],
) -> list[Problem]:
    """The candidates with their avg@k, where `cell.data.attempts` asks for it. other_sets are not
    labelled; LabelsNeeded, which is raised where there is no `label`, carries them too."""
    if not data.attempts or all(problem.attempts for problem in candidates):
        return candidates
    if label is None:
        raise LabelsNeeded([candidates, *other_sets])
    return label(candidates)


def _without_validation(
    cell: CellConfig,
    training: list[Problem],
    validation: list[Problem],
    held_out: str | None,
) -> RemainingProblems:
    """The training problems without those that are in the validation set, and a note of how many
    these were. held_out: the source of the validation set, such as "jsonl:test.jsonl" (None: split
    from the training problems), for messages. InputError where no problem is left."""
    remaining, num_overlapping = drop_overlap(training, validation)
    if not num_overlapping:
        return RemainingProblems(remaining)

    if not remaining:
        source = f", of {held_out}" if held_out else ""
        raise InputError(
            found=(
                f"all {num_overlapping} training problems of {cell.task} are among the "
                f"{len(validation)} that validate{source}: cell.data.validation = "
                f"{cell.data.validation} takes them all"
            ),
            fix="Lower it, or name other problems by cell.data.held_out.",
        )
    note = (
        f"{num_overlapping} training problems are also in the validation set: they are not trained"
        f" on"
    )
    return RemainingProblems(remaining, (note,))


def _largest_part_validation(cell: CellConfig, held_out: str | None) -> str:
    """The task string `held_out`, else that of the held-out problems of a mixture's largest part,
    the first by name of equal ones: "tfds:FOLDER#hard_validation". InputError where the task is no
    tfds data set, or names splits."""
    mixture = cell.data.mixture or {}
    if not cell.task.startswith("tfds:") or "#" in cell.task:
        raise InputError(
            where="cell.data.mixture",
            found=f"given with cell.task = {cell.task}",
            expected="cell.task=tfds:FOLDER, without a split",
        )
    if held_out:
        return held_out
    largest_part = min(mixture, key=lambda part: (-mixture[part], part))
    return f"{cell.task}#{largest_part}_validation"


def _limit_training(cell: CellConfig, training: list[Problem]) -> RemainingProblems:
    """At most cell.data.size (None: all) of the training problems, a random choice, and a note of
    how many were left out; InputError where there are no training problems at all."""
    if not training:
        raise InputError(
            where=f"cell.task = {cell.task}",
            found="no training problem is left",
            fix="Widen cell.data.difficulty, or take another set.",
        )

    size = cell.data.size
    if size is None or size >= len(training):
        return RemainingProblems(training)

    note = (
        f"{len(training) - size} of {len(training)} training problems left out:"
        f" cell.data.size = {size}"
    )
    # The second number of the seed is that of this use, so that no two uses draw the same numbers.
    subset = random_subset(training, size, np.random.default_rng([cell.data.seed, 4]))
    return RemainingProblems(subset, (note,))


def drop_long_prompts(
    cell: CellConfig, task: Task, problems: list[Problem], description: str
) -> RemainingProblems:
    """The problems whose prompts have at most cell.sampling.prompt_length tokens, and a note of how
    many were dropped; InputError where none fits. description: what the problems are called in
    messages, such as "validation problems". A task on device keeps all; its `encode` refuses what
    does not fit."""
    if is_on_device(task):
        return RemainingProblems(problems)

    prompt_length = cell.sampling.prompt_length
    limit = f"cell.sampling.prompt_length = {prompt_length} tokens"
    lengths = task.prompt_lengths(problems)
    fitting = [
        problem
        for problem, length in zip(problems, lengths, strict=True)
        if length <= prompt_length
    ]
    if not fitting:
        needed = int(np.quantile(lengths, PROMPT_QUANTILE, method="higher"))
        raise InputError(
            where=description,
            found=(
                f"none of {len(problems)} prompts has at most {limit}: the shortest has "
                f"{min(lengths)}, 99% have at most {needed}, the longest has {max(lengths)}"
            ),
            fix="Raise it.",
        )

    num_dropped = len(problems) - len(fitting)
    if not num_dropped:
        return RemainingProblems(fitting)
    note = (
        f"{num_dropped} of {len(problems)} {description} dropped: their prompts have more than"
        f" {limit}"
    )
    return RemainingProblems(fitting, (note,))


def best_constant(problems: list[Problem]) -> tuple[str, float] | None:
    """The answer that most problems have, and the reward of always giving it, such as ("4", 0.12);
    None where an answer is not known. problems: one or more."""
    answers = Counter(reference_answer(p.answer) for p in problems)
    answer, count = answers.most_common(1)[0]
    return None if answers[""] else (answer, count / len(problems))


def within_difficulty(problems: Sequence[Problem], data: DataConfig) -> list[Problem]:
    """The labelled problems whose avg@k is inside `cell.data.difficulty`; all of them where
    `attempts` is 0."""
    low, high = data.difficulty
    return [p for p in problems if not data.attempts or low <= p.difficulty <= high]


def split_by_difficulty(
    problems: Sequence[Problem], data: DataConfig
) -> tuple[list[Problem], list[Problem]]:
    """Split the problems whose avg@k (the mean reward of the base policy's k rollouts) is inside
    cell.data.difficulty at random into (training, validation), with cell.data.validation problems
    in the latter. InputError where there are fewer than twice as many. Without labels
    (data.attempts = 0) all problems count."""
    eligible = within_difficulty(problems, data)
    min_problems = 2 * data.validation
    if len(eligible) < min_problems:
        shortage = f"there are {len(problems)} problems"
        fix = "lower it, or set cell.data.held_out"
        if len(problems) == 1:  # which no validation leaves for training
            shortage = "there is 1 problem"
            fix = "set cell.data.held_out, or give a file of more prompts"
        if data.attempts:
            attempts = problems[0].attempts if problems else data.attempts
            difficulty = list(data.difficulty)
            shortage = (
                f"{len(eligible)} of {len(problems)} problems have avg@{attempts} in {difficulty}"
            )
            fix = "widen cell.data.difficulty"
        raise InputError(
            where=f"cell.data.validation = {data.validation}",
            found=shortage,
            expected=f"at least {min_problems}",
            fix=f"{fix[0].upper()}{fix[1:]}, or raise cell.data.candidates.",
        )

    order = np.random.default_rng([data.seed, 1]).permutation(len(eligible))
    training = [eligible[i] for i in order[data.validation :]]
    validation = [eligible[i] for i in order[: data.validation]]
    return training, validation


def drop_overlap(
    training: Sequence[Problem], validation: Sequence[Problem]
) -> tuple[list[Problem], int]:
    """(the training problems that are not in `validation` too, whatever their white space and case;
    how many are)."""
    validation_prompts = {_normalized_prompt(p) for p in validation}
    remaining = [p for p in training if _normalized_prompt(p) not in validation_prompts]
    return remaining, len(training) - len(remaining)


def _normalized_prompt(problem: Problem) -> str:
    return " ".join(dedup_text(problem).casefold().split())


def mix_parts(
    problems_by_part: Mapping[str, Sequence[Problem]],
    shares: Mapping[str, float],
    size: int | None,
    rng: np.random.Generator,
) -> list[Problem]:
    """A random mixture of parts, shuffled: the largest set of at most `size` problems (None: no
    limit) in which the parts have these shares. shares: by part, such as {"hard": 0.8, "easy":
    0.2}, whose sum need not be 1; problems_by_part has each of their names. InputError where a
    problem is in two parts, or a part would give none."""
    sizes = {part: len(problems) for part, problems in problems_by_part.items()}
    counts = mixture_counts(sizes, shares, size)

    part_of_problem: dict[int, str] = {}
    for part in counts:
        for problem in problems_by_part[part]:
            other_part = part_of_problem.setdefault(problem.id, part)
            if other_part != part:
                raise InputError(
                    where="cell.data.mixture",
                    found=f"problem {problem.id} is in {other_part} and in {part}",
                )

    mixture: list[Problem] = []
    for part, count in counts.items():
        mixture += random_subset(problems_by_part[part], count, rng)
    return random_subset(mixture, len(mixture), rng)


def mixture_counts(
    sizes: Mapping[str, int], shares: Mapping[str, float], size: int | None
) -> dict[str, int]:
    """How many problems each part gives to the largest mixture with these shares, of at most `size`
    problems in all (None: no limit). sizes: how many problems each part has; with {"hard": 80,
    "easy": 50} and the shares {"hard": 0.8, "easy": 0.2} it is {"hard": 80, "easy": 20}. InputError
    where a part would give none."""
    # The shares as exact fractions of the decimals with which they are printed, with a sum of 1.
    decimals = {part: Fraction(str(share)) for part, share in shares.items()}
    exact_shares = {part: share / sum(decimals.values()) for part, share in decimals.items()}

    # Start from an upper bound of the total: by rounding, a part gives at most one problem more
    # than its exact share. Then reduce it until no part has to give more problems than it has.
    total = min(int((sizes[part] + 1) / share) for part, share in exact_shares.items())
    total = min(total, sum(sizes[part] for part in shares))
    if size is not None:
        total = min(total, size)
    counts = _largest_remainder_counts(total, exact_shares)
    while any(count > sizes[part] for part, count in counts.items()):
        total -= 1
        counts = _largest_remainder_counts(total, exact_shares)
    if not all(counts.values()):
        raise InputError(
            where="cell.data.mixture",
            found=f"a mixture of {total} problems gives {counts}",
            fix="Raise cell.data.size.",
        )
    return counts


def _largest_remainder_counts(total: int, shares: Mapping[str, Fraction]) -> dict[str, int]:
    """Integers that add up to `total`, nearest to the shares by largest remainder; the first part
    wins a tie."""
    counts = {part: int(total * share) for part, share in shares.items()}
    by_remainder = sorted(shares, key=lambda part: counts[part] - total * shares[part])
    for part in by_remainder[: total - sum(counts.values())]:
        counts[part] += 1
    return counts


def require_settings(
    cell: CellConfig,
    task: TextTask,
    count_parameters: Callable[[ModelConfig, int], int],
    *required: str,
) -> None:
    """InputError where a setting in `required`, such as "cell.sampling.prompt_length", is not set
    in the config; the message suggests values for those of prompt_length, response_length and
    learning_rate that are not set.

    count_parameters: gives a model's number of parameters, by its config and the size of its
    vocabulary. The suggested learning rate is the paper's, scaled by 1 / sqrt(parameters) and
    sqrt(rollouts in a batch).
    """
    set_keys = {f"cell.sampling.{key}" for key in cell.sampling.model_fields_set}
    set_keys |= {f"cell.rl.{key}" for key in cell.rl.model_fields_set}
    if set_keys.issuperset(required):
        return

    # A prompt_length that holds nearly all prompts, and at most half of the model's context.
    problems = task.problems(min(MEASURED_PROBLEMS, cell.data.candidates), np.random.default_rng(0))
    lengths = task.prompt_lengths(problems)
    held_length = int(np.quantile(lengths, PROMPT_QUANTILE, method="higher"))
    context = model_positions(task.folder) or 2**31  # tokens; no limit where it is not known
    rounded_length = math.ceil(held_length / PROMPT_MULTIPLE) * PROMPT_MULTIPLE
    prompt_length = min(rounded_length, context // 2)

    num_parameters = count_parameters(cell.model, task.vocab)
    rate = REFERENCE_RATE * math.sqrt(REFERENCE_PARAMETERS / num_parameters)
    # lr_reference_batch: the rollouts of a batch for which learning_rate is set.
    rate *= math.sqrt(cell.rl.lr_reference_batch / REFERENCE_BATCH)

    suggestions = {
        PROMPT_LENGTH: prompt_length,
        RESPONSE_LENGTH: min(REASONING_TOKENS, context - prompt_length),
        LEARNING_RATE: f"{rate:.0e}",
    }
    unset = [f"{key}={value}" for key, value in suggestions.items() if key not in set_keys]
    missing = " and ".join(key for key in required if key not in set_keys)
    raise InputError(
        found=f"{missing} must be set for cell.task = {cell.task}, which is in text",
        fix=(
            f"For this model and these problems, begin with: {' '.join(unset)} (of "
            f"{len(lengths)} prompts 99% have at most {held_length} tokens, the longest "
            f"{max(lengths)}; those longer than prompt_length are dropped; short answers need "
            "a smaller response_length; `isojax lr-search` finds the learning rate)."
        ),
    )
