"""The solvers task: answers by hand, what the verifier takes, and the mixture of solvers in its
demonstrations."""

from __future__ import annotations

import numpy as np
import pytest

from isojax.core.config import CellConfig
from isojax.core.nouns import Problem
from isojax.tasks.device import solvers
from isojax.tasks.device.solvers import ALPHABET, CONFUSION_PROBABILITY, CORRECT_PROBABILITY
from isojax.tasks.task import build_task
from tests.refusals import refused

TASK = solvers.build()
# of 17 and 37
BY_HAND = {"A": "54", "B": "20", "C": "37", "D": "17", "E": "17", "F": "37", "G": "4", "H": "9"}


@pytest.mark.parametrize(("operator", "answer"), BY_HAND.items())
def test_answers_by_hand(operator: str, answer: str) -> None:
    index = "ABCDEFGH".index(operator)
    assert str(solvers.solve(np.array([index]), np.array([17]), np.array([37]))[0]) == answer


@pytest.mark.parametrize(
    ("a", "b", "answers"),
    [(99, 99, [198, 0, 99, 99, 99, 99, 8, 1]), (5, 80, [85, 75, 80, 5, 5, 80, 5, 0])],
)
def test_more_answers_by_hand(a: int, b: int, answers: list[int]) -> None:
    assert solvers.solve(np.arange(8), np.full(8, a), np.full(8, b)).tolist() == answers


def test_problems_are_distinct_and_rightly_answered() -> None:
    problems = TASK.problems(3000, np.random.default_rng(0))
    assert len({p.id for p in problems}) == len({p.prompt for p in problems}) == 3000
    right = dict(
        zip(
            "ABCDEFGH",
            (
                "{}+{}",
                "abs({}-{})",
                "max({},{})",
                "min({},{})",
                "{0}",
                "{1}",
                "({}+{})%10",
                "({}*{})%10",
            ),
            strict=True,
        )
    )
    for p in problems:
        a, operator, b, end = p.prompt[:2], p.prompt[2], p.prompt[3:5], p.prompt[5:]
        assert end == "=" and p.answer == str(eval(right[operator].format(int(a), int(b))))
    counts = np.array([sum(p.prompt[2] == o for p in problems) for o in "ABCDEFGH"])
    assert np.abs(counts - 375).max() < 4 * np.sqrt(375)
    assert TASK.problems(5, np.random.default_rng(0)) == TASK.problems(5, np.random.default_rng(0))


def test_every_problem_there_is_and_no_more() -> None:
    rng = np.random.default_rng(0)
    assert len({p.prompt for p in TASK.problems(80_000, rng)}) == 80_000
    with refused(where="cell.data.candidates"):
        TASK.problems(80_001, rng)


def test_encoding_by_hand() -> None:
    encoded = TASK.encode([Problem(4, "07H12=", "4"), Problem(9, "60A70=", "130")], 8, 5)
    # digits are 0..9, A..H 10..17, = 18, $ 19, space 20
    assert encoded.prompts.tolist() == [[0, 7, 17, 1, 2, 18, 20, 20], [6, 0, 10, 7, 0, 18, 20, 20]]
    assert encoded.answers.tolist() == [[4, 19, 20, 20, 20], [1, 3, 0, 19, 20]]
    assert encoded.prompt_lengths.tolist() == [6, 6] and encoded.ids.tolist() == [4, 9]
    assert [TASK.decode(row) for row in encoded.answers] == ["4", "130"]
    assert TASK.decode(np.array([1, 23, 19, 5])) == "1?"


@pytest.mark.parametrize(
    ("prompt_length", "response_length"),
    [
        (5, 4),
        (6, 3),
    ],
)
def test_what_does_not_fit_is_refused(prompt_length: int, response_length: int) -> None:
    with refused():
        TASK.encode([Problem(0, "07H12=", "130")], prompt_length, response_length)


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("54$", 1),
        ("54$A", 1),  # what comes after the end is no part of the response
        ("55$", 0),
        ("5$", 0),
        ("540$", 0),
        ("54", 0),  # cut before its end
        ("54  ", 0),
        ("54 $", 0),
        (" 54$", 0),
        ("054$", 0),
        ("$", 0),
        ("", 0),
    ],
)
def test_verdicts(response: str, reward: int) -> None:
    """The response to 17A37=, in 4 tokens; sampled tokens count up to the end token, as the
    sampler's mask says."""
    answers = TASK.encode([Problem(0, "17A37=", "54")], 6, 4).answers
    tokens = np.array([[ALPHABET.index(c) for c in response.ljust(4, "7")[:4]]])
    length = response.index("$") + 1 if "$" in response else len(response)
    got = TASK.verify(answers, tokens, np.arange(4)[None] < length)
    assert np.asarray(got).tolist() == [reward]


def test_verdicts_of_many_at_once() -> None:
    problems = TASK.problems(200, np.random.default_rng(1))
    answers = TASK.encode(problems, 6, 4).answers
    shuffled = np.roll(answers, 1, 0)
    same = [problems[i].answer == problems[i - 1].answer for i in range(200)]
    mask = np.arange(4)[None] <= (shuffled == TASK.eos).argmax(1)[:, None]
    assert np.asarray(TASK.verify(answers, shuffled, mask)).tolist() == [float(s) for s in same]


def test_the_mixture_is_hard_and_easy() -> None:
    easy = CORRECT_PROBABILITY >= 0.2
    assert CORRECT_PROBABILITY.shape == (8, 5, 3) and 40 < easy.sum() < 80
    assert (
        CORRECT_PROBABILITY[easy].max() < 0.65
        and CORRECT_PROBABILITY[~easy].min() > 0.005
        and CORRECT_PROBABILITY[~easy].max() < 0.08
    )
    np.testing.assert_allclose(CONFUSION_PROBABILITY.sum(1), 1)


@pytest.mark.parametrize("operators", ["ABCDEFGH", "GABC"])
def test_demonstrations_answer_rightly_as_often_as_the_mixture_says(operators: str) -> None:
    """Another operator's solver is right by chance: the exact rate of a class is over its pairs (a,
    b)."""
    selected = sorted("ABCDEFGH".index(o) for o in operators)
    a, b = (x.reshape(-1) for x in np.mgrid[0:100, 0:100])
    answers = np.stack(
        [a + b, abs(a - b), np.maximum(a, b), np.minimum(a, b), a, b, (a + b) % 10, (a * b) % 10]
    )
    exact = np.zeros((8, 5, 3))
    for o in selected:
        weights = dict(zip([i for i in range(8) if i != o], CONFUSION_PROBABILITY[o], strict=True))
        others = [i for i in selected if i != o]
        chance = sum(weights[i] * (answers[i] == answers[o]) for i in others) / sum(
            weights[i] for i in others
        )
        for x in range(5):
            for y in range(3):
                exact[o, x, y] = (
                    CORRECT_PROBABILITY[o, x, y]
                    + (1 - CORRECT_PROBABILITY[o, x, y])
                    * chance[(a % 5 == x) & (b % 3 == y)].mean()
                )

    task = build_task(CellConfig(task=f"solvers:{operators}"))
    demonstrations = task.demonstrations(15_000 * len(selected), np.random.default_rng(0), 6, 4)
    p = demonstrations.prompts
    a, o, b = p[:, 0] * 10 + p[:, 1], p[:, 2] - 10, p[:, 3] * 10 + p[:, 4]
    inputs = np.array([int(task.decode(row)) for row in demonstrations.answers])
    right = inputs == np.choose(
        o, [a + b, abs(a - b), np.maximum(a, b), np.minimum(a, b), a, b, (a + b) % 10, (a * b) % 10]
    )
    seen, total = np.zeros((8, 5, 3)), np.zeros((8, 5, 3))
    np.add.at(total, (o, a % 5, b % 3), 1)
    np.add.at(seen, (o, a % 5, b % 3), right)
    assert np.flatnonzero(total.sum((1, 2))).tolist() == selected
    seen, total, exact = (x[selected] for x in (seen, total, exact))
    assert np.abs(total.sum((1, 2)) - 15_000).max() < 4.5 * np.sqrt(15_000)
    z = (seen - total * exact) / np.sqrt(total * exact * (1 - exact))
    assert np.abs(z).max() < 4.5 and abs((z**2).mean() - 1) < 4 * np.sqrt(2 / z.size)
    assert (
        np.corrcoef((seen / total).reshape(-1), CORRECT_PROBABILITY[selected].reshape(-1))[0, 1]
        > 0.9
    )  # what is right by chance blurs it


def test_some_of_the_operators() -> None:
    task = build_task(CellConfig(task="solvers:GAB"))
    problems = task.problems(30_000, np.random.default_rng(0))
    assert {p.prompt[2] for p in problems} == set("ABG") and len(
        {p.prompt for p in problems}
    ) == 30_000
    every = {p.prompt: p for p in TASK.problems(80_000, np.random.default_rng(0))}
    # a problem has one number, whatever the task
    assert all(every[p.prompt] == p for p in problems)
    with refused(where="cell.data.candidates"):
        task.problems(30_001, np.random.default_rng(0))


@pytest.mark.parametrize("operators", ["AAB", "AX", "ab", "A"])
def test_operators_refused(operators: str) -> None:
    with refused(where="cell.task"):
        build_task(CellConfig(task=f"solvers:{operators}"))


@pytest.mark.parametrize("prompt", ["12a34=", "12é34="])
def test_strange_characters_are_refused(prompt: str) -> None:
    with refused():
        TASK.encode([Problem(0, prompt, "46")], 8, 4)


@pytest.mark.parametrize(("P", "T"), [(5, 4), (2**20, 4), (6, 2), (6, 2**20)])
def test_lengths_that_no_problem_has(P: int, T: int) -> None:
    problems = TASK.problems(8, np.random.default_rng(0))
    with refused():
        TASK.encode(problems, P, T)
