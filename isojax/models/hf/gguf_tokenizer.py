"""A GGUF file's tokenizer as tokenizer.json and tokenizer_config.json.

`gpt2` is byte-level BPE, with merges in their order and a name for how text is split before
(gguf_pretokenizers.py). `llama` is sentencepiece's BPE: no merges, but a score for each token, and
the two neighbours are merged first whose token has the highest. Bytes of characters that no token
has are tokens of their own, <0x0A>.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from isojax.core.errors import InputError
from isojax.models.hf.gguf_pretokenizers import PRE_TOKENIZERS, PreTokenizer

PREFIX = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # token types
# transformers' names and GGUF's
SPECIAL_TOKENS = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # how sentencepiece writes a space
HUB = "isojax model import ORG/NAME"
Merges = list[tuple[str, str]]


def special_token_ids(metadata: Mapping[str, Any]) -> dict[str, int]:
    keys = {name: f"{PREFIX}{gguf_name}_token_id" for name, gguf_name in SPECIAL_TOKENS.items()}
    return {name: metadata[key] for name, key in keys.items() if key in metadata}


def build_tokenizer(metadata: Mapping[str, Any]) -> tuple[Tokenizer, dict[str, Any]]:
    """Return the tokenizer, and the contents of its tokenizer_config.json.

    `metadata`: of the GGUF file, with keys such as "tokenizer.ggml.tokens". InputError where the
    tokenizer is of a kind other than "gpt2" and "llama"."""
    kind = metadata.get(f"{PREFIX}model", "")
    builders = {"gpt2": _build_byte_level, "llama": _build_sentencepiece}
    if kind not in builders:
        raise InputError(
            where=f"{PREFIX}model",
            found=f"given {kind!r}",
            expected="gpt2 (byte-level BPE) or llama (sentencepiece's BPE)",
            fix=f"Take the model's own folder: {HUB}.",
        )

    tokens = metadata[f"{PREFIX}tokens"]
    types = metadata.get(f"{PREFIX}token_type") or [NORMAL] * len(tokens)
    built = builders[kind](metadata, tokens, types)
    tokenizer = built.tokenizer
    _add_whole_tokens(tokenizer, tokens, types)

    special_ids = special_token_ids(metadata)
    adds = {
        "bos": metadata.get(f"{PREFIX}add_bos_token", built.adds_bos),
        # not added where the file does not say
        "eos": metadata.get(f"{PREFIX}add_eos_token"),
    }
    around = {}
    for name, is_added in adds.items():
        if is_added and name in special_ids:
            around[name] = tokens[special_ids[name]]
    if around:
        tokenizer.post_processor = _template(around, special_ids)
    return tokenizer, _tokenizer_config(metadata, tokens, special_ids)


def _add_whole_tokens(tokenizer: Tokenizer, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Add the tokens that are found in a text before anything is merged.

    They are those that end turns (CONTROL), and those that the model's makers added (USER_DEFINED).
    `types`: of each token."""
    control_tokens = []
    user_tokens = []
    for token, token_type in zip(tokens, types, strict=True):
        if token_type == CONTROL:
            control_tokens.append(AddedToken(token, normalized=False, special=True))
        elif token_type == USER_DEFINED:
            user_tokens.append(AddedToken(token, normalized=False))
    tokenizer.add_special_tokens(control_tokens)
    tokenizer.add_tokens(user_tokens)


def _tokenizer_config(
    metadata: Mapping[str, Any], tokens: Sequence[str], special_ids: Mapping[str, int]
) -> dict[str, Any]:
    """The content of tokenizer_config.json."""
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
    }
    config |= {f"{name}_token": tokens[i] for name, i in special_ids.items()}
    template = metadata.get("tokenizer.chat_template")
    if template:
        config["chat_template"] = template
    return config


class BuiltTokenizer(NamedTuple):
    tokenizer: Tokenizer
    adds_bos: bool  # whether it begins texts with `bos` where the file does not say


def _build_byte_level(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]
) -> BuiltTokenizer:
    """Build byte-level BPE, which has its merges in their order in the file.

    `tokens`: by number; `types`: of each, which this kind does not need. InputError where it is not
    known how such a tokenizer splits texts ("tokenizer.ggml.pre")."""
    name = metadata.get(f"{PREFIX}pre", "")
    if name not in PRE_TOKENIZERS:
        known = ", ".join(PRE_TOKENIZERS)
        raise InputError(
            found=f"{PREFIX}pre = {name!r}",
            expected=f"one of {known}",
            fix=f"Take the model's own folder: {HUB}.",
        )
    kind: PreTokenizer = PRE_TOKENIZERS[name]

    vocab = {token: i for i, token in enumerate(tokens)}
    # "left right": in a byte-level token a space is written otherwise
    merges = [tuple(pair.split(" ")) for pair in metadata[f"{PREFIX}merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=kind.keeps_words))
    normalizer = kind.normalizer()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = kind.build()
    tokenizer.decoder = decoders.ByteLevel()
    return BuiltTokenizer(tokenizer, kind.adds_bos)


def _build_sentencepiece(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]
) -> BuiltTokenizer:
    """Build sentencepiece's BPE, whose merges follow from the tokens' scores.

    `tokens`: by number; `types`: of each, such as NORMAL or BYTE."""
    begins_with_space = metadata.get(f"{PREFIX}add_space_prefix", True)
    special_ids = special_token_ids(metadata)
    unknown = [tokens[i] for i, token_type in enumerate(types) if token_type == UNKNOWN]
    if "unk" in special_ids:
        unknown.append(tokens[special_ids["unk"]])

    bpe = models.BPE(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=merges_by_score(tokens, types, metadata[f"{PREFIX}scores"]),
        unk_token=next(iter(unknown), None),
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(bpe)

    write_spaces = normalizers.Replace(" ", SPACE)
    parts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.normalizer = write_spaces
    if begins_with_space:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), write_spaces])
        # the one space that was put in front is taken away again
        parts.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(parts)
    return BuiltTokenizer(tokenizer, adds_bos=True)


def merges_by_score(tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> Merges:
    """Return all pairs of normal tokens that make a token, the highest score of the token first."""
    normal = [i for i, token_type in enumerate(types) if token_type == NORMAL]
    parts = {tokens[i] for i in normal}
    by_score = sorted(normal, key=lambda i: -scores[i])

    merges: Merges = []
    for i in by_score:  # one of a single character has no splits
        token = tokens[i]
        splits = [(token[:end], token[end:]) for end in range(1, len(token))]
        merges += [(left, right) for left, right in splits if left in parts and right in parts]
    return merges


def _template(around: Mapping[str, str], ids: Mapping[str, int]) -> processors.TemplateProcessing:
    """Return what adds the token of `bos` before a text, and that of `eos` after it.

    `around`: the tokens to be added, such as {"bos": "<s>"}. `ids`: of all special tokens."""
    before = [around["bos"]] if "bos" in around else []
    after = [around["eos"]] if "eos" in around else []
    first = [*before, "$A", *after]
    second = [f"{part}:1" for part in (*before, "$B", *after)]
    return processors.TemplateProcessing(
        single=first,
        pair=first + second,
        special_tokens=[(token, ids[name]) for name, token in around.items()],
    )
