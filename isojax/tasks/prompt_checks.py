"""Checks of prompts before anything is sampled: which token ends a chat's turn, and whether markup
is missing, doubled or in the wrong place. Doubts become warnings.

To see what a chat template writes, a conversation of known messages (PROBE_TEXTS) is rendered."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from isojax.core.errors import InputError
from isojax.core.table_files import read_json_object
from isojax.tasks.prompts import PromptWriter

TEMPLATE_FILE = "chat_template.jinja"
TOKENIZER_CONFIG = "tokenizer_config.json"
PROBE_TEXTS = "First message.", "Second message.", "Third message."
PROBE_ROLES = "user", "assistant", "user"
# Text in the shape of a special token, which the tokenizer does not know as one: <|im_end|>, </s>
MARKER = re.compile(r"\s*(<[^<>\s]{1,40}>)")
END_NAME = re.compile(r"end|eot|eos|/s>|stop", re.IGNORECASE)


@dataclass(frozen=True)
class ChatMarkup:
    """The markup that a chat template writes around a user's message that follows an
    assistant's."""

    before: str  # before the user's message: from the end of the assistant's on
    after: str  # after the user's message
    text: str  # the whole conversation, rendered


@dataclass(frozen=True)
class NamedEnds:
    """The ends of a response that the model's files and cell.prompt.stop name."""

    tokens: Collection[int]  # ids
    strings: Sequence[str]

    def describe(self, writer: PromptWriter) -> str:
        names = ", ".join(writer.tokenizer.convert_ids_to_tokens(sorted(self.tokens))) or "none"
        files = f"generation_config.json, config.json and the tokenizer in {writer.folder}"
        return f"{files} name {names} as the end of a response"

    def occur_in(self, text: str, writer: PromptWriter) -> bool:
        ids = writer.tokenize([text], special=False)[0]
        return bool(set(ids) & set(self.tokens)) or any(stop in text for stop in self.strings)


@dataclass
class TurnEnd:
    """Further ends of a response: what ends an assistant's turn in the chat template, although no
    file or setting names it."""

    tokens: list[int] = field(default_factory=list)
    strings: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def check_template_files(folder: Path, used_template: str) -> str | None:
    """A warning where a model's folder has two chat templates that differ, in chat_template.jinja
    and tokenizer_config.json; it names the one that writes the prompts (used_template is its text,
    as the tokenizer has it). None where there is one, or where both are the same but for white
    space around them."""
    jinja_file = folder / TEMPLATE_FILE
    config_file = folder / TOKENIZER_CONFIG
    if not jinja_file.is_file() or not config_file.is_file():
        return None
    in_config = read_json_object(config_file).get("chat_template")
    in_file = jinja_file.read_text(encoding="utf-8")
    if not isinstance(in_config, str) or in_config.strip() == in_file.strip():
        return None

    # The used one is that of chat_template.jinja unless it is that of the config.
    used, unused = TEMPLATE_FILE, TOKENIZER_CONFIG
    if used_template.strip() == in_config.strip():
        used, unused = unused, used
    return (
        f"{folder}: the chat templates of {used} and {unused} differ; prompts are written by that"
        f" of {used}. Remove the one that the model was not trained with."
    )


def find_markup(writer: PromptWriter) -> ChatMarkup | None:
    """The markup around a user's message; None where the template leaves out earlier messages of
    the assistant, or refuses this conversation."""
    messages = [
        {"role": role, "content": text} for role, text in zip(PROBE_ROLES, PROBE_TEXTS, strict=True)
    ]
    try:
        (text,) = writer.render([messages])
    except InputError:  # of other messages than these it may be no fault: prompts will show it
        return None
    # The user's message is the third; what is before it follows the assistant's, the second.
    _, second, rest = text.partition(PROBE_TEXTS[1])
    before, third, after = rest.partition(PROBE_TEXTS[2])
    return ChatMarkup(before, after, text) if second and third else None


def find_turn_end(
    writer: PromptWriter,
    markup: ChatMarkup | None,
    bytes_of_id: Sequence[bytes | None],
    named: NamedEnds,
) -> TurnEnd:
    """The token or text that ends an assistant's turn in the chat template, where the ends that the
    files name (`named`) do not: a base model's files name only the end of a document, but its
    policy learns to end a turn as the template does. Empty where a named end does, and where there
    is no markup and nothing after a user's message has the name of an end; with a warning in any
    other case.

    In ChatML markup.before is "<|im_end|>\\n<|im_start|>user\\n". Unless <|im_end|> is a named end,
    the TurnEnd has its id as a token; or, if the tokenizer does not know it as a special token, the
    text "<|im_end|>" as a string.

    markup: of `find_markup`; None: the end of a user's turn is taken instead. bytes_of_id: the text
    of each token (tokenizer.py: token_bytes), None for special tokens. The TurnEnd has one token or
    one string at most; nothing is changed in `writer` or `named`.
    """
    turn_end = TurnEnd()
    # what follows a message: the assistant's, or without markup a user's
    text = markup.before if markup else _text_behind_user(writer)
    if text is None or named.occur_in(text, writer):
        return turn_end

    # What comes right after the message: a special token, or text in the shape of one, such as
    # "</s>" (`MARKER`); None for other text.
    special_token = _first_special_token(writer, text, bytes_of_id)
    marker = special_token or _first_group(MARKER.match(text))
    # END_NAME: the name of an end, such as <|im_end|> or </s>.
    if markup is None and not END_NAME.search(marker or ""):
        return turn_end  # it may be the header of the next message
    if special_token:
        turn_end.tokens.append(writer.tokenizer.get_vocab()[special_token])
    elif marker:
        turn_end.strings.append(marker)
    if marker:
        whose = "an assistant's" if markup else "a user's"
        ends = f"the chat template ends {whose} turn with {marker}, and {named.describe(writer)}"
        fix = "For other programs, add it to eos_token_id in generation_config.json"
        turn_end.warnings.append(f"{ends}: it ends responses here too. {fix}")
        return turn_end

    # Only with markup: nothing that could end the turn, and the user has to name it.
    next_turn = text.strip() or text
    remedy = "set cell.prompt.stop"
    if next_turn:
        remedy = f"set cell.prompt.stop=[{next_turn!r}], or what else ends a turn"
    turn_end.warnings.append(
        f"the chat template writes {text!r} between an assistant's message and the next one, and"
        f" nothing of it ends a response ({named.describe(writer)}): a policy that goes on to"
        f" invent the next message is graded with it; {remedy}"
    )
    return turn_end


def _text_behind_user(writer: PromptWriter) -> str | None:
    """What the chat template writes behind a user's message; None where it refuses one."""
    try:
        (text,) = writer.render([[{"role": "user", "content": PROBE_TEXTS[0]}]])
    except InputError:  # a prompt will show it
        return None
    return text.rpartition(PROBE_TEXTS[0])[2]


def _first_special_token(
    writer: PromptWriter, text: str, bytes_of_id: Sequence[bytes | None]
) -> str | None:
    """The special token that `text` begins with, white space left out."""
    for token in writer.tokenize([text], special=False)[0]:
        piece = bytes_of_id[token]
        if piece is None:
            return str(writer.tokenizer.convert_ids_to_tokens(token))
        if piece.strip():
            return None
    return None


def _first_group(match: re.Match[str] | None) -> str | None:
    return match[1] if match else None


def check_generation_prompt(
    markup: ChatMarkup, writer: PromptWriter, end_tokens: Collection[int]
) -> str | None:
    """A warning where a prompt ends with the user's turn, not with the header of the assistant's;
    None where it has the header. end_tokens: the ids that end a turn."""
    ids = writer.tokenize([markup.after.rstrip()], special=False)[0]
    if ids and ids[-1] in end_tokens:
        return (
            f"the chat template in {writer.folder} ends a prompt with {markup.after.strip()!r},"
            f" without the header of the assistant's message: it ignores add_generation_prompt"
        )
    return None


def find_opening(markup: ChatMarkup) -> str:
    """What a prompt holds behind the header of the assistant's turn, such as <think>: the policy's
    turn begins with it, and its response does not."""
    between = markup.text.partition(PROBE_TEXTS[0])[2].partition(PROBE_TEXTS[1])[0]
    header = between.rstrip()
    if not header or not markup.after.startswith(header):
        return ""
    return markup.after.removeprefix(header).strip()


def check_message_markup(writer: PromptWriter, markup: ChatMarkup | None) -> list[str]:
    """Warnings where cell.prompt.template or cell.prompt.system contains special tokens, which the
    chat template writes around messages itself. Also sets writer.message_bos: a BOS token at the
    beginning of a message is left out, unless the template writes one before each message. markup:
    of `find_markup`; None where it cannot be seen."""
    warnings: list[str] = []
    prompt = writer.prompt
    bos = writer.tokenizer.bos_token
    if isinstance(bos, str) and bos:
        begins_each_message = markup is not None and markup.text.count(bos) > 1
        if not begins_each_message:
            writer.message_bos = bos

    for key, text in (("template", prompt.template), ("system", prompt.system)):
        setting = f"cell.prompt.{key}"
        if writer.message_bos and text.startswith(writer.message_bos):
            warnings.append(
                f"{setting} begins with {bos}, which in a chat would be in the middle of the"
                f" prompt: it is left out; the chat template decides whether a prompt begins with"
                f" it"
            )
            text = text.removeprefix(writer.message_bos)
        markup_tokens = _special_tokens_in(writer, text)
        if markup_tokens:
            warnings.append(
                f"{setting} holds {', '.join(markup_tokens)}, and cell.prompt.format=chat puts"
                f" markup around it already; leave that out of {setting}, or set"
                f" cell.prompt.format=raw"
            )
    return warnings


def check_raw_template(
    writer: PromptWriter, end_tokens: Collection[int], stop_strings: Sequence[str]
) -> str | None:
    """A warning where cell.prompt.template writes a chat by hand whose user's turn ends with a
    special token such as <|im_end|>, and this token does not end responses: the policy would end
    its turn with it, and go on. None where there is no such token. end_tokens, stop_strings: what
    ends responses."""
    _, _, behind_problem = writer.prompt.template.rpartition("{prompt}")
    names = _special_tokens_in(writer, behind_problem)
    # The first special token behind the problem ends the user's turn, if its name says so.
    if not names or not END_NAME.search(names[0]):
        return None
    name = names[0]
    is_end_token = writer.tokenizer.get_vocab()[name] in end_tokens
    if is_end_token or any(stop in name for stop in stop_strings):
        return None
    return (
        f"cell.prompt.template ends the user's turn with {name}, which ends no response: what a"
        f" policy writes after its own turn is graded too; set cell.prompt.stop=[{name!r}]"
    )


def _special_tokens_in(writer: PromptWriter, text: str) -> list[str]:
    """The names of the special tokens in a text, each once, in their order."""
    added_tokens = writer.tokenizer.added_tokens_decoder
    special_ids = {i for i, token in added_tokens.items() if token.special}
    ids = [i for i in writer.tokenize([text], special=False)[0] if i in special_ids]
    names = writer.tokenizer.convert_ids_to_tokens(ids)
    return list(dict.fromkeys(map(str, names)))
