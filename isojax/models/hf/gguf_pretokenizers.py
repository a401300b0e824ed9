"""How byte-level tokenizers split a text before they merge bytes, by the names that GGUF files have
for it (`tokenizer.ggml.pre`). The patterns are those of the models' own tokenizer.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, normalizers, pre_tokenizers

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class PreTokenizer:
    pattern: str | None = None  # None: GPT-2's, which the byte level has itself
    splits_digits: bool = False  # whether each digit is a piece of its own, before all else
    keeps_words: bool = False  # whether a piece that is a token is not merged from its bytes
    adds_bos: bool = False  # where the file does not say
    composes: bool = False  # whether text is brought into NFC: llama.cpp leaves that out

    def build(self) -> pre_tokenizers.PreTokenizer:
        byte_level = pre_tokenizers.ByteLevel(
            add_prefix_space=False, use_regex=self.pattern is None
        )
        parts: list[pre_tokenizers.PreTokenizer] = []
        if self.splits_digits:
            parts.append(pre_tokenizers.Digits(individual_digits=True))
        if self.pattern is not None:
            parts.append(pre_tokenizers.Split(Regex(self.pattern), "isolated"))
        return pre_tokenizers.Sequence([*parts, byte_level])

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.composes else None


# Of names that mean the same, the first is written.
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "gpt-2": PreTokenizer(),
    "olmo": PreTokenizer(),
    "smollm": PreTokenizer(splits_digits=True),
    "llama-bpe": PreTokenizer(LLAMA3_PATTERN, keeps_words=True, adds_bos=True),
    "llama3": PreTokenizer(LLAMA3_PATTERN, keeps_words=True, adds_bos=True),
    "llama-v3": PreTokenizer(LLAMA3_PATTERN, keeps_words=True, adds_bos=True),
    "dbrx": PreTokenizer(LLAMA3_PATTERN),
    "qwen2": PreTokenizer(QWEN2_PATTERN, composes=True),
    "deepseek-r1-qwen": PreTokenizer(QWEN2_PATTERN, composes=True),
    "tekken": PreTokenizer(TEKKEN_PATTERN, keeps_words=True, adds_bos=True),
}


def find_name(tokenizer_json: Mapping[str, Any]) -> str | None:
    """Return the name of what a tokenizer.json splits texts by; None where GGUF has none for it.

    `tokenizer_json`: the whole file, whose model is BPE. Names are keys of PRE_TOKENIZERS, such as
    "llama-bpe"; of several that mean the same, the first."""
    parts = _parts(tokenizer_json.get("pre_tokenizer"))
    patterns = [part["pattern"].get("Regex") for part in parts if part["type"] == "Split"]
    digits = [part["individual_digits"] for part in parts if part["type"] == "Digits"]
    byte_levels = [part for part in parts if part["type"] == "ByteLevel"]

    # Only what `PreTokenizer` builds: one byte level, and before it one pattern or GPT-2's.
    has_others = len(patterns) + len(digits) + len(byte_levels) < len(parts)
    if has_others or len(byte_levels) != 1 or len(patterns) > 1:
        return None
    (byte_level,) = byte_levels
    # use_regex is GPT-2's pattern; digits may be set apart only one by one
    splits_twice_or_never = byte_level["use_regex"] == bool(patterns)
    if splits_twice_or_never or byte_level["add_prefix_space"] or digits == [False]:
        return None

    pattern = patterns[0] if patterns else None
    keeps_words = bool(tokenizer_json["model"].get("ignore_merges"))
    # Whether bos is added is said elsewhere in a GGUF file, and NFC is left out by llama.cpp:
    # neither is compared.
    for name, known in PRE_TOKENIZERS.items():
        if (
            known.pattern == pattern
            and known.splits_digits == bool(digits)
            and known.keeps_words == keeps_words
        ):
            return name
    return None


def _parts(pre_tokenizer: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if pre_tokenizer is None:
        return []
    if pre_tokenizer["type"] == "Sequence":
        return [part for inner in pre_tokenizer["pretokenizers"] for part in _parts(inner)]
    return [pre_tokenizer]
