"""What can be known of prompts before anything is sampled: where a chat's turn ends, and markup in the wrong place."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from isojax.core.errors import InputError
from isojax.tasks.prompts import PromptWriter

PROBE_TEXTS = "First message.", "Second message.", "Third message."
PROBE_ROLES = "user", "assistant", "user"
# Text in the shape of a special token, which the tokenizer does not know as one: <|im_end|>, </s>
MARKER = re.compile(r"\s*(<[^<>\s]{1,40}>)")
END_NAME = re.compile(r"end|eot|eos|/s>|stop", re.IGNORECASE)


@dataclass(frozen=True)
class ChatMarkup:
    """What a chat template writes around a user's message that follows an assistant's."""

    before: str
    after: str
    text: str  # the whole conversation


@dataclass
class TurnEnd:
    """What ends an assistant's turn, and no file or setting names as an end."""

    tokens: list[int] = field(default_factory=list)
    strings: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def find_markup(writer: PromptWriter) -> ChatMarkup | None:
    """None where the template leaves out earlier messages of the assistant, or refuses this conversation."""
    messages = [{"role": role, "content": text} for role, text in zip(PROBE_ROLES, PROBE_TEXTS, strict=True)]
    try:
        (text,) = writer.render([messages])
    except InputError:  # of other messages than these it may be no fault: prompts will show it
        return None
    _, second, rest = text.partition(PROBE_TEXTS[1])
    before, third, after = rest.partition(PROBE_TEXTS[2])
    return ChatMarkup(before, after, text) if second and third else None


def find_turn_end(
    writer: PromptWriter,
    markup: ChatMarkup,
    bytes_of_id: Sequence[bytes | None],
    end_tokens: Collection[int],
    stop_strings: Sequence[str],
) -> TurnEnd:
    """The token or text that ends a turn, where neither `end_tokens` nor `stop_strings` has it: a base model's files
    name the end of a document, and its policy ends a turn as its chat template does."""
    found = TurnEnd()
    ids = writer.tokenize([markup.before], special=False)[0]
    if set(ids) & set(end_tokens) or any(stop in markup.before for stop in stop_strings):
        return found

    named = ", ".join(writer.tokenizer.convert_ids_to_tokens(sorted(end_tokens))) or "none"
    files = f"generation_config.json, config.json and the tokenizer in {writer.folder} name {named}"
    text_before_special = b""
    for token in ids:
        piece = bytes_of_id[token]
        if piece is None and not text_before_special.strip():
            name = str(writer.tokenizer.convert_ids_to_tokens(token))
            found.tokens.append(token)
            found.warnings.append(_describe_added_end(name, files))
            return found
        if piece is None:
            break
        text_before_special += piece

    if marker := MARKER.match(markup.before):
        found.strings.append(marker[1])
        found.warnings.append(_describe_added_end(marker[1], files))
        return found

    next_turn = markup.before.strip() or markup.before
    remedy = f"set cell.prompt.stop=[{next_turn!r}], or what else ends a turn" if next_turn else "set cell.prompt.stop"
    written = f"the chat template writes {markup.before!r} between an assistant's message and the next one"
    found.warnings.append(
        f"{written}, and nothing of it ends a response ({files}): a policy that goes on to invent the next message is"
        f" graded with it; {remedy}"
    )
    return found


def _describe_added_end(end: str, files: str) -> str:
    ends = f"the chat template ends an assistant's turn with {end}, and {files} as the end of a response"
    return f"{ends}: it ends responses here too. For other programs, add it to eos_token_id in generation_config.json"


def check_generation_prompt(markup: ChatMarkup, writer: PromptWriter, end_tokens: Collection[int]) -> str | None:
    """A warning where a prompt ends with the user's turn, not with the header of the assistant's."""
    ids = writer.tokenize([markup.after.rstrip()], special=False)[0]
    if ids and ids[-1] in end_tokens:
        ending = f"the chat template in {writer.folder} ends a prompt with {markup.after.strip()!r}"
        return f"{ending}, without the header of the assistant's message: it ignores add_generation_prompt"
    return None


def check_message_markup(writer: PromptWriter, markup: ChatMarkup | None) -> list[str]:
    """Warnings of special tokens in a chat's messages, which the chat template writes itself. A BOS token in front of
    one is left out: `writer.message_bos`."""
    warnings: list[str] = []
    prompt, bos = writer.prompt, writer.tokenizer.bos_token
    if isinstance(bos, str) and bos and (markup is None or markup.text.count(bos) <= 1):  # else it is markup
        writer.message_bos = bos
    for key, text in (("template", prompt.template), ("system", prompt.system)):
        setting = f"cell.prompt.{key}"
        if writer.message_bos and text.startswith(writer.message_bos):
            place = f"{setting} begins with {bos}, which in a chat would be in the middle of the prompt"
            warnings.append(f"{place}: it is left out; the chat template decides whether a prompt begins with it")
            text = text.removeprefix(writer.message_bos)
        if markup_tokens := _special_tokens_in(writer, text):
            holds = f"{setting} holds {', '.join(markup_tokens)}, and cell.prompt.format=chat puts markup around it"
            warnings.append(f"{holds} already; leave that out of {setting}, or set cell.prompt.format=raw")
    return warnings


def check_raw_template(writer: PromptWriter, end_tokens: Collection[int], stop_strings: Sequence[str]) -> str | None:
    """A warning where a chat written by hand ends the user's turn with a token that ends no response."""
    _, _, behind_problem = writer.prompt.template.rpartition("{prompt}")
    names = _special_tokens_in(writer, behind_problem)
    if not names or not END_NAME.search(names[0]):
        return None
    (token,) = writer.tokenizer.convert_tokens_to_ids([names[0]])
    if token in end_tokens or any(stop in names[0] for stop in stop_strings):
        return None
    template = f"cell.prompt.template ends the user's turn with {names[0]}, which ends no response"
    return f"{template}: what a policy writes after its own turn is graded too; set cell.prompt.stop=[{names[0]!r}]"


def _special_tokens_in(writer: PromptWriter, text: str) -> list[str]:
    """Those that tokenise as one, in their order."""
    special_ids = {i for i, token in writer.tokenizer.added_tokens_decoder.items() if token.special}
    ids = writer.tokenize([text], special=False)[0]
    return list(dict.fromkeys(map(str, writer.tokenizer.convert_ids_to_tokens([i for i in ids if i in special_ids]))))
