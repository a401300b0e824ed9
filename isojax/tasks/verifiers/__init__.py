"""Verifiers judge responses: correct or not, or by scores. Each is a file, which should import
little, since it may be loaded in many processes.

A verifier's file has

    @verifier(isolated=..., pure=...)
    def build(argument: str) -> Check

which makes the check; `argument` is the text after the colon of `cell.verifier.use`. With
`isolated` it is called in the worker process.

InputError from `build`, or from a check whose problem cannot be judged at all, ends the run with
its message. Whatever else an isolated check raises costs its own rollout only; a check that is not
isolated must raise nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from math import isnan, nan
from pathlib import Path
from typing import NamedTuple

from isojax.core.argument_path import ArgumentPath
from isojax.core.errors import InputError
from isojax.core.nouns import MAIN_SCORE, Problem
from isojax.core.plugins import PluginKind

SCORE_TOLERANCE = 1e-6  # of a score that says 0, 1 or -1


@dataclass(frozen=True)
class VerifierTraits:
    """The arguments of the decorator `verifier`."""

    isolated: bool  # whether its checks may hang, crash or exhaust memory; they then run in workers
    pure: bool  # whether a verdict depends on its arguments only; equal ones are checked once
    # what the argument names, so that it goes to the hosts with the config (`isojax pack`)
    path: Callable[[str], ArgumentPath] | None = None


verifier = PluginKind("verifier", "tasks.verifiers", VerifierTraits)


class Verdict(NamedTuple):
    """The judgement of a check on a response.

    correct: the reward where rewards are binary.
    parsed: an answer was found in the response, correct or not.
    failure: why there is no plain verdict: partial (a score other than 0, 1 and -1, in binary
        rewards), score (one that is missing or out of range), none (it does not apply to the
        problem), input (the problem cannot be judged), error, memory, machine, timeout, crash,
        forged; empty where there is one.
    message: what happened, in one line.
    scores: by name, for graded rewards; None: `correct` is the only one.
    not_applicable: the names of scores that this problem does not have: their function gave None.
    place: of the user's function that gave the scores: rewards.py:12 (reward).
    """

    correct: bool
    parsed: bool
    failure: str = ""
    message: str = ""
    scores: Mapping[str, float] | None = None
    not_applicable: Sequence[str] = ()
    place: str = ""

    def scores_by_name(self) -> Mapping[str, float]:
        """Its scores, at least one."""
        return {MAIN_SCORE: float(self.correct)} if self.scores is None else self.scores


def function_path(argument: str) -> ArgumentPath:
    """The file or module of FILE.py:NAME, PACKAGE.MODULE:NAME, or of these without a NAME."""
    module_or_file = argument.partition(":")[0]
    return ArgumentPath(module_or_file, is_module=not module_or_file.endswith(".py"))


# (problem, the prompt as the model reads it, response)
Check = Callable[[Problem, str, str], Verdict]


class LoadedVerifier(NamedTuple):
    """What `cell.verifier.use` names."""

    isolated: bool
    pure: bool
    build: Callable[[], Check]


def load_verifier(use: str | Mapping[str, str]) -> LoadedVerifier:
    """One verifier, or several by the name of their score; InputError where there is none of a
    name. use: cell.verifier.use, such as "math", "function:rewards.py:my_reward" or {"right":
    "math", "short": "function:rewards.py:length"}."""
    if isinstance(use, str):
        name, _, argument = use.partition(":")
        plugin = verifier.load(name)
        # A plug-in is called as its function: plugin(argument) is `build` of the verifier's file.
        return LoadedVerifier(plugin.traits.isolated, plugin.traits.pure, partial(plugin, argument))

    verifiers = {name: load_verifier(one) for name, one in use.items()}
    return LoadedVerifier(
        isolated=any(loaded.isolated for loaded in verifiers.values()),
        pure=all(loaded.pure for loaded in verifiers.values()),
        build=lambda: _combine({name: loaded.build() for name, loaded in verifiers.items()}),
    )


def verifier_files(use: str | Mapping[str, str]) -> list[Path]:
    """The user's Python files that `cell.verifier.use` refers to: of function:FILE.py:NAME, of
    modules, and of verifiers that the user has added. use: as of `load_verifier`. Paths are as they
    are written, and the files need not exist."""
    uses = [use] if isinstance(use, str) else list(use.values())
    plugins = [verifier.load(one.partition(":")[0]) for one in uses]
    files = [plugin.file for plugin in plugins if not plugin.is_own]  # own: a part of isojax

    names: list[str] = []  # FILE.py or PACKAGE.MODULE of function:...:NAME
    for one in uses:
        if ":" not in one:
            continue
        kind, name = one.split(":")[:2]
        names.append(name)
        if kind in ("function", "verl") and not name.endswith(".py"):
            spec = find_spec(name)
            if spec and spec.origin and not spec.name.startswith("isojax."):
                files.append(spec.origin)
    return [Path(name) for name in (*files, *names) if name.endswith(".py")]


def _combine(checks: Mapping[str, Check]) -> Check:
    """A check that makes several checks, by the names of their scores. Its verdict is correct where
    all are, and has all scores by name.

    A check that fails without a score ends it with that failure. A check that does not apply to a
    problem is left out there; where none applies, that is the failure `none`. The score of a check
    is its main one, under the check's name.
    """

    def check(problem: Problem, prompt: str, response: str) -> Verdict:
        """Make all of `checks` and combine their verdicts, as `_combine` says."""
        # Make the checks, up to the first that fails without a score. (`partial` is no failure
        # where rewards are graded. `none` comes with the scores {}, an error of a function with
        # NaN: these go on.)
        verdicts: dict[str, Verdict] = {}
        for name, check_one in checks.items():
            verdict = check_one(problem, prompt, response)
            verdicts[name] = verdict
            if verdict.failure not in ("", "partial") and verdict.scores is None:
                return verdict._replace(message=f"{name}: {verdict.message}")

        not_applicable = [name for name, one in verdicts.items() if one.failure == "none"]
        applying = {name: one for name, one in verdicts.items() if name not in not_applicable}
        scores = {name: _main_score(one) for name, one in applying.items()}

        # The failure of all together: an error is worse than a score outside the range.
        failures = {one.failure for one in applying.values()}
        failure = ""
        if "error" in failures:
            failure = "error"
        elif "score" in failures:
            failure = "score"
        if not applying:
            applying = verdicts
            failure = "none"
        messages = [
            f"{name}: {one.message}" for name, one in applying.items() if one.failure == failure
        ]

        return Verdict(
            correct=all(one.correct for one in applying.values()),
            parsed=all(one.parsed for one in applying.values()),
            failure=failure,
            message="; ".join(messages) if failure else "",
            scores=scores,
            not_applicable=tuple(not_applicable),
        )

    return check


def _main_score(verdict: Verdict) -> float:
    """A verdict's main score; where it has none, 1 or 0 for correct or not, and NaN after an error
    (which graded rewards count as a failure)."""
    without_score = nan if verdict.failure == "error" else float(verdict.correct)
    return verdict.scores_by_name().get(MAIN_SCORE, without_score)


class GradedVerdict(NamedTuple):
    """A graded reward, from 0 to 1, and the verdict with the scores that it is made of."""

    reward: float
    verdict: Verdict


def weigh_scores(verdict: Verdict, weights: Mapping[str, float]) -> GradedVerdict:
    """The graded reward of a verdict: the weighted mean of its scores. weights: the weight of each
    score, by name, such as {"right": 0.9, "short": 0.1}; their sum need not be 1. Scores without a
    weight are not used.

    A score that is missing or outside 0..1 makes the verdict a failure, `score`. After a failure
    reward and scores are 0. A score that does not apply to the problem is left out of the mean, and
    recorded as 0.
    """
    no_scores = dict.fromkeys(weights, 0.0)
    # `partial` is a failure of binary rewards only.
    has_failed = verdict.failure not in ("", "partial")
    if has_failed and verdict.scores is None:
        return GradedVerdict(0.0, verdict._replace(scores=no_scores))

    applying = {
        name: weight for name, weight in weights.items() if name not in verdict.not_applicable
    }
    if weights and not applying:
        return GradedVerdict(0.0, verdict._replace(correct=False, failure="none", scores=no_scores))

    message = _describe_bad_score(verdict, list(applying))
    if message:
        return GradedVerdict(0.0, Verdict(False, verdict.parsed, "score", message, no_scores))

    scores = verdict.scores_by_name()
    # _describe_bad_score has let through what is outside 0..1 by no more than SCORE_TOLERANCE.
    graded = {name: min(max(scores[name], 0.0), 1.0) for name in applying}
    total_weight = sum(applying.values())
    weighted_sum = sum(weight * graded[name] for name, weight in applying.items())
    reward = weighted_sum / total_weight if total_weight else 0.0  # weights may all be 0
    return GradedVerdict(
        reward, verdict._replace(failure="", message="", scores=no_scores | graded)
    )


def _describe_bad_score(verdict: Verdict, names: Sequence[str]) -> str:
    """What is wrong with the scores of these names, in words: one is missing or outside 0..1 (the
    last such one is described); "" where all are usable. names: those with a weight that apply to
    the problem."""
    scores = verdict.scores_by_name()
    message = ""
    for name in names:
        if name not in scores:
            given = ", ".join(scores) or "none"
            message = f"no score {name!r}, which cell.reward.weights names; given {given}"
        elif not -SCORE_TOLERANCE <= scores[name] <= 1 + SCORE_TOLERANCE:  # NaN too
            reason = f" ({verdict.message})" if verdict.failure == "error" else ""
            message = (
                f"the score {name!r} is {scores[name]:g}{reason};"
                f" graded rewards are made of numbers from 0 to 1"
                f"{_range_remedy(scores[name], verdict.place)}"
            )
    return message


def _range_remedy(score: float, place: str) -> str:
    """How to bring a score into 0..1, and which function gave it; empty of one that is no
    number."""
    if isnan(score):
        return ""
    source = f", and {place} gave this one" if place else ""
    if score > 1:
        return f"{source}. Divide its scores by the largest one that it gives"
    binary = "set cell.reward.kind=binary, which counts 1 as right and 0 and -1 as wrong"
    if score >= -1:
        return f"{source}. Of scores from -1 to 1 give (score + 1) / 2, or {binary}"
    return f"{source}. Of scores from LOW to HIGH give (score - LOW) / (HIGH - LOW), or {binary}"


def describe_no_verdict(returned: object) -> str:
    """What is wrong with a check that returns something else than a Verdict."""
    received = type(returned).__name__
    return f"the verifier's check returned a {received}, expected a Verdict (docs/extending.md)"


def refuse_argument(verifier: str, argument: str) -> None:
    """InputError where a verifier that takes no argument is given one."""
    if argument:
        raise InputError(
            where="cell.verifier.use",
            found=f"{verifier} takes no argument, given {argument!r}",
            fix=f"Write {verifier}.",
        )
