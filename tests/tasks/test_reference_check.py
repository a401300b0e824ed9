"""References that no response can match are named before a run, and refused where they are more
than a few."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from isojax.core.config import (
    CellConfig,
    DataConfig,
    ModelConfig,
    RewardConfig,
    SamplingConfig,
    VerifierConfig,
)
from isojax.core.nouns import Problem
from isojax.tasks.grading import Checker
from isojax.tasks.problem_sources import open_source
from isojax.tasks.reference_check import check_references, find_unmatched
from isojax.tasks.task import TextTask
from tests.refusals import refused
from tests.tasks.tokenizer_folders import byte_level


@pytest.fixture(scope="module")
def math_checker() -> Iterator[Checker]:
    checker = Checker(VerifierConfig(use="math"), num_workers=1)
    yield checker
    checker.close()


def unmatched(checker: Checker, *answers: str) -> dict[str, str]:
    """Why no response matches, of those that none matches."""
    problems = [Problem(i, "", answer) for i, answer in enumerate(answers)]
    return {
        one.problem.answer: one.reason for one in find_unmatched("math", checker.judge, problems)
    }


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("N/A", "a word for a missing answer"),
        ("None", "a word for a missing answer"),
        (" nan ", "a word for a missing answer"),
        ("We count them.\n#### N/A", "a word for a missing answer"),
        ('["42", "forty-two"]', "a list, expected one answer"),
        ("['42']", "a list, expected one answer"),
        ("['42' '43']", "a list, expected one answer"),
        ("{'value': '42'}", "an object, expected one answer"),
        ("array(['42'], dtype=object)", "an array as Python prints it, expected one answer"),
        ("np.float64(42.0)", "an array as Python prints it, expected one answer"),
        ("Half of it is left.\n####", "no answer after ####"),
        (r"so that \boxed{}", r"the response 'so that \\boxed{}' is wrong"),
        ("Proof. Suppose n is even.", "a text without a final answer"),
        ("By symmetry both sides are equal. QED", "a text without a final answer"),
        ("48 / 2 = 24\n48 + 24 = 72", "a text without a final answer"),
        (
            "She sold 24 clips in May, so she sold 72 clips altogether",
            "a text without a final answer",
        ),
        ("12,34,567", "the response '1234567' is wrong"),
    ],
)
def test_what_no_response_matches(math_checker: Checker, answer: str, reason: str) -> None:
    assert reason in unmatched(math_checker, "7", answer, "8").get(answer, "")


def test_what_responses_match(math_checker: Checker) -> None:
    answers = [
        "42", "-3", "3.14", "1,234", "1,234,567", "50%", "$18", "7 apples", r"\frac{3}{4}", "3/4",
        r"2\sqrt{3}",
        "x = 5", r"x^2 + 1", "(1, 2)", r"\{1, 2\}", "[1, 2]", r"(-\infty, 3]", "Evelyn",
        "no solution", "(B)",
        r"\begin{pmatrix} 1 \\ 2\end{pmatrix}", "2 and 3", "She has 3 left.\n#### 3",
        r"Thus $x = 4$, so \boxed{4}.",
    ]  # fmt: skip
    assert unmatched(math_checker, *answers) == {}


@pytest.mark.parametrize(
    "answer",
    [
        "See solution", "see the solution.", "Please see above", "Refer to the figure",
        "See attached image",
        r"\text{See solution}", r"\text{See explanation.}", "(see below)", "Check the answer below",
        "证明见解析", "略",
        "Not available", "Not available yet", "Answer not provided", "The answer is not given.",
        "No answer provided",
        "no answer available", "no answer", "unknown", "Unknown.", "[unknown]", "n.a.", "TBA",
        "...", "Unavailable",
        "Answers will vary.", "To be determined", "#REF!", "Work it out.\n#### See solution",
    ],
)  # fmt: skip
def test_words_that_say_there_is_no_answer(math_checker: Checker, answer: str) -> None:
    assert list(unmatched(math_checker, "7", answer, "8")) == [answer]


def test_words_that_say_there_is_no_answer_in_every_row(math_checker: Checker) -> None:
    answers = ["See solution", "unknown", "Not available", "no answer", "TBD", "None"]
    assert list(unmatched(math_checker, *answers, *answers)) == answers


def test_words_for_nothing_that_are_an_answer(math_checker: Checker) -> None:
    """One label of several; what mathematics calls having none; and words that only begin alike."""
    labels = ["True", "False", "Unknown", "True", "Unknown", "False", "not given", "no answer"]
    assert unmatched(math_checker, *labels) == {}
    answers = [
        "no solution",
        "no real solutions",
        "seesaw",
        "Seer",
        "not possible",
        "not enough",
        "(0)",
        "-1",
        "9.",
        "A.",
    ]
    assert (
        unmatched(math_checker, *answers, "not continuous", "infinitely many", "not unique", "see")
        == {}
    )


def test_a_wrong_final_answer_is_found_in_every_solution_that_ends_in_it(
    math_checker: Checker,
) -> None:
    answers = ["one\n#### 12,34,567", "another\n#### 12,34,567", "a third\n#### 12"]
    assert list(unmatched(math_checker, *answers)) == answers[:2]


def test_other_verifiers() -> None:
    problems = [
        Problem(i, "", answer) for i, answer in enumerate(["4", "1,234", "N/A", '["a", "b"]'])
    ]
    for use in ("integer", "integer:last_line"):
        assert [one.problem.answer for one in find_unmatched(use, None, problems)] == [
            "N/A",
            '["a", "b"]',
        ]
    assert [one.problem.answer for one in find_unmatched("exact", None, problems)] == [
        "N/A",
        '["a", "b"]',
    ]
    assert find_unmatched("function:rewards.py:f", None, problems) == []


def check(
    folder: Path,
    answers: list[object],
    use: str | dict[str, str] = "math",
    refuse: bool = True,
    order: int = 1,
    checker: Checker | None = None,
) -> None:
    """As a run does, of problems in a file; with a checker that is there already, or, as a run
    does, one that the task starts."""
    path = folder / "train.jsonl"
    path.write_text(
        "".join(
            json.dumps({"question": f"{i}?", "answer": a}) + "\n" for i, a in enumerate(answers)
        )
    )
    cell = CellConfig(
        task=f"jsonl:{path}",
        model=ModelConfig(path=str(byte_level(folder / "model"))),
        sampling=SamplingConfig(prompt_length=20, response_length=9),
        verifier=VerifierConfig(use=use),
        reward=RewardConfig(kind="binary" if isinstance(use, str) else "graded"),
        data=DataConfig(attempts=0),
    )
    source = open_source(cell.task, cell.data)
    problems = [*source.all_problems]  # type: ignore[attr-defined]
    task = TextTask(source, cell, num_workers=1)
    with pytest.MonkeyPatch.context() as patch:
        if checker is not None:
            patch.setattr(task, "start_verifier", lambda: checker)
        try:
            check_references(cell, task, [problems[::order]], refuse)
        finally:
            task.close()


def test_a_few_are_warned_of_with_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], math_checker: Checker
) -> None:
    check(tmp_path, [*range(10), "N/A", *range(11, 40)])
    message = capsys.readouterr().err
    assert message.startswith("warning: 1 of 40 reference answers can be matched by no response")
    assert f"{tmp_path}/train.jsonl, line 11: 'N/A' (a word for a missing answer)" in message
    check(tmp_path, [*range(40)], checker=math_checker)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("answer", [["42", "forty-two"], '["42"]', "nan"])
def test_more_than_a_few_are_refused_with_file_line_and_remedy(
    tmp_path: Path, answer: object, math_checker: Checker
) -> None:
    answers = [answer if i % 9 == 5 else i for i in range(40)]  # 4 of 40
    with refused(where="cell.verifier.use = math") as e:
        check(tmp_path, answers, checker=math_checker)
    assert e.value.found.startswith("4 of 40 reference answers can be matched by no response")
    assert f"{tmp_path}/train.jsonl, line 6: " in e.value.found
    assert "cell.data.answer_key=" in e.value.fix


def test_rows_are_named_in_the_order_of_the_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, math_checker: Checker
) -> None:
    answers = ["N/A" if i in (3, 30) else i for i in range(40)]
    check(tmp_path, answers, order=-1, checker=math_checker)
    message = capsys.readouterr().err
    assert message.index("line 4: 'N/A'") < message.index("line 31: 'N/A'")


def test_most_of_a_few_rows_are_refused(tmp_path: Path, math_checker: Checker) -> None:
    with refused():
        check(tmp_path, ["None", "N/A", "3"], checker=math_checker)


def test_a_run_that_goes_on_is_not_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], math_checker: Checker
) -> None:
    check(tmp_path, ["N/A"] * 20, refuse=False, checker=math_checker)
    assert "20 of 20 reference answers" in capsys.readouterr().err


@pytest.mark.parametrize("refuse", [True, False])
def test_an_answer_that_is_no_integer_is_refused_with_its_line(
    tmp_path: Path, refuse: bool
) -> None:
    with refused():
        check(tmp_path, [*range(39), "3.5"], "integer", refuse)
    with refused():
        check(tmp_path, [*range(38), "N/A", "3.5"], "integer", refuse)


def test_words_for_nothing_may_be_labels_of_an_exact_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(tmp_path, ["none", "some"] * 10, use="exact")
    assert "10 of 20 reference answers" in capsys.readouterr().err


def test_solutions_that_an_exact_task_compares_in_full_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(tmp_path, ["3 + 9\n#### 12", "so\n4", "a whole sentence", "5\n"] * 10, use="exact")
    output = " ".join(capsys.readouterr().err.split())
    assert "20 of 40 reference answers" in output and "cell.verifier.use = exact" in output
    assert "train.jsonl, line 1: '3 + 9 #### 12' (a solution with its answer after ####" in output
    assert "train.jsonl, line 2: 'so 4' (a text of several lines" in output
    assert "line 3:" not in output and "line 4:" not in output

    check(tmp_path, [12, "some text", "x #1"], use="exact")
    assert "reference answers" not in capsys.readouterr().err


def test_of_several_verifiers_the_built_in_ones_are_asked(tmp_path: Path) -> None:
    answers = ["None" if i % 4 == 0 else i for i in range(20)]
    check(tmp_path, answers, use={"form": "function:nowhere.py:form"}, refuse=True)
    with refused():
        check(tmp_path, answers, use={"accuracy": "math", "words": "exact"})
