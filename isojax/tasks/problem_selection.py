"""Which problems a run trains, validates and is evaluated on; `ProblemSelection.notes` says what
was left out.

A text task must state the lengths that hold its problems, and a learning rate, as their defaults
are the toy task's; `require_settings` suggests such as suit its model and problems
(docs/problems.md)."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from isojax.core.config import CellConfig, DataConfig, ModelConfig
from isojax.core.config.load import LEARNING_RATE, PROMPT_LENGTH, RESPONSE_LENGTH
from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.tasks.answers.final_answer import reference_answer
from isojax.tasks.context_limit import model_positions
from isojax.tasks.problem_sources import dedup_text, open_source, random_subset
from isojax.tasks.task import Task, TextTask, build_device_task, is_on_device
from isojax.tasks.turns import find_reply

ALL_PROBLEMS = 2**31 - 1  # every problem of a source
LENGTHS = (PROMPT_LENGTH, RESPONSE_LENGTH)
MEASURED_PROBLEMS = 1000
PROMPT_QUANTILE, PROMPT_MULTIPLE = 0.99, 16
REASONING_TOKENS = 512  # of a response, where the context has room
REFERENCE_RATE, REFERENCE_PARAMETERS, REFERENCE_BATCH = 1e-6, 7e9, 1024  # the paper's

LabelFunction = Callable[[list[Problem]], list[Problem]]


class LabelsNeeded(Exception):
    """Problems must be labelled before they can be selected; its argument: the candidates, and the
    other sets."""


@dataclass
class ProblemSelection:
    training: list[Problem]
    validation: list[Problem]
    # labelled problems of another difficulty
    out_of_range: list[Problem] = field(default_factory=list)
    # further sets to evaluate on, by name
    extra_sets: dict[str, list[Problem]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # what was dropped and why, to be shown


def select_problems(
    cell: CellConfig, task: Task, label: LabelFunction | None = None
) -> ProblemSelection:
    """The problems that `cell.data` asks for; where they need labels, `label` makes them, or
    LabelsNeeded is raised."""
    data, notes = cell.data, []

    def read(source: str, count: int, description: str) -> list[Problem]:
        problem_set = (on_device := build_device_task(source)) or open_source(source, data)
        reply = None if on_device or is_on_device(task) else find_reply(source)
        if reply not in (None, find_reply(cell.task) if reply else None):
            replier = (
                f"{source} replies to responses, by {reply}, and cell.task = {cell.task} does not"
            )
            raise InputError(
                f"{replier}; expected {description} that need no other replies than those of the task."
            )
        problems = problem_set.problems(count, np.random.default_rng([data.seed, 2]))
        return drop_long_prompts(cell, task, problems, description, notes)

    # Every set is read before anything is labelled, so that a missing file is reported at once.
    part_validation = _largest_part_validation(cell) if data.mixture else None
    parts = {
        part: read(f"{cell.task}#{part}_train", ALL_PROBLEMS, f"{part} problems")
        for part in data.mixture or {}
    }
    held_out = data.held_out or part_validation
    validation = read(held_out, data.validation, "validation problems") if held_out else None
    extra_sources = cell.eval.extra.items()
    extra_sets = {
        name: read(source, data.validation, f"problems of {name}") for name, source in extra_sources
    }
    out_of_range: list[Problem] = []
    if data.mixture:
        training = mix_parts(parts, data.mixture, data.size, np.random.default_rng([data.seed, 3]))
        total = sum(map(len, parts.values()))
        notes.append(f"{len(training)} of {total} problems make the mixture {dict(data.mixture)}")
    else:
        candidates = task.problems(data.candidates, np.random.default_rng([data.seed, 0]))
        candidates = drop_long_prompts(cell, task, candidates, "problems", notes)
        if data.attempts and not all(p.attempts for p in candidates):
            if label is None:
                raise LabelsNeeded([candidates, validation or [], *extra_sets.values()])
            candidates = label(candidates)
        training = within_difficulty(candidates, data)
        training_ids = {p.id for p in training}
        out_of_range = [p for p in candidates if p.id not in training_ids]
        if out_of_range:
            left_out = f"{len(out_of_range)} of {len(candidates)} problems left out"
            notes.append(
                f"{left_out}: their avg@k is outside [{data.difficulty[0]}, {data.difficulty[1]}]"
            )
        if validation is None:
            # the training problems above, split
            training, validation = split_by_difficulty(candidates, data)
    assert validation is not None  # a mixture validates on problems of a part
    training, overlapping = drop_overlap(training, validation)
    if overlapping and not training:
        raise InputError(
            f"all {overlapping} training problems of {cell.task} are among the {len(validation)} that validate"
            f"{f', of {held_out}' if held_out else ''}: cell.data.validation = {data.validation} takes them all. Lower "
            "it, or name other problems by cell.data.held_out."
        )
    if overlapping:
        notes.append(
            f"{overlapping} training problems are also in the validation set: they are not trained on"
        )
    if len(validation) < data.validation:
        size = f"what was taken from {held_out} holds {len(validation)} problems"
        notes.append(f"{size}, and cell.data.validation = {data.validation}: all of them validate")
    training = _limit_training(cell, training, notes)
    for name, problems in extra_sets.items():
        if overlapping := drop_overlap(problems, training)[1]:
            notes.append(
                f"{overlapping} of {len(problems)} problems of {name} are also in the training set"
            )
    return ProblemSelection(training, validation, out_of_range, extra_sets, notes)


def _largest_part_validation(cell: CellConfig) -> str:
    """The task string of the held-out problems of a mixture's largest part, the first by name of
    equal ones."""
    mixture = cell.data.mixture or {}
    if not cell.task.startswith("tfds:") or "#" in cell.task:
        raise InputError(
            f"cell.data.mixture needs cell.task=tfds:FOLDER, without a split; given {cell.task}."
        )
    return f"{cell.task}#{min(mixture, key=lambda part: (-mixture[part], part))}_validation"


def _limit_training(cell: CellConfig, training: list[Problem], notes: list[str]) -> list[Problem]:
    """At most D = `cell.data.size` training problems; InputError where there is none at all."""
    if not training:
        raise InputError(
            f"no training problem is left of {cell.task}; widen cell.data.difficulty or take another set."
        )
    size = cell.data.size
    if size is None or size >= len(training):
        return training
    notes.append(
        f"{len(training) - size} of {len(training)} training problems left out: cell.data.size = {size}"
    )
    return random_subset(training, size, np.random.default_rng([cell.data.seed, 4]))


def drop_long_prompts(
    cell: CellConfig, task: Task, problems: list[Problem], description: str, notes: list[str]
) -> list[Problem]:
    """The problems whose prompts fit the sampler; a note is added where some do not. InputError
    where none fits."""
    if is_on_device(task):
        return problems
    prompt_length = cell.sampling.prompt_length
    limit = f"cell.sampling.prompt_length = {prompt_length} tokens"
    lengths = task.prompt_lengths(problems)
    fitting_problems = [
        p for p, length in zip(problems, lengths, strict=True) if length <= prompt_length
    ]
    if not fitting_problems:
        needed = int(np.quantile(lengths, PROMPT_QUANTILE, method="higher"))
        sizes = f"the shortest has {min(lengths)}, 99% have at most {needed}, the longest has {max(lengths)}"
        problem = f"{description}: none of {len(problems)} prompts has at most {limit}"
        raise InputError(f"{problem}: {sizes}; raise it.")
    if dropped := len(problems) - len(fitting_problems):
        notes.append(
            f"{dropped} of {len(problems)} {description} dropped: their prompts have more than {limit}"
        )
    return fitting_problems


def best_constant(problems: list[Problem]) -> tuple[str, float] | None:
    """The answer that most problems have, and the reward of always giving it; None where an answer
    is not known."""
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
    """(training, validation): the problems inside `cell.data.difficulty`, `validation` of them held
    out."""
    eligible, min_problems = within_difficulty(problems, data), 2 * data.validation
    if len(eligible) < min_problems:
        shortage = f"there are {len(problems)} problems"
        fix = "lower it, or set cell.data.held_out"
        if len(problems) == 1:  # which no validation leaves for training
            shortage = "there is 1 problem"
            fix = "set cell.data.held_out, or give a file of more prompts"
        if data.attempts:
            attempts = problems[0].attempts if problems else data.attempts
            shortage = f"{len(eligible)} of {len(problems)} problems have avg@{attempts} in {list(data.difficulty)}"
            fix = "widen cell.data.difficulty"
        need = f"cell.data.validation={data.validation} needs at least {min_problems}"
        raise InputError(f"{shortage}; {need}: {fix}, or raise cell.data.candidates.")
    order = np.random.default_rng([data.seed, 1]).permutation(len(eligible))
    return [eligible[i] for i in order[data.validation :]], [
        eligible[i] for i in order[: data.validation]
    ]


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
    """The largest set of at most `size` problems with these shares of the parts, shuffled; no
    problem comes twice."""
    counts = mixture_counts(
        {part: len(problems) for part, problems in problems_by_part.items()}, shares, size
    )
    part_of_problem: dict[int, str] = {}
    for part in counts:
        for problem in problems_by_part[part]:
            if (other_part := part_of_problem.setdefault(problem.id, part)) != part:
                raise InputError(
                    f"cell.data.mixture: problem {problem.id} is in {other_part} and in {part}."
                )
    mixture = [
        p
        for part, count in counts.items()
        for p in random_subset(problems_by_part[part], count, rng)
    ]
    return random_subset(mixture, len(mixture), rng)


def mixture_counts(
    sizes: Mapping[str, int], shares: Mapping[str, float], size: int | None
) -> dict[str, int]:
    """How many problems of each part make the largest mixture with these shares, at most `size` (D)
    in all."""
    # the decimals that they print as
    exact_shares = {part: Fraction(str(share)) for part, share in shares.items()}
    exact_shares = {
        part: share / sum(exact_shares.values()) for part, share in exact_shares.items()
    }
    # Rounded up, a part may give one problem more than its exact share, never more: the largest
    # total is at most this.
    total = min(int((sizes[part] + 1) / share) for part, share in exact_shares.items())
    total = min(total, sum(sizes[part] for part in shares), total if size is None else size)
    while any(
        count > sizes[part]
        for part, count in _largest_remainder_counts(total, exact_shares).items()
    ):
        total -= 1
    counts = _largest_remainder_counts(total, exact_shares)
    if not all(counts.values()):
        raise InputError(
            f"cell.data.mixture: a mixture of {total} problems gives {counts}; raise cell.data.size."
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
    """InputError where one of the settings `required` is not set; it suggests values of all three
    that are not. `count_parameters`: of a model with so many tokens."""
    set_keys = {f"cell.sampling.{key}" for key in cell.sampling.model_fields_set}
    set_keys |= {f"cell.rl.{key}" for key in cell.rl.model_fields_set}
    if set_keys.issuperset(required):
        return
    problems = task.problems(min(MEASURED_PROBLEMS, cell.data.candidates), np.random.default_rng(0))
    lengths = task.prompt_lengths(problems)
    held_length = int(np.quantile(lengths, PROMPT_QUANTILE, method="higher"))
    context = model_positions(task.folder) or 2**31
    prompt_length = min(-(-held_length // PROMPT_MULTIPLE) * PROMPT_MULTIPLE, context // 2)
    rate = REFERENCE_RATE * math.sqrt(
        REFERENCE_PARAMETERS / count_parameters(cell.model, task.vocab)
    )
    rate *= math.sqrt(cell.rl.lr_reference_batch / REFERENCE_BATCH)
    suggestions = {
        LENGTHS[0]: prompt_length,
        LENGTHS[1]: min(REASONING_TOKENS, context - prompt_length),
        LEARNING_RATE: f"{rate:.0e}",
    }
    unset = [f"{key}={value}" for key, value in suggestions.items() if key not in set_keys]
    raise InputError(
        f"{' and '.join(key for key in required if key not in set_keys)} must be set for cell.task = {cell.task}, which"
        f" is in text. For this model and these problems, begin with: {' '.join(unset)} (of {len(lengths)} prompts 99%"
        f" have at most {held_length} tokens, the longest {max(lengths)}; those longer than prompt_length are dropped;"
        f" short answers need a smaller response_length; `isojax lr-search` finds the learning rate)."
    )
