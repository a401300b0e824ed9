"""tokenizer.json is what tokenises: vLLM, SGLang and the `tokenizers` library read it and nothing else.

transformers 5 takes vocabulary and merges from it, and rebuilds normaliser and pre-tokeniser from the class that
tokenizer_config.json names, so that "\\n\\n" or a space before a digit may get other ids than the model was trained on.
Here the file decides, also whether BOS is added; tokenizer_config.json says what the file cannot: which special tokens
are BOS, EOS and padding, and the chat template.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isojax.core.table_files import read_json_object

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

TOKENIZER_FILE, CONFIG_FILE = "tokenizer.json", "tokenizer_config.json"
# Files that may name tokens besides tokenizer.json
TOKEN_NAME_FILES = (CONFIG_FILE, "special_tokens_map.json", "added_tokens.json")
# Texts that pre-tokenisers and normalisers treat differently
PROBES = (
    "The 12 cats sat on 3 mats.",
    " The cat",
    "  two spaces,   three",
    "1234567 and 12 345, 3.14159; x2y3 7B",
    "x =  7\ty  12\n  42",
    "a\n\nb\n\n\nc \n d\r\n\r\ne",
    "    return 2 * x\n\n\ndef f():\n\tpass\n",
    "I'll, don't, WE'VE, they'd: it's",
    "naïve café e\u0301 Straße \N{LATIN SMALL LIGATURE FI} \N{FULLWIDTH DIGIT THREE}\N{ROMAN NUMERAL FOUR}",
    "日本語の文 中文,测试。 한국어 русский Ελληνικά العربية עברית हिन्दी ไทย",
    "\N{GRINNING FACE}\N{ZERO WIDTH JOINER}\N{WAVING HAND SIGN}\N{VARIATION SELECTOR-16} \u2581 \xa0 \u200b",
    r"\boxed{\frac{1}{2}} <think>\n$$x^2+y_1=-0.5$$</think> #### 42",
    "camelCase snake_case SHOUTING http://a.b/c?d=e&f=1 [INST] <<SYS>>",
    " ",
    "\n",
)


def read_as_written(folder: Path, loaded: PreTrainedTokenizerBase, notes: list[str]) -> PreTrainedTokenizerBase:
    """The tokenizer of tokenizer.json in `folder`; `loaded`, which transformers made of it, where both split texts
    alike. A note is added where ids differ."""
    from tokenizers import Tokenizer

    as_written: Tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    # What some files store for their own training scripts would cut prompts
    as_written.no_truncation()
    as_written.no_padding()

    named_tokens = _named_tokens(folder)
    difference = _first_difference(loaded, as_written)
    has_invented_tokens = bool(loaded.get_vocab().keys() - as_written.get_vocab().keys() - named_tokens)
    if difference is None and not has_invented_tokens and _has_components_of(loaded, as_written):
        return loaded

    if difference is not None:
        class_name = type(loaded).__name__
        reading = f"transformers rebuilds {folder / TOKENIZER_FILE} as {class_name}, which tokenises {difference}"
        notes.append(f"{reading}. The ids here are those of the file itself, as vLLM's are")
    return _with_settings_of(loaded, as_written, named_tokens)


def _first_difference(loaded: PreTrainedTokenizerBase, as_written: Tokenizer) -> str | None:
    """The first probe that gets other ids, and both; None where none does."""
    for text in [*PROBES, *_special_token_probes(as_written)]:
        expected = as_written.encode(text, add_special_tokens=False).ids
        try:
            ids = loaded.encode(text, add_special_tokens=False, padding=False, truncation=False, verbose=False)
        except Exception as e:  # a class whose unknown token is not in the vocabulary raises at a text
            return f"{text!r} not at all ({type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''})"
        if ids != expected:
            start = next(i for i in range(len(expected) + 1) if ids[: i + 1] != expected[: i + 1])
            window = slice(start, start + 4)
            return f"{text!r} as ...{ids[window]}... where the file says ...{expected[window]}..."
    return None


def _special_token_probes(as_written: Tokenizer) -> Iterator[str]:
    """Each added token, with and without white space around it."""
    for token in as_written.get_added_tokens_decoder().values():
        yield f"a{token.content}b {token.content} c\n{token.content}\n\n"


def _has_components_of(loaded: Any, as_written: Tokenizer) -> bool:
    """Whether normaliser and pre-tokeniser are those of the file, for texts that no probe is like."""
    from transformers import PreTrainedTokenizerFast

    if not isinstance(loaded, PreTrainedTokenizerFast):
        return True  # of another library, such as mistral-common: the probes have compared them
    backend = loaded.backend_tokenizer
    pairs = (
        (backend.normalizer, as_written.normalizer),
        (backend.pre_tokenizer, as_written.pre_tokenizer),
    )
    return all(_state(ours) == _state(theirs) for ours, theirs in pairs)


def _state(component: Any) -> Any:
    return None if component is None else json.loads(component.__getstate__())


def _named_tokens(folder: Path) -> set[str]:
    """What the files beside tokenizer.json may mean by a token; a class has tokens of its own, such as <unk>."""
    files = [folder / name for name in TOKEN_NAME_FILES if (folder / name).is_file()]
    return {text for file in files for text in _strings(read_json_object(file))}


def _with_settings_of(
    loaded: PreTrainedTokenizerBase, as_written: Tokenizer, named_tokens: set[str]
) -> PreTrainedTokenizerBase:
    """The file's tokenizer with the special tokens and the chat template of tokenizer_config.json."""
    from transformers import PreTrainedTokenizerFast

    vocab = as_written.get_vocab()
    special_tokens = {
        name: token
        for name, token in loaded.special_tokens_map.items()
        if isinstance(token, str) and (token in vocab or token in named_tokens)
    }
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=as_written,
        name_or_path=loaded.name_or_path,
        chat_template=loaded.chat_template,
        model_max_length=loaded.model_max_length,
        clean_up_tokenization_spaces=loaded.clean_up_tokenization_spaces,
        **special_tokens,
    )
    known_tokens = tokenizer.get_vocab()
    tokens_beside_the_file = [
        token
        for _, token in sorted(loaded.added_tokens_decoder.items())
        if token.content not in known_tokens and token.content in named_tokens
    ]
    tokenizer.add_tokens(tokens_beside_the_file)
    return tokenizer


def _strings(value: Any) -> Iterator[str]:
    """All texts in JSON, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from (key, *_strings(item))
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
