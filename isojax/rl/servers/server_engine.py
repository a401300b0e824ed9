"""A server that the user runs samples: vLLM, SGLang, llama.cpp, or another one of OpenAI's
completions API.

The server has the policy's weights; isojax has its tokenizer, and sends prompts as tokens where the
server takes them. What comes back is not believed without a look: tokens are in the vocabulary,
their text is the server's text, each response ends where isojax's own sampler would have ended it,
and log-probs, where they are needed, are of the sampled distribution. The looks of `_Inspector`
cost no request; those of `_check_server` cost a few, at the start."""

import math
import re
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from isojax.core.errors import InputError, ServerFailed
from isojax.core.terminal import warn
from isojax.models.transformer import Params
from isojax.rl.engines import EngineSetup, Listener, RolloutEngine, SampleRequest
from isojax.rl.metric import Metric, Metrics, mean
from isojax.rl.rollout_lists import SampledResponse, rollouts_from_lists
from isojax.rl.servers.detect import ServedModel
from isojax.rl.servers.dialect import Ask, Completion, LogpKind
from isojax.rl.servers.language_server import LanguageServer
from isojax.rl.servers.policy_server import PolicyServer
from isojax.sampling.batch import Rollouts
from isojax.tasks.task import TextTask, is_on_device

# The share of responses whose text may differ from that of their tokens: texts that are cut within
# a character.
MAX_MISMATCHES = 0.01
MIN_MISMATCHES = 3
# By how much the difference of two log-probs may be off that which temperature makes of it, and how
# large it must be.
LOGP_TOLERANCE, MIN_LOGP_CHANGE = 0.1, 0.3
CHECKED_PROMPTS = 4


@dataclass(frozen=True)
class Answered:
    """What a server has answered to one request."""

    responses: list[SampledResponse]
    staleness: list[int]  # of each, the updates since its weights


class ServerEngine(RolloutEngine):
    """Samples by requests. Draws belong to a request's key where the server follows seeds."""

    def __init__(
        self,
        setup: EngineSetup,
        server: LanguageServer,
        needs_logps: bool = False,
        policy_server: PolicyServer | None = None,
    ) -> None:
        """`needs_logps`: whether log-probs are asked for, and refused where they are of another
        distribution; without them all are 0. `policy_server`: gives the server the parameters that
        are published; without it, the server has one policy. InputError where the server cannot be
        used so; ServerFailed where it does not answer."""
        task = setup.task
        if is_on_device(task):
            raise InputError(
                found="a server samples text",
                expected="a text task, such as cell.task=jsonl:FILE",
            )
        if task.stops.adds_context:
            context = "tokens of turns or of cell.sampling.interrupt are written into responses"
            raise InputError(
                found=f"a server cannot sample it: {context}",
                fix="Leave out the server, or these.",
            )
        if setup.records_experts:
            settings = "cell.rl.replay_experts and cell.rl.measure_expert_agreement"
            raise InputError(
                found="a server does not tell the experts of tokens",
                fix=f"Leave out {settings}.",
            )
        self.setup = setup
        self.server = server
        self.needs_logps = needs_logps
        self.policy_server = policy_server
        self.options = server.options
        self.client = server.client
        self.served = server.served
        self.task: TextTask = task
        self.staleness: list[int] = []  # of the last request's responses
        self._inspector = _Inspector(
            task, setup.shapes.response_length, self.served, self.options.url
        )
        self._adds_bos = False  # whether a server of texts writes the token that begins them itself
        self._is_checked = False
        self._check_settings()

    def compile(self, params: Params) -> Any:
        del params
        return self.setup.rollout_shapes

    def publish(self, params: Params, update: int) -> None:
        if self.policy_server is not None:
            self.policy_server.publish(params, update)

    def metrics(self) -> Metrics:
        if self.policy_server is None:
            return {}
        oldest = Metric(float(max(self.staleness)), None, "max")
        return {"staleness_mean": mean(float(np.mean(self.staleness))), "staleness_max": oldest}

    def sample(self, params: Params, request: SampleRequest, listener: Listener | None) -> Rollouts:
        asks = list(self._asks(request))
        if not self._is_checked:
            self._check_server([ask for _, ask in asks])
            self._is_checked = True

        responses: list[SampledResponse | None] = [None] * request.B
        self.staleness = []
        lost_requests = self.client.lost_requests
        threads = ThreadPoolExecutor(self.options.in_flight, "server")
        try:
            first_rollouts: dict[Future[Answered], int] = {
                threads.submit(self._ask, ask): first for first, ask in asks
            }
            for future in as_completed(first_rollouts):
                answered, first = future.result(), first_rollouts[future]
                count = len(answered.responses)
                responses[first : first + count] = answered.responses
                self.staleness += answered.staleness
                if listener is not None:
                    tokens = [np.asarray(one.tokens, np.int32) for one in answered.responses]
                    listener.on_finished(np.arange(first, first + count), tokens)
        except BaseException:  # whatever it is, nobody waits for the other answers
            threads.shutdown(wait=False, cancel_futures=True)
            self.client.close()
            raise
        threads.shutdown()

        sampled = [one for one in responses if one is not None]
        server = self.policy_server
        if server is not None and not server.has_begun_check:
            server.begin_check(params, self._begun_sequences(request, sampled))
        elif server is not None and self.client.lost_requests > lost_requests:
            # It may have ended and begun anew, with other weights.
            server.look_for_weights(params)
        return rollouts_from_lists(self.setup, request, sampled)

    def _begun_sequences(
        self, request: SampleRequest, responses: Sequence[SampledResponse]
    ) -> list[list[int]]:
        """The tokens of each rollout's prompt and of the first half of its response."""
        sequences: list[list[int]] = []
        for r, response in enumerate(responses):
            prompt = self._prompt(request, r // request.n)
            half = np.asarray(response.tokens)[: len(response.tokens) // 2].tolist()
            sequences.append([*prompt, *half])
        return sequences

    def _prompt(self, request: SampleRequest, q: int) -> list[int]:
        return np.asarray(request.arrays.prompts[q])[: int(request.arrays.lengths[q])].tolist()

    def _asks(self, request: SampleRequest) -> Iterator[tuple[int, Ask]]:
        """Each request to the server, with the number of its first rollout."""
        task, sampling = self.task, self.setup.sampling
        key = np.asarray(jax.random.key_data(request.key)).ravel().tolist()
        texts = task.prompt_texts(request.problems)
        for q, (problem, text) in enumerate(zip(request.problems, texts, strict=True)):
            prompt = self._prompt(request, q)
            for start in range(0, request.n, self.served.dialect.max_n):
                seed = np.random.SeedSequence([*key, problem.id, start]).generate_state(1)[0]
                yield (
                    q * request.n + start,
                    Ask(
                        prompt=prompt,
                        prompt_text=text,
                        n=min(self.served.dialect.max_n, request.n - start),
                        seed=int(seed) >> 1,
                        temperature=sampling.temperature,
                        top_p=sampling.top_p,
                        max_tokens=self.setup.shapes.response_length,
                        stop_tokens=task.stops.tokens,
                        stop_strings=task.stop_strings,
                        with_logps=self.needs_logps,
                    ),
                )

    def _ask(self, ask: Ask) -> Answered:
        try:
            completions = self._complete(ask)
        except InputError as e:  # it has taken such requests before
            raise ServerFailed(str(e)) from e
        responses = [self._inspector.to_response(ask, one) for one in completions]
        if self.policy_server is None:
            return Answered(responses, staleness=[])
        return Answered(
            responses, [self.policy_server.staleness_of(one.version) for one in completions]
        )

    def _complete(self, ask: Ask) -> list[Completion]:
        bos = self.task.tokenizer.bos_token
        if self._adds_bos and isinstance(bos, str):
            ask = replace(ask, prompt_text=ask.prompt_text.removeprefix(bos))
        return self.server.complete(ask)

    def _check_settings(self) -> None:
        dialect, sampling = self.served.dialect, self.setup.sampling
        server = f"the server {self.options.url} ({self.served.project})"
        if dialect.cuts_before_temperature and sampling.top_p < 1 and sampling.temperature != 1:
            problem = "takes the nucleus of top_p before temperature, where isojax takes it after"
            raise InputError(
                found=f"{server} {problem}",
                fix="Set cell.sampling.top_p=1 or cell.sampling.temperature=1.",
            )
        if not self.needs_logps:
            return
        if dialect.logp_kind is LogpKind.NONE:
            raise InputError(
                found=(
                    f"{server} gives no log-probs of the distribution that it samples; "
                    "training needs them"
                ),
            )
        if dialect.logp_kind is LogpKind.BEFORE_TOP_P and sampling.top_p < 1:
            raise InputError(
                found=f"{server} gives log-probs before top-p",
                fix="Set cell.sampling.top_p=1 to train with them.",
            )
        # without it the trainer cannot compute log-probs of the same nucleus
        if sampling.top_p < 1:
            problem = "does not tell how much of the distribution top-p has left"
            raise InputError(
                found=f"{server} {problem}",
                fix="Set cell.sampling.top_p=1 to train with its log-probs.",
            )

    def _check_server(self, asks: Sequence[Ask]) -> None:
        """A request of one response, looked at closely; InputError where the server cannot be used
        as it is."""
        first = replace(asks[0], n=1)
        (completion,) = self._complete(first)
        bos = self.task.tokenizer.bos_token
        if (
            not self.served.dialect.gives_tokens
            and isinstance(bos, str)
            and first.prompt_text.startswith(bos)
            and completion.prompt_tokens == len(first.prompt) + 1
        ):
            self._adds_bos = True
            (completion,) = self._complete(first)
        try:
            self._inspector.to_response(first, completion)
        except ServerFailed as e:
            raise InputError(str(e)) from e
        if self._inspector.mismatches:
            raise InputError(self._inspector.describe_mismatch())
        if self.needs_logps and first.temperature != 1:
            self._check_temperature([replace(ask, n=1) for ask in asks])

    def _check_temperature(self, asks: Sequence[Ask]) -> None:
        """InputError where log-probs are not of the temperature that was asked for: of two tokens,
        their difference at temperature t is 1/t of that at 1."""
        by_prompt = {tuple(ask.prompt): ask for ask in asks}
        for ask in list(by_prompt.values())[:CHECKED_PROMPTS]:
            plain = self._alternatives(replace(ask, temperature=1.0))
            asked = self._alternatives(ask)
            names = sorted(plain.keys() & asked.keys(), key=lambda name: plain[name])
            if len(names) < 2:
                continue
            low, high = names[0], names[-1]
            difference_at_one = plain[high] - plain[low]
            expected = difference_at_one / ask.temperature
            received = asked[high] - asked[low]
            if abs(expected - difference_at_one) < MIN_LOGP_CHANGE:
                continue  # too even to tell
            if abs(received - expected) > LOGP_TOLERANCE * max(1, abs(expected)):
                fix = self.served.dialect.logp_fix
                if not fix:
                    fix = "take one that gives those of the sampled distribution"
                raise InputError(
                    where=f"the server {self.options.url}",
                    found=(
                        f"gives log-probs of another temperature than {ask.temperature:g}: two "
                        f"tokens differ by {received:.3f}"
                    ),
                    expected=f"{expected:.3f} ({difference_at_one:.3f} at temperature 1)",
                    fix=f"{fix[0].upper()}{fix[1:]}.",
                )
            return
        server = f"the server {self.options.url}"
        warn(
            f"{server}: whether its log-probs are of temperature {asks[0].temperature:g} could not "
            "be seen."
        )

    def _alternatives(self, ask: Ask) -> dict[int | str, float]:
        one_token = replace(ask, max_tokens=1, top_p=1.0, with_logps=True, alternatives=5)
        (completion,) = self._complete(one_token)
        return {
            name: logp
            for name, logp in completion.first_alternatives.items()
            if math.isfinite(logp)
        }


class _Inspector:
    """Makes responses of what a server answers; ServerFailed where it is not what was asked for.
    Threads share it."""

    def __init__(self, task: TextTask, T: int, served: ServedModel, url: str) -> None:
        self.task, self.T, self.served, self.url = task, T, served, url
        self.responses = self.mismatches = 0
        self._example = ("", "")  # the first mismatch: the server's text, and that of its tokens
        self._lock = threading.Lock()
        added = [
            token.content
            for token in task.tokenizer.added_tokens_decoder.values()
            if token.content.strip()
        ]
        # Which special tokens are written into texts differs by server; so does what becomes of
        # half a character.
        self._ignored = re.compile(
            "|".join(["\\s", "\N{REPLACEMENT CHARACTER}", *map(re.escape, added)])
        )

    def to_response(self, ask: Ask, completion: Completion) -> SampledResponse:
        dialect = self.served.dialect
        if completion.prompt_tokens not in (None, len(ask.prompt)):
            problem = f"counts {completion.prompt_tokens} tokens in a prompt of {len(ask.prompt)}"
            raise self._failed(f"{problem}: it has another tokenizer than {self.task.folder}")
        if completion.tokens is None:
            if dialect.gives_tokens:
                raise self._failed(f"gives no token ids; {dialect.token_fix}")
            tokens = self.task.tokens_of_text(completion.text, completion.stopped)
        else:
            tokens = np.asarray(completion.tokens, np.int64)
        if not len(tokens) and dialect.gives_tokens:
            raise self._failed("gives a response without tokens")
        outside = tokens[(tokens < 0) | (tokens >= self.task.vocab)]
        if outside.size:
            vocabulary = f"a vocabulary of {self.task.vocab}"
            raise self._failed(
                f"gives token {outside[0]}, expected one of {vocabulary}: does it serve another "
                "model?"
            )

        logps = self._logps(ask, completion, len(tokens))
        end = self.task.find_end(tokens)
        if (
            completion.stopped
            and end is None
            and completion.tokens is not None
            and len(tokens) < self.T
        ):
            token = (
                f"after token {tokens[-1]}, which ends none for isojax ({self.task.stops.tokens} "
                "do)"
            )
            fix = f"make eos_token_id in {self.task.folder} and in the server's model the same"
            raise self._failed(f"ended a response {token}; {fix}")
        stopped = end is not None and end <= self.T
        length = min(len(tokens) if end is None else end, self.T)
        if not stopped and length < self.T and completion.tokens is not None:
            raise self._failed(
                f"cut a response after {length} tokens, expected {self.T}: is its context long "
                "enough?"
            )
        self._compare(completion.text, self.task.decode(tokens[:length].astype(np.int32)))
        return SampledResponse(tokens[:length].astype(np.int32), logps[:length], stopped)

    def _logps(self, ask: Ask, completion: Completion, count: int) -> np.ndarray:
        if not ask.with_logps:
            return np.zeros(count, np.float32)
        if completion.logps is None or len(completion.logps) < count:
            given = (
                "no log-probs" if completion.logps is None else f"{len(completion.logps)} log-probs"
            )
            raise self._failed(
                f"gives {given} with {count} tokens; training needs one of each token"
            )
        return np.array(
            [math.nan if logp is None else logp for logp in completion.logps], np.float32
        )

    def _compare(self, server_text: str, own_text: str) -> None:
        """Whether the tokens are those of the text, up to what servers write differently."""
        is_same = self._plain(server_text) == self._plain(own_text)
        with self._lock:
            self.responses += 1
            self.mismatches += not is_same
            if is_same:
                return
            if self.mismatches == 1:
                self._example = (server_text, own_text)
                if self.responses > 1:
                    warn(self.describe_mismatch())
            if (
                self.mismatches < MIN_MISMATCHES
                or self.mismatches <= MAX_MISMATCHES * self.responses
            ):
                return
            raise ServerFailed(self.describe_mismatch())

    def describe_mismatch(self) -> str:
        server_text, own_text = (repr(text[:80]) for text in self._example)
        count = f"{self.mismatches} of {self.responses} responses"
        return (
            f"the server {self.url}: the text of {count} is not that of its token ids, the first "
            f"{server_text} and {own_text}: does it have another tokenizer than {self.task.folder}?"
        )

    def _plain(self, text: str) -> str:
        return self._ignored.sub("", text)

    def _failed(self, problem: str) -> ServerFailed:
        return ServerFailed(
            f"the server {self.url} ({self.served.project}, {self.served.model}) {problem}."
        )
