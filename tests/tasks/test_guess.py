"""The guessing game: replies and rewards against a plain loop, and the player of its
demonstrations."""

from __future__ import annotations

import numpy as np
import pytest

from isojax.tasks.device import guess
from isojax.tasks.device.guess import ALPHABET, TOKEN_ID
from tests.refusals import refused

TASK = guess.build()
T = 20


def tokens_of(text: str, length: int = T) -> list[int]:
    return [TOKEN_ID[c] for c in text] + [0] * (length - len(text))


@pytest.mark.parametrize(
    ("text", "replied", "correct"),
    [
        ("42?", "", 1),
        ("41?", ">", 0),
        ("43?", "<", 0),
        ("00?", ">", 0),
        ("99?", "<", 0),
        ("60?<42?", "", 1),
        ("60?<24?", ">", 0),
        ("60?<30?>50?<40?>42?", "", 1),
        ("60?<30?>50?<40?>41?", ">", 0),
        ("?", "", 0),  # no guess: done
        ("142?", "", 0),
        ("60?<142?", "", 0),
        ("4=?", "", 0),
        ("A2?", "", 0),
    ],
)
def test_replies_and_rewards_by_hand(text: str, replied: str, correct: int) -> None:
    answers, row = np.array([tokens_of("42?")]), np.array([tokens_of(text)])
    context, count = guess.reply(answers, row, np.array([len(text)]))
    assert "".join(ALPHABET[t] for t in context[0, : count[0]]) == replied
    assert TASK.verify(answers, row, np.arange(T)[None] < len(text)).tolist() == [correct]


def test_every_guess_of_every_secret() -> None:
    secret, guessed = map(np.ravel, np.meshgrid(np.arange(100), np.arange(100)))
    answers = np.array([tokens_of(f"{s:02d}?") for s in range(100)])[secret]
    rows = np.array([tokens_of(f"50?<{g:02d}?") for g in range(100)])[guessed]
    context, count = guess.reply(answers, rows, np.full(10_000, 7))
    expected = [
        ">" if g < s else "<" if g > s else ""
        for s, g in zip(secret.tolist(), guessed.tolist(), strict=True)
    ]
    assert [
        ALPHABET[t] if c else ""
        for t, c in zip(context[:, 0].tolist(), count.tolist(), strict=True)
    ] == expected
    rewards = TASK.verify(answers, rows, np.broadcast_to(np.arange(T) < 7, rows.shape))
    assert rewards.tolist() == (secret == guessed).tolist()


def test_problems_are_distinct_and_their_secrets_within_their_ranges() -> None:
    problems = TASK.problems(4000, np.random.default_rng(0))
    assert len({p.id for p in problems}) == len({p.prompt for p in problems}) == 4000
    places = []
    for p in problems:
        low, high, secret = int(p.prompt[1:3]), int(p.prompt[4:6]), int(p.answer)
        assert low <= secret <= high and 3 <= high - low + 1 <= 60
        places.append((secret - low + 0.5) / (high - low + 1))
    assert np.abs(np.histogram(places, 10, (0, 1))[0] - 400).max() < 4 * np.sqrt(400)
    with refused(where="cell.data.candidates"):
        TASK.problems(1_000_000, np.random.default_rng(0))


def test_the_demonstrations_are_games_with_true_replies() -> None:
    games = TASK.demonstrations(3000, np.random.default_rng(1), 7, T)
    won = inside = 0
    for prompt, row, game_id in zip(games.prompts, games.answers, games.ids, strict=True):
        text = TASK.decode(row)
        low, high = game_id // 100 % 100, game_id % 100
        assert "".join(ALPHABET[t] for t in prompt).endswith(f"{low:02d}-{high:02d}=")
        secret = int(
            guess.secret_number(*(np.array([x]) for x in (game_id // 10_000, low, high)))[0]
        )
        guesses = [int(text[i : i + 2]) for i in range(0, len(text), 4)]
        signs = ["<" if secret < g else ">" for g in guesses if g != secret]
        assert (
            text
            == "".join(f"{g:02d}?{s}" for g, s in zip(guesses, [*signs, ""], strict=False)).rstrip(
                "<>"
            )[: len(text)]
        )
        assert (
            all(t >= 0 or i % 4 == 3 for i, t in enumerate(row))
            and (row[3::4] < 0).sum() == len(guesses) - 1
        )
        won += guesses[-1] == secret
        inside += len(guesses) == 5 or guesses[-1] == secret
    assert inside == 3000 and 0.15 < won / 3000 < 0.6


def test_what_does_not_fit_is_refused() -> None:
    problems = TASK.problems(3, np.random.default_rng(0))
    with refused(where="cell.sampling"):
        TASK.encode(problems, 6, 20)
    with refused(where="cell.task"):
        guess.build("9")
