"""A number is guessed in turns. The prompt `C17-63=` names a game C and a range, the policy writes
two digits and `?`, and the reply is `<` where the secret number is smaller than the guess, or `>`
where it is larger. A response is correct where its last guess is the secret. T = 20 tokens have
room for five guesses; bisection needs no more for 31 numbers.

The base policy imitates a player that bisects with a probability which depends on the width of the
range and the game, and else guesses anywhere in the range: it wins at rates that spread from Hard
to Easy.
"""

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
PROMPT_LENGTH = len("C17-63=")  # tokens
TURN_LENGTH = len("40?<")  # tokens, with the reply
GUESS_LENGTH = len("40?")
MIN_WIDTH, MAX_WIDTH = 3, 60  # numbers in a range
WIDTHS_PER_CLASS = 6

# How often the player of the demonstrations bisects: [width // WIDTHS_PER_CLASS, game].
BISECT_PROBABILITY = np.random.default_rng(5).uniform(
    0.1, 0.6, (MAX_WIDTH // WIDTHS_PER_CLASS + 1, len(GAMES))
)


def _all_ranges() -> np.ndarray:
    """The first and last number i64[ranges 2] of each range within 0..99."""
    ranges: list[tuple[int, int]] = []
    for low in range(100):
        for high in range(low + MIN_WIDTH - 1, min(100, low + MAX_WIDTH)):
            ranges.append((low, high))
    return np.array(ranges, np.int64)


_RANGES = _all_ranges()


def secret_number(game: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The secret i[q] of each game 0..7 on a range: evenly spread, and the same in every run."""
    game, low, high = (np.asarray(x, np.int64) for x in (game, low, high))
    problem_id = _problem_id(game, low, high)

    # A hash of 32 bits, multiplicative with one xorshift; its low 8 bits are the weakest.
    mixed = (problem_id + 1) * 2654435761 % 2**32
    mixed = (mixed ^ (mixed >> 15)) * 2246822519 % 2**32
    return low + mixed // 2**8 % (high - low + 1)


def _problem_id(game: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Of game 2 on 17..63: 21763."""
    return game * 10_000 + low * 100 + high


def last_tokens(tokens: Int[Array, "*b T"], lengths: Int[Array, "*b"]) -> Int[Array, "*b 3"]:
    """The last three tokens of each response: of a turn, the guess and `?`. A response of fewer
    than three gets its first token in place of what is missing."""
    positions = jnp.stack([lengths - 3, lengths - 2, lengths - 1], -1)
    return jnp.take_along_axis(tokens, jnp.maximum(positions, 0), -1)


def reply(
    answers: Int[Array, "R A"], tokens: Int[Array, "R T"], lengths: Int[Array, " R"]
) -> tuple[Int[Array, "R 1"], Int[Array, " R"]]:
    """`<` or `>` after a wrong guess; the response is done after the right one, or a turn that is
    no guess. (The reply as one token of context, and how many tokens it has: 1, or 0 where the
    response is done.) answers begin with the two digits of the secret; this is a DeviceReply
    (protocol.py)."""
    digits = last_tokens(tokens, lengths)
    guess = digits[:, 0] * 10 + digits[:, 1]
    secret = answers[:, 0] * 10 + answers[:, 1]
    # Tokens 0..9 are the digits 0..9. With GUESS_LENGTH tokens of the policy in each turn and one
    # of the reply, a guess ends where the length is 3, 7, 11, ...
    is_guess = (lengths % TURN_LENGTH == GUESS_LENGTH) & (digits[:, :2] < 10).all(-1)
    context = jnp.where(secret < guess, TOKEN_ID["<"], TOKEN_ID[">"])
    return context[:, None], (is_guess & (guess != secret)).astype(jnp.int32)


class GuessTask:
    """A DeviceTask; see the module."""

    on_device: ClassVar[Literal[True]] = True
    vocab = len(ALPHABET)  # 24, which a mesh of 2, 4 or 8 divides
    eos = TOKEN_ID["?"]
    stops = StopConditions((eos,), None, reply=reply)
    pad = TOKEN_ID[" "]

    def problems(self, count: int, rng: np.random.Generator) -> list[Problem]:
        """`count` distinct random problems, each a game and a range: prompt "C17-63=", answer "40".
        InputError where there are not so many."""
        num_problems = len(GAMES) * len(_RANGES)
        if count > num_problems:
            raise InputError(
                where="cell.data.candidates",
                found=f"given {count}",
                expected=f"at most {num_problems}, the problems of the task `guess`",
            )

        # Each number stands for a game and a range; the arrays are i64[count].
        drawn = rng.choice(num_problems, count, replace=False)
        games, range_indices = np.divmod(drawn, len(_RANGES))
        lows, highs = _RANGES[range_indices].T
        ids = _problem_id(games, lows, highs).tolist()
        secrets = secret_number(games, lows, highs).tolist()

        problems: list[Problem] = []
        for i, (game, low, high) in enumerate(zip(games, lows, highs, strict=True)):
            prompt = f"{GAMES[game]}{low:02d}-{high:02d}="
            problems.append(Problem(ids[i], prompt, f"{secrets[i]:02d}"))
        return problems

    def encode(
        self, problems: list[Problem], prompt_length: int, response_length: int
    ) -> EncodedProblems:
        """Problems as tokens: prompts i32[Q 7], and answers i32[Q response_length], which are the
        secret's two digits and `?`, padded. InputError for lengths that do not fit: prompt_length
        must be 7."""
        # A shorter response has no room for a guess and its reply.
        if prompt_length != PROMPT_LENGTH or response_length < TURN_LENGTH:
            raise InputError(
                where="cell.sampling",
                found=(
                    f"given prompt_length = {prompt_length} and "
                    f"response_length = {response_length} for the task `guess`"
                ),
                expected=f"{PROMPT_LENGTH}, and at least {TURN_LENGTH} (five guesses take 20)",
            )

        answers = np.full((len(problems), response_length), self.pad, np.int32)
        answers[:, :GUESS_LENGTH] = [_tokenize(problem.answer + "?") for problem in problems]
        return EncodedProblems(
            prompts=np.array([_tokenize(problem.prompt) for problem in problems], np.int32),
            prompt_lengths=np.full(len(problems), PROMPT_LENGTH, np.int32),
            answers=answers,
            ids=np.array([problem.id for problem in problems], np.int32),
        )

    def decode(self, tokens: np.ndarray) -> str:
        """Tokens as text, replies too."""
        return "".join(ALPHABET[t] for t in plain_tokens(tokens)).rstrip(" ")

    def demonstrations(
        self, count: int, rng: np.random.Generator, prompt_length: int, response_length: int
    ) -> EncodedProblems:
        """`count` games as the player plays them (top of this file), as prompts and responses for
        the base policy to imitate. Tokens of the task's replies are marked as ~token. `answers` of
        what is returned, i32[count response_length], are the games rather than the secrets. All
        arrays below have a row or an entry for each game."""
        encoded = self.encode(self.problems(count, rng), prompt_length, response_length)
        # Out of the ids, which `_problem_id` has made.
        game = encoded.ids // 10_000
        low = encoded.ids // 100 % 100
        high = encoded.ids % 100
        secret = secret_number(game, low, high)
        bisect_probability = BISECT_PROBABILITY[(high - low) // WIDTHS_PER_CLASS, game]

        # All games are played at once, turn by turn.
        tokens = np.full((count, response_length), self.pad, np.int32)
        is_playing = np.ones(count, bool)
        # The range that the replies so far have not excluded. Only a bisecting player looks at it.
        smallest, largest = low, high
        for start in range(0, response_length - GUESS_LENGTH + 1, TURN_LENGTH):
            bisects = rng.random(count) < bisect_probability
            guess = np.where(bisects, (smallest + largest) // 2, rng.integers(low, high + 1))
            is_wrong = guess != secret

            # The reply is context, which is not imitated: ~token. It follows a wrong guess, unless
            # no token would follow it in the response.
            reply_token = np.where(secret < guess, ~TOKEN_ID["<"], ~TOKEN_ID[">"])
            turn = np.stack([guess // 10, guess % 10, np.full(count, self.eos), reply_token], 1)
            has_reply = is_playing & is_wrong & (start + TURN_LENGTH < response_length)
            turn_length = GUESS_LENGTH + has_reply
            is_written = is_playing[:, None] & (np.arange(TURN_LENGTH) < turn_length[:, None])
            width = min(TURN_LENGTH, response_length - start)
            columns = slice(start, start + width)
            tokens[:, columns] = np.where(is_written, turn, self.pad)[:, :width]

            is_playing = is_playing & is_wrong
            smallest = np.where(guess < secret, np.maximum(smallest, guess + 1), smallest)
            largest = np.where(guess > secret, np.minimum(largest, guess - 1), largest)
        return encoded._replace(answers=tokens)

    def verify(
        self, answers: Int[Array, "*b T"], tokens: Int[Array, "*b T"], mask: Bool[Array, "*b T"]
    ) -> Float[Array, "*b"]:
        """1 where the last turn is the secret and `?`. mask: where a response has tokens, context
        too; answers as `encode` makes them."""
        lengths = mask.sum(-1)
        is_right = (last_tokens(tokens, lengths) == answers[..., :3]).all(-1)
        return (is_right & (lengths % TURN_LENGTH == GUESS_LENGTH)).astype(jnp.float32)


def _tokenize(text: str) -> list[int]:
    return [TOKEN_ID[character] for character in text]


@device_task
def build(argument: str = "") -> GuessTask:
    """The task; it takes no argument."""
    if argument:
        raise InputError(
            where="cell.task",
            found=f"guess takes no argument, given {argument!r}",
            fix="Write guess.",
        )
    return GuessTask()
