"""tokenizer.json decides the ids, whatever class tokenizer_config.json names; the reference is the
library `tokenizers`, which reads the file alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from isojax.tasks.tokenizer import load_tokenizer, token_bytes
from tests.tasks.tokenizer_folders import byte_level

BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
WITHOUT_REGEX = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
# Runs of up to three digits, and line breaks that stay together with the spaces before them
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITTERS: dict[str, Any] = {
    "digits": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTES]),
    "words": pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(WORDS), "isolated"), WITHOUT_REGEX]
    ),
    "lines": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex("\n"), "isolated"), BYTES]),
    "prefix": pre_tokenizers.ByteLevel(add_prefix_space=True),
}
CLASSES = (
    "GPT2Tokenizer", "Qwen2Tokenizer", "Qwen2TokenizerFast", "GPTNeoXTokenizer",
    "CodeLlamaTokenizer", "GemmaTokenizer",
    "LlamaTokenizer", "T5Tokenizer", "BertTokenizer", "RobertaTokenizer", "PreTrainedTokenizerFast",
)  # fmt: skip
TEXTS = (
    "the cat sat\n\non the mat\n\n\n", "12 +  7 =  19", "  7", " x  12\t3", "the 1234567 cats",
    "a ran\r\n\r\n dog's",
    "\u00e9 e\u0301 \u65e5\u672c\u8a9e \u0441\u043b\u043e\u0432\u043e \U0001f600",
    "the<|im_end|>\n\n 12<think> 3",
)  # fmt: skip


def folder_of(
    folder: Path, splitter: str, settings: dict[str, Any], bos: bool = False, normalizer: Any = None
) -> Tokenizer:
    """A folder whose tokenizer.json splits by `splitter`, with `settings` in tokenizer_config.json;
    its tokenizer."""
    byte_level(folder, bos=bos)
    file, config_file = folder / "tokenizer.json", folder / "tokenizer_config.json"
    as_written = Tokenizer.from_file(str(file))
    as_written.pre_tokenizer = SPLITTERS[splitter]
    if normalizer:
        as_written.normalizer = normalizer
    as_written.save(str(file))
    config_file.write_text(json.dumps(json.loads(config_file.read_text()) | settings))
    as_written.no_truncation()
    return as_written


@pytest.mark.parametrize("splitter", SPLITTERS)
@pytest.mark.parametrize("class_name", CLASSES)
def test_ids_are_those_of_the_file_whatever_the_class(
    tmp_path: Path, class_name: str, splitter: str
) -> None:
    as_written = folder_of(
        tmp_path, splitter, {"tokenizer_class": class_name}, normalizer=normalizers.NFC()
    )
    notes: list[str] = []
    tokenizer = load_tokenizer(tmp_path, notes)
    for text in TEXTS:
        expected = as_written.encode(text).ids
        assert tokenizer(text, truncation=False)["input_ids"] == expected
        assert tokenizer.decode(expected) == as_written.decode(expected, skip_special_tokens=False)
    assert tokenizer.eos_token == "<|im_end|>" and tokenizer.pad_token == "<pad>"
    assert tokenizer.get_chat_template().startswith("{% for m in messages %}")
    assert len(token_bytes(tokenizer, len(tokenizer))) == as_written.get_vocab_size()
    assert len(notes) <= 1


def test_the_difference_is_said_once_with_both_readings(tmp_path: Path) -> None:
    """A class of GPT-2 takes two spaces before a digit as a space and " 7"; the file says three
    tokens."""
    as_written = folder_of(tmp_path, "digits", {"tokenizer_class": "GPT2Tokenizer"})
    notes: list[str] = []
    load_tokenizer(tmp_path, notes)
    (note,) = notes
    assert (
        str(tmp_path / "tokenizer.json") in note
        and "GPT2Tokenizer" in note
        and "of the file itself" in note
    )
    assert as_written.encode("  7").tokens == ["\u0120", "\u0120", "7"]


def test_a_class_that_reads_the_file_alike_is_kept_without_a_word(tmp_path: Path) -> None:
    notes: list[str] = []
    folder_of(tmp_path, "digits", {"tokenizer_class": "PreTrainedTokenizerFast"})
    load_tokenizer(tmp_path, notes)
    byte_level(tmp_path / "gpt2")
    config_file = tmp_path / "gpt2" / "tokenizer_config.json"
    config_file.write_text(
        json.dumps(json.loads(config_file.read_text()) | {"tokenizer_class": "GPT2Tokenizer"})
    )
    assert type(load_tokenizer(tmp_path / "gpt2", notes)).__name__ == "GPT2Tokenizer"
    assert notes == []


@pytest.mark.parametrize("class_name", ["GPT2Tokenizer", "CodeLlamaTokenizer", "LlamaTokenizer"])
@pytest.mark.parametrize(
    "flags", [{}, {"add_bos_token": True}, {"add_bos_token": False, "add_eos_token": True}]
)
@pytest.mark.parametrize("bos", [True, False])
def test_bos_is_added_where_the_file_adds_it(
    tmp_path: Path, class_name: str, flags: dict[str, bool], bos: bool
) -> None:
    """A setting of tokenizer_config.json is for folders without a tokenizer.json, as in
    transformers 4 and vLLM."""
    as_written = folder_of(tmp_path, "digits", {"tokenizer_class": class_name} | flags, bos=bos)
    ids = load_tokenizer(tmp_path)("the  7", truncation=False)["input_ids"]
    assert ids == as_written.encode("the  7").ids and (ids[0] == 0) == bos and ids[-1] != 2


def test_truncation_and_padding_of_the_file_change_no_prompt(tmp_path: Path) -> None:
    as_written = folder_of(tmp_path, "lines", {"tokenizer_class": "Qwen2Tokenizer"})
    expected = as_written.encode("the cat\n\nsat on the mat").ids
    as_written.enable_truncation(3)
    as_written.enable_padding(pad_id=3, pad_token="<pad>", length=64)
    as_written.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    options: dict[str, Any] = {"truncation": False, "padding": False}
    assert tokenizer("the cat\n\nsat on the mat", **options)["input_ids"] == expected


def test_a_token_that_the_settings_alone_have_is_kept(tmp_path: Path) -> None:
    """As transformers adds it, behind those of the file."""
    added = {
        "content": "<tool>",
        "special": True,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
    }
    settings = {
        "tokenizer_class": "GPT2Tokenizer",
        "added_tokens_decoder": {"341": added | {"single_word": False}},
    }
    as_written = folder_of(tmp_path, "digits", settings)
    size = as_written.get_vocab_size()
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer("a<tool>  7", truncation=False)["input_ids"] == [
        *as_written.encode("a").ids, size, *as_written.encode("  7").ids
    ]  # fmt: skip
    assert "<unk>" not in tokenizer.get_vocab()


def test_a_flag_of_an_added_token_is_that_of_the_file(tmp_path: Path) -> None:
    """The settings say that <|im_end|> takes the white space behind it along; the file, that it
    does not."""
    token = {
        "content": "<|im_end|>",
        "special": True,
        "lstrip": False,
        "rstrip": True,
        "normalized": False,
    }
    settings = {
        "tokenizer_class": "Qwen2Tokenizer",
        "added_tokens_decoder": {"2": token | {"single_word": False}},
    }
    as_written = folder_of(tmp_path, "words", settings)
    text = "the<|im_end|> \n12"
    assert (
        load_tokenizer(tmp_path)(text, truncation=False)["input_ids"] == as_written.encode(text).ids
    )


@pytest.mark.parametrize("class_name", ["LlamaTokenizer", "LlamaTokenizerFast", "GemmaTokenizer"])
@pytest.mark.parametrize("scheme", ["always", "first", "never", "prepend"])
def test_sentencepiece_as_a_file_writes_it(tmp_path: Path, class_name: str, scheme: str) -> None:
    """Where Llama's spaces come from: a Metaspace of three kinds, or a normaliser (Llama 2)."""
    letters = {"<unk>": 0, "<s>": 1, "</s>": 2} | {
        f"<0x{byte:02X}>": 3 + byte for byte in range(256)
    }
    pieces = ["\u2581", "a", "b", "1", "2", "\u2581a", "\u2581\u2581", "\u2581b"]
    vocab = letters | {piece: 259 + i for i, piece in enumerate(pieces)}
    merges = [("\u2581", "a"), ("\u2581", "\u2581"), ("\u2581", "b")]
    as_written = Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    if scheme == "prepend":
        as_written.normalizer = normalizers.Sequence(
            [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        )
    else:
        as_written.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)  # type: ignore[arg-type]
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    as_written.decoder = decoders.Sequence(steps)  # type: ignore[arg-type]
    as_written.add_special_tokens(["<unk>", "<s>", "</s>"])
    as_written.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    as_written.save(str(tmp_path / "tokenizer.json"))
    names = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "tokenizer_class": class_name,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(names))
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "llama", "vocab_size": len(vocab)})
    )
    tokenizer = load_tokenizer(tmp_path)
    for text in ("a b", "a</s>a", "  12", "a\n\nb", "</s> b", "\u00e9"):
        assert tokenizer(text)["input_ids"] == as_written.encode(text).ids, text


def folder_with_tokens_beside(
    folder: Path, ids: dict[int, str], class_name: str = "PreTrainedTokenizerFast"
) -> Path:
    """Tokens that tokenizer_config.json alone has, with these ids; <end> is a special one."""
    flags = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)
    decoder = {
        str(i): {"content": text, "special": text == "<end>", **flags} for i, text in ids.items()
    }
    folder_of(folder, "prefix", {"tokenizer_class": class_name, "added_tokens_decoder": decoder})
    return folder


@pytest.mark.parametrize("content", ["</think>", "<tool>"])  # a probe has the first
def test_tokens_that_the_config_alone_has_are_named_with_both_places(
    tmp_path: Path, content: str
) -> None:
    byte_level(tmp_path)
    size = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).get_vocab_size()
    folder = folder_with_tokens_beside(tmp_path, {size: content, size + 1: "<end>"})
    notes = []
    tokenizer = load_tokenizer(folder, notes)
    assert tokenizer.encode(f"{content}<end>") == [size, size + 1]
    (note,) = notes
    assert (
        f"{folder}/tokenizer_config.json names the tokens {content} ({size}), <end> "
        f"({size + 1}), which"
    ) in note
    assert "which tokenizer.json does not have" in note and "vLLM's" not in note

    exec(f"import tokenizers; {note.partition('into the file: ')[2]}")
    mended: list[str] = []
    tokenizer = load_tokenizer(folder, mended)
    assert tokenizer.encode(f"{content}<end>") == [size, size + 1] and mended == []
    assert [tokenizer.added_tokens_decoder[i].special for i in (size, size + 1)] == [False, True]


def test_an_id_of_the_config_that_no_program_gives_is_named(tmp_path: Path) -> None:
    byte_level(tmp_path)
    size = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).get_vocab_size()
    notes: list[str] = []
    tokenizer = load_tokenizer(folder_with_tokens_beside(tmp_path, {size + 5: "<tool>"}), notes)
    assert tokenizer.encode("<tool>") == [size]
    assert (
        f"<tool> ({size})" in notes[0]
        and f"<tool> is {size + 5} there: the numbers between are missing" in notes[0]
    )


def test_tokens_of_the_config_beside_a_class_that_splits_otherwise(tmp_path: Path) -> None:
    """Both are said, each by what it changes."""
    byte_level(tmp_path)
    size = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).get_vocab_size()
    notes: list[str] = []
    load_tokenizer(folder_with_tokens_beside(tmp_path, {size: "</think>"}, "Qwen2Tokenizer"), notes)
    assert f"names the tokens </think> ({size})" in notes[0]
    assert "rebuilds" in notes[1] and "think" not in notes[1]
