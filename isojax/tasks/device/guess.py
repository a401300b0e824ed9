"""A number is guessed in turns. The prompt `C17-63=` names a game C and a range, the policy writes
two digits and `?`, and the reply is `<` where the secret number is smaller than the guess, or `>`
where it is larger. A response is correct where its last guess is the secret. T = 20 tokens have
room for five guesses; bisection needs no more for 31 numbers.

The base policy imitates a player that bisects with a probability which depends on the width of the
range and the game, and else guesses anywhere in the range: it wins at rates that spread from Hard
to Easy."""

from typing import ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.tasks.device import device_task
from isojax.tasks.protocol import EncodedProblems, StopConditions
from isojax.tasks.turns import plain_tokens

ALPHABET = "0123456789ABCDEFGH-=?<> "
GAMES = "ABCDEFGH"  # games of one range have different secrets
TOKEN_ID = {c: i for i, c in enumerate(ALPHABET)}
PROMPT_LENGTH, TURN_LENGTH = len("C17-63="), len("40?<")  # tokens
MIN_WIDTH, MAX_WIDTH = 3, 60  # numbers in a range

_rng = np.random.default_rng(5)
# of a class of widths and a game
BISECT_PROBABILITY = _rng.uniform(0.1, 0.6, (MAX_WIDTH // 6 + 1, len(GAMES)))
_highs = [range(low + MIN_WIDTH - 1, min(100, low + MAX_WIDTH)) for low in range(100)]
_RANGES = np.array([(low, high) for low, highs in enumerate(_highs) for high in highs], np.int64)


def secret_number(game: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The secret i[q] of each game 0..7 on a range: evenly spread, and the same in every run."""
    game, low, high = (np.asarray(x, np.int64) for x in (game, low, high))
    mixed = (game * 10_000 + low * 100 + high + 1) * 2654435761 % 2**32
    return low + (mixed ^ (mixed >> 15)) * 2246822519 % 2**32 // 2**8 % (high - low + 1)


def last_tokens(tokens: Int[Array, "*b T"], lengths: Int[Array, "*b"]) -> Int[Array, "*b 3"]:
    positions = jnp.stack([lengths - 3, lengths - 2, lengths - 1], -1)
    return jnp.take_along_axis(tokens, jnp.maximum(positions, 0), -1)


def reply(
    answers: Int[Array, "R A"], tokens: Int[Array, "R T"], lengths: Int[Array, " R"]
) -> tuple[Int[Array, "R 1"], Int[Array, " R"]]:
    """`<` or `>` after a wrong guess; the response is done after the right one, or a turn that is
    no guess."""
    digits = last_tokens(tokens, lengths)
    guess, secret = digits[:, 0] * 10 + digits[:, 1], answers[:, 0] * 10 + answers[:, 1]
    is_guess = (lengths % TURN_LENGTH == 3) & (digits[:, :2] < 10).all(-1)
    context = jnp.where(secret < guess, TOKEN_ID["<"], TOKEN_ID[">"])
    return context[:, None], (is_guess & (guess != secret)).astype(jnp.int32)


class GuessTask:
    on_device: ClassVar[Literal[True]] = True
    vocab = len(ALPHABET)  # 24, which a mesh of 2, 4 or 8 divides
    eos = TOKEN_ID["?"]
    stops = StopConditions((eos,), None, reply=reply)
    pad = TOKEN_ID[" "]

    def problems(self, count: int, rng: np.random.Generator) -> list[Problem]:
        """`count` distinct problems, a game and a range each."""
        num_problems = len(GAMES) * len(_RANGES)
        if count > num_problems:
            raise InputError(
                f"cell.data.candidates is {count}; the task `guess` has {num_problems} problems."
            )
        game, index = np.divmod(rng.choice(num_problems, count, replace=False), len(_RANGES))
        low, high = _RANGES[index].T
        secrets = secret_number(game, low, high)
        return [
            Problem(g * 10_000 + a * 100 + b, f"{GAMES[g]}{a:02d}-{b:02d}=", f"{secret:02d}")
            for g, a, b, secret in zip(
                game.tolist(), low.tolist(), high.tolist(), secrets.tolist(), strict=True
            )
        ]

    def encode(
        self, problems: list[Problem], prompt_length: int, response_length: int
    ) -> EncodedProblems:
        """Prompts of 7 tokens, and answers of three, the secret and `?`."""
        if prompt_length != PROMPT_LENGTH or response_length < TURN_LENGTH:
            sizes = f"prompt_length = {PROMPT_LENGTH} and response_length of at least {TURN_LENGTH}"
            given = f"given {prompt_length} and {response_length}"
            raise InputError(
                f"cell.sampling: the task `guess` takes {sizes}, {given}; five guesses take 20."
            )
        prompts = np.array([[TOKEN_ID[c] for c in p.prompt] for p in problems], np.int32)
        answers = np.full((len(problems), response_length), self.pad, np.int32)
        answers[:, :3] = [[TOKEN_ID[c] for c in p.answer + "?"] for p in problems]
        lengths = np.full(len(problems), PROMPT_LENGTH, np.int32)
        return EncodedProblems(
            prompts, lengths, answers, np.array([p.id for p in problems], np.int32)
        )

    def decode(self, tokens: np.ndarray) -> str:
        return "".join(ALPHABET[t] for t in plain_tokens(tokens)).rstrip(" ")

    def demonstrations(
        self, count: int, rng: np.random.Generator, prompt_length: int, response_length: int
    ) -> EncodedProblems:
        """Games of the player; see the module."""
        encoded = self.encode(self.problems(count, rng), prompt_length, response_length)
        game, (low, high) = encoded.ids // 10_000, (encoded.ids // 100 % 100, encoded.ids % 100)
        secret = secret_number(game, low, high)
        bisect_probability = BISECT_PROBABILITY[(high - low) // 6, game]
        tokens = np.full((count, response_length), self.pad, np.int32)
        playing = np.ones(count, bool)
        smallest, largest = low, high  # that the replies leave
        for start in range(0, response_length - 2, TURN_LENGTH):
            bisects = rng.random(count) < bisect_probability
            guess = np.where(bisects, (smallest + largest) // 2, rng.integers(low, high + 1))
            signs = np.where(secret < guess, ~TOKEN_ID["<"], ~TOKEN_ID[">"])
            turn = np.stack([guess // 10, guess % 10, np.full(count, self.eos), signs], 1)
            length = 3 + (playing & (guess != secret) & (start + TURN_LENGTH < response_length))
            written = playing[:, None] & (np.arange(TURN_LENGTH) < length[:, None])
            width = min(TURN_LENGTH, response_length - start)
            columns = slice(start, start + width)
            tokens[:, columns] = np.where(written, turn, self.pad)[:, :width]
            playing = playing & (guess != secret)
            smallest = np.where(guess < secret, np.maximum(smallest, guess + 1), smallest)
            largest = np.where(guess > secret, np.minimum(largest, guess - 1), largest)
        return encoded._replace(answers=tokens)

    def verify(
        self, answers: Int[Array, "*b T"], tokens: Int[Array, "*b T"], mask: Bool[Array, "*b T"]
    ) -> Float[Array, "*b"]:
        """1 where the last turn is the secret and `?`."""
        lengths = mask.sum(-1)
        is_right = (last_tokens(tokens, lengths) == answers[..., :3]).all(-1)
        return (is_right & (lengths % TURN_LENGTH == 3)).astype(jnp.float32)


@device_task
def build(argument: str = "") -> GuessTask:
    if argument:
        raise InputError(f"cell.task: guess takes no argument, given {argument!r}; write guess.")
    return GuessTask()
