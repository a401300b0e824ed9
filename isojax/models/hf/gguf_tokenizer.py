"""A GGUF file's tokenizer as tokenizer.json and tokenizer_config.json.

`gpt2` is byte-level BPE, with merges in their order and a name for how text is split before
(gguf_pretokenizers.py). `llama` is sentencepiece's BPE: no merges, but a score for each token, and
the two neighbours are merged first whose token has the highest. Bytes of characters that no token
has are tokens of their own, <0x0A>.
"""

from collections.abc import Mapping, Sequence
from typing import Any

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
    """The tokenizer, and the contents of its tokenizer_config.json; InputError where it is of
    another kind."""
    kind = metadata.get(f"{PREFIX}model", "")
    builders = {"gpt2": _build_byte_level, "llama": _build_sentencepiece}
    if kind not in builders:
        expected = "expected gpt2 (byte-level BPE) or llama (sentencepiece's BPE)"
        raise InputError(
            f"{PREFIX}model = {kind!r}; {expected}. Take the model's own folder: {HUB}."
        )
    tokens = metadata[f"{PREFIX}tokens"]
    types = metadata.get(f"{PREFIX}token_type") or [NORMAL] * len(tokens)

    tokenizer, adds_bos = builders[kind](metadata, tokens, types)
    typed_tokens = list(zip(tokens, types, strict=True))
    control_tokens = [token for token, token_type in typed_tokens if token_type == CONTROL]
    own_tokens = [token for token, token_type in typed_tokens if token_type == USER_DEFINED]
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in control_tokens]
    )
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in own_tokens])

    special_ids = special_token_ids(metadata)
    adds = {
        "bos": metadata.get(f"{PREFIX}add_bos_token", adds_bos),
        "eos": metadata.get(f"{PREFIX}add_eos_token"),
    }
    around = {
        name: tokens[special_ids[name]]
        for name, is_added in adds.items()
        if is_added and name in special_ids
    }
    if around:
        tokenizer.post_processor = _template(around, special_ids)

    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    special_tokens = {f"{name}_token": tokens[i] for name, i in special_ids.items()}
    template = metadata.get("tokenizer.chat_template")
    return tokenizer, {
        **settings,
        **special_tokens,
        **({"chat_template": template} if template else {}),
    }


def _build_byte_level(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]
) -> tuple[Tokenizer, bool]:
    name = metadata.get(f"{PREFIX}pre", "")
    if name not in PRE_TOKENIZERS:
        known = ", ".join(PRE_TOKENIZERS)
        raise InputError(
            f"{PREFIX}pre = {name!r}; expected one of {known}. Take the model's own folder: {HUB}."
        )
    kind: PreTokenizer = PRE_TOKENIZERS[name]

    vocab = {token: i for i, token in enumerate(tokens)}
    merges = [tuple(pair.split(" ")) for pair in metadata[f"{PREFIX}merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=kind.keeps_words))
    if normalizer := kind.normalizer():
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = kind.build()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, kind.adds_bos


def _build_sentencepiece(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]
) -> tuple[Tokenizer, bool]:
    begins_with_space = metadata.get(f"{PREFIX}add_space_prefix", True)
    unknown = [
        token for token, token_type in zip(tokens, types, strict=True) if token_type == UNKNOWN
    ]
    unknown += [tokens[i] for name, i in special_token_ids(metadata).items() if name == "unk"]
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
        parts.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(parts)
    return tokenizer, True


def merges_by_score(tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> Merges:
    """All pairs of tokens that make a token, the highest score first."""
    ranked = [
        i for i, token_type in enumerate(types) if token_type == NORMAL and len(tokens[i]) > 1
    ]
    ranked.sort(key=lambda i: -scores[i])
    parts = {token for token, token_type in zip(tokens, types, strict=True) if token_type == NORMAL}

    merges: Merges = []
    for i in ranked:
        token = tokens[i]
        splits = [(token[:end], token[end:]) for end in range(1, len(token))]
        merges += [(left, right) for left, right in splits if left in parts and right in parts]
    return merges


def _template(around: Mapping[str, str], ids: Mapping[str, int]) -> processors.TemplateProcessing:
    """Adds the token of `bos` before a text, and that of `eos` after it."""
    before, after = ([around[name]] if name in around else [] for name in ("bos", "eos"))
    return processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[
            *before,
            "$A",
            *after,
            *(f"{token}:1" for token in before),
            "$B:1",
            *(f"{token}:1" for token in after),
        ],
        special_tokens=[(token, ids[name]) for name, token in around.items()],
    )
