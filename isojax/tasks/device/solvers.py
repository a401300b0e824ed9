"""Arithmetic with eight operators: a problem is `aaOPbb=`, the operators A..H mean a+b, |a-b|, max,
min, a, b, (a+b) mod 10 and (ab) mod 10, and `solvers:ABCG` has those alone.

For each class (operator, a mod 5, b mod 3) the right solver demonstrates with a probability from
U(.2, .65) or U(.005, .08), else another does: a policy trained on them solves problems at rates
that spread from Hard to Easy.
"""

from typing import ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.tasks.device import device_task
from isojax.tasks.protocol import EncodedProblems, StopConditions

ALPHABET = "0123456789ABCDEFGH=$ "
OPERATORS = "ABCDEFGH"
MAX_LENGTH = 1024  # tokens of a prompt, or of an answer
TOKEN_ID = {c: i for i, c in enumerate(ALPHABET)}
# By a character's code; 0, which follows a text's end, is the pad.
TOKEN_OF_BYTE = np.full(256, -1, np.int32)
TOKEN_OF_BYTE[[0, *map(ord, ALPHABET)]] = [TOKEN_ID[" "], *range(len(ALPHABET))]

_rng = np.random.default_rng(3)
_CLASS_SHAPE = (len(OPERATORS), 5, 3)
# [operator, a mod 5, b mod 3]: how often the right solver answers.
CORRECT_PROBABILITY = np.where(
    _rng.random(_CLASS_SHAPE) < 0.5,
    _rng.uniform(0.2, 0.65, _CLASS_SHAPE),
    _rng.uniform(0.005, 0.08, _CLASS_SHAPE),
)
# [operator, other operator]: which solver answers where the right one does not.
CONFUSION_PROBABILITY = _rng.dirichlet(np.full(len(OPERATORS) - 1, 0.7), size=len(OPERATORS))


def solve(operator: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The answers i[q] of operators i[q] (0..7, indices into OPERATORS) to pairs a, b: i[q]."""
    all_answers = np.stack(
        [a + b, abs(a - b), np.maximum(a, b), np.minimum(a, b), a, b, (a + b) % 10, (a * b) % 10]
    )
    return np.take_along_axis(all_answers, operator[None], 0)[0]


def _prompt_text(operator: int, a: int, b: int) -> str:
    return f"{a:02d}{OPERATORS[operator]}{b:02d}="


def _tokenize(texts: list[str], length: int, field: str) -> np.ndarray:
    """Texts as tokens, one for each character, padded on the right: i32[texts, length]. InputError
    where a text is longer, or has characters outside ALPHABET. texts: one or more; length:
    cell.sampling's prompt_length or response_length; field: "prompt" or "response", for
    messages."""
    longest = max(texts, key=len)
    if not len(longest) <= length <= MAX_LENGTH:
        raise InputError(
            found=(
                f"the {field} {longest!r} takes {len(longest)} tokens, "
                f"cell.sampling.{field}_length is {length}"
            ),
            expected=f"{len(longest)} to {MAX_LENGTH:,}",
        )

    # NumPy pads byte strings with zeros. TOKEN_OF_BYTE gives -1 for characters outside ALPHABET.
    padded = np.array([text.encode() for text in texts], f"S{length}")
    codes = padded.view(np.uint8).reshape(len(texts), length)
    tokens = TOKEN_OF_BYTE[codes]
    if tokens.min() < 0:
        unknown = texts[int((tokens < 0).any(1).argmax())]
        raise InputError(
            found=f"the {field} {unknown!r} has characters unknown to solvers",
            expected=f"those of {ALPHABET!r}",
        )
    return tokens


class SolversTask:
    """A DeviceTask; see the module."""

    on_device: ClassVar[Literal[True]] = True
    vocab = 24  # the alphabet, rounded up so that a mesh of 2, 4 or 8 divides it
    eos = TOKEN_ID["$"]
    stops = StopConditions((eos,), None)
    pad = TOKEN_ID[" "]

    def __init__(self, operators: str = OPERATORS):
        """The task with these operators: two or more different letters of OPERATORS, such as
        "ABCG". InputError for others."""
        are_different = len(set(operators)) == len(operators) >= 2
        if not are_different or not set(operators) <= set(OPERATORS):
            expected = f"two or more different operators of {OPERATORS}, as in ABCG"
            raise InputError(
                where="cell.task",
                found=f"given solvers:{operators}",
                expected=expected,
            )
        self.operators = np.array([OPERATORS.index(operator) for operator in sorted(operators)])

        # confusion: [operator, other operator], 0 on the diagonal, which CONFUSION_PROBABILITY
        # leaves out. Restricted to the chosen operators, its rows are scaled to a sum of 1.
        confusion = np.zeros((len(OPERATORS), len(OPERATORS)))
        for operator, row in enumerate(CONFUSION_PROBABILITY):
            confusion[operator, np.arange(len(OPERATORS)) != operator] = row
        selected = confusion[:, self.operators]  # [every operator, chosen operator]
        # At least 1e-9, so that nothing is divided by 0.
        row_sums = np.maximum(selected.sum(1, keepdims=True), 1e-9)
        self._confusion_cdf = np.cumsum(selected / row_sums, 1)

    def problems(self, count: int, rng: np.random.Generator) -> list[Problem]:
        """`count` distinct random problems, of the 10,000 for each operator: prompt "12A34=",
        answer "46". InputError where there are not so many."""
        num_problems = len(self.operators) * 100 * 100
        if count > num_problems:
            raise InputError(
                where="cell.data.candidates",
                found=f"given {count}",
                expected=f"at most {num_problems}, the problems of the task `solvers`",
            )

        drawn = rng.choice(num_problems, count, replace=False)
        operators = self.operators[drawn // 10_000]
        a = drawn // 100 % 100
        b = drawn % 100
        # The same id whichever operators the task has. (`drawn` counts the task's own operators,
        # and operators holds indices into OPERATORS.)
        ids = operators * 10_000 + drawn % 10_000
        answers = solve(operators, a, b)
        return [
            Problem(int(ids[i]), _prompt_text(operators[i], a[i], b[i]), str(answers[i]))
            for i in range(count)
        ]

    def encode(
        self, problems: list[Problem], prompt_length: int, response_length: int
    ) -> EncodedProblems:
        """Prompts i32[Q prompt_length] and answers i32[Q response_length] as tokens, one for each
        character, padded on the right; each answer with its end token "$". InputError where one
        does not fit."""
        answers = [problem.answer + "$" for problem in problems]
        prompts = [problem.prompt for problem in problems]
        return EncodedProblems(
            prompts=_tokenize(prompts, prompt_length, "prompt"),
            prompt_lengths=np.array(list(map(len, prompts)), np.int32),
            answers=_tokenize(answers, response_length, "response"),
            ids=np.array([problem.id for problem in problems], np.int32),
        )

    def decode(self, tokens: np.ndarray) -> str:
        """Tokens as text, up to the end token; ids outside the alphabet show as `?`."""
        text = "".join(ALPHABET[t] if t < len(ALPHABET) else "?" for t in tokens)
        return text.partition("$")[0].rstrip(" ")

    def demonstrations(
        self, count: int, rng: np.random.Generator, prompt_length: int, response_length: int
    ) -> EncodedProblems:
        """`count` random problems with answers of right and wrong solvers (top of this file), for
        the base policy to imitate. Problems may repeat, and their ids are 0, which nobody needs
        here. The arrays operator (0..7), a and b are i64[count]."""
        operator = rng.choice(self.operators, count)
        a = rng.integers(0, 100, count)
        b = rng.integers(0, 100, count)

        # Who answers: the right solver, or another one, drawn by inverting the distribution
        # function: its index among self.operators is the number of entries of the row below a
        # random number. Rounding may make it one too large, hence `clip`.
        wrong_index = (rng.random(count)[:, None] > self._confusion_cdf[operator]).sum(1)
        wrong_solver = self.operators[wrong_index.clip(0, len(self.operators) - 1)]
        is_right = rng.random(count) < CORRECT_PROBABILITY[operator, a % 5, b % 3]
        answers = solve(np.where(is_right, operator, wrong_solver), a, b)

        prompts = [_prompt_text(operator[i], a[i], b[i]) for i in range(count)]
        responses = [f"{answer}$" for answer in answers.tolist()]
        return EncodedProblems(
            prompts=_tokenize(prompts, prompt_length, "prompt"),
            prompt_lengths=np.full(count, len(prompts[0]), np.int32),
            answers=_tokenize(responses, response_length, "response"),
            ids=np.zeros(count, np.int32),
        )

    def verify(
        self, answers: Int[Array, "*b T"], tokens: Int[Array, "*b T"], mask: Bool[Array, "*b T"]
    ) -> Float[Array, "*b"]:
        """1 where the response is the answer and its end token."""
        return (jnp.where(mask, tokens, self.pad) == answers).all(-1).astype(jnp.float32)


# With all operators, or those named after the colon of `cell.task`.
build = device_task(SolversTask)
