"""What ends a response, end tokens and strings that may reach across several tokens, and what interrupts it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isojax.core.errors import InputError


@dataclass(frozen=True)
class Interruption:
    """A response of `after` tokens, none of them `unless_token`, gets `tokens` next (sampling/logits.py)."""

    after: int
    tokens: tuple[int, ...]
    unless_token: int | None  # None: every response is interrupted


@dataclass(frozen=True)
class StopConditions:
    """A response ends with a token of `tokens`, or with the one that completes a stop string: `transitions[state,
    token]`, uint8 or uint16 [states, V], is the next state, from 0 on; the value `states` is a complete stop string."""

    tokens: tuple[int, ...]
    transitions: np.ndarray | None
    interruption: Interruption | None = None  # of a response that goes on for too long

    def contains_stop(self, tokens: Sequence[int]) -> bool:
        """Whether a response of these tokens alone meets a stop."""
        state = 0
        for token in tokens:
            state = 0 if self.transitions is None else int(self.transitions[state, token])
            if token in self.tokens or (self.transitions is not None and state == len(self.transitions)):
                return True
        return False


def build_stop_table(token_bytes: Sequence[bytes | None], strings: Sequence[str]) -> np.ndarray:
    """`StopConditions.transitions`: the automaton of Aho and Corasick (1975), carried through each token's bytes at
    once; after a token that is no text (None), reading starts in state 0 again."""
    moves = byte_automaton([string.encode() for string in strings])
    states = len(moves) - 1
    token_texts = [piece or b"" for piece in token_bytes]
    lengths = np.array([len(piece) for piece in token_texts])
    longest_first = np.argsort(-lengths, kind="stable")
    all_bytes = np.frombuffer(b"".join(token_texts), np.uint8)
    token_starts = (np.cumsum(lengths) - lengths)[longest_first]
    # The columns are as in longest_first: the tokens with an i-th byte come first.
    state_after = np.repeat(np.arange(states, dtype=moves.dtype)[:, None], len(token_texts), 1)
    for i in range(lengths.max(initial=0)):
        num_reading = int((lengths > i).sum())
        state_after[:, :num_reading] = moves[state_after[:, :num_reading], all_bytes[token_starts[:num_reading] + i]]
    table = np.empty_like(state_after)
    table[:, longest_first] = state_after
    table[:, [i for i, piece in enumerate(token_bytes) if piece is None]] = 0
    return table


def byte_automaton(strings: Sequence[bytes]) -> np.ndarray:
    """[states + 1, 256]: the state after a byte, the longest end of the text that begins a stop string without
    completing it; 0 is the empty one, and the last row the state of a complete string, which is never left."""
    if not strings or b"" in strings:
        raise InputError(
            f"cell.prompt.stop = {[s.decode() for s in strings]}: expected strings of one character or more."
        )
    prefixes = {string[:i] for string in strings for i in range(len(string))}
    states = sorted(prefixes, key=lambda state: (len(state), state))
    state_index = {state: i for i, state in enumerate(states)}
    moves = np.zeros((len(states) + 1, 256), np.uint8 if len(states) < 255 else np.uint16)
    for state, i in state_index.items():
        for byte in set(b"".join(strings)):  # any other byte leads back to state 0
            text_read = state + bytes([byte])
            if text_read.endswith(tuple(strings)):
                moves[i, byte] = len(states)
            else:
                suffixes = (text_read[start:] for start in range(len(text_read) + 1))
                moves[i, byte] = next(state_index[suffix] for suffix in suffixes if suffix in state_index)
    moves[-1] = len(states)
    return moves
