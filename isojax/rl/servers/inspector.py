"""Makes responses of what a server answers, and looks whether it is what was asked for."""

import math
import re
import threading

import numpy as np

from isojax.core.errors import ServerFailed
from isojax.core.terminal import warn
from isojax.rl.rollout_lists import SampledResponse
from isojax.rl.servers.detect import ServedModel
from isojax.rl.servers.dialect import Ask, Completion
from isojax.tasks.task import TextTask

# The share of responses whose text may differ from that of their tokens, and how many may, whatever
# their share: texts that are cut within a character.
MAX_MISMATCHES = 0.01
MIN_MISMATCHES = 3


class ResponseInspector:
    """Looks at the responses of one server, and makes SampledResponses of them. Threads share it.

    A mismatch is a response whose text is not that of its tokens.
    """

    def __init__(self, task: TextTask, T: int, served: ServedModel, url: str) -> None:
        """Make an inspector for the responses of one server to one task.

        task: its tokenizer and stop conditions are the policy's. T: the most tokens of a response.
        url: for messages.
        """
        self.task = task
        self.T = T
        self.served = served
        self.url = url
        self.responses = 0  # that were looked at
        self.mismatches = 0  # of them
        self._example = ("", "")  # the first mismatch: the server's text, and that of its tokens
        self._lock = threading.Lock()

        # Which special tokens are written into texts differs by server; so does what becomes of
        # half a character.
        contents = [token.content for token in task.tokenizer.added_tokens_decoder.values()]
        added = [re.escape(content) for content in contents if content.strip()]
        self._ignored = re.compile("|".join(["\\s", "\N{REPLACEMENT CHARACTER}", *added]))

    def to_response(self, ask: Ask, completion: Completion) -> SampledResponse:
        """The response, which ends where isojax's own sampler would have ended it.

        A text that is not that of its tokens is only counted (`mismatches`), until there are too
        many.

        Raises:
            ServerFailed: the server has another tokenizer, model or context than isojax expects, or
                does not give what was asked for.
        """
        self._check_prompt(ask, completion)
        tokens = self._tokens(completion)
        logps = self._logps(ask, completion, len(tokens))

        # Where the server gives a text alone, its tokens may be others than those that were drawn,
        # and show nothing.
        has_tokens = completion.tokens is not None
        end = self.task.find_end(tokens)  # how many tokens, with the one that ends it; or None
        has_room = len(tokens) < self.T  # of T tokens or more it is cut here, however it ended
        ended_early = completion.stopped and has_room
        if has_tokens and ended_early and end is None:
            raise self._failed(
                f"ended a response after token {tokens[-1]}, which ends none for isojax "
                f"({self.task.stops.tokens} do); make eos_token_id in {self.task.folder} and in "
                "the server's model the same"
            )
        stopped = end is not None and end <= self.T
        length = min(len(tokens) if end is None else end, self.T)
        if has_tokens and not stopped and length < self.T:
            raise self._failed(
                f"cut a response after {length} tokens, expected {self.T}: is its context long "
                "enough?"
            )

        tokens = tokens[:length].astype(np.int32)
        self._compare(completion.text, self.task.decode(tokens))
        return SampledResponse(tokens, logps[:length], stopped)

    def _check_prompt(self, ask: Ask, completion: Completion) -> None:
        if completion.prompt_tokens not in (None, len(ask.prompt)):
            raise self._failed(
                f"counts {completion.prompt_tokens} tokens in a prompt of {len(ask.prompt)}: it "
                f"has another tokenizer than {self.task.folder}"
            )

    def _tokens(self, completion: Completion) -> np.ndarray:
        """The response's tokens i64[l]: those of the server, or of its text where it gives none.

        Raises ServerFailed where they are missing, though the dialect gives them, or outside the
        vocabulary.
        """
        dialect = self.served.dialect
        if completion.tokens is not None:
            tokens = np.asarray(completion.tokens, np.int64)
        elif dialect.gives_tokens:
            raise self._failed(f"gives no token ids; {dialect.token_fix}")
        else:
            tokens = self.task.tokens_of_text(completion.text, completion.stopped)

        if not len(tokens) and dialect.gives_tokens:
            raise self._failed("gives a response without tokens")
        outside = tokens[(tokens < 0) | (tokens >= self.task.vocab)]
        if outside.size:
            raise self._failed(
                f"gives token {outside[0]}, expected one of a vocabulary of {self.task.vocab}: "
                "does it serve another model?"
            )
        return tokens

    def _logps(self, ask: Ask, completion: Completion, count: int) -> np.ndarray:
        """f32, of the `count` tokens at least; zeros where none were asked for."""
        if not ask.with_logps:
            return np.zeros(count, np.float32)
        logps = completion.logps
        if logps is None or len(logps) < count:
            received = "no log-probs" if logps is None else f"{len(logps)} log-probs"
            raise self._failed(
                f"gives {received} with {count} tokens; training needs one of each token"
            )
        return np.array([math.nan if logp is None else logp for logp in logps], np.float32)

    def _compare(self, server_text: str, own_text: str) -> None:
        """Count a response, and a mismatch where its tokens' text is not the server's.

        Spaces, special tokens and halves of characters do not count: servers write them
        differently. The first mismatch is warned of; too many raise ServerFailed.
        """
        is_same = self._plain(server_text) == self._plain(own_text)
        with self._lock:
            self.responses += 1
            if is_same:
                return

            self.mismatches += 1
            if self.mismatches == 1:
                self._example = (server_text, own_text)
                if self.responses > 1:  # the first response of all is refused: `_check_server`
                    warn(self.describe_mismatch())
            are_few = self.mismatches < MIN_MISMATCHES
            if not are_few and self.mismatches > MAX_MISMATCHES * self.responses:
                raise ServerFailed(self.describe_mismatch())

    def describe_mismatch(self) -> str:
        server_text, own_text = (repr(text[:80]) for text in self._example)
        count = f"{self.mismatches} of {self.responses} responses"
        return (
            f"the server {self.url}: the text of {count} is not that of its token ids, the first "
            f"{server_text} and {own_text}: does it have another tokenizer than "
            f"{self.task.folder}?"
        )

    def _plain(self, text: str) -> str:
        return self._ignored.sub("", text)

    def _failed(self, problem: str) -> ServerFailed:
        return ServerFailed(
            f"the server {self.url} ({self.served.project}, {self.served.model}) {problem}."
        )
