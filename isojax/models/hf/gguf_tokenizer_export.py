"""A folder's tokenizer.json as the metadata of a GGUF file: the way back of gguf_tokenizer.py."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
from tokenizers import Tokenizer

from isojax.core.errors import InputError
from isojax.core.table_files import read_json_object
from isojax.models.hf.gguf_pretokenizers import PRE_TOKENIZERS, find_name
from isojax.models.hf.gguf_tokenizer import (
    BYTE,
    CONTROL,
    NORMAL,
    SPACE,
    SPECIAL_TOKENS,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
)

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"
ADDED_SCORE = -1000.0  # llama.cpp's own for tokens that are never merged


def add_tokenizer(writer: gguf.GGUFWriter, folder: Path, rows: int) -> None:
    """Put a folder's tokenizer into a GGUF file's metadata.

    `rows`: of the embedding; numbers beyond the tokenizer's tokens are padded. InputError where the
    folder has no tokenizer.json, or GGUF has no such tokenizer."""
    path = folder / TOKENIZER_FILE
    if not path.is_file():
        raise InputError(
            where=folder,
            found=f"no {TOKENIZER_FILE}, which a GGUF file's tokenizer is made of",
        )
    # of one form, whoever wrote the file
    about = json.loads(Tokenizer.from_file(str(path)).to_str())
    model = about["model"]
    if model["type"] != "BPE":
        raise InputError(
            where=path,
            found=f"its model is {model['type']}",
            expected="BPE, which GGUF files have",
        )

    tokens, types = read_tokens(about, rows)
    merges = []
    for merge in model["merges"]:
        # "left right" in older files, [left, right] in newer ones
        pair = merge.split(" ") if isinstance(merge, str) else merge
        merges.append(tuple(pair))
    if model.get("byte_fallback"):
        add_sentencepiece(writer, about, tokens, types, merges)
        # llama.cpp finds user-defined tokens in the text before it writes spaces as SPACE
        for number, token_type in enumerate(types):
            if token_type == USER_DEFINED:
                tokens[number] = tokens[number].replace(SPACE, " ")
    else:
        name = find_name(about)
        if name is None:
            known = ", ".join(PRE_TOKENIZERS)
            raise InputError(
                where=path,
                found=(
                    f"splits texts as none of llama.cpp's tokenizers that are known here ({known})"
                ),
            )
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(name)
        writer.add_token_merges([" ".join(pair) for pair in merges])

    writer.add_token_list(tokens)
    writer.add_token_types(types)
    add_special_tokens(writer, folder, tokens)


def read_tokens(about: Mapping[str, Any], rows: int) -> tuple[list[str], list[int]]:
    """Return the tokens by number, and their types, both of length `rows`.

    `about`: a tokenizer.json of BPE. Numbers without a token become "[PAD7]", of type UNUSED. Types
    are those of gguf_tokenizer.py."""
    model = about["model"]
    vocab = model["vocab"]
    is_sentencepiece = bool(model.get("byte_fallback"))
    names = {number: token for token, number in vocab.items()}
    types = dict.fromkeys(names, NORMAL)

    # Later ones take precedence.
    if is_sentencepiece:
        for token, number in vocab.items():
            if is_byte(token):
                types[number] = BYTE
    for added in about.get("added_tokens", []):
        names[added["id"]] = added["content"]
        types[added["id"]] = CONTROL if added["special"] else USER_DEFINED
    unknown = model.get("unk_token")
    # byte-level BPE knows every byte: where it names such a token, that is an ordinary one
    if is_sentencepiece and unknown in vocab:
        types[vocab[unknown]] = UNKNOWN

    # an embedding may have more rows than there are tokens
    tokens = [names.get(number, f"[PAD{number}]") for number in range(rows)]
    return tokens, [types.get(number, UNUSED) for number in range(rows)]


def is_byte(token: str) -> bool:
    """Whether a token is a byte of sentencepiece's, such as "<0x0A>"."""
    return len(token) == 6 and token.startswith("<0x") and token.endswith(">")


def add_sentencepiece(
    writer: gguf.GGUFWriter,
    about: Mapping[str, Any],
    tokens: Sequence[str],
    types: Sequence[int],
    merges: Sequence[tuple[str, ...]],
) -> None:
    """Put scores of sentencepiece's tokens into the metadata, from the order of their merges.

    A token has score -r if r is the number of the first merge that makes it, by which a reader
    finds the order again, and 0 if none makes it; tokens that are neither NORMAL nor BYTE have
    ADDED_SCORE. `about`: the tokenizer.json. `tokens`, `types`: by number. `merges`: pairs, the
    first to be merged first."""
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(merges):
        ranks.setdefault("".join(pair), rank)
    scores = []
    for token, token_type in zip(tokens, types, strict=True):
        is_merged = token_type in (NORMAL, BYTE)
        scores.append(-float(ranks.get(token, 0)) if is_merged else ADDED_SCORE)

    # The ways in which a tokenizer.json says that a text begins with a space, as Python prints it.
    prefix = str(about.get("normalizer")) + str(about.get("pre_tokenizer"))
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_scores(scores)
    writer.add_add_space_prefix(
        "'Prepend'" in prefix or "'prepend_scheme': 'first'" in prefix or "'always'" in prefix
    )


def add_special_tokens(writer: gguf.GGUFWriter, folder: Path, tokens: Sequence[str]) -> None:
    """Put special tokens, what is added around texts, and the chat template into the metadata.

    `tokens`: by number. Whether bos and eos are added is seen in how the tokenizer encodes a text.
    """
    config_file = folder / CONFIG_FILE
    settings = read_json_object(config_file) if config_file.is_file() else {}
    numbers = {token: number for number, token in enumerate(tokens)}
    ids: dict[str, int] = {}
    for name, gguf_name in SPECIAL_TOKENS.items():
        token = settings.get(f"{name}_token")
        # a text, or the object of an added token
        token = token["content"] if isinstance(token, Mapping) else token
        if token in numbers:
            ids[name] = numbers[token]
            writer.add_uint32(f"tokenizer.ggml.{gguf_name}_token_id", numbers[token])

    # any text will do
    encoded = Tokenizer.from_file(str(folder / TOKENIZER_FILE)).encode("a").ids
    writer.add_add_bos_token("bos" in ids and encoded[0] == ids["bos"])
    writer.add_add_eos_token("eos" in ids and encoded[-1] == ids["eos"])
    template = settings.get("chat_template")
    if (folder / TEMPLATE_FILE).is_file():
        template = (folder / TEMPLATE_FILE).read_text(encoding="utf-8")
    if isinstance(template, str):
        writer.add_chat_template(template)
