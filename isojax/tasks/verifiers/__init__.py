"""Verifiers judge responses, correct or not, or by scores: one file each, which imports little:
processes stay small.

A verifier's file has

    @verifier(isolated=..., pure=...)
    def build(argument: str) -> Check

which makes the check, from the text after the colon of `cell.verifier.use`; in the worker where
`isolated`.

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

from isojax.core.errors import InputError
from isojax.core.nouns import MAIN_SCORE, Problem
from isojax.core.plugins import PluginKind

SCORE_TOLERANCE = 1e-6  # of a score that says 0, 1 or -1


@dataclass(frozen=True)
class VerifierTraits:
    isolated: bool  # whether its checks may hang, crash or exhaust memory; they then run in workers
    pure: bool  # whether a verdict depends on its arguments only; equal ones are checked once


verifier = PluginKind("verifier", "tasks.verifiers", VerifierTraits)


class Verdict(NamedTuple):
    correct: bool  # the reward where rewards are binary
    parsed: bool  # an answer was found in the response, correct or not
    # no plain verdict: partial, score, none, error, memory, machine, timeout, crash, forged
    failure: str = ""
    message: str = ""  # what happened, in one line
    # by name, for graded rewards; None: `correct` is the only one
    scores: Mapping[str, float] | None = None
    # the names of scores that this problem does not have: their function gave None
    not_applicable: Sequence[str] = ()
    place: str = ""  # of the user's function that gave the scores: rewards.py:12 (reward)

    def scores_by_name(self) -> Mapping[str, float]:
        """Its scores, at least one."""
        return {MAIN_SCORE: float(self.correct)} if self.scores is None else self.scores


# (problem, the prompt as the model reads it, response)
Check = Callable[[Problem, str, str], Verdict]


class LoadedVerifier(NamedTuple):
    """What `cell.verifier.use` names."""

    isolated: bool
    pure: bool
    build: Callable[[], Check]


def load_verifier(use: str | Mapping[str, str]) -> LoadedVerifier:
    """One verifier, or several by the name of their score; InputError where there is none of a
    name."""
    if isinstance(use, str):
        name, _, argument = use.partition(":")
        plugin = verifier.load(name)
        return LoadedVerifier(plugin.traits.isolated, plugin.traits.pure, partial(plugin, argument))
    verifiers = {name: load_verifier(one) for name, one in use.items()}
    return LoadedVerifier(
        isolated=any(loaded.isolated for loaded in verifiers.values()),
        pure=all(loaded.pure for loaded in verifiers.values()),
        build=lambda: _combine({name: loaded.build() for name, loaded in verifiers.items()}),
    )


def verifier_files(use: str | Mapping[str, str]) -> list[Path]:
    """The user's files that `cell.verifier.use` names: function:FILE.py:NAME, modules, and
    verifiers of their own."""
    uses = [use] if isinstance(use, str) else list(use.values())
    named = [tuple(one.split(":")[:2]) for one in uses if ":" in one]
    plugins = [verifier.load(one.partition(":")[0]) for one in uses]
    files = [plugin.file for plugin in plugins if not plugin.is_own]

    modules = [
        find_spec(name)
        for kind, name in named
        if kind in ("function", "verl") and not name.endswith(".py")
    ]
    files += [
        spec.origin
        for spec in modules
        if spec and spec.origin and not spec.name.startswith("isojax.")
    ]
    return [Path(name) for name in [*files, *(name for _, name in named)] if name.endswith(".py")]


def _combine(checks: Mapping[str, Check]) -> Check:
    """The check that makes all of `checks`: their scores by name; the first that fails ends it. One
    that does not apply to a problem has no say there; of a problem to which none applies that is
    the failure `none`."""

    def check(problem: Problem, prompt: str, response: str) -> Verdict:
        verdicts: dict[str, Verdict] = {}
        for name, check_one in checks.items():
            verdict = verdicts[name] = check_one(problem, prompt, response)
            if verdict.failure not in ("", "partial") and verdict.scores is None:
                return verdict._replace(message=f"{name}: {verdict.message}")

        applying = {
            name: verdict for name, verdict in verdicts.items() if verdict.failure != "none"
        }
        failure = next(
            (kind for kind in ("error", "score") if kind in {v.failure for v in applying.values()}),
            "",
        )
        if not applying:
            applying, failure = verdicts, "none"
        messages = [
            f"{name}: {verdict.message}"
            for name, verdict in applying.items()
            if verdict.failure == failure
        ]

        return Verdict(
            correct=all(verdict.correct for verdict in applying.values()),
            parsed=all(verdict.parsed for verdict in applying.values()),
            failure=failure,
            message="; ".join(messages) if failure else "",
            scores={
                name: _main_score(verdict)
                for name, verdict in verdicts.items()
                if verdict.failure != "none"
            },
            not_applicable=tuple(
                name for name, verdict in verdicts.items() if verdict.failure == "none"
            ),
        )

    return check


def _main_score(verdict: Verdict) -> float:
    """NaN where an error left none, which is a failure of graded rewards."""
    return verdict.scores_by_name().get(
        MAIN_SCORE, nan if verdict.failure == "error" else float(verdict.correct)
    )


def weigh_scores(verdict: Verdict, weights: Mapping[str, float]) -> tuple[float, Verdict]:
    """A graded reward, the mean of the scores that `weights` names, and the verdict with these
    alone; a score outside 0..1, or missing, is the failure `score`, and of a failure all is 0. A
    score that does not apply is left out of the mean, and recorded as 0."""
    if verdict.failure not in ("", "partial") and verdict.scores is None:
        return 0.0, verdict._replace(scores=dict.fromkeys(weights, 0.0))
    applying = {
        name: weight for name, weight in weights.items() if name not in verdict.not_applicable
    }
    if weights and not applying:
        return 0.0, verdict._replace(
            correct=False, failure="none", scores=dict.fromkeys(weights, 0.0)
        )

    scores, message = verdict.scores_by_name(), ""
    for name in applying:
        if name not in scores:
            message = f"no score {name!r}, which cell.reward.weights names; given {', '.join(scores) or 'none'}"
        elif not -SCORE_TOLERANCE <= scores[name] <= 1 + SCORE_TOLERANCE:  # NaN too
            reason = f" ({verdict.message})" if verdict.failure == "error" else ""
            message = f"the score {name!r} is {scores[name]:g}{reason}; graded rewards are made of numbers from 0 to 1"
            message += _range_remedy(scores[name], verdict.place)
    if message:
        return 0.0, Verdict(False, verdict.parsed, "score", message, dict.fromkeys(weights, 0.0))

    graded = {name: min(max(scores[name], 0.0), 1.0) for name in applying}
    total_weight = sum(applying.values())
    weighted_sum = sum(weight * graded[name] for name, weight in applying.items())
    reward = weighted_sum / total_weight if total_weight else 0.0
    return reward, verdict._replace(
        failure="", message="", scores=dict.fromkeys(weights, 0.0) | graded
    )


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
    return f"the verifier's check returned a {type(returned).__name__}, expected a Verdict (docs/extending.md)"


def refuse_argument(verifier: str, argument: str) -> None:
    """InputError where a verifier that takes no argument is given one."""
    if argument:
        raise InputError(
            f"cell.verifier.use: {verifier} takes no argument, given {argument!r}; write {verifier}."
        )
