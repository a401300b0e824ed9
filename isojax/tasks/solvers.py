"""Arithmetic with eight operators, and a base policy that knows each of them only in part.

A problem is `aaOPbb=`: two two-digit numbers around an operator A..H meaning a+b, |a-b|, max, min, a, b, (a+b) mod 10 and
(ab) mod 10; the answer is the number, then the end token `$`. Demonstrations come from a MIXTURE of solvers: for each class
(operator, a mod 5, b mod 3) the right solver answers with a probability drawn from U(.2, .65) or from U(.005, .08), else another
operator's solver does. A policy trained on them solves its problems at rates that spread from Hard to Easy, operators interfere,
and what RL teaches carries over to numbers it has not seen. `solvers:ABCG` is the task with those operators alone: fewer skills, sooner
learnt.
"""

from typing import ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from isojax.tasks.base import Encoded
from isojax.tasks.stops import Stops
from isojax.types import InputError, Problem

ALPHABET = "0123456789ABCDEFGH=$ "
OPERATORS = "ABCDEFGH"
INDEX = {c: i for i, c in enumerate(ALPHABET)}
TOKEN = np.full(256, -1, np.int32)  # by a character's code; 0, which is after a text's end, is written as the pad
TOKEN[[0, *map(ord, ALPHABET)]] = [INDEX[" "], *range(len(ALPHABET))]

_rng = np.random.default_rng(3)
_SHAPE = (len(OPERATORS), 5, 3)
RIGHT = np.where(_rng.random(_SHAPE) < 0.5, _rng.uniform(0.2, 0.65, _SHAPE), _rng.uniform(0.005, 0.08, _SHAPE))
WRONG = _rng.dirichlet(np.full(len(OPERATORS) - 1, 0.7), size=len(OPERATORS))


def solve(operator: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The answer of each operator (0..7) on each pair of numbers."""
    every = np.stack([a + b, abs(a - b), np.maximum(a, b), np.minimum(a, b), a, b, (a + b) % 10, (a * b) % 10])
    return np.take_along_axis(every, operator[None], 0)[0]


def _prompt(operator: int, a: int, b: int) -> str:
    return f"{a:02d}{OPERATORS[operator]}{b:02d}="


def _write(texts: list[str], width: int, what: str) -> np.ndarray:
    longest = max(texts, key=len)
    if len(longest) > width:
        raise InputError(f"the {what} {longest!r} takes {len(longest)} tokens and cell.sampling.{what}_length is {width}; raise it.")
    codes = np.array([text.encode() for text in texts], f"S{width}").view(np.uint8).reshape(len(texts), width)
    tokens = TOKEN[codes]
    if tokens.min() < 0:
        strange = texts[int((tokens < 0).any(1).argmax())]
        raise InputError(f"the {what} {strange!r} has characters that the task `solvers` does not know; expected those of {ALPHABET!r}.")
    return tokens


class Solvers:
    """The task with some of the operators; see the module."""

    on_device: ClassVar[Literal[True]] = True
    vocab = 24  # the alphabet, rounded up so that a mesh of 2, 4 or 8 divides it
    eos = INDEX["$"]
    stops = Stops((eos,), None)
    pad = INDEX[" "]

    def __init__(self, operators: str = OPERATORS):
        if len(operators) < 2 or len(set(operators)) < len(operators) or set(operators) - set(OPERATORS):
            raise InputError(
                f"cell.task: solvers:{operators} is not two or more different operators of {OPERATORS}; write, for example, solvers:ABCG."
            )
        self.operators = np.array([OPERATORS.index(o) for o in sorted(operators)])
        every = np.zeros((len(OPERATORS), len(OPERATORS)))
        for i, row in enumerate(WRONG):
            every[i, np.arange(len(OPERATORS)) != i] = row
        chosen = every[:, self.operators]
        self._wrong = np.cumsum(chosen / np.maximum(chosen.sum(1, keepdims=True), 1e-9), 1)

    def problems(self, count: int, rng: np.random.Generator) -> list[Problem]:
        """`count` distinct problems of the 10,000 for each operator."""
        total = len(self.operators) * 100 * 100
        if count > total:
            raise InputError(f"cell.data.candidates is {count}; the task `solvers` has {total} problems.")
        chosen = rng.choice(total, count, replace=False)
        operator, a, b = self.operators[chosen // 10_000], chosen // 100 % 100, chosen % 100
        answers = solve(operator, a, b)
        return [
            Problem(int(o * 10_000 + i % 10_000), _prompt(o, x, y), str(answer))
            for i, o, x, y, answer in zip(chosen, operator, a, b, answers, strict=True)
        ]

    def encode(self, problems: list[Problem], prompt_length: int, response_length: int) -> Encoded:
        """Problems as arrays."""
        prompts = _write([p.prompt for p in problems], prompt_length, "prompt")
        answers = _write([p.answer + "$" for p in problems], response_length, "response")
        lengths = np.array([len(p.prompt) for p in problems], np.int32)
        return Encoded(prompts, lengths, answers, np.array([p.id for p in problems], np.int32))

    def decode(self, tokens: np.ndarray) -> str:
        """Tokens as text, up to the end token; ids outside the alphabet show as `?`."""
        text = "".join(ALPHABET[t] if t < len(ALPHABET) else "?" for t in tokens)
        return text.partition("$")[0].rstrip(" ")

    def demonstrations(self, count: int, rng: np.random.Generator, prompt_length: int, response_length: int) -> Encoded:
        """Problems answered by the mixture of solvers."""
        operator = rng.choice(self.operators, count)
        a, b = rng.integers(0, 100, count), rng.integers(0, 100, count)
        drawn = (rng.random(count)[:, None] > self._wrong[operator]).sum(1).clip(0, len(self.operators) - 1)
        other = self.operators[drawn]
        solver = np.where(rng.random(count) < RIGHT[operator, a % 5, b % 3], operator, other)
        answers = solve(solver, a, b)
        texts = [_prompt(*which) for which in zip(operator.tolist(), a.tolist(), b.tolist(), strict=True)]
        prompts = _write(texts, prompt_length, "prompt")
        written = _write([f"{answer}$" for answer in answers.tolist()], response_length, "response")
        return Encoded(prompts, np.full(count, len(texts[0]), np.int32), written, np.zeros(count, np.int32))

    def verify(self, answers: Int[Array, "*b T"], tokens: Int[Array, "*b T"], mask: Bool[Array, "*b T"]) -> Float[Array, "*b"]:
        """1 where the response is the answer and its end token."""
        return (jnp.where(mask, tokens, self.pad) == answers).all(-1).astype(jnp.float32)


def build(operators: str = OPERATORS) -> Solvers:
    """The task, with all operators or those named after the colon of `cell.task`."""
    return Solvers(operators)
