"""What ends a response: end tokens, and strings that may lie across several tokens or inside one; and what interrupts it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isojax.types import InputError


@dataclass(frozen=True)
class Interruption:
    """A response that has `after` tokens, none of them `unless`, gets `tokens` next (sampling/interruption.py); None: every response."""

    after: int
    tokens: tuple[int, ...]
    unless: int | None


@dataclass(frozen=True)
class Stops:
    """A response ends with a token of `tokens`, or with the token that completes a stop string.

    Attributes:
        tokens: ids that end a response.
        table: uint8 or uint16 [states V], or None where there are no stop strings. `table[state, token]` is the state after that
            token; a response starts in state 0, and the value `states` (= len(table)) says that a stop string is complete.
        interruption: what is said to a response that goes on for too long, if anything; its tokens may complete a stop string.
    """

    tokens: tuple[int, ...]
    table: np.ndarray | None
    interruption: Interruption | None = None

    def ends(self, tokens: Sequence[int]) -> bool:
        """Whether a response of these tokens alone meets a stop."""
        state = 0
        for token in tokens:
            state = 0 if self.table is None else int(self.table[state, token])
            if token in self.tokens or (self.table is not None and state == len(self.table)):
                return True
        return False


def stop_table(pieces: Sequence[bytes | None], strings: Sequence[str]) -> np.ndarray:
    """The `table` of Stops: reading tokens, it says at which of them a stop string has become part of the text.

    The automaton of Aho and Corasick (1975) over bytes, carried through each token's bytes at once. `pieces`: the bytes of every token
    id; after None, a token that is no text, reading starts anew.

    Returns:
        uint8 [states V], uint16 where there are 255 states or more.

    Raises:
        InputError: no strings, or an empty one.
    """
    moves = byte_automaton([string.encode() for string in strings])
    states = len(moves) - 1
    text = [piece or b"" for piece in pieces]
    lengths = np.array([len(piece) for piece in text])
    longest_first = np.argsort(-lengths, kind="stable")
    letters = np.frombuffer(b"".join(text), np.uint8)
    begins = (np.cumsum(lengths) - lengths)[longest_first]
    after = np.repeat(np.arange(states, dtype=moves.dtype)[:, None], len(text), 1)  # columns as in longest_first
    for i in range(lengths.max(initial=0)):
        reading = int((lengths > i).sum())  # tokens with an i-th byte; they come first
        after[:, :reading] = moves[after[:, :reading], letters[begins[:reading] + i]]
    table = np.empty_like(after)
    table[:, longest_first] = after
    table[:, [i for i, piece in enumerate(pieces) if piece is None]] = 0
    return table


def byte_automaton(strings: Sequence[bytes]) -> np.ndarray:
    """[states + 1, 256]: the state after a byte. A state is the longest end of the text that begins a stop string without completing it;
    0 is the empty one, and the last row is the state `states`, a string complete, which is never left."""
    if not strings or b"" in strings:
        raise InputError(
            f"cell.prompt.stop = {[s.decode() for s in strings]}: expected strings of one character or more; remove empty ones."
        )
    states = sorted({string[:i] for string in strings for i in range(len(string))}, key=lambda state: (len(state), state))
    number = {state: i for i, state in enumerate(states)}
    moves = np.zeros((len(states) + 1, 256), np.uint8 if len(states) < 255 else np.uint16)
    for state, i in number.items():
        for byte in set(b"".join(strings)):  # any other byte leads back to state 0
            text = state + bytes([byte])
            complete = any(text.endswith(string) for string in strings)
            ends = (text[start:] for start in range(len(text) + 1))
            moves[i, byte] = len(states) if complete else next(number[end] for end in ends if end in number)
    moves[-1] = len(states)
    return moves
