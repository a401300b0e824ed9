"""What each verifier holds for right, wrong and no answer at all."""

import math
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from isojax.core import registry
from isojax.core.config import VerifierConfig
from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.tasks.grading import Checker
from isojax.tasks.verifiers import (
    Check,
    Verdict,
    exact,
    function,
    integer,
    load_verifier,
    verifier_files,
    verl,
    weigh_scores,
)
from isojax.tasks.verifiers import math as maths

RIGHT, WRONG, NONE = (True, True), (False, True), (False, False)  # (right, answered)


def judged(check: Check, answer: str, response: str, **columns: Any) -> tuple[bool, bool]:
    verdict = check(Problem(5, "?", answer, columns=columns), "?", response)
    assert verdict.failure == ""
    return verdict[:2]


@pytest.mark.parametrize(
    ("response", "expected"), [(" yes\n", RIGHT), ("Yes", WRONG), ("yes it is", WRONG), (" \n", NONE), ("", NONE)]
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
        pytest.raises(InputError, match=r"problem 5: the verifier `integer` expects an integer as answer, given '1/2'"),
    ):
        checker.grade([Problem(5, "?", "1/2")], ["?"], ["1"])


def test_verifiers_in_process_fill_grades() -> None:
    with Checker(VerifierConfig(use="integer")) as checker:
        grades = checker.grade([Problem(i, "?", str(i)) for i in range(4)], ["?"] * 4, ["0", "2", "two", ""])
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
        (2, "partial"),
        (1.01, "partial"),
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
        (Verdict(False, True, "partial", "", {"a": 0.5, "b": 1.0, "c": 9.0}), 0.625, {"a": 0.5, "b": 1.0}, ""),
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
    """(3 a + b) / 4; a score outside 0..1 or missing, and a check that failed, give nothing of any score."""
    result, graded = weigh_scores(verdict, {"a": 3.0, "b": 1.0})
    assert result == pytest.approx(reward) and graded.failure == failure
    assert graded.scores == pytest.approx(scores or {"a": 0.0, "b": 0.0})


def test_a_score_alone_needs_no_weights() -> None:
    assert weigh_scores(Verdict(True, True), {"score": 1.0})[0] == 1.0
    assert weigh_scores(Verdict(False, True, "partial", "", {"score": 0.3}), {"score": 1.0})[0] == 0.3


@pytest.fixture
def rewards(tmp_path: Path) -> Path:
    (tmp_path / "helper_of_rewards.py").write_text("def norm(text):\n    return text.strip()\n")
    path = tmp_path / "rewards.py"
    path.write_text(
        "from helper_of_rewards import norm\n"
        "def few(completions, answer): return [norm(completions[0]) == answer[0]]\n"
        "def every(prompts, completions, **columns): return [sorted(columns) == ['answer', 'level'] and"
        " columns['level'] == [3]]\n"
        "def some(completions, level, bonus=0): return (level[0] == 3,)\n"
        "def two(completions): return [1, 1]\n"
        "def bare(completions): return 1.0\n"
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return {'score': 0.1, 'acc': (data_source, solution_str, ground_truth, extra_info) == ('gsm8k', 'r', '7',"
        " {'i': 1})}\n"
        "def plain(data_source, solution_str, ground_truth, extra_info=None): return float(solution_str =="
        " ground_truth)\n"
        "def pair(data_source, solution_str, ground_truth, extra_info=None): return (solution_str == ground_truth,"
        " ['why'])\n"
        "def scored(data_source, solution_str, ground_truth, extra_info=None): return {'score': -1.0}\n"
        "def empty(data_source, solution_str, ground_truth, extra_info=None): return {'reward': 1}\n"
    )
    return path


def test_function_gets_the_parameters_it_names(rewards: Path) -> None:
    assert judged(function.build(f"{rewards}:few"), "7", " 7 ", level=3) == RIGHT
    assert judged(function.build(f"{rewards}:few"), "7", "8", level=3) == WRONG
    assert judged(function.build(f"{rewards}:every"), "7", "8", level=3) == RIGHT
    assert judged(function.build(f"{rewards}:some"), "7", "8", level=3) == RIGHT
    with pytest.raises(
        InputError, match="some takes level, which problem 5 does not have; it has answer, completions, depth, prompts"
    ):
        judged(function.build(f"{rewards}:some"), "7", "8", depth=3)
    for name, message in (("two", "given 2"), ("bare", "given float")):
        verdict = function.build(f"{rewards}:{name}")(Problem(0, "", ""), "", "x")
        assert verdict.failure == "error" and verdict.message == f"expected a list of one score, {message}"


def test_function_of_a_module(rewards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(rewards.parent))
    assert judged(function.build("rewards:few"), "7", "7") == RIGHT


def test_verl_gets_its_columns_and_acc_goes_before_score(rewards: Path) -> None:
    columns = {"data_source": "gsm8k", "reward_model": {"style": "rule", "ground_truth": "7"}, "extra_info": {"i": 1}}
    assert judged(verl.build(str(rewards)), "none of it", "r", **columns) == RIGHT
    assert judged(verl.build(str(rewards)), "none of it", "s", **columns) == WRONG
    assert judged(verl.build(str(rewards)), "none of it", "r", **{**columns, "ground_truth": "8"}) == WRONG
    for name in ("plain", "pair"):
        assert judged(verl.build(f"{rewards}:{name}"), "7", "7") == RIGHT
        assert judged(verl.build(f"{rewards}:{name}"), "7", "6") == WRONG
    assert judged(verl.build(f"{rewards}:scored"), "7", "7") == WRONG
    assert (
        verl.build(f"{rewards}:empty")(Problem(0, "", ""), "", "x").message
        == 'expected a dict with "score", given one with reward'
    )


@pytest.mark.parametrize(
    ("score", "reward", "failure"),
    [("None", 0.0, "score"), ("float('nan')", 0.0, "score"), ("'1'", 0.0, "score"), ("0.5", 0.75, "")],
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
    assert not failure or graded.message.startswith("the score 'quality' is nan (quality: expected a ")


def test_the_users_files_of_a_verifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is named, that of a module, and a verifier of the user's own; of isojax's own verifiers none."""
    (tmp_path / "own_rewards").mkdir()
    for name in ("own_rewards/__init__", "own_rewards/scores"):
        (tmp_path / f"{name}.py").touch()
    own = tmp_path / "own_check.py"
    own.write_text("ISOLATED, PURE = False, True\ndef build(argument): return None\n")
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


@pytest.mark.parametrize(
    ("answer", "stated"),
    [
        ("She makes 9 * 2 = <<9*2=18>>18.\n#### 18", "18"),
        ("#### 1,000 ", "1,000"),
        (r"So $x = \boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
        (r"\boxed{1}, then \boxed{\text{(\{a\}, b)}}", r"\text{(\{a\}, b)}"),
        (r"$\boxed 7$", "7"),
        (r"$\dfrac{3}{4}$", r"\frac{3}{4}"),
        ("42", "42"),
    ],
)
def test_gold_answers(answer: str, stated: str) -> None:
    assert maths.reference_answer(answer) == stated


@pytest.mark.parametrize(
    ("response", "stated"),
    [
        (r"So \boxed{\frac{1}{2}} and \boxed{3", r"\frac{1}{2}"),
        (r"\boxed{1} no, \boxed{2}. The answer is 3. #### 4", "2"),
        (r"\boxed{}", ""),
        ("The answer is 3.\n#### 4\nQuestion: how many? #", "4"),
        ("The answer is $18 per day, which is $20", "$18 per day"),
        ("The answer is 18.", "18"),
        ("The answer is: $\\frac{1}{2}$.", r"\frac{1}{2}"),
        ("**Answer:** 18", "18"),
        ("Answer: **18**.", "18"),
        ("The answer is 3.5 hours, because 7/2 = 3.5", "3.5 hours"),
        ("the final answer is x = 2, y = 3", "x = 2, y = 3"),
        ("The answer is\n\n18\n\nNext", "18"),
        ("The answer is 1. No: the answer is 2!", "2"),
        (r"answer: \[ 5 \]", "5"),
        ("It is 18", None),
    ],
)
def test_final_answers(response: str, stated: str | None) -> None:
    assert maths.stated_answer(response) == stated


def test_a_response_that_repeats_boxes_is_read_in_one_pass() -> None:
    assert maths.stated_answer(r"\boxed{7} " + r"\boxed{" * 100_000) == "7"


def test_a_response_that_repeats_itself_after_its_answer_is_read_in_one_pass() -> None:
    began = time.monotonic()
    for repeated in (", but", ", " + " " * 9, "** ", " and a"):
        maths.stated_answer("The answer is 7" + repeated * 20_000)
        maths.stated_answer("The answer is $7$" + repeated * 20_000)
    maths.stated_answer("The answer is 7" + " " * 20_000 + "x")
    assert time.monotonic() - began < 5


def pairs(table: str) -> list[tuple[str, str]]:
    """(answer, response) of a table: `answer | response`, several to a line between semicolons."""
    return [
        (a.strip(), b.strip())
        for a, b in (cell.split(" | ") for cell in table.replace("\n", " ; ").split(" ; ") if cell.strip())
    ]


NUMBERS = pairs(r"""
    72 | 72.0 ; 72 | $72 ; 72 | 72. ; 72 | 072 ; 1234 | 1,234 ; 1234 | 1{,}234 ; 1234.5 | \$1,234.50 ; -5 | −5
    -5 | - 5 ; -5 | -$5 ; 50\% | 50 ; 50\% | 0.5 ; 50 | 50% ; 90 | 90^\circ ; 90 | 90° ; 12 | 12\text{ cm}
    12 | 12 \text{ cm}^2 ; 18 | 18 dollars per day ; 0.5 | \frac{1}{2} ; \frac{1}{2} | 2/4 ; 1.5 | 1 1/2
    \frac34 | .75 ; 1\frac{1}{2} | 3/2 ; 10000 | 10 000 ; 7 | 7\, ; 120 | 1.2 \times 10^2 ; 3 | x=3 ; x=3 | 3
    6 | \frac{36}{6} ; 11,\! 111 | 11111 ; \frac{-1}{2} | -0.5 ; 5\% | 0.05 ; p=\frac{3}{4} | 0.75 ; 3:2 | 3:2
""")
NOT_NUMBERS = pairs(r"""
    72 | 73 ; 72 | 27 ; 72 | -72 ; 72 | 720 ; 72 | 7.2 ; 5 | 5 and a half ; 3 | 3 million ; 0.5 | 50 ; 50 | 0.5
    18 | 18 \text{ or } 19 ; 18 | 18, 19 ; 2 | 1,2,3 ; 1 | 1/0 ; 0.33 | 1/3 ; 3 | x ; 5 | 5x ; -5 | 5
    6 | 5 or 6
""")
ALGEBRA = pairs(r"""
    \sqrt{8} | 2\sqrt{2} ; \dfrac{\sqrt3}{2} | \frac{\sqrt{3}}{2} ; \frac{\pi}{6} | \pi/6 ; 3\pi | 3 \pi
    (1,2] | \left(1, 2\right] ; (-\infty,2)\cup(3,\infty) | (3,\infty) \cup (-\infty,2) ; \{1,2\} | \{2,1\}
    2, 3 | 3, 2 ; (1, -2) | \left(1,-2\right) ; x^2-1 | (x-1)(x+1) ; y=2x+1 | y = 1+2x ; 3+4i | 4i+3
    1 \pm \sqrt{2} | 1+\sqrt2, 1-\sqrt2 ; \log_2 8 | 3 ; 5! | 120
    \begin{pmatrix} 1 \\ 2 \end{pmatrix} | \begin{pmatrix}1\\2\end{pmatrix} ; 10^{-3} | 0.001
    x \in [1,2] | [1,2] ; x<3 | x < 3 ; 2^{10} | 1024 ; \frac{x+1}{2} | \frac{1}{2}x+\frac12
    3\sqrt{2}\text{ cm} | 3\sqrt2 ; [1,5) | 1 \leq x < 5 ; 1 \le x < 5 | [1,5) ; \pm 3 | 3, -3 ; \sqrt[3]{2} | 2^{1/3}
    -\frac{1}{2}x | \frac{x}{-2} ; \cot x | \frac{\cos x}{\sin x} ; \infty | \infty
""")
NOT_ALGEBRA = pairs(r"""
    \sqrt{8} | 2\sqrt{3} ; (1,2] | [1,2] ; (1,2] | (1,3] ; (1, -2) | (-2, 1) ; \{1,2\} | \{1,3\} ; \{1,2\} | 1
    3+4i | 3-4i ; x^2-1 | x^2+1 ; \begin{pmatrix}1\\2\end{pmatrix} | \begin{pmatrix}2\\1\end{pmatrix} ; 3\pi | 3
    x<3 | x>3 ; y=2x+1 | y=2x-1 ; \frac{\pi}{6} | \frac{\pi}{3}
""")
WORDS = pairs(r"""
    \text{Evelyn} | Evelyn ; even | \text{Even} ; \text{(B)} | B ; (C) | \textbf{(C)}
    no solution | \text{no  solution} ; \text{6:30 p.m.} | 6:30 p.m. ; \text{June 20} | June 20
""")
NOT_WORDS = pairs(r"""
    \text{even} | veen ; \text{Evelyn} | \text{Briana} ; B | C ; \text{even} | 5 ; no solution | 0
""")


@pytest.fixture(scope="module")
def check() -> Check:
    return maths.build("")


FORMS = ("\\boxed{{{}}}", "#### {}", "The answer is {}.", "The answer is ${}$.")


@pytest.mark.parametrize(("gold", "given"), NUMBERS + ALGEBRA + WORDS)
def test_math_right(check: Check, gold: str, given: str) -> None:
    for form in FORMS[: 1 if "$" in given else 4]:
        assert judged(check, gold, f"We find 17, 3 then {form.format(given)}") == RIGHT, form
    assert judged(check, f"So \\boxed{{{gold}}}.", f"\\boxed{{{given}}}") == RIGHT


@pytest.mark.parametrize(("gold", "given"), NOT_NUMBERS + NOT_ALGEBRA + NOT_WORDS)
def test_math_wrong(check: Check, gold: str, given: str) -> None:
    for form in FORMS:
        assert judged(check, gold, f"We find {gold}; then {form.format(given)}") == WRONG, form


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("18", RIGHT),
        ("There are 5, so 9 * 2 = 18 dollars.", RIGHT),
        ("There are 18, so 9 * 2 = 19.", WRONG),
        ("She makes $18.", RIGHT),
        ("no idea", NONE),
        ("", NONE),
        (r"\boxed{}", NONE),
        ("The answer is", NONE),
        ("She makes \\boxed{18", NONE),
        ("The answer is \nnot known", WRONG),
    ],
)
def test_math_of_a_response_that_does_not_state_its_answer(
    check: Check, response: str, expected: tuple[bool, bool]
) -> None:
    assert judged(check, "Janet sells 9.\n#### 18", response) == expected


@pytest.mark.parametrize(
    ("gold", "response", "expected"),
    [
        ("12", "The answer is 12 xy.", WRONG),
        ("12", "The answer is 12 x y.", WRONG),
        ("12", "#### 12 ab", WRONG),
        ("12", "The answer is 12 a.", WRONG),
        ("12", "The answer is 12 b.", WRONG),
        ("12", "The answer is 12 cm.", RIGHT),
        ("12", "The answer is 12 sq. ft", RIGHT),
        ("12", "The answer is $12 a day.", RIGHT),
        ("12", "\\boxed{12ab}", WRONG),
        ("12", "\\boxed{12cm}", RIGHT),
        ("12", "The answer is 12 of them.", RIGHT),
        ("12", "The answer is 12 km/h.", RIGHT),
        ("12", "The answer is 12 p.m.", RIGHT),
        ("1", "the answer is $1$ billion", WRONG),
        ("1", "the answer is \\(1\\) billion.", WRONG),
        ("1", "the answer is **1** billion", WRONG),
        ("1", "the answer is $1$ and a half", WRONG),
        ("5", "the answer is $5$ or $6$.", WRONG),
        ("1 billion", "the answer is $1$ billion", RIGHT),
        ("5", "the answer is $5$ and the others are 3.", RIGHT),
        ("5", "the answer is $5$ dollars, a half of 10.", RIGHT),
        ("5", "The answer is 5, but actually 7", WRONG),
        ("5", "The answer is 5 but actually 7", WRONG),
        ("5", "The answer is $5$, but actually $7$.", WRONG),
        ("5", "The answer is 5, no, 7.", WRONG),
        ("7", "The answer is 5, but actually 7", RIGHT),
        ("5", "The answer is 5, but units were not asked for.", RIGHT),
        ("5", "The answer is 5, but see above. 7 is not it.", RIGHT),
        ("5", "The answer is 5, since 2 + 3 = 5.", RIGHT),
    ],
)
def test_math_of_words_after_a_number(check: Check, gold: str, response: str, expected: tuple[bool, bool]) -> None:
    assert judged(check, gold, response) == expected


def test_math_that_never_ends_costs_its_own_rollout() -> None:
    with Checker(VerifierConfig(use="math", timeout=1), num_workers=1) as checker:
        responses = [
            r"\boxed{5}",
            r"\boxed{9^{9^{9^{9^{9}}}} + x}",
            r"\boxed{\frac{10}{2}}",
            r"\boxed{5}",
            "\\boxed{" * 50_000 + "5" + "}" * 50_000,
        ]
        problem = Problem(3, "?", "5")
        grades = checker.grade([problem] * 5, ["?"] * 5, responses)
    assert grades.rewards.tolist() == [1, 0, 1, 1, 1]
    assert set(grades.failures) <= {"timeout", "memory"}


def test_equal_responses_to_a_problem_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def build(argument: str) -> Check:
        return lambda problem, prompt, response: (
            seen.append(response) or Verdict(False, True, "error" if response == "a" else "")
        )

    monkeypatch.setattr(exact, "build", build)
    one, other = Problem(1, "?", "x"), Problem(2, "?", "x")
    with Checker(VerifierConfig(use="exact")) as checker:
        grades = checker.grade([one, one, other, one], ["?"] * 4, ["a", "b", "a", "a"])
    assert seen == ["a", "b", "a"] and grades.failures == {"error": 3}  # counted by rollout


def test_math_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(InputError, match=re.escape('pip install "isojax[verify]"')):
        maths.build("")
