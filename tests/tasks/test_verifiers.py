"""What each verifier holds for right, wrong and no answer at all."""

import math
from pathlib import Path
from typing import Any

import pytest

from isojax.core import registry
from isojax.core.config import VerifierConfig
from isojax.core.nouns import Problem
from isojax.tasks.check_process import run_check
from isojax.tasks.grading import Checker
from isojax.tasks.verifiers import (
    Check,
    Verdict,
    exact,
    function,
    integer,
    load_verifier,
    verifier,
    verifier_files,
    verl,
    weigh_scores,
)
from tests.refusals import refused

RIGHT, WRONG, NONE = (True, True), (False, True), (False, False)  # (right, answered)


def judged(check: Check, answer: str, response: str, **columns: Any) -> tuple[bool, bool]:
    verdict = check(Problem(5, "?", answer, columns=columns), "?", response)
    assert verdict.failure == ""
    return verdict[:2]


@pytest.mark.parametrize(
    ("response", "expected"),
    [(" yes\n", RIGHT), ("Yes", WRONG), ("yes it is", WRONG), (" \n", NONE), ("", NONE)],
)
def test_exact(response: str, expected: tuple[bool, bool]) -> None:
    assert judged(exact.build(""), "yes ", response) == expected


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (" 1234", RIGHT),
        ("1,234\n", RIGHT),
        ("+1234", RIGHT),
        ("01234", RIGHT),
        ("-1234", WRONG),
        ("\u22121234", WRONG),
        ("1235", WRONG),
        ("1234.", NONE),
        ("1234.0", NONE),
        ("1,23,4", NONE),
        ("1234 5", NONE),
        ("x1234", NONE),
        ("", NONE),
        ("9" * 400, WRONG),
        ("9" * 5000, NONE),
    ],
)
def test_integer(response: str, expected: tuple[bool, bool]) -> None:
    assert judged(integer.build(""), "1234", response) == expected
    assert judged(integer.build(""), " 1,234 ", response) == expected


def test_integer_refuses_a_problem_whose_answer_is_none() -> None:
    with (
        Checker(VerifierConfig(use="integer")) as checker,
        refused(),
    ):
        checker.grade([Problem(5, "?", "1/2")], ["?"], ["1"])


def test_verifiers_in_process_fill_grades() -> None:
    with Checker(VerifierConfig(use="integer")) as checker:
        grades = checker.grade(
            [Problem(i, "?", str(i)) for i in range(4)], ["?"] * 4, ["0", "2", "two", ""]
        )
    assert (
        grades.rewards.tolist() == [1, 0, 0, 0]
        and grades.parsed.tolist() == [True, True, False, False]
        and grades.failures == {}
    )


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (1, Verdict(True, True)),
        (True, Verdict(True, True)),
        (1.0000001, Verdict(True, True)),
        (0, Verdict(False, True)),
        (-1.0, Verdict(False, True)),
        (0.5, "partial"),
        (-2, "partial"),  # a penalty
        (2, "score"),  # right, or the sum of two parts
        (1.01, "score"),
        (math.nan, "error"),
        (math.inf, "error"),
        (10**400, "error"),
        (None, "error"),
        ("1", "error"),
        ([1], "error"),
        ({"score": 1}, "error"),
    ],
)
def test_outcomes_are_0_or_1(score: Any, expected: Verdict | str) -> None:
    result = function.score_to_verdict(score, "x")
    assert result._replace(scores=None) == expected or result.failure == expected
    assert result.failure == "error" or result.scores == {"score": score}
    assert result.correct is (isinstance(expected, Verdict) and expected.correct)


@pytest.mark.parametrize(
    ("verdict", "reward", "scores", "failure"),
    [
        (Verdict(True, True), 0.0, None, "score"),
        (
            Verdict(False, True, "partial", "", {"a": 0.5, "b": 1.0, "c": 9.0}),
            0.625,
            {"a": 0.5, "b": 1.0},
            "",
        ),
        (Verdict(True, True, scores={"a": 1.0000001, "b": -1e-9}), 0.75, {"a": 1.0, "b": 0.0}, ""),
        (Verdict(True, True, scores={"a": 1.0}), 0.0, None, "score"),
        (Verdict(True, True, scores={"a": 1.0, "b": 1.01}), 0.0, None, "score"),
        (Verdict(True, True, scores={"a": 1.0, "b": -1.0}), 0.0, None, "score"),
        (Verdict(False, False, "error", "", {"a": math.nan, "b": 1.0}), 0.0, None, "score"),
        (Verdict(False, False, "timeout", "no verdict"), 0.0, None, "timeout"),
    ],
)
def test_a_graded_reward_is_the_weighted_mean(
    verdict: Verdict, reward: float, scores: dict[str, float] | None, failure: str
) -> None:
    """(3 a + b) / 4; a score outside 0..1 or missing, and a check that failed, give nothing of any
    score."""
    result, graded = weigh_scores(verdict, {"a": 3.0, "b": 1.0})
    assert result == pytest.approx(reward) and graded.failure == failure
    assert graded.scores == pytest.approx(scores or {"a": 0.0, "b": 0.0})


@pytest.mark.parametrize(
    ("score", "remedy"),
    [
        (-1.0, "(score + 1) / 2, or set cell.reward.kind=binary"),
        (-0.5, "(score + 1) / 2"),
        (-3.0, "(score - LOW) / (HIGH - LOW), or set cell.reward.kind=binary"),
        (100.0, "Divide its scores by the largest one that it gives"),
    ],
)
@pytest.mark.parametrize("kind", ["function", "verl"])
def test_a_score_outside_0_to_1_brings_its_place_and_a_remedy(
    tmp_path: Path, kind: str, score: float, remedy: str
) -> None:
    """Also through a process, as all of a user's functions run."""
    path = tmp_path / "scores.py"
    path.write_text(
        f"\n\ndef reward(completions, **columns): return [{score}]\n\ndef "
        "compute_score(data_source, solution_str, ground_truth, extra_info=None): return {'score': "
        f"{score}}}\n"
    )
    use = f"function:{path}:reward" if kind == "function" else f"verl:{path}"
    place = "scores.py:3 (reward)" if kind == "function" else "scores.py:5 (compute_score)"
    with Checker(VerifierConfig(use=use), 1, {"score": 1.0}) as checker:
        (verdict,) = checker.judge([Problem(0, "?", "1")], [""], ["1"])
        _, graded = weigh_scores(verdict, {"score": 1.0})
        assert graded.failure == "score" and graded.message.startswith(
            f"the score 'score' is {score:g}; "
        )
        assert f"and {place} gave this one" in graded.message and remedy in graded.message
        with refused():
            checker.check_problems([Problem(0, "?", "1")], [""])


def test_a_score_alone_needs_no_weights() -> None:
    assert weigh_scores(Verdict(True, True), {"score": 1.0})[0] == 1.0
    assert (
        weigh_scores(Verdict(False, True, "partial", "", {"score": 0.3}), {"score": 1.0})[0] == 0.3
    )


@pytest.fixture
def rewards(tmp_path: Path) -> Path:
    (tmp_path / "helper_of_rewards.py").write_text("def norm(text):\n    return text.strip()\n")
    path = tmp_path / "rewards.py"
    path.write_text(
        "from helper_of_rewards import norm\ndef few(completions, answer): return "
        "[norm(completions[0]) == answer[0]]\ndef every(prompts, completions, **columns): return "
        "[sorted(columns) == ['answer', 'level'] and columns['level'] == [3]]\ndef "
        "some(completions, level, bonus=0): return (level[0] == 3,)\ndef two(completions): return "
        "[1, 1]\ndef bare(completions): return 1.0\ndef compute_score(data_source, solution_str, "
        "ground_truth, extra_info=None):\n    return {'score': 0.1, 'acc': (data_source, "
        "solution_str, ground_truth, extra_info) == ('gsm8k', 'r', '7', {'i': 1})}\ndef "
        "plain(data_source, solution_str, ground_truth, extra_info=None): return "
        "float(solution_str == ground_truth)\ndef pair(data_source, solution_str, ground_truth, "
        "extra_info=None): return (solution_str == ground_truth, ['why'])\ndef scored(data_source, "
        "solution_str, ground_truth, extra_info=None): return {'score': -1.0}\ndef "
        "empty(data_source, solution_str, ground_truth, extra_info=None): return {'reward': 1}\n"
    )
    return path


def test_function_gets_the_parameters_it_names(rewards: Path) -> None:
    assert judged(function.build(f"{rewards}:few"), "7", " 7 ", level=3) == RIGHT
    assert judged(function.build(f"{rewards}:few"), "7", "8", level=3) == WRONG
    assert judged(function.build(f"{rewards}:every"), "7", "8", level=3) == RIGHT
    assert judged(function.build(f"{rewards}:some"), "7", "8", level=3) == RIGHT
    with refused():
        judged(function.build(f"{rewards}:some"), "7", "8", depth=3)
    for name, line, message in (("two", 5, "2 scores"), ("bare", 6, "float 1.0")):
        verdict = function.build(f"{rewards}:{name}")(Problem(0, "", ""), "", "x")
        expected = "expected a list with a score for the one completion, such as [1.0]"
        assert verdict.failure == "error"
        assert verdict.message == f"rewards.py:{line} ({name}) returned {message}, {expected}"


def test_function_of_a_module(rewards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(rewards.parent))
    assert judged(function.build("rewards:few"), "7", "7") == RIGHT


def test_verl_gets_its_columns_and_acc_goes_before_score(rewards: Path) -> None:
    columns = {
        "data_source": "gsm8k",
        "reward_model": {"style": "rule", "ground_truth": "7"},
        "extra_info": {"i": 1},
    }
    assert judged(verl.build(str(rewards)), "none of it", "r", **columns) == RIGHT
    assert judged(verl.build(str(rewards)), "none of it", "s", **columns) == WRONG
    assert (
        judged(verl.build(str(rewards)), "none of it", "r", **{**columns, "ground_truth": "8"})
        == WRONG
    )
    for name in ("plain", "pair"):
        assert judged(verl.build(f"{rewards}:{name}"), "7", "7") == RIGHT
        assert judged(verl.build(f"{rewards}:{name}"), "7", "6") == WRONG
    assert judged(verl.build(f"{rewards}:scored"), "7", "7") == WRONG
    assert (
        verl.build(f"{rewards}:empty")(Problem(0, "", ""), "", "x").message
        == 'rewards.py:12 (empty) returned a dict with reward, expected one with "score"'
    )


@pytest.mark.parametrize(
    ("score", "reward", "failure"),
    [
        ("None", 0.0, "score"),
        ("float('nan')", 0.0, "score"),
        ("'1'", 0.0, "score"),
        ("0.5", 0.75, ""),
    ],
)
def test_a_score_that_is_none_is_a_failure_beside_others(
    score: str, reward: float, failure: str, tmp_path: Path
) -> None:
    """Not a 0, which would be a judgement; the other verifier, `exact`, gives 1."""
    path = tmp_path / "scores.py"
    parameters = "data_source, solution_str, ground_truth, extra_info=None"
    path.write_text(f"def compute_score({parameters}): return {{'score': {score}}}\n")
    check = load_verifier({"quality": f"verl:{path}", "right": "exact"}).build()
    verdict = check(Problem(0, "", "7"), "", "7")
    assert verdict.scores is not None and verdict.scores["right"] == 1.0
    result, graded = weigh_scores(verdict, {"quality": 1.0, "right": 1.0})
    assert (result, graded.failure) == (reward, failure)
    assert not failure or graded.message.startswith(
        "the score 'quality' is nan (quality: scores.py:1 (compute_score) returned "
    )


RETURNS = {
    "None": "None",
    "'right'": "str 'right'",
    "b'1'": "bytes b'1'",
    "1.0": "float 1.0",
    "True": "bool True",
    "{'score': 1.0}": "dict {'score': 1.0}",
    "object": "type <class 'object'>",
    "[]": "0 scores",
    "(1, 0)": "2 scores",
    "['1']": "str '1' for a score",
    "[[1]]": "list [1] for a score",
    "[float('nan')]": "nan for a score",
    "[float('-inf')]": "-inf for a score",
}


@pytest.mark.parametrize("returned", RETURNS)
def test_what_is_no_list_of_one_score_says_what_it_is_and_where(
    returned: str, tmp_path: Path
) -> None:
    (tmp_path / "rewards.py").write_text(f"\n\ndef reward(completions): return {returned}\n")
    verdict = function.build(f"{tmp_path / 'rewards.py'}:reward")(Problem(0, "", "7"), "", "7")
    assert (verdict.correct, verdict.failure) == (False, "error")
    assert verdict.message.startswith(
        f"rewards.py:3 (reward) returned {RETURNS[returned]}, expected "
    )


def test_coroutines_are_waited_for_in_one_event_loop(tmp_path: Path) -> None:
    """Also those of verl's functions; what one raises has the user's line."""
    (tmp_path / "rewards.py").write_text(
        "import asyncio\n"
        "loops = set()\n"
        "async def reward(completions, answer):\n"
        "    loops.add(asyncio.get_running_loop())\n"
        "    await asyncio.sleep(0)\n"
        "    return [float(completions == answer and len(loops) == 1)]\n"
        "async def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    await asyncio.sleep(0)\n"
        "    return float(solution_str == ground_truth)\n"
        "async def broken(completions):\n"
        "    return {}[0]\n"
    )
    path = tmp_path / "rewards.py"
    check = function.build(f"{path}:reward")
    assert [judged(check, "7", said) for said in ("7", "8", "7")] == [RIGHT, WRONG, RIGHT]
    check = verl.build(str(path))
    assert [judged(check, "7", said) for said in ("7", "8")] == [RIGHT, WRONG]
    broken = run_check(function.build(f"{path}:broken"), Problem(0, "", "7"), "", "7")
    assert (broken.failure, broken.message) == ("error", "rewards.py:11: KeyError: 0")


def test_a_score_of_none_does_not_apply(tmp_path: Path) -> None:
    """As in TRL, of several functions the others decide; where none applies there is no verdict."""
    (tmp_path / "rewards.py").write_text(
        "def even(completions, answer): return [None if int(answer[0]) % 2 else 1.0]\n"
        "def short(completions, answer): return [None if answer == ['3'] else 0.5]\n"
    )
    path = tmp_path / "rewards.py"
    alone = function.build(f"{path}:even")
    assert judged(alone, "2", "x") == RIGHT
    assert alone(Problem(0, "", "1"), "", "x").failure == "none"

    check = load_verifier(
        {"even": f"function:{path}:even", "short": f"function:{path}:short"}
    ).build()
    weights = {"even": 3.0, "short": 1.0}
    for answer, reward, scores, failure in (
        ("2", 0.875, {"even": 1.0, "short": 0.5}, ""),  # (3 x 1 + 1 x .5) / 4
        ("1", 0.5, {"even": 0.0, "short": 0.5}, ""),  # the mean of the one that applies
        ("3", 0.0, {"even": 0.0, "short": 0.0}, "none"),
    ):
        result, graded = weigh_scores(run_check(check, Problem(0, "", answer), "", "x"), weights)
        assert (result, graded.scores, graded.failure) == (reward, scores, failure)
    binary = check(Problem(0, "", "2"), "", "x")  # short gives .5, which is not right
    assert not binary.correct and not binary.failure


def test_a_plug_in_that_returns_no_verdict() -> None:
    verdict = run_check(lambda *request: None, Problem(0, "", ""), "", "")  # type: ignore[arg-type, return-value]
    expected = "the verifier's check returned a NoneType, expected a Verdict (docs/extending.md)"
    assert (verdict.failure, verdict.message) == ("error", expected)


def test_the_users_files_of_a_verifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is named, that of a module, and a verifier of the user's own; of isojax's own
    verifiers none."""
    (tmp_path / "own_rewards").mkdir()
    for name in ("own_rewards/__init__", "own_rewards/scores"):
        (tmp_path / f"{name}.py").touch()
    own = tmp_path / "own_check.py"
    decorated = (
        "from isojax.tasks.verifiers import verifier\n@verifier(isolated=False, pure=True)\n"
    )
    own.write_text(decorated + "def build(argument): return None\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(registry.FOLDERS_VARIABLE, str(tmp_path))
    module = tmp_path / "own_rewards" / "scores.py"
    for use, files in (
        ("function:own_rewards.scores:few", [module]),
        ("verl:own_rewards.scores", [module]),
        ("verl:own_rewards.scores:other", [module]),
        ("own_check", [own]),
        ("own_check:argument", [own]),
        ("function:rewards.py:few", [Path("rewards.py")]),
        ("integer:last_line", []),
        ("exact", []),
        ({"a": "own_check", "b": "exact", "c": "verl:own_rewards.scores"}, [own, module]),
    ):
        assert verifier_files(use) == files, use


def test_equal_responses_to_a_problem_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    @verifier(isolated=False, pure=True)
    def build(argument: str) -> Check:
        return lambda problem, prompt, response: (
            seen.append(response) or Verdict(False, True, "error" if response == "a" else "")
        )

    monkeypatch.setattr(exact, "build", build)
    one, other = Problem(1, "?", "x"), Problem(2, "?", "x")
    with Checker(VerifierConfig(use="exact")) as checker:
        grades = checker.grade([one, one, other, one], ["?"] * 4, ["a", "b", "a", "a"])
    assert seen == ["a", "b", "a"] and grades.failures == {"error": 3}  # counted by rollout
