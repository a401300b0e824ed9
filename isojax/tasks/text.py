"""A task in text: problems of a source, written as a prompt of a language model; responses judged by a verifier on the host.

Nothing is tokenised twice: a prompt's ids go to the sampler as they are, the policy is trained on the ids that were sampled, and text is
made of them only to be judged and read.
"""

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from isojax.config import InterruptConfig, ModelConfig, PromptConfig, SamplingConfig, VerifierConfig
from isojax.tasks.base import Encoded, Grades
from isojax.tasks.sources import Source
from isojax.tasks.stops import Interruption, Stops, stop_table
from isojax.tasks.tokenizer import end_tokens, load_tokenizer, read_json, token_bytes
from isojax.tasks.verify import Checker
from isojax.types import InputError, Problem


class TextTask:
    """The HostTask of a source, a model's tokenizer, a prompt format and a verifier; may be shared by threads.

    Raises:
        InputError: no model folder, a tokenizer that cannot be used, or a prompt format it does not support.
    """

    on_device: ClassVar[Literal[False]] = False

    def __init__(
        self,
        source: Source,
        model: ModelConfig,
        prompt: PromptConfig,
        verifier: VerifierConfig,
        workers: int | None = None,
        sampling: SamplingConfig | None = None,
    ):
        """`workers`: processes that check responses; None takes one for each core. `sampling`: of it, what interrupts a response."""
        if model.path is None:
            raise InputError(
                "cell.model.path is not set, and problems in text need a language model; give a folder with its config.json, weights and"
                " tokenizer, for example the one that `isojax model import smollm2` writes."
            )
        self.folder = Path(model.path)
        self.tokenizer = load_tokenizer(self.folder)
        self._tokenising = threading.Lock()  # a tokenizer is not safe to share between threads
        self.vocab = _vocab(model, self.folder)
        self.source, self.prompt = source, prompt
        self._pieces = token_bytes(self.tokenizer, self.vocab)
        self._stops = [string.encode() for string in prompt.stop]
        table = stop_table(self._pieces, prompt.stop) if prompt.stop else None
        self.stops = Stops(end_tokens(self.tokenizer, self.folder), table)
        self._check_ends()
        if sampling is not None and sampling.interrupt is not None:
            self.stops = replace(self.stops, interruption=self._interruption(sampling.interrupt, sampling.response_length))
        pad = self.tokenizer.pad_token_id
        self.pad = pad if isinstance(pad, int) else next(iter(self.stops.tokens), 0)
        self._verifier, self._workers = verifier, workers
        self._checker: Checker | None = None
        self._starting = threading.Lock()
        self._check_prompt()

    def _check_ends(self) -> None:
        if outside := [i for i in self.stops.tokens if i >= self.vocab]:
            raise InputError(
                f"{self.folder}: its end tokens {outside} lie outside the model's vocabulary of {self.vocab}; mend eos_token_id in"
                " generation_config.json."
            )
        if not self.stops.tokens and not self._stops:
            raise InputError(f"{self.folder}: neither its tokenizer nor generation_config.json names an end token; give cell.prompt.stop.")

    def _interruption(self, given: InterruptConfig, T: int) -> Interruption:
        """What `cell.sampling.interrupt` says, as tokens; a text that ends a response, or leaves it no room, is refused."""
        tokens, *unless = (self._tokenise([text], special=False)[0] for text in (given.text, given.unless) if text)
        if unless and len(unless[0]) != 1:
            raise InputError(
                f"cell.sampling.interrupt.unless = {given.unless!r} is {len(unless[0])} tokens of the tokenizer in {self.folder}, expected"
                " one; name the token that ends this model's thinking, or leave it empty to interrupt every long response."
            )
        if given.after + len(tokens) >= T:
            raise InputError(
                f"cell.sampling.interrupt: after {given.after} tokens the text takes {len(tokens)} more, and"
                f" cell.sampling.response_length = {T} leaves no room for an answer; raise it, or lower `after`."
            )
        if self.stops.ends(tokens):
            raise InputError(
                f"cell.sampling.interrupt.text = {given.text!r} holds an end token or a string of cell.prompt.stop = "
                f"{list(self.prompt.stop)}, and would end the response that it interrupts; change one of them."
            )
        return Interruption(given.after, tuple(tokens), unless[0][0] if unless else None)

    def _check_prompt(self) -> None:
        prompt = self.prompt
        if "{prompt}" not in prompt.template:
            raise InputError(f"cell.prompt.template = {prompt.template!r} has no place for the problem; write {{prompt}} where it goes.")
        if prompt.format == "chat":
            if self.tokenizer.chat_template is None:
                raise InputError(
                    f"cell.prompt.format=chat: the tokenizer in {self.folder} has no chat template; set cell.prompt.format=raw, or add the"
                    " model's chat_template.jinja to the folder."
                )
            return
        for name, given in (("system", prompt.system or None), ("thinking", prompt.thinking)):
            if given is not None:
                raise InputError(f"cell.prompt.{name} = {given!r} is part of a chat; set cell.prompt.format=chat, or remove it.")
        ids = self._tokenise(["1"])[0]
        if ids[-1] in self.stops.tokens:
            raise InputError(
                f"the tokenizer in {self.folder} ends every text with its end token ({ids[-1]}), so a prompt could not be continued; set"
                " add_eos_token to false in tokenizer_config.json."
            )

    def problems(self, count: int, rng: np.random.Generator) -> list[Problem]:
        """At most `count` distinct problems of the source."""
        return self.source.problems(count, rng)

    def fits(self, problems: Sequence[Problem], prompt_length: int) -> list[Problem]:
        """Those whose prompt has at most `prompt_length` tokens, in their order; the caller counts and reports the rest."""
        return [p for p, ids in zip(problems, self._tokens(problems), strict=True) if len(ids) <= prompt_length]

    def encode(self, problems: Sequence[Problem], prompt_length: int) -> Encoded:
        """Prompts i32[Q P] with P = `prompt_length`, right-padded, and answers i32[Q 0].

        Raises:
            InputError: a prompt with more than `prompt_length` tokens (none is cut), or with none.
        """
        every = self._tokens(problems)
        prompts = np.full((len(problems), prompt_length), self.pad, np.int32)
        for row, ids, problem in zip(prompts, every, problems, strict=True):
            if not 0 < len(ids) <= prompt_length:
                raise InputError(
                    f"the prompt of problem {problem.id} takes {len(ids)} tokens, expected 1 to {prompt_length}:"
                    f" {problem.prompt[:80]!r}. Raise cell.sampling.prompt_length, or leave the problem out."
                )
            row[: len(ids)] = ids
        lengths = np.array([len(ids) for ids in every], np.int32)
        return Encoded(prompts, lengths, np.zeros((len(problems), 0), np.int32), np.array([p.id for p in problems], np.int32))

    def decode(self, tokens: np.ndarray) -> str:
        """A response's tokens i32[t] as text: up to the first end token or stop string, special tokens left out."""
        runs: list[list[bytes]] = [[]]  # runs of text between special tokens: a stop string does not reach across one
        for token in tokens.tolist():
            if token in self.stops.tokens:
                break
            piece = self._pieces[token]
            runs.append([]) if piece is None else runs[-1].append(piece)
        text = b""
        for run in runs:
            part = b"".join(run)
            if found := [at for stop in self._stops if (at := part.find(stop)) >= 0]:
                text += part[: min(found)]
                break
            text += part
        return text.decode(errors="replace")

    def start(self) -> None:
        """Start the verifier's processes, where they do not run yet; InputError where the verifier cannot be used."""
        self._checks()

    def check(self, problems: Sequence[Problem]) -> None:
        """InputError where a problem lacks what the verifier needs; of a verifier in processes, the first problem alone is tried."""
        self._checks().try_out(problems, [self._fill(problem) for problem in problems])

    def grade(self, problems: Sequence[Problem], responses: Sequence[str]) -> Grades:
        """Judge one response to each problem. A verifier that asks for the prompt gets the template filled in, without a chat's markup."""
        return self._checks().grade(problems, [self._fill(problem) for problem in problems], responses)

    def examples(self) -> dict[str, str]:
        """The first failure of each kind that `grade` has met since the verifier's processes were started."""
        return dict(self._checker.examples) if self._checker is not None else {}

    def failures(self) -> dict[str, int]:
        """How many failures of each kind `grade` has met since then."""
        return dict(self._checker.failures) if self._checker is not None else {}

    def close(self) -> None:
        """End the verifier's processes."""
        with self._starting:
            if self._checker is not None:
                self._checker.close()
                self._checker = None

    def _checks(self) -> Checker:
        with self._starting:
            if self._checker is None:
                verifier = self._verifier
                self._checker = Checker(verifier.use, verifier.timeout, verifier.memory_gb, self._workers)
            return self._checker

    def _fill(self, problem: Problem) -> str:
        return self.prompt.template.replace("{prompt}", problem.prompt)

    def _tokens(self, problems: Sequence[Problem]) -> list[list[int]]:
        """Each problem's prompt as token ids."""
        if not problems:
            return []
        if self.prompt.format == "chat":
            return self._tokenise_chats([self._conversation(problem) for problem in problems])
        for problem in problems:
            if len(problem.messages) > 1:
                raise InputError(
                    f"problem {problem.id} is a conversation of {len(problem.messages)} messages, and cell.prompt.format=raw holds one;"
                    " set cell.prompt.format=chat."
                )
        return self._tokenise([self._fill(problem) for problem in problems])

    def _conversation(self, problem: Problem) -> list[dict[str, str]]:
        """The messages that lead to a response: the source's own, if any, the last one as the template has it, after the system prompt."""
        earlier = [dict(message) for message in problem.messages[:-1]]
        if problem.messages and problem.messages[-1]["role"] != "user":
            raise InputError(
                f"problem {problem.id} is a conversation that ends with role {problem.messages[-1]['role']!r}; expected a user's message."
            )
        if self.prompt.system:
            if earlier and earlier[0]["role"] == "system":
                raise InputError(
                    f"problem {problem.id} has a system message of its own, and cell.prompt.system is set; remove one of them."
                )
            earlier.insert(0, {"role": "system", "content": self.prompt.system})
        return [*earlier, {"role": "user", "content": self._fill(problem)}]

    def _tokenise(self, texts: list[str], special: bool = True) -> list[list[int]]:
        """Ids, with the special tokens that the tokenizer adds by default (BOS where the model has one), or without."""
        with self._tokenising:
            return self.tokenizer(texts, padding=False, truncation=False, verbose=False, add_special_tokens=special)["input_ids"]

    def _tokenise_chats(self, conversations: list[list[dict[str, str]]]) -> list[list[int]]:
        options: dict[str, Any] = {
            "add_generation_prompt": True,
            "tokenize": True,
            "return_dict": False,
            "padding": False,
            "truncation": False,
        }
        if self.prompt.thinking is not None:
            options["enable_thinking"] = self.prompt.thinking
        with self._tokenising:
            try:
                ids: Any = self.tokenizer.apply_chat_template(conversations, **options)
            except _refusals() as together:
                offending, error = conversations, together
                for conversation in conversations:
                    try:
                        self.tokenizer.apply_chat_template([conversation], **options)
                    except _refusals() as alone:
                        offending, error = conversation, alone
                        break
                raise InputError(
                    f"the chat template in {self.folder} refuses the conversation {offending}: {type(error).__name__}: {error}. Some know"
                    " no system message: try without cell.prompt.system."
                ) from error
        return ids


def _refusals() -> tuple[type[Exception], ...]:
    """What a chat template raises: its own refusal, and Python's errors of its expressions."""
    from jinja2 import TemplateError

    return TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError


def _vocab(model: ModelConfig, folder: Path) -> int:
    """Rows of the embedding: as set, or as config.json says."""
    if model.vocab is not None:
        return model.vocab
    vocab = read_json(folder / "config.json").get("vocab_size")
    if not isinstance(vocab, int):
        raise InputError(f"{folder / 'config.json'} has no whole number vocab_size ({vocab!r}); add it, or set cell.model.vocab.")
    return vocab
