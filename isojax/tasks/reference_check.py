"""Checks before a run whether a correct response to each problem is possible at all.

Each reference answer is graded as if it were the response, as it is in the file and in \\boxed{},
by the built-in verifier that will judge the responses. A reference that not even itself matches is
dead weight: its rollouts have reward 0, whatever the policy learns. For a user's function and for a
generator's scorer no correct response is known, so that their references are not checked."""

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

from isojax.core.config import CellConfig
from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.core.terminal import warn
from isojax.tasks.answers.final_answer import reference_answer
from isojax.tasks.grading import Checker
from isojax.tasks.missing_answers import are_word_labels, is_missing_answer
from isojax.tasks.problem_columns import ANSWER_COLUMNS
from isojax.tasks.task import TextTask
from isojax.tasks.text_literals import parse_literal
from isojax.tasks.verifiers import Verdict
from isojax.tasks.verifiers.integer import build as build_integer

# More than both, or more than half of all, are refused.
MAX_TOLERATED = 3
MAX_TOLERATED_SHARE = 0.01
MAX_NAMED = 4  # in a message
MAX_PROSE_WORDS = 12

_ARRAY = re.compile(
    r"(?:np\.|numpy\.|torch\.)?(?:array|tensor|u?int\d*|float\d*|str_)\(|\[\s*['\"]|\{\s*['\"]"
)
_PROOF = re.compile(
    r"\b(?:proof|prove[dns]?|suppose|lemma|q\.?e\.?d)\b|\\(?:blacksquare|qed)\b|[∎■]", re.IGNORECASE
)
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
_ARGUES = re.compile(r"\b(?:because|therefore|thus|hence|so|she|he|they|we)\b", re.IGNORECASE)
_SENTENCES = re.compile(r"[A-Za-z)$][.!?]\s+[A-Z]")
# Digits in groups whose separator is no decimal point: 1,234 or 1'234, 1.234.567, 12,34,567.
_GROUPED_DIGITS = re.compile(
    r"""
    [+-]?
    (?:
          \d{1,3}(?:([,'’ _\u00a0\u202f])\d{3}(?:\1\d{3})*|(?:\.\d{3}){2,})
        | \d{1,2}(?:,\d{2})+,\d{3}
    )
    """,
    re.VERBOSE,
)

# Checker.judge: (problems, prompts, responses), one of each for each verdict.
Judge = Callable[[Sequence[Problem], Sequence[str], Sequence[str]], list[Verdict]]


@dataclass(frozen=True)
class UnmatchedReference:
    """A problem whose reference no response matches, and why."""

    problem: Problem
    reason: str


class _Trial(NamedTuple):
    """A response to a problem that should be right."""

    problem: Problem
    response: str


def check_references(
    cell: CellConfig, task: TextTask, problem_sets: Sequence[Sequence[Problem]], refuse: bool
) -> None:
    """InputError where more than a few reference answers of a set cannot be matched by any
    response, judged by the built-in verifiers of the config; a warning for a few. refuse: False for
    a run that goes on, which only gets the warning (but for the verifier integer, which refuses
    always). problem_sets: such as [training problems, validation problems]."""
    config = cell.verifier
    if isinstance(config.use, str):
        _check_by_verifier(config.use, task.start_verifier().judge, problem_sets, refuse)
        return
    # Several verifiers: config.use is {a score's name: a verifier}. Each is checked alone, once.
    for use in dict.fromkeys(config.use.values()):
        if use == "math":
            with closing(Checker(config.with_settings(use=use))) as checker:
                _check_by_verifier(use, checker.judge, problem_sets, refuse)
        else:
            _check_by_verifier(use, None, problem_sets, refuse)


def _check_by_verifier(
    use: str, judge: Judge | None, problem_sets: Sequence[Sequence[Problem]], refuse: bool
) -> None:
    """The check by one verifier, whose name is `use`, such as "math"; judge: Checker.judge of the
    verifier math, not needed for others. Raises or warns as `check_references`, but for two: an
    answer that is no integer is refused with the verifier `integer` also where `refuse` is False,
    and `exact` only warns. unmatched_sets[i] belongs to problem_sets[i]."""
    unmatched_sets = [find_unmatched(use, judge, problems) for problems in problem_sets]
    total = sum(map(len, problem_sets))
    unmatched = [one for unmatched_set in unmatched_sets for one in unmatched_set]
    if not unmatched:
        return
    unmatched.sort(key=lambda one: one.problem.id)  # in the order of their rows in the file

    # The verifier integer raises at such a problem, which would end the run: refuse even one.
    if use.startswith("integer"):
        count = ""
        if len(unmatched) > 1:
            count = f"{len(unmatched)} of {total} reference answers are no integers, the first: "
        raise InputError(f"{count}{unmatched[0].reason}")

    is_too_many = any(
        _too_many(len(unmatched_set), len(problems))
        for unmatched_set, problems in zip(unmatched_sets, problem_sets, strict=True)
    )
    examples = _list_some(unmatched)
    remedy = _remedy(unmatched[0].problem)
    count = f"{len(unmatched)} of {total} reference answers"
    if use == "exact":  # the user may want to compare such texts as they are: never refuse
        warn(
            f"{count} may be none, and cell.verifier.use = exact compares them as they stand:"
            f" {examples}. {remedy}"
        )
        return
    message = (
        f"{count} can be matched by no response, as cell.verifier.use = {use} judges: {examples}."
    )
    if refuse and is_too_many:
        raise InputError(
            where=f"cell.verifier.use = {use}",
            found=f"{count} can be matched by no response: {examples}",
            fix=remedy,
        )
    warn(f"{message} Their rewards stay 0. {remedy}")


def _too_many(count: int, total: int) -> bool:
    return count > max(MAX_TOLERATED, MAX_TOLERATED_SHARE * total) or count > total / 2


def find_unmatched(
    use: str, judge: Judge | None, problems: Sequence[Problem]
) -> list[UnmatchedReference]:
    """The problems whose reference answer no response can match, in their order, with the reasons;
    [] for verifiers that are not checked. use: a verifier, such as "math" or "integer:last_line";
    judge: of the verifier math, needed for it alone."""
    if use == "math":
        assert judge is not None
        return _unmatched_by_math(judge, problems)
    if use.startswith("integer"):
        return _not_integers(problems)

    # A response can hardly repeat an answer that is missing, a list or a worked solution letter by
    # letter.
    if use == "exact":
        unmatched: list[UnmatchedReference] = []
        for problem in problems:
            answer = problem.answer
            reason = _missing(answer) or _collection(answer) or _solution(answer)
            if reason:
                unmatched.append(UnmatchedReference(problem, reason))
        return unmatched
    return []


def _not_integers(problems: Sequence[Problem]) -> list[UnmatchedReference]:
    """The problems whose answer the verifier `integer` refuses, with its messages."""
    check = build_integer("")
    unmatched = []
    for problem in problems:
        try:
            check(problem, "", "")
        except InputError as e:
            unmatched.append(UnmatchedReference(problem, str(e)))
    return unmatched


def _unmatched_by_math(judge: Judge, problems: Sequence[Problem]) -> list[UnmatchedReference]:
    """The problems whose reference no response can match as the verifier math judges: by the form
    of the reference, and by trial responses that should be correct. They are in the order of
    `problems`, each with its reason."""
    problem_by_answer = {problem.answer: problem for problem in problems}  # each answer once
    # Whether the answers are a few words that come again and again, such as True, False, Unknown:
    # then "unknown" is an answer rather than the lack of one.
    are_labels = are_word_labels(reference_answer(problem.answer) for problem in problems)
    # Why no response matches; "" as long as nothing is found.
    reason_by_answer = {
        answer: _unmatchable_form(answer, are_labels) for answer in problem_by_answer
    }

    # Responses that should be correct: the reference as it is, its final answer in a box, and a
    # number without its separators of thousands.
    trials: list[_Trial] = []
    boxed_answers = set[str]()
    for answer, problem in problem_by_answer.items():
        if reason_by_answer[answer]:
            continue

        final = reference_answer(answer)
        trials.append(_Trial(problem, response=answer))
        if final not in boxed_answers:  # several solutions may have the same final answer
            boxed_answers.add(final)
            trials.append(_Trial(problem, response=rf"\boxed{{{final}}}"))
            if _GROUPED_DIGITS.fullmatch(final):
                trials.append(_Trial(problem, response=re.sub(r"[^0-9+-]", "", final)))

    # The prompts are empty: the verifier only looks whether one ends with <think>.
    verdicts = judge(
        [trial.problem for trial in trials],
        [""] * len(trials),
        [trial.response for trial in trials],
    )
    # A reference fails by its text, or by its final answer, which other references may share.
    wrong_finals: dict[str, str] = {}  # reasons by final answer
    for trial, verdict in zip(trials, verdicts, strict=True):
        if verdict.correct:
            continue

        answer = trial.problem.answer
        what_happened = f" ({verdict.failure})" if verdict.failure else ""
        reason = f"the response {trial.response[-60:]!r} is wrong by it{what_happened}"
        if trial.response == answer:
            reason_by_answer[answer] = reason_by_answer[answer] or reason
        else:
            wrong_finals.setdefault(reference_answer(answer), reason)

    unmatched: list[UnmatchedReference] = []
    for problem in problems:
        reason = reason_by_answer[problem.answer]
        reason = reason or wrong_finals.get(reference_answer(problem.answer), "")
        if reason:
            unmatched.append(UnmatchedReference(problem, reason))
    return unmatched


def _unmatchable_form(answer: str, are_labels: bool) -> str:
    """Why no response matches an answer of this form, though its own text does; empty where one
    may."""
    final = reference_answer(answer)
    if not final:
        return "no answer after #### or in \\boxed{}"
    return _missing(final, are_labels) or _collection(final) or _prose(final)


def _missing(answer: str, are_labels: bool = False) -> str:
    return "a word for a missing answer" if is_missing_answer(answer, are_labels) else ""


def _collection(answer: str) -> str:
    """Lists with texts in them, objects and arrays; a list of numbers alone may be an interval or a
    vector."""
    text = answer.strip()
    if not _ARRAY.match(text):
        return ""
    if isinstance(parse_literal(text), dict):
        kind = "an object"
    elif text.startswith("["):
        kind = "a list"
    else:
        kind = "an array as Python prints it"
    return f"{kind}, expected one answer"


def _prose(answer: str) -> str:
    """A proof or a whole solution, which no response repeats."""
    words = len(_WORD.findall(answer))
    is_proof = words >= 1 and _PROOF.search(answer) is not None
    is_argument = words >= 4 and bool(_SENTENCES.search(answer) or _ARGUES.search(answer))
    is_prose = words > MAX_PROSE_WORDS or is_argument
    has_lines = "\n" in answer.strip() and "\\begin" not in answer
    if is_proof or is_prose or has_lines:
        return "a text without a final answer (after #### or in \\boxed{})"
    return ""


def _solution(answer: str) -> str:
    """A text that holds more than its answer, which a response would have to repeat in full."""
    if "####" in answer:
        return "a solution with its answer after ####, which the verifier math finds"
    return "a text of several lines, expected one answer" if "\n" in answer.strip() else ""


def _list_some(unmatched: Sequence[UnmatchedReference]) -> str:
    """The first of them, each with its place, its text and the reason."""
    named: list[str] = []
    for one in unmatched[:MAX_NAMED]:
        answer = " ".join(one.problem.answer.split())
        shown = answer if len(answer) <= 60 else f"{answer[:40]} ... {answer[-15:]}"
        named.append(f"{one.problem.name}: {shown!r} ({one.reason})")
    more = f"; and {len(unmatched) - MAX_NAMED} more" if len(unmatched) > MAX_NAMED else ""
    return "; ".join(named) + more


def _remedy(problem: Problem) -> str:
    """What the user may do, with the columns of the problem that may hold the answers instead."""
    others = [
        name for name in ANSWER_COLUMNS if isinstance(problem.columns.get(name), str | int | float)
    ]
    column = f"COLUMN (there is {', '.join(others)})" if others else "COLUMN"
    return (
        f"Correct or remove these rows, or name the column of the answers by"
        f" cell.data.answer_key={column}, or judge by another verifier (docs/problems.md)."
    )
