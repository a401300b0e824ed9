"""A checkpoint's tokenizer, loaded from its folder alone: tokens as bytes, and the tokens and
strings that end a response.

Its chat template is rendered in a process of its own: a template is a program, which may loop for
ever or ask for any memory. The process reads settings, then conversations, as JSON lines, and
answers each with a line.
"""

from __future__ import annotations

import json
import logging
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from isojax.core.errors import InputError
from isojax.core.limits import MAX_PROMPT_CHARACTERS
from isojax.core.table_files import read_json_object
from isojax.tasks.answers.thinking import is_thinking_tag
from isojax.tasks.broken_tokenizer import (
    SENTENCEPIECE_FILES,
    TOKENIZER_FILES,
    refuse_broken_file,
    refuse_pointers,
)
from isojax.tasks.tokenizer_file import CONFIG_FILE, TOKENIZER_FILE, read_as_written

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SENTENCEPIECE_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # how sentencepiece writes a space
PROBE_TEXT = "The 12 cats sat on 3 mats."
MAX_STOP_BYTES = 512  # of all stop strings
MAX_MEMORY_BYTES = 2**29  # that a chat template's process may write to
SECONDS = 10.0  # that it may take
SECONDS_PER_CONVERSATION = 0.02  # and for each conversation

# transformers is used for its tokenizers alone, and advises at its import to install what models
# need.
logging.getLogger("transformers").addFilter(
    lambda record: "PyTorch was not found" not in record.getMessage()
)


def load_tokenizer(folder: Path, notes: list[str] | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer in a model's folder, as downloaded from a hub. Nothing is fetched and no code
    of the folder is run. InputError where there is no tokenizer, or it cannot be read.

    Where transformers would tokenize differently from the folder's tokenizer.json, the file
    decides, and a sentence on it is appended to `notes`, a list of warnings for the user (None:
    they are dropped).
    """
    if not folder.is_dir():
        raise InputError(
            where="cell.model.path",
            found=f"no such folder: {folder}",
            expected="one of a model's files",
        )
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise InputError(
            where="cell.model.path",
            found=f"{folder} has no tokenizer",
            expected=f"one of {', '.join(TOKENIZER_FILES)}",
        )
    refuse_pointers(folder)  # files that Git LFS has not fetched
    from transformers import LlamaTokenizer

    has_tokenizer_json = (folder / TOKENIZER_FILE).is_file()
    has_sentencepiece_alone = (
        (folder / "tokenizer.model").is_file()
        and not has_tokenizer_json
        and not (folder / CONFIG_FILE).is_file()
    )
    with readable(folder):
        if has_sentencepiece_alone:
            # Llama 1 and 2 came so; AutoTokenizer of transformers 5 would lose the leading space
            # and the BOS token.
            tokenizer = LlamaTokenizer.from_pretrained(
                folder, local_files_only=True, add_bos_token=True
            )
        else:
            tokenizer = _load_by_class(folder)
        if has_tokenizer_json:
            tokenizer = read_as_written(folder, tokenizer, [] if notes is None else notes)

    if not isinstance(tokenizer.model_max_length, int | float):
        received = type(tokenizer.model_max_length).__name__
        raise InputError(
            where=folder / "tokenizer_config.json",
            found=f"model_max_length is a {received}",
            expected="a number",
        )
    # Without tokenizer.json, transformers has rebuilt the tokenizer from a sentencepiece file, or
    # read one of another kind, such as vocab.json, of which nothing is checked.
    if not has_tokenizer_json:
        _check_sentencepiece(folder, tokenizer)
    return tokenizer


def _load_by_class(folder: Path) -> PreTrainedTokenizerBase:
    """By the class that the folder's files name; by tokenizer.json alone where that class cannot
    hold its vocabulary, and has no code of its own in the folder."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    # Each class raises its own; raised again unless tokenizer.json can stand alone.
    except Exception:
        config = read_json_object(folder / CONFIG_FILE) if (folder / CONFIG_FILE).is_file() else {}
        if "auto_map" in config or not (folder / TOKENIZER_FILE).is_file():
            raise
        return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    """A context in which whatever the tokenizers library raises becomes an InputError that names
    the folder, and the file where one is no whole file."""
    try:
        yield
    except (InputError, KeyboardInterrupt, SystemExit):
        raise
    # The library raises Exception itself; a panic of its Rust code is no Exception.
    except BaseException as e:
        reason = (str(e).strip() or repr(e)).splitlines()[0]
        refuse_broken_file(folder)  # InputError if it finds the broken file
        raise InputError(
            where=f"the tokenizer in {folder}",
            found=f"cannot be read: {reason.rstrip('.')}",
            fix="Copy its files again.",
        ) from e


def _check_sentencepiece(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """InputError where transformers, which rebuilds a tokenizer from a sentencepiece file, splits
    PROBE_TEXT differently from the sentencepiece library. Nothing is checked where the folder has
    no such file."""
    file = next((folder / name for name in SENTENCEPIECE_FILES if (folder / name).is_file()), None)
    if file is None:
        return
    from sentencepiece import SentencePieceProcessor

    expected_pieces = SentencePieceProcessor(model_file=str(file)).encode(PROBE_TEXT, out_type=str)
    tokenizer_pieces = tokenizer.tokenize(PROBE_TEXT)
    if tokenizer_pieces != expected_pieces:
        raise InputError(
            where=file,
            found=(
                f"transformers reads {PROBE_TEXT!r} as {tokenizer_pieces}, differently than "
                f"sentencepiece does ({expected_pieces})"
            ),
            fix="Add a tokenizer.json, or the right tokenizer_class.",
        )


def added_beyond_vocabulary(tokenizer: PreTrainedTokenizerBase, vocab: int) -> dict[int, str]:
    """The added tokens, as id -> token, that have no row in an embedding of `vocab` rows, such as a
    [PAD] that a trainer added: they are never sampled, and do no harm as long as no prompt holds
    one.

    InputError where an ordinary token has no row: any text may need it, and the tokenizer must be
    that of another model. vocab: cell.model.vocab, or vocab_size of config.json.
    """
    beyond = {i: token for token, i in tokenizer.get_vocab().items() if i >= vocab}
    ordinary_tokens = beyond.keys() - tokenizer.added_tokens_decoder.keys()
    if ordinary_tokens:
        raise InputError(
            where=f"the tokenizer in {tokenizer.name_or_path}",
            found=f"has ids up to {max(beyond)}, the model's vocabulary has {vocab} rows",
            fix=(
                "Copy the tokenizer that belongs to the model, or the model that belongs to "
                "the tokenizer."
            ),
        )
    return beyond


def token_bytes(tokenizer: PreTrainedTokenizerBase, vocab: int) -> list[bytes | None]:
    """The bytes that each token adds to a text, by its id: `vocab` entries, None for special tokens
    and unused ids. InputError for a tokenizer that is neither byte-level BPE nor sentencepiece.

    Special tokens that begin or end thinking, such as <think>, count as text: without them thoughts
    and answer could not be told apart. vocab: rows of the model's embedding, which may be more or
    fewer than the tokenizer has tokens.
    """
    beyond = added_beyond_vocabulary(tokenizer, vocab)
    id_of_token = {token: i for token, i in tokenizer.get_vocab().items() if i not in beyond}
    if not id_of_token:
        raise InputError(
            where=f"the tokenizer in {tokenizer.name_or_path}",
            found="no tokens",
            fix="Copy its files again.",
        )
    # Tokens are written in one of two ways: a character for each byte, or text with a sign for the
    # space.
    to_bytes = _byte_alphabet() if _is_byte_level(tokenizer) else _sentencepiece_bytes

    added_tokens = tokenizer.added_tokens_decoder
    special_ids = set(tokenizer.all_special_ids)
    special_ids |= {i for i, token in added_tokens.items() if token.special}
    special_ids -= {i for i, token in added_tokens.items() if is_thinking_tag(token.content)}

    bytes_of_id: list[bytes | None] = [None] * vocab
    for token, i in id_of_token.items():
        if i in special_ids:
            continue
        if i in added_tokens:  # written as text
            bytes_of_id[i] = added_tokens[i].content.encode()
        else:
            bytes_of_id[i] = to_bytes(token)
    return bytes_of_id


def _byte_alphabet() -> Callable[[str], bytes]:
    """How tokens of byte-level BPE, in which a character stands for each byte, become bytes."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    byte_of_character = {character: bytes([byte]) for byte, character in bytes_to_unicode().items()}

    def to_bytes(token: str) -> bytes:
        # byte_of_character has each of the 256 bytes. A token with other characters is plain text.
        is_written_in_bytes = byte_of_character.keys() >= set(token)
        if not is_written_in_bytes:
            return token.encode()
        return b"".join([byte_of_character[character] for character in token])

    return to_bytes


def _sentencepiece_bytes(token: str) -> bytes:
    """The bytes of a sentencepiece token: one byte for <0x0A>, else text with its spaces."""
    is_byte = re.fullmatch("<0x[0-9A-Fa-f]{2}>", token)
    if is_byte:
        return bytes([int(token[3:5], 16)])
    return token.replace(SENTENCEPIECE_SPACE, " ").encode()


def _is_byte_level(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokens of a vocabulary are written in the byte alphabet of byte-level BPE (True)
    or as sentencepiece does (False); InputError where neither. The decoder of tokenizer.json tells:
    {"type": "ByteLevel"}, {"type": "Metaspace"}, or a sequence of such steps."""
    from transformers import PreTrainedTokenizerFast

    if isinstance(tokenizer, PreTrainedTokenizerFast):
        backend = json.loads(tokenizer.backend_tokenizer.to_str())
        decoder: Any = backend["decoder"] or {"type": "none"}
        decoders = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
        if any(step["type"] == "ByteLevel" for step in decoders):
            return True
        space = {"String": SENTENCEPIECE_SPACE}  # of a step that replaces this sign by a space
        if any(step["type"] == "Metaspace" or step.get("pattern") == space for step in decoders):
            return False
    raise InputError(
        where=f"the tokenizer in {tokenizer.name_or_path}",
        found="neither byte-level BPE nor a sentencepiece one",
    )


def end_tokens(tokenizer: PreTrainedTokenizerBase, folder: Path) -> tuple[int, ...]:
    """Ids that end a response, ascending: of generation_config.json (else config.json), and the
    tokenizer's own; () where no file names one. eos_token_id is an id, a list of ids, or null."""
    end_ids = None
    for name in ("generation_config.json", "config.json"):
        if end_ids is None and (folder / name).is_file():
            end_ids = read_json_object(folder / name).get("eos_token_id")
    candidates = [*end_ids] if isinstance(end_ids, list) else [end_ids]
    candidates.append(tokenizer.eos_token_id)
    return tuple(sorted({i for i in candidates if type(i) is int and i >= 0}))


def build_stop_table(bytes_of_id: Sequence[bytes | None], strings: Sequence[str]) -> np.ndarray:
    """The automaton that finds stop strings in a response, token by token, for
    `StopConditions.transitions`: table[state, token] is the next state, uint8 or uint16
    [states, tokens]; the value `states` means that a stop string is complete.

    A state is the longest end of the text so far that is the beginning of a stop string; state 0 is
    the empty one. A token without text (None) leads to state 0. bytes_of_id: of `token_bytes`;
    strings: cell.prompt.stop, one or more, none of them empty. InputError for others, and where
    they have more than MAX_STOP_BYTES in all, each of which is a row of the table.
    """
    stops = [string.encode() for string in strings]
    if not all(stops) or not stops:
        raise InputError(
            where=f"cell.prompt.stop = {list(strings)}",
            expected="strings of one character or more",
        )
    size = sum(map(len, stops))
    if size > MAX_STOP_BYTES:
        raise InputError(
            where="cell.prompt.stop",
            found=f"{size:,} bytes in all",
            expected=f"at most {MAX_STOP_BYTES}",
            fix="Shorten them.",
        )

    # The states: all incomplete beginnings of stop strings, the empty one first.
    prefixes = {stop[:i] for stop in stops for i in range(len(stop))}
    states = sorted(prefixes, key=lambda prefix: (len(prefix), prefix))
    state_index = {prefix: i for i, prefix in enumerate(states)}
    longest = len(states[-1])  # they are in the order of their lengths

    def state_after(text: bytes) -> int:
        """The state after reading a text from state 0; len(states) where a stop string is in it.
        Uses stops (the strings as bytes), states, state_index and longest."""
        if any(stop in text for stop in stops):
            return len(states)
        start = max(0, len(text) - longest)
        while text[start:] not in state_index:  # the empty suffix is state 0
            start += 1
        return state_index[text[start:]]

    # From state 0, the state after a token depends on its text alone. Begin with that for all
    # states. The type must have room for the value `states`.
    table = np.zeros((len(states), len(bytes_of_id)), np.uint8 if len(states) < 255 else np.uint16)
    ids_by_first_byte: dict[bytes, list[int]] = {}
    for i, piece in enumerate(bytes_of_id):
        if piece is not None:
            table[:, i] = state_after(piece)
            ids_by_first_byte.setdefault(piece[:1], []).append(i)

    # Correct the entries for which the text before the token matters. Where it makes no difference
    # after the token's first byte, it makes none after the others. (A prefix is what state `state`
    # stands for: the text that leads to it.)
    for prefix, state in state_index.items():
        for byte, ids in ids_by_first_byte.items():
            if state_after(prefix + byte) != state_after(byte):
                table[state, ids] = [state_after(prefix + (bytes_of_id[i] or b"")) for i in ids]
    return table


def render_chats(
    tokenizer: PreTrainedTokenizerBase,
    conversations: Sequence[list[dict[str, str]]],
    options: Mapping[str, Any],
    moment: datetime | None = None,
) -> list[str]:
    """The text of each conversation by the tokenizer's chat template, rendered in another process.
    InputError where the template refuses one, or takes too much time or memory.

    conversations: each a list of messages {"role": "user", "content": "12 + 7 ="}. options:
    arguments for the template, such as {"add_generation_prompt": True}. moment: what a template
    that asks for the time gets; None: the time.
    """
    seconds = SECONDS + SECONDS_PER_CONVERSATION * len(conversations)
    arguments = {
        **tokenizer.special_tokens_map,
        **options,
        "chat_template": tokenizer.get_chat_template(),
    }
    settings = {
        "seconds": seconds,
        "arguments": arguments,
        "moment": (moment or datetime.now()).isoformat(),
    }

    text = "".join(json.dumps(line) + "\n" for line in [settings, *conversations])
    command = [sys.executable, "-m", "isojax.tasks.tokenizer"]
    completed = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    # A line that does not end so was cut off when the process was ended.
    replies = [json.loads(line) for line in completed.stdout.splitlines() if line.endswith("}")]

    # The replies are in the order of the conversations, up to the first that failed.
    texts = [reply["text"] for reply in replies if "text" in reply]
    if len(texts) < len(conversations):
        errors = [reply["error"] for reply in replies if "error" in reply]
        if errors:
            problem = errors[0]
        elif completed.returncode == -signal.SIGALRM:
            problem = f"took more than {seconds:.0f} s"
        else:
            printed = completed.stderr.strip()[-200:]
            problem = f"its process ended with {completed.returncode} ({printed})"
        raise InputError(
            where=f"the chat template in {tokenizer.name_or_path}",
            found=f"refuses the conversation {conversations[len(texts)]}: {problem}",
            fix="It may need to go without cell.prompt.system.",
        )
    return texts


def _frozen_clock(moment: datetime) -> type[datetime]:
    """The class datetime, with one moment for now()."""

    class FrozenClock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return moment

    return FrozenClock


def _serve() -> None:
    """What the process of `render_chats` runs: read settings and conversations from stdin, and
    print {"text": ...} or {"error": ...} for each, up to the first error. It has no handler for the
    alarm, which so ends a template that loops for ever. The first line of stdin is the settings:
    {"seconds": 10.2, "arguments": {...}, "moment": "2026-01-31T12:00:00"}; each further line is a
    conversation."""
    from transformers.utils import chat_template_utils

    settings = json.loads(sys.stdin.readline())
    # A template's strftime_now takes the time from this module's datetime; no other code in this
    # process does.
    moment = datetime.fromisoformat(settings["moment"])
    chat_template_utils.__dict__["datetime"] = _frozen_clock(moment)

    hard_limit = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY_BYTES, hard_limit))
    signal.setitimer(signal.ITIMER_REAL, settings["seconds"])

    for line in sys.stdin:
        try:
            (text,), _ = chat_template_utils.render_jinja_template(
                [json.loads(line)], **settings["arguments"]
            )
            reply = {"text": text}
            if len(text) > MAX_PROMPT_CHARACTERS:
                expected = f"expected at most {MAX_PROMPT_CHARACTERS:,}"
                reply = {"error": f"{len(text):,} characters, {expected}"}
        except MemoryError:
            reply = {"error": f"more than {MAX_MEMORY_BYTES // 2**20} MiB of memory"}
        except Exception as e:  # the template's own refusal, and whatever its expressions raise
            reply = {"error": f"{type(e).__name__}: {str(e)[:500]}"}
        print(json.dumps(reply), flush=True)
        if "error" in reply:
            break


if __name__ == "__main__":
    _serve()
