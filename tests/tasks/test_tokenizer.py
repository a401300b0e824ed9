"""Tokenizers of both kinds as bytes, against what their own libraries write; end tokens; folders
that cannot be used; and the automaton of stop strings, which fires exactly where the text first
holds one of them.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from isojax.tasks.tokenizer import build_stop_table, end_tokens, load_tokenizer, token_bytes
from tests.refusals import refused
from tests.tasks.tokenizer_folders import byte_level, sentencepiece

HARD = "the cat é € 日本 \t\x00\x7f\xa0\xad 12+7\n\n  end\u2581"
LLAMA = {
    "tokenizer_class": "LlamaTokenizer",
    "add_bos_token": True,
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
}


def test_every_byte_of_a_byte_level_tokenizer(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(byte_level(tmp_path, padding=5))
    size = len(tokenizer)
    pieces = token_bytes(tokenizer, size + 5)
    assert len(pieces) == size + 5
    assert [i for i, piece in enumerate(pieces) if piece is None] == [
        0,
        1,
        2,
        3,
        *range(size, size + 5),
    ]
    single = {piece for piece in pieces if piece is not None and len(piece) == 1}
    assert single == {bytes([byte]) for byte in range(256)}
    ids = tokenizer(HARD + "<think>", truncation=False)["input_ids"]
    assert b"".join(pieces[i] or b"" for i in ids).decode() == HARD + "<think>"
    assert pieces[tokenizer.get_vocab()["<think>"]] == b"<think>"


def test_random_tokens_are_written_as_the_tokenizer_writes_them(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(byte_level(tmp_path))
    pieces = token_bytes(tokenizer, len(tokenizer))
    rng = np.random.default_rng(0)
    for ids in rng.integers(0, len(tokenizer), (300, 20)):
        ours = b"".join(pieces[i] or b"" for i in ids).decode(errors="replace")
        assert ours == tokenizer.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )


@pytest.mark.parametrize("config", [None, LLAMA])
def test_sentencepiece_files_alone(tmp_path: Path, config: dict[str, str] | None) -> None:
    folder = sentencepiece(tmp_path, config=config)
    tokenizer = load_tokenizer(folder)
    reference = SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    text = "the cat é\n12 + 7 <0x41>"
    ids = tokenizer(text)["input_ids"]
    assert ids == [reference.bos_id(), *reference.encode(text)]
    pieces = token_bytes(tokenizer, 333)
    assert [i for i, piece in enumerate(pieces) if piece is None] == [0, 1, 2, 330, 331, 332]
    assert b"".join(pieces[i] or b"" for i in ids).decode() == " " + text
    # a response goes on from its prompt: its first space is part of it, where sentencepiece's own
    # decoding drops one
    (cat,) = reference.encode("cat")
    assert pieces[cat] == b" cat" and reference.decode([cat]) == "cat"
    assert {pieces[reference.piece_to_id(f"<0x{byte:02X}>")] for byte in range(256)} == {
        bytes([byte]) for byte in range(256)
    }


def test_a_sentencepiece_file_that_would_be_read_wrongly_is_refused(tmp_path: Path) -> None:
    with refused(where="tokenizer.model"):
        load_tokenizer(sentencepiece(tmp_path, kind="unigram"))


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": 0}, {"eos_token_id": 1}, (0, 2)),
        ({"eos_token_id": [3, 0, 2]}, {}, (0, 2, 3)),
        ({"bos_token_id": 0}, {"eos_token_id": [1]}, (1, 2)),
        ({}, {}, (2,)),
    ],
)
def test_end_tokens(
    tmp_path: Path, generation: dict[str, Any], config: dict[str, Any], expected: tuple[int, ...]
) -> None:
    folder = byte_level(tmp_path, **generation)
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    assert end_tokens(load_tokenizer(folder), folder) == expected


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    with refused(where="cell.model.path"):
        load_tokenizer(tmp_path / "gpt2")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with refused(where="cell.model.path"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
    with refused():
        load_tokenizer(tmp_path)


def test_a_length_that_is_no_number_is_refused(tmp_path: Path) -> None:
    """transformers compares it with each text's length."""
    folder = byte_level(tmp_path)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(settings | {"model_max_length": [512]}))
    with refused(where="tokenizer_config.json"):
        load_tokenizer(folder)


def test_a_panic_of_the_tokenizers_library_is_an_error_like_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PanicException(BaseException):
        """As pyo3 raises where Rust code ends in a panic; benchmarks/fuzz.py has met one."""

    def panic(*_: object, **__: object) -> None:
        raise PanicException("range end index 18446744073709551614 out of range")

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", panic)
    with refused():
        load_tokenizer(byte_level(tmp_path))


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"]
)
def test_a_pointer_of_git_lfs_and_a_file_cut_off_are_named(tmp_path: Path, name: str) -> None:
    folder = byte_level(tmp_path)
    whole = (
        (folder / name).read_bytes()
        if (folder / name).is_file()
        else b'{"eos_token": "x", "pad_token": "x"}'
    )
    (folder / name).write_bytes(
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"
    )
    with refused(where="json"):
        load_tokenizer(folder)

    (folder / name).write_bytes(whole[: len(whole) // 2])
    with refused():
        load_tokenizer(folder)


def test_a_pointer_that_nothing_needs_is_left_alone(tmp_path: Path) -> None:
    """Beside tokenizer.json a sentencepiece model is not read."""
    folder = byte_level(tmp_path)
    expected = load_tokenizer(folder)("a cat")["input_ids"]
    (folder / "tokenizer.model").write_text("version https://git-lfs.github.com/spec/v1\n")
    assert load_tokenizer(folder)("a cat")["input_ids"] == expected

    (folder / "tokenizer.json").unlink()
    with refused(where="tokenizer.model"):
        load_tokenizer(folder)


def test_tags_of_thinking_are_text_also_where_the_file_calls_them_special(tmp_path: Path) -> None:
    """Else a response would not show where its thoughts end; other special tokens are no text."""
    folder = byte_level(tmp_path)
    content = json.loads((folder / "tokenizer.json").read_text())
    first = max(token["id"] for token in content["added_tokens"]) + 1
    like = {**content["added_tokens"][0], "special": True}
    new_tokens = ["</think>", "<tool>"]
    content["added_tokens"] += [
        {**like, "id": first + i, "content": new} for i, new in enumerate(new_tokens)
    ]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = load_tokenizer(folder)
    assert tokenizer.convert_tokens_to_ids(new_tokens) == [first, first + 1]
    assert token_bytes(tokenizer, first + 2)[first:] == [b"</think>", None]


def test_a_tokenizer_without_tokens_is_refused(tmp_path: Path) -> None:
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE())).save_pretrained(tmp_path)
    with refused():
        token_bytes(load_tokenizer(tmp_path), 2)


def test_a_token_that_is_nearly_a_byte_is_text(tmp_path: Path) -> None:
    made = Tokenizer(models.BPE({"<0xZZ>": 0, "<0x41>": 1}, []))
    made.decoder = decoders.Metaspace()
    PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(tmp_path)
    assert token_bytes(load_tokenizer(tmp_path), 2) == [b"<0xZZ>", b"A"]


def test_code_in_a_folder_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit('this code was run')\n")
    (tmp_path / "config.json").write_text('{"model_type": "mine"}')
    (tmp_path / "tokenizer_config.json").write_text(
        '{"auto_map": {"AutoTokenizer": [null, "mine.Mine"]}}'
    )
    (tmp_path / "vocab.json").write_text("{}")
    with refused():
        load_tokenizer(tmp_path)


def test_ids_beyond_the_models_vocabulary_are_refused(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(byte_level(tmp_path))
    with refused():
        token_bytes(tokenizer, 300)


def test_a_tokenizer_of_whole_words_is_refused(tmp_path: Path) -> None:
    words = Tokenizer(models.WordLevel({"<unk>": 0, "cat": 1}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(tmp_path)
    with refused():
        token_bytes(load_tokenizer(tmp_path), 2)


def test_a_broken_generation_config_is_named(tmp_path: Path) -> None:
    folder = byte_level(tmp_path)
    tokenizer = load_tokenizer(folder)
    (folder / "generation_config.json").write_text("{")
    with refused(where="generation_config.json, line 1"):
        end_tokens(tokenizer, folder)


def test_neither_torch_nor_its_advice(tmp_path: Path) -> None:
    folder = byte_level(tmp_path)
    program = (
        "import sys; from pathlib import Path; from isojax.tasks.tokenizer import load_tokenizer\n"
        "load_tokenizer(Path(sys.argv[1])); assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout + done.stderr == ""


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
    with refused(where="cell.prompt.stop = ["):
        build_stop_table([b"a"], strings)


def test_stop_strings_have_a_limit() -> None:
    with refused(where="cell.prompt.stop"):
        build_stop_table([b"a"], ["b" * 99_999, "\n\n"])


def test_the_advice_to_install_torch_is_not_printed_and_warnings_are() -> None:
    for message in (
        "PyTorch was not found. Models won't be available",
        "the vocabulary is not this model's",
    ):
        record = logging.LogRecord("transformers", logging.WARNING, "", 0, message, (), None)
        assert bool(logging.getLogger("transformers").filter(record)) == ("PyTorch" not in message)
