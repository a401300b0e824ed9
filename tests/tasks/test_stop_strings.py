"""The automaton of stop strings fires exactly where the text first holds one of them."""

from __future__ import annotations

import numpy as np
import pytest

from isojax.core.errors import InputError
from isojax.tasks.stop_strings import build_stop_table


def fires_at(table: np.ndarray, tokens: list[int]) -> int | None:
    """The first position at which a stop string is complete."""
    state = 0
    for i, token in enumerate(tokens):
        state = table[state, token]
        if state == len(table):
            return i
    return None


def test_a_table_written_by_hand() -> None:
    table = build_stop_table([b"a", b"b", b"ab", b"ba", None, b"xabx", b""], ["ab"])
    # state 0: nothing read; state 1: the text ends in `a`; 2: complete
    assert table.tolist() == [[1, 0, 2, 1, 0, 2, 0], [1, 2, 2, 2, 0, 2, 1]]
    assert table.dtype == np.uint8


def test_a_stop_string_that_overlaps_itself() -> None:
    table = build_stop_table([b"a", b"b"], ["aab"])
    assert fires_at(table, [0, 0, 0, 1]) == 3  # `aaab`: the third `a` keeps two
    assert fires_at(table, [0, 1, 0, 0, 1]) == 4
    assert fires_at(table, [0, 1, 0, 1]) is None


def test_one_stop_string_inside_another() -> None:
    table = build_stop_table([b"a", b"b", b"c", b"abc"], ["abc", "b"])
    assert fires_at(table, [0, 1]) == 1
    assert fires_at(table, [3]) == 0
    assert fires_at(table, [0, 2]) is None


def test_characters_of_several_bytes_split_between_tokens() -> None:
    euro = "€".encode()
    table = build_stop_table([euro[:1], euro[1:2], euro[2:], euro[:2]], ["€"])
    assert fires_at(table, [0, 1, 2]) == 2
    assert fires_at(table, [3, 2]) == 1
    assert fires_at(table, [0, 2]) is None


def test_random_vocabularies_stop_strings_and_sequences() -> None:
    rng = np.random.default_rng(0)

    def word(low: int, high: int) -> str:
        return "".join(rng.choice(list("ab\n"), rng.integers(low, high)))

    outcomes: list[int | None] = []
    for _ in range(30):
        pieces: list[bytes | None] = [word(0, 5).encode() for _ in range(30)]
        pieces[3] = pieces[17] = None
        strings = [word(1, 8) for _ in range(rng.integers(1, 5))]
        table = build_stop_table(pieces, strings)
        for _ in range(100):
            tokens = rng.integers(0, len(pieces), 12).tolist()
            expected, text = None, b""
            for i, token in enumerate(tokens):
                piece = pieces[token]
                text = b"" if piece is None else text + piece
                if any(string.encode() in text for string in strings):
                    expected = i
                    break
            assert fires_at(table, tokens) == expected
            outcomes.append(expected)
    assert outcomes.count(None) > 300 and set(range(12)) <= set(outcomes)  # every case was met


def test_many_states_take_two_bytes() -> None:
    assert build_stop_table([b"a", b"b"], ["a" * 254 + "b"]).dtype == np.uint16
    table = build_stop_table([b"a", b"b"], ["a" * 299 + "b"])
    assert table.dtype == np.uint16 and table.shape == (300, 2)
    assert fires_at(table, [0] * 299 + [1]) == 299
    assert fires_at(table, [0] * 298 + [1]) is None
    assert build_stop_table([b"a", b"b"], ["a" * 253 + "b"]).dtype == np.uint8


@pytest.mark.parametrize("strings", [[], [""], ["\n", ""]])
def test_an_empty_stop_string_is_refused(strings: list[str]) -> None:
    with pytest.raises(InputError, match=r"cell\.prompt\.stop.*one character or more"):
        build_stop_table([b"a"], strings)
