"""Loads a tokenizer as its tokenizer.json defines it; vLLM, SGLang and the `tokenizers` library
read this file and nothing else.

transformers 5 takes the vocabulary and merges from it, but rebuilds normalizer and pre-tokenizer
from the class that tokenizer_config.json names, so that "\\n\\n" or a space before a digit may get
other ids than the model was trained on. Here tokenizer.json decides, also whether BOS is added.
tokenizer_config.json supplies what it lacks: which special tokens are BOS, EOS and padding, and the
chat template.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isojax.core.table_files import read_json_object

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import AddedToken, PreTrainedTokenizerBase, PreTrainedTokenizerFast

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
# Files that may name tokens besides tokenizer.json
TOKEN_NAME_FILES = (CONFIG_FILE, "special_tokens_map.json", "added_tokens.json")
MAX_NAMED_TOKENS = 6
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
    "naïve café e\u0301 Straße \N{LATIN SMALL LIGATURE FI}"
    " \N{FULLWIDTH DIGIT THREE}\N{ROMAN NUMERAL FOUR}",
    "日本語の文 中文,测试。 한국어 русский Ελληνικά العربية עברית हिन्दी ไทย",
    "\N{GRINNING FACE}\N{ZERO WIDTH JOINER}\N{WAVING HAND SIGN}\N{VARIATION SELECTOR-16}"
    " \u2581 \xa0 \u200b",
    r"\boxed{\frac{1}{2}} <think>\n$$x^2+y_1=-0.5$$</think> #### 42",
    "camelCase snake_case SHOUTING http://a.b/c?d=e&f=1 [INST] <<SYS>>",
    " ",
    "\n",
)


def read_as_written(
    folder: Path, loaded: PreTrainedTokenizerBase, notes: list[str]
) -> PreTrainedTokenizerBase:
    """The tokenizer that tokenizer.json in `folder` defines. loaded: the one that transformers made
    of the folder, which is returned where both tokenize alike. A sentence is appended to `notes`
    where they do not, and where other files name tokens that tokenizer.json lacks: these become
    tokens as well."""
    from tokenizers import Tokenizer

    as_written: Tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    # What some files store for their own training scripts would cut prompts.
    as_written.no_truncation()
    as_written.no_padding()

    # Does `loaded` tokenize as the file defines? Tokens that only other files name ("beside") make
    # no difference.
    named_tokens = _named_tokens(folder)
    beside = [
        token for token in _added_tokens(loaded) if _is_beside(token, as_written, named_tokens)
    ]
    difference = _first_difference(loaded, as_written)  # a text in words; None: no probe differs
    tokens_of_file = as_written.get_vocab().keys()
    # Tokens that the class has added by itself, such as <unk>.
    has_invented_tokens = bool(loaded.get_vocab().keys() - tokens_of_file - named_tokens)
    is_as_written = (
        difference is None and not has_invented_tokens and _has_same_splitting(loaded, as_written)
    )
    if is_as_written:
        if beside:
            notes.append(describe_tokens_beside(folder, loaded, beside))
        return loaded

    # It does not: build one of the file, with the settings of `loaded` and the tokens beside.
    tokenizer = _with_settings_of(loaded, as_written, named_tokens)
    known_tokens = tokenizer.get_vocab()  # with the special tokens that it was given
    tokenizer.add_tokens([token for token in beside if token.content not in known_tokens])
    if beside:
        notes.append(describe_tokens_beside(folder, tokenizer, beside))
        # What differs apart from these tokens.
        difference = _first_difference(loaded, tokenizer.backend_tokenizer)
    if difference is not None:
        notes.append(
            f"transformers rebuilds {folder / TOKENIZER_FILE} as {type(loaded).__name__}, which"
            f" tokenises {difference}. The ids here are those of the file itself, as vLLM's are"
        )
    return tokenizer


def _added_tokens(tokenizer: PreTrainedTokenizerBase) -> list[AddedToken]:
    return [token for _, token in sorted(tokenizer.added_tokens_decoder.items())]


def _is_beside(token: AddedToken, as_written: Tokenizer, named_tokens: set[str]) -> bool:
    """Whether a token is in the files beside tokenizer.json alone."""
    return token.content in named_tokens and as_written.token_to_id(token.content) is None


def describe_tokens_beside(
    folder: Path, tokenizer: PreTrainedTokenizerBase, beside: Sequence[AddedToken]
) -> str:
    """A note for the user on tokens that a model's folder names only in other files than
    tokenizer.json, with a short program that writes them into it. (save_pretrained would also
    write the pre-tokenizer of the class.) tokenizer: as read from the folder; beside: the tokens,
    one or more, in the order of their ids, which `groupby` below relies on."""
    ids = tokenizer.get_vocab()
    names = [token.content for token in beside]
    listed = ", ".join(f"{name} ({ids[name]})" for name in names[:MAX_NAMED_TOKENS])
    more = f" and {len(names) - MAX_NAMED_TOKENS} more" if len(names) > MAX_NAMED_TOKENS else ""
    file = folder / TOKENIZER_FILE
    sources = [name for name in TOKEN_NAME_FILES if names[0] in _named_tokens(folder, [name])]
    statement = (
        f"{folder / sources[0]} names the tokens {listed}{more}, which {TOKENIZER_FILE} does not"
        f" have"
    )

    # The config may give some of them other ids than transformers does.
    configured = _configured_ids(folder).items()
    others = [f"{name} is {i} there" for name, i in configured if name in names and ids[name] != i]
    if others:
        listed_others = ", ".join(others[:MAX_NAMED_TOKENS])
        statement += f" (and {listed_others}: the numbers between are missing)"

    # In the order of their ids, each kind by its own function.
    code = [f"t = tokenizers.Tokenizer.from_file({str(file)!r})"]
    for is_special, tokens in groupby(beside, lambda token: token.special):
        function = "add_special_tokens" if is_special else "add_tokens"
        code.append(f"t.{function}({[token.content for token in tokens]!r})")
    code.append(f"t.save({str(file)!r})")
    return (
        f"{statement}: they are tokens here, as in transformers and vLLM, and texts for a program"
        f" that reads {file.name} alone. If the model was trained with them, write them into the"
        f" file: {'; '.join(code)}"
    )


def _configured_ids(folder: Path) -> dict[str, int]:
    """The ids that tokenizer_config.json gives to its added tokens."""
    file = folder / CONFIG_FILE
    decoder = read_json_object(file).get("added_tokens_decoder") if file.is_file() else None
    if not isinstance(decoder, dict):
        return {}
    tokens = {i: token for i, token in decoder.items() if isinstance(token, dict) and i.isdecimal()}
    return {str(token.get("content")): int(i) for i, token in tokens.items()}


def _first_difference(loaded: PreTrainedTokenizerBase, as_written: Tokenizer) -> str | None:
    """The first text to which the two tokenizers give different ids, with a few of both, in words
    that can follow "tokenizes": "' The cat' as ...[1, 2]... where the file says ...[3]...". None
    where all probes get the same."""
    for text in [*PROBES, *_special_token_probes(as_written)]:
        expected = as_written.encode(text, add_special_tokens=False).ids
        try:
            ids = loaded.encode(
                text, add_special_tokens=False, padding=False, truncation=False, verbose=False
            )
        # A class whose unknown token is not in the vocabulary raises at a text.
        except Exception as e:
            reason = str(e).splitlines()[0] if str(e) else ""
            return f"{text!r} not at all ({type(e).__name__}: {reason})"
        if ids != expected:
            start = 0  # how many ids agree; the lists differ somewhere, so that the loop ends
            while ids[: start + 1] == expected[: start + 1]:
                start += 1
            window = slice(start, start + 4)
            return f"{text!r} as ...{ids[window]}... where the file says ...{expected[window]}..."
    return None


def _special_token_probes(as_written: Tokenizer) -> Iterator[str]:
    """Each added token, with and without white space around it."""
    for token in as_written.get_added_tokens_decoder().values():
        yield f"a{token.content}b {token.content} c\n{token.content}\n\n"


def _has_same_splitting(loaded: Any, as_written: Tokenizer) -> bool:
    """Whether normaliser and pre-tokeniser are those of the file, for texts that no probe is
    like."""
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


def _named_tokens(folder: Path, names: Sequence[str] = TOKEN_NAME_FILES) -> set[str]:
    """What the files beside tokenizer.json may mean by a token; a class has tokens of its own, such
    as <unk>."""
    files = [folder / name for name in names if (folder / name).is_file()]
    return {text for file in files for text in _strings(read_json_object(file))}


def _with_settings_of(
    loaded: PreTrainedTokenizerBase, as_written: Tokenizer, named_tokens: set[str]
) -> PreTrainedTokenizerFast:
    """The tokenizer of the file with the settings of `loaded`, which come from
    tokenizer_config.json: the special tokens that a file names, the chat template, the longest
    text. as_written: of tokenizer.json; named_tokens: texts that other files may mean by a token
    (`_named_tokens`). Special tokens that only the class of `loaded` has are left out."""
    from transformers import PreTrainedTokenizerFast

    vocab = as_written.get_vocab()
    special_tokens = {
        name: token
        for name, token in loaded.special_tokens_map.items()
        if isinstance(token, str) and (token in vocab or token in named_tokens)
    }
    return PreTrainedTokenizerFast(
        tokenizer_object=as_written,
        name_or_path=loaded.name_or_path,
        chat_template=loaded.chat_template,
        model_max_length=loaded.model_max_length,
        clean_up_tokenization_spaces=loaded.clean_up_tokenization_spaces,
        **special_tokens,
    )


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
