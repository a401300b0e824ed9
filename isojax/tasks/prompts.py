"""Writes problems as prompts: fills in the template of cell.prompt, renders the chat, and tokenizes
the result, with a single BOS token."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isojax.core.config import PromptConfig
from isojax.core.errors import InputError
from isojax.core.limits import MAX_PROMPT_CHARACTERS
from isojax.core.nouns import Problem
from isojax.tasks.tokenizer import readable, render_chats

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Conversation = list[dict[str, str]]

RESIZE_FIX = (
    "Give the embedding the row: in transformers, model.resize_token_embeddings(len(tokenizer)),"
    " then model.save_pretrained(FOLDER); or remove the token from tokenizer.json and"
    " tokenizer_config.json"
)


class PromptWriter:
    """Writes prompts with a model's tokenizer. Threads may share it."""

    def __init__(
        self,
        folder: Path,
        tokenizer: PreTrainedTokenizerBase,
        prompt: PromptConfig,
        beyond: Mapping[int, str],
    ) -> None:
        """Write prompts by a tokenizer and the settings `prompt` (thinking, raw text, ...). folder:
        of the model, for messages. beyond: the added tokens without a row in the model's embedding,
        as id -> token, such as {32000: "[PAD]"}; a prompt with one is refused."""
        self.folder = folder
        self.tokenizer = tokenizer
        self.prompt = prompt
        self._beyond = beyond
        self._lock = threading.Lock()  # a tokenizer is not safe to share between threads
        # Texts of conversations by their hash. A chat template is rendered in another process,
        # which is slow, and prompts are needed for sampling and again for rewards.
        self._rendered: dict[bytes, str] = {}
        # The time that a chat template gets as now; the same for all prompts.
        self._moment = datetime.fromisoformat(prompt.date) if prompt.date else datetime.now()
        # Text of the BOS token that a user's message must not begin with; prompt_checks.py finds
        # where it is one.
        self.message_bos = ""
        self._first_tokens = self._find_first_tokens()

    def texts(self, problems: Sequence[Problem]) -> list[str]:
        """Each problem's prompt as the model reads it, with the markup of its chat; of a raw prompt
        without the special tokens that the tokenizer adds. InputError for a conversation of several
        messages in a raw prompt, which has no place for them."""
        if self.prompt.format == "chat" and problems:
            return self.render([self._chat_messages(problem) for problem in problems])

        for problem in problems:
            length = len(problem.messages)
            if length > 1:
                raise InputError(
                    where=f"problem {problem.id}",
                    found=f"a conversation of {length} messages",
                    fix="Set cell.prompt.format=chat.",
                )
        return [self._fill_template(problem) for problem in problems]

    def tokens(self, problems: Sequence[Problem]) -> list[list[int]]:
        """Each problem's prompt as ids: of a chat those of its text alone, else with the
        tokenizer's own BOS."""
        if not problems:
            return []
        ids_of_prompts = self.tokenize(self.texts(problems), special=self.prompt.format == "raw")
        return [self._with_bos_once(ids) for ids in ids_of_prompts]

    def tokenize(self, texts: list[str], special: bool = True) -> list[list[int]]:
        """Ids, with the special tokens that the tokenizer adds by default (BOS where the model has
        one), or without. InputError where one has no row in the embedding."""
        options: dict[str, Any] = {"padding": False, "truncation": False, "verbose": False}
        with self._lock, readable(self.folder):
            ids_of_texts = self.tokenizer(texts, add_special_tokens=special, **options)["input_ids"]

        if self._beyond:
            self._check_rows(ids_of_texts)
        return ids_of_texts

    def _check_rows(self, ids_of_texts: Sequence[list[int]]) -> None:
        """InputError where one of the tokens has no row in the model's embedding."""
        without_row = self._beyond.keys() & {token for ids in ids_of_texts for token in ids}
        if without_row:
            names = ", ".join(self._beyond[token] for token in sorted(without_row))
            raise InputError(
                found=(
                    f"a prompt holds {names}, which the tokenizer in {self.folder} has beyond "
                    "the model's vocabulary, so that no row of the embedding is its own"
                ),
                fix=f"{RESIZE_FIX}.",
            )

    def decode(self, ids_of_texts: Sequence[list[int]]) -> list[str]:
        """Ids as text, special tokens too."""
        with self._lock, readable(self.folder):
            return [
                str(self.tokenizer.decode(ids, clean_up_tokenization_spaces=False))
                for ids in ids_of_texts
            ]

    def render(self, conversations: Sequence[Conversation]) -> list[str]:
        """The text of each conversation by the chat template, which ends with the header of the
        assistant's next message. Each conversation is rendered once and remembered. conversations:
        lists of {"role": ..., "content": ...}; InputError where the template refuses one."""
        keys = [_conversation_key(conversation) for conversation in conversations]
        missing: dict[bytes, Conversation] = {}
        for key, conversation in zip(keys, conversations, strict=True):
            if key not in self._rendered:
                missing[key] = conversation

        if missing:
            options = {"add_generation_prompt": True}
            if self.prompt.thinking is not None:
                options["enable_thinking"] = self.prompt.thinking
            texts = render_chats(self.tokenizer, list(missing.values()), options, self._moment)
            self._rendered.update(zip(missing, texts, strict=True))
        return [self._rendered[key] for key in keys]

    def _chat_messages(self, problem: Problem) -> Conversation:
        """The messages of a problem's chat: the system prompt of the config, if there is one, the
        problem's earlier messages, and the problem in the template."""
        messages = [dict(message) for message in problem.messages[:-1]]
        if self.prompt.system:
            if messages and messages[0]["role"] == "system":
                two_prompts = f"problem {problem.id} has a system message of its own"
                raise InputError(
                    found=f"{two_prompts}, and cell.prompt.system is set",
                    fix="Remove one.",
                )
            messages.insert(0, {"role": "system", "content": self._without_bos(self.prompt.system)})
        user_text = self._without_bos(self._fill_template(problem))
        return [*messages, {"role": "user", "content": user_text}]

    def _without_bos(self, message: str) -> str:
        while self.message_bos and message.startswith(self.message_bos):
            message = message.removeprefix(self.message_bos)
        return message

    def _fill_template(self, problem: Problem) -> str:
        """cell.prompt.template with the problem's text at each {prompt}."""
        template = self.prompt.template
        text = problem.prompt
        # At most so many characters, before they are put together.
        size = len(template) + template.count("{prompt}") * len(text)
        if size > MAX_PROMPT_CHARACTERS:
            raise InputError(
                found=f"problem {problem.id} in cell.prompt.template takes {size:,} characters",
                expected=f"at most {MAX_PROMPT_CHARACTERS:,}",
                fix="Shorten or remove it.",
            )
        return template.replace("{prompt}", text)

    def _find_first_tokens(self) -> list[int]:
        """The tokens that the tokenizer puts before every text, else its BOS token, which a
        template may write; [] where it has none. "1" is any text, of at least one token."""
        (plain,) = self.tokenize(["1"], special=False)
        (with_special,) = self.tokenize(["1"])
        start = 0  # of the text; 0 where it is not found
        for position in range(len(with_special) - len(plain) + 1):
            if plain and with_special[position : position + len(plain)] == plain:
                start = position
                break
        if start:
            return with_special[:start]
        bos = self.tokenizer.bos_token_id
        return [bos] if isinstance(bos, int) else []

    def _with_bos_once(self, ids: list[int]) -> list[int]:
        """Tokens without a second BOS: a template may begin with the one that the tokenizer adds,
        and models have seen one."""
        first = self._first_tokens
        count = len(first)
        while first and ids[:count] == first == ids[count : 2 * count]:
            ids = ids[count:]
        return ids


def _conversation_key(conversation: Conversation) -> bytes:
    return hashlib.blake2b(json.dumps(conversation).encode(), digest_size=16).digest()
