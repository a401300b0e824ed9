"""The task that `cell.task` names (NAME or NAME:ARGUMENT, such as `solvers:ABCG`, `addition` or
`jsonl:train.jsonl`): either one that is verified on device (tasks/device/), or a TextTask, which
writes problems as tokens and grades responses in text.

Responses are never tokenized again: the policy is trained on the ids that were sampled.
"""

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from typing_extensions import TypeIs

from isojax.core.config import CellConfig, InterruptConfig, SamplingConfig
from isojax.core.config.data import score_weights
from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.core.table_files import read_json_object
from isojax.tasks.answers.final_answer import Form, final_answer
from isojax.tasks.answers.thinking import behind_thinking, never_ends_thinking
from isojax.tasks.context_limit import describe_excess
from isojax.tasks.device_tasks import device_task_of
from isojax.tasks.grading import Checker
from isojax.tasks.problem_sources import ProblemSource, open_source
from isojax.tasks.prompt_checks import (
    NamedEnds,
    TurnEnd,
    check_generation_prompt,
    check_message_markup,
    check_raw_template,
    check_template_files,
    find_markup,
    find_opening,
    find_turn_end,
)
from isojax.tasks.prompts import RESIZE_FIX, PromptWriter
from isojax.tasks.protocol import (
    DeviceTask,
    EncodedProblems,
    Grades,
    Interruption,
    StopConditions,
    TokenizedProblems,
    TurnReplies,
)
from isojax.tasks.tokenizer import (
    added_beyond_vocabulary,
    build_stop_table,
    end_tokens,
    load_tokenizer,
    readable,
    token_bytes,
)
from isojax.tasks.turns import find_reply, plain_tokens, split_turns

MAX_ENDING_CHARACTERS = 2000  # of a response, where a final answer is looked for to be shown


class ReplyMarkup(NamedTuple):
    """The markup that a chat template writes around a reply of the task; empty for raw prompts."""

    before: str
    after: str

    def around(self, reply: str) -> str:
        return self.before + reply + self.after


class TextTask:
    """A task in text: a source of problems, a model's tokenizer, a prompt format and a verifier.
    Threads may share it."""

    on_device: ClassVar[Literal[False]] = False

    def __init__(
        self,
        source: ProblemSource,
        cell: CellConfig,
        num_workers: int | None = None,
        reply_check: str | None = None,
    ):
        """num_workers: how many processes check responses; None: one per core. reply_check: the
        verifier that gives the replies of a task of turns (`find_reply`), such as
        "isojax.tasks.turns:calculator"; None for other tasks. InputError where model, tokenizer and
        settings do not fit together; doubts become `warnings`.

        The order of the steps matters: `_find_stops` needs the token bytes and the writer, the
        interruption and the replies are added to `stops`, and the padding token may be an end
        token. A task of turns cannot have an interruption."""
        model = cell.model
        sampling = cell.sampling
        if model.path is None:
            raise InputError(
                where="cell.model.path",
                found="not set",
                fix="Give a folder such as `isojax model import smollm2` writes.",
            )
        self.folder = Path(model.path)
        self.warnings: list[str] = []  # doubts to show before anything is sampled, a line each
        # The text with which the chat template begins the policy's turn for it, such as <think>.
        self.opening = ""

        self.tokenizer = load_tokenizer(self.folder, self.warnings)
        vocab = model.vocab or read_json_object(self.folder / "config.json").get("vocab_size")
        if not isinstance(vocab, int):
            raise InputError(
                where=f"{self.folder}/config.json",
                found=f"no whole number vocab_size ({vocab!r})",
                fix="Set cell.model.vocab.",
            )
        self.vocab = vocab
        self.problems = source.problems
        self.prompt = cell.prompt
        with readable(self.folder):  # makes InputErrors of what the tokenizers library raises
            self._token_bytes = token_bytes(self.tokenizer, self.vocab)
            beyond = added_beyond_vocabulary(self.tokenizer, self.vocab)
        # `beyond`: tokens without a row in the embedding; the writer refuses prompts with them.
        self._writer = PromptWriter(self.folder, self.tokenizer, cell.prompt, beyond)

        # What ends a response, and what is written into it: an interruption or replies.
        self.stops = self._find_stops()
        # A warning where prompt and response are longer than the model's context; else None.
        excess = describe_excess(self.folder, sampling)
        if excess:
            self.warnings.append(excess)
        if sampling.interrupt is not None:
            interruption = self._encode_interruption(sampling.interrupt, sampling.response_length)
            self.stops = replace(self.stops, interruption=interruption)
        self._reply_check = reply_check
        if reply_check is not None:
            if sampling.interrupt is not None:
                raise InputError(
                    where="cell.sampling.interrupt",
                    found="given with a task of turns",
                    expected="one of the two",
                    fix="Leave cell.sampling.interrupt out.",
                )
            self.stops = replace(self.stops, host_replies=True)
            is_chat = cell.prompt.format == "chat"
            self._markup = self._reply_markup() if is_chat else ReplyMarkup("", "")

        # The padding token. Its value never matters, but its embedding is looked up, so that it
        # must be in the model's vocabulary.
        pad = self.tokenizer.pad_token_id
        if not isinstance(pad, int) or pad >= self.vocab:
            pad = next(iter(self.stops.tokens), 0)
        self.pad = pad

        # The verifier starts with the first call that needs it.
        self._verifier = cell.verifier
        self._num_workers = num_workers
        self._score_weights = score_weights(cell.verifier, cell.reward)  # {}: binary rewards
        self._checker: Checker | None = None
        self._reply_checker: Checker | None = None
        self._checker_lock = threading.Lock()

    def _find_stops(self) -> StopConditions:
        """What ends a response: the end tokens and stop strings that the model's files, the config
        and the chat template name. InputError where nothing would end a response, or where prompts
        cannot be written."""
        # By files and settings. A stop string that is a special token is an end token: such tokens
        # have no text in which a string could be found. (It stays a stop string too.)
        strings = list(self.prompt.stop)
        end_ids = set(end_tokens(self.tokenizer, self.folder))
        vocab_ids = self.tokenizer.get_vocab()
        for string in strings:
            token = vocab_ids.get(string)
            if token is None or token >= self.vocab:
                continue
            is_special = self._token_bytes[token] is None
            if is_special:
                end_ids.add(token)
        outside_vocab = sorted(token for token in end_ids if token >= self.vocab)
        if outside_vocab:
            raise InputError(
                where=self.folder,
                found=(
                    f"the end tokens {outside_vocab} are outside the model's vocabulary of "
                    f"{self.vocab}"
                ),
                fix=f"{RESIZE_FIX}, or correct eos_token_id in generation_config.json.",
            )

        # By the chat template. What end_ids lacks is added by `_find_turn_end`.
        self._check_settings()
        turn_end = self._find_turn_end(end_ids) if self.prompt.format == "chat" else TurnEnd()
        self.warnings += turn_end.warnings
        end_ids.update(turn_end.tokens)
        strings += turn_end.strings
        if not end_ids and not strings:
            raise InputError(
                where=self.folder,
                found="no file of the model names an end token",
                fix="Give cell.prompt.stop.",
            )

        if self.prompt.format == "raw":
            self._check_raw_prompts(end_ids)
        self.stop_strings = tuple(strings)
        self._stop_strings = [string.encode() for string in strings]
        transitions = build_stop_table(self._token_bytes, strings) if strings else None
        return StopConditions(tuple(sorted(end_ids)), transitions)

    def _check_settings(self) -> None:
        """InputError where the settings of cell.prompt contradict each other, or need a chat
        template that the tokenizer does not have. Adds a warning where the folder has two chat
        templates that differ."""
        prompt = self.prompt
        if "{prompt}" not in prompt.template:
            raise InputError(
                where=f"cell.prompt.template = {prompt.template!r}",
                found="no place for the problem",
                fix="Write {prompt} there.",
            )

        if prompt.format == "chat":
            # A text, or several by name, of which the one named default is used.
            template: Any = self.tokenizer.chat_template
            if template is None or (isinstance(template, dict) and "default" not in template):
                lack = "no chat template"
                if template:
                    lack += f" named default, only {', '.join(template)}"
                raise InputError(
                    where=f"the tokenizer in {self.folder}",
                    found=f"has {lack}",
                    fix="Set cell.prompt.format=raw, or add one.",
                )
            if isinstance(template, str):
                warning = check_template_files(self.folder, template)
                if warning:
                    self.warnings.append(warning)
            return

        for name, setting in (("system", prompt.system or None), ("thinking", prompt.thinking)):
            if setting is not None:
                raise InputError(
                    where=f"cell.prompt.{name}",
                    found=f"given {setting!r}, which is part of a chat",
                    fix="Set cell.prompt.format=chat.",
                )

    def _find_turn_end(self, end_ids: set[int]) -> TurnEnd:
        """What ends an assistant's turn in the chat template, where neither end_ids nor
        cell.prompt.stop does. Also finds `opening`, and adds warnings on the template. end_ids: the
        end tokens that files and settings name; the set stays unchanged."""
        # What the template writes around a message; None where it cannot be seen.
        markup = find_markup(self._writer)
        # From here on the writer leaves out a BOS token that a message begins with.
        self.warnings += check_message_markup(self._writer, markup)
        self.opening = find_opening(markup) if markup else ""
        turn_end = find_turn_end(
            self._writer, markup, self._token_bytes, NamedEnds(end_ids, self.prompt.stop)
        )
        if markup:
            all_ends = end_ids | set(turn_end.tokens)
            warning = check_generation_prompt(markup, self._writer, all_ends)
            if warning:
                self.warnings.append(warning)
        return turn_end

    def _check_raw_prompts(self, end_ids: set[int]) -> None:
        """InputError where the tokenizer ends every text with one of the end tokens, so that a
        prompt would end like a response; a warning on a chat written by hand."""
        ids = self._writer.tokenize(["1"])[0]
        if ids and ids[-1] in end_ids:
            raise InputError(
                where=f"the tokenizer in {self.folder}",
                found=f"ends every text with its end token ({ids[-1]})",
                fix=(
                    "Set add_eos_token to false in tokenizer_config.json, or take it out of "
                    "tokenizer.json."
                ),
            )
        warning = check_raw_template(self._writer, end_ids, self.prompt.stop)
        if warning:
            self.warnings.append(warning)

    def _encode_interruption(self, interrupt: InterruptConfig, T: int) -> Interruption:
        """cell.sampling.interrupt (a text that is written into responses that go on for too long)
        as tokens. T: how many tokens a response has at most. InputError where the text would end
        the response or leave no room after it, or where `interrupt.unless`, a text whose presence
        prevents the interruption, is not a single token."""
        (tokens,) = self._writer.tokenize([interrupt.text], special=False)
        unless_token: int | None = None
        if interrupt.unless:
            (unless_tokens,) = self._writer.tokenize([interrupt.unless], special=False)
            if len(unless_tokens) != 1:
                raise InputError(
                    where="cell.sampling.interrupt.unless",
                    found=f"given {interrupt.unless!r}, which is {len(unless_tokens)} tokens",
                    expected="one",
                )
            unless_token = unless_tokens[0]

        if interrupt.after + len(tokens) >= T:
            raise InputError(
                where="cell.sampling.interrupt",
                found=f"after {interrupt.after} tokens the text takes {len(tokens)} more",
                expected=f"fewer than response_length = {T} in all",
            )
        has_end_token = not set(tokens).isdisjoint(self.stops.tokens)
        if has_end_token or any(stop in interrupt.text for stop in self.prompt.stop):
            problem = f"{interrupt.text!r} holds an end token or a string of cell.prompt.stop"
            raise InputError(
                where="cell.sampling.interrupt.text",
                found=f"given {problem}",
            )
        return Interruption(interrupt.after, tuple(tokens), unless_token)

    def prompt_lengths(self, problems: Sequence[Problem]) -> list[int]:
        """How many tokens each problem's prompt takes."""
        return list(map(len, self._prompt_tokens(problems)))

    def encode(self, problems: Sequence[Problem], prompt_length: int) -> EncodedProblems:
        """Q problems as arrays: prompts i32[Q P] with P = prompt_length, padded on the right, and
        answers i32[Q 0], since text is verified on the host. Row i is problems[i] in each array.
        InputError where a prompt is empty or longer than P; no prompt is cut."""
        prompt_tokens = self._prompt_tokens(problems)
        prompts = np.full((len(problems), prompt_length), self.pad, np.int32)
        for row, ids, problem in zip(prompts, prompt_tokens, problems, strict=True):
            if not 0 < len(ids) <= prompt_length:
                raise InputError(
                    where=f"the prompt of problem {problem.id}",
                    found=f"takes {len(ids)} tokens",
                    expected=f"1 to {prompt_length}: {problem.prompt[:80]!r}",
                    fix="Raise cell.sampling.prompt_length, or leave the problem out.",
                )
            row[: len(ids)] = ids

        return EncodedProblems(
            prompts=prompts,
            prompt_lengths=np.array([len(ids) for ids in prompt_tokens], np.int32),
            answers=np.zeros((len(problems), 0), np.int32),
            ids=np.array([problem.id for problem in problems], np.int32),
        )

    def prompt_texts(self, problems: Sequence[Problem]) -> list[str]:
        """Each problem's prompt as the model reads it, with its special tokens and the markup of
        its chat."""
        return self._writer.decode(self._prompt_tokens(problems))

    def _prompt_tokens(self, problems: Sequence[Problem]) -> list[list[int]]:
        return self._writer.tokens(problems)

    def _reply_markup(self) -> ReplyMarkup:
        """What the chat template writes before and after a reply of the task, which is a user's
        message."""
        markup = find_markup(self._writer)
        if markup is None:
            raise InputError(
                where=f"the chat template in {self.folder}",
                found="leaves out earlier messages of the assistant; a task of turns needs them",
                fix="Set cell.prompt.format=raw, or another template.",
            )
        return ReplyMarkup(markup.before, markup.after)

    def reply_tokens(
        self, problems: Sequence[Problem], responses: Sequence[np.ndarray]
    ) -> TurnReplies:
        """The task's replies, as tokens, to responses whose turn has ended: one response,
        i32[its length] with context as ~token, for each problem. A response that gets no reply, or
        whose reply fails, is done and has an empty context. Only for a task of turns."""
        # The reply is computed by a verifier (turns.py), whose verdict has it as its message, and
        # is `parsed` if there is one. Its response is a JSON list of the turns; it gets no prompt.
        turns = [json.dumps(self._turn_texts(tokens)) for tokens in responses]
        self.start_verifier()
        assert self._reply_checker is not None, "the task has no turns"
        verdicts = self._reply_checker.judge(problems, [""] * len(problems), turns)

        texts: list[str] = []  # empty where the response is done
        for verdict in verdicts:
            has_reply = verdict.parsed and not verdict.failure and verdict.message
            # An empty text becomes no tokens below.
            texts.append(self._markup.around(verdict.message) if has_reply else "")

        contexts: list[np.ndarray] = []
        ids_of_texts = self._writer.tokenize(texts, special=False)
        for ids, response in zip(ids_of_texts, responses, strict=True):
            # The markup begins with the end of the policy's turn, which the policy may have written
            # already: then it is left out of the context. (No reply: ids is empty.)
            has_end_twice = (
                len(ids) > 0 and ids[0] in self.stops.tokens and response[-1] in self.stops.tokens
            )
            contexts.append(np.array(ids[1:] if has_end_twice else ids, np.int32))
        return TurnReplies(contexts, self._reply_checker.note_failures(problems, verdicts))

    def _turn_texts(self, tokens: np.ndarray) -> list[str]:
        """The turns of a response as texts: first the policy's, then a reply, and so on. The
        policy's turns end before their stop condition; replies are without the markup of a chat.
        tokens: a response i32[t], context (the replies) as ~token."""
        # The markup as it looks after it has been tokenized: without special tokens.
        before = self._text(self._writer.tokenize([self._markup.before], special=False)[0])
        after = self._text(self._writer.tokenize([self._markup.after], special=False)[0])

        texts: list[str] = []
        for turn in split_turns(tokens):
            is_reply = turn[0] < 0  # a turn is all context or none of it
            if is_reply:
                text = self._text((~turn).tolist())
                texts.append(text.removeprefix(before).removesuffix(after))
            else:
                texts.append(self._text_to_stop(turn.tolist()).decode(errors="replace"))
        return texts

    def _text(self, ids: Sequence[int]) -> str:
        """Tokens as text, whatever ends a turn; special tokens left out."""
        return b"".join(self._token_bytes[token] or b"" for token in ids).decode(errors="replace")

    def check_problems(self, problems: Sequence[Problem]) -> None:
        """InputError where the verifier cannot judge a problem; one in processes tries the first
        problem only."""
        self.start_verifier().check_problems(problems, self._writer.texts(problems))

    def grade_tokens(self, problems: Sequence[Problem], responses: Sequence[np.ndarray]) -> Grades:
        """Judge one response i32[its length] to each problem; a verifier gets the prompt as the
        model reads it."""
        texts = [self.decode(tokens) for tokens in responses]
        grades = self.start_verifier().grade(problems, self._writer.texts(problems), texts)
        return grades._replace(empty=sum(not text.strip() for text in texts))

    def decode(self, tokens: np.ndarray) -> str:
        """A response's tokens i32[t], context as ~token, as text: up to the first end token or stop
        string, special tokens left out; with several turns, up to that of the last turn, and the
        turns before it whole."""
        ids = plain_tokens(tokens).tolist()
        is_context = tokens < 0
        last_turn = 0  # where it begins: behind the last context token
        if self.stops.has_turns and is_context.any():
            last_turn = int(np.flatnonzero(is_context)[-1]) + 1
        earlier = b"".join(self._token_bytes[token] or b"" for token in ids[:last_turn])
        return (earlier + self._text_to_stop(ids[last_turn:])).decode(errors="replace")

    def tokens_of_text(self, text: str, stopped: bool) -> np.ndarray:
        """A response's tokens i32[t] out of its text, for samplers that give no tokens; where a
        stop condition ended it, an end token follows, or else the first stop string."""
        if stopped and not self.stops.tokens:
            text += self.stop_strings[0]
        (ids,) = self._writer.tokenize([text], special=False)
        if stopped and self.stops.tokens:
            ids = [*ids, self.stops.tokens[0]]
        return np.array(ids, np.int32)

    def find_end(self, tokens: np.ndarray) -> int | None:
        """How many tokens a response, plain i32[t], has up to the one that meets a stop condition,
        which is counted; None where none does."""
        # Stop strings: transitions[state, token] is the next state, `len(transitions)` the end.
        state = 0
        transitions = self.stops.transitions
        for position, token in enumerate(tokens.tolist(), 1):
            if token in self.stops.tokens:
                return position
            if transitions is not None:
                state = int(transitions[state, token])
                if state == len(transitions):
                    return position
        return None

    def answer_found(self, problem: Problem, response: np.ndarray) -> str | None:
        """The final answer that `math` finds in a response to a problem, for a person to read;
        empty where none is stated, None where another verifier judges."""
        use = self._verifier.use
        uses = [use] if isinstance(use, str) else list(use.values())
        if "math" not in uses:
            return None
        (prompt,) = self._writer.texts([problem])
        text = self.decode(response)
        if never_ends_thinking(prompt, text):
            return ""
        statement = final_answer(behind_thinking(text)[-MAX_ENDING_CHARACTERS:])
        return statement.text if statement.form is not Form.NOWHERE else ""

    def _text_to_stop(self, ids: Sequence[int]) -> bytes:
        """Plain tokens as text in UTF-8, up to the first end token or stop string, without it;
        special tokens left out. The last character may be incomplete."""
        # Pieces of text between special tokens: a stop string never reaches across one.
        text_runs: list[list[bytes]] = [[]]
        for token in ids:
            if token in self.stops.tokens:
                break
            piece = self._token_bytes[token]
            if piece is None:
                text_runs.append([])
            else:
                text_runs[-1].append(piece)

        decoded = b""
        for pieces in text_runs:
            run = b"".join(pieces)
            positions = [run.find(stop) for stop in self._stop_strings if stop in run]
            if positions:
                return decoded + run[: min(positions)]
            decoded += run
        return decoded

    def start_verifier(self) -> Checker:
        """The verifier, with its processes started; InputError where it cannot be used."""
        with self._checker_lock:
            if self._checker is None:
                self._checker = Checker(self._verifier, self._num_workers, self._score_weights)
            if self._reply_check is not None and self._reply_checker is None:
                checker = self._checker
                reply = self._verifier.with_settings(use=self._reply_check)
                self._reply_checker = Checker(reply, self._num_workers)
                # Looked up at each failure: the other checker's `on_failure` is set later.
                self._reply_checker.on_failure = lambda kind, what_happened: checker.on_failure(
                    f"reply {kind}", what_happened
                )
            return self._checker

    def failure_examples(self) -> dict[str, str]:
        """What happened at the first failure of each kind so far; those of the task's reply are
        `reply KIND`."""
        examples = dict(self._checker.failure_examples) if self._checker else {}
        reply_examples = self._reply_checker.failure_examples if self._reply_checker else {}
        return examples | {f"reply {kind}": text for kind, text in reply_examples.items()}

    def close(self) -> None:
        """End the verifier's processes; they start again where they are needed again."""
        with self._checker_lock:
            for checker in (self._checker, self._reply_checker):
                if checker is not None:
                    checker.close()
            self._checker = None
            self._reply_checker = None


Task = DeviceTask | TextTask


def build_task(cell: CellConfig, num_workers: int | None = None) -> Task:
    """The task that cell.task names. num_workers: how many processes check responses in text; None:
    one per core. InputError for settings that only a text task has, with a task on device, and
    where the task cannot be made."""
    on_device = device_task_of(cell)
    if on_device is not None:
        return on_device
    return TextTask(open_source(cell.task, cell.data), cell, num_workers, find_reply(cell.task))


def is_on_device(task: Task) -> TypeIs[DeviceTask]:
    """Whether a task is verified inside the compiled program."""
    return task.on_device


def tokenize(task: Task, sampling: SamplingConfig, problems: list[Problem]) -> TokenizedProblems:
    """Problems with their host arrays."""
    if is_on_device(task):
        arrays = task.encode(problems, sampling.prompt_length, sampling.response_length)
    else:
        arrays = task.encode(problems, sampling.prompt_length)
    return TokenizedProblems(problems, arrays)
