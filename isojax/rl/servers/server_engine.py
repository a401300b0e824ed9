"""A server that the user runs samples: vLLM, SGLang, llama.cpp, or another one of OpenAI's
completions API.

The server has the policy's weights; isojax has its tokenizer, and sends prompts as tokens where the
server takes them. What comes back is not believed without a look: tokens are in the vocabulary,
their text is the server's text, each response ends where isojax's own sampler would have ended it,
and log-probs, where they are needed, are of the sampled distribution. The looks of a
ResponseInspector (rl/servers/inspector.py) cost no request; those of `_check_server` cost a few, at
the start."""

import math
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import numpy as np

from isojax.core.errors import InputError, ServerFailed
from isojax.core.terminal import warn
from isojax.models.transformer import Params
from isojax.rl.engines import EngineSetup, Listener, RolloutEngine, SampleRequest
from isojax.rl.metric import Metric, Metrics, mean
from isojax.rl.rollout_lists import SampledResponse, rollouts_from_lists
from isojax.rl.servers.dialect import Ask, Completion, LogpKind
from isojax.rl.servers.inspector import ResponseInspector
from isojax.rl.servers.language_server import LanguageServer
from isojax.rl.servers.policy_server import PolicyServer
from isojax.sampling.batch import Rollouts
from isojax.tasks.task import TextTask, is_on_device

# Of `_check_temperature`, which compares the difference of two log-probs with that expected at the
# temperature. It may be off by 0.1 of the expected one, or by 0.1 nats where that is below 1 nat. A
# temperature that changes it by less than 0.3 nats shows nothing.
LOGP_TOLERANCE, MIN_LOGP_CHANGE = 0.1, 0.3
# At most so many prompts are asked until one's first tokens are uneven enough to tell.
CHECKED_PROMPTS = 4


class RolloutAsk(NamedTuple):
    """A request to the server, for the rollouts of one problem from `first_rollout` on."""

    first_rollout: int  # its number among all rollouts
    ask: Ask


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
        """Make an engine of a server; no request is sent before the first `sample`.

        needs_logps: whether log-probs are asked for, and refused where they are of another
        distribution; without them all are 0. policy_server: gives the server the parameters that
        are published; None: the server has one policy. Raises InputError where task or settings do
        not allow this server.
        """
        task = setup.task
        if is_on_device(task):
            raise InputError(
                found="a server samples text",
                expected="a text task, such as cell.task=jsonl:FILE",
            )
        if task.stops.adds_context:
            raise InputError(
                found=(
                    "a server cannot sample it: tokens of turns or of cell.sampling.interrupt are "
                    "written into responses"
                ),
                fix="Leave out the server, or these.",
            )
        if setup.records_experts:
            raise InputError(
                found="a server does not tell the experts of tokens",
                fix="Leave out cell.rl.replay_experts and cell.rl.measure_expert_agreement.",
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
        self._inspector = ResponseInspector(
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
        """staleness_mean and staleness_max of the last request, in updates; {} of one policy."""
        if self.policy_server is None:
            return {}
        oldest = Metric(float(max(self.staleness)), None, "max")
        return {"staleness_mean": mean(float(np.mean(self.staleness))), "staleness_max": oldest}

    def sample(self, params: Params, request: SampleRequest, listener: Listener | None) -> Rollouts:
        """Sample a request by the server, which the first call checks before (`_check_server`).

        Raises InputError where it cannot be used as it is, and ServerFailed where it does not
        answer, or not as asked, or has other weights than were published last.
        """
        asks = self._asks(request)
        if not self._is_checked:
            self._check_server([one.ask for one in asks])
            self._is_checked = True

        lost_requests = self.client.lost_requests
        responses = self._ask_all(asks, request.B, listener)

        server = self.policy_server
        if server is not None and not server.has_begun_check:
            server.begin_check(params, self._begun_sequences(request, responses))
        elif server is not None and self.client.lost_requests > lost_requests:
            # It may have been restarted, with other weights.
            server.look_for_weights(params)
        return rollouts_from_lists(self.setup, request, responses)

    def _ask_all(
        self, asks: Sequence[RolloutAsk], B: int, listener: Listener | None
    ) -> list[SampledResponse]:
        """The B responses, in the order of rollouts; many requests are in flight at once.

        asks: together they have each rollout once. Where one fails, the others are given up.
        """
        responses: list[SampledResponse | None] = [None] * B
        self.staleness = []
        threads = ThreadPoolExecutor(self.options.in_flight, "server")
        try:
            first_rollouts: dict[Future[Answered], int] = {
                threads.submit(self._ask, one.ask): one.first_rollout for one in asks
            }
            for future in as_completed(first_rollouts):
                answered = future.result()
                self.staleness += answered.staleness

                first = first_rollouts[future]
                count = len(answered.responses)
                responses[first : first + count] = answered.responses
                if listener is not None:
                    tokens = [np.asarray(one.tokens, np.int32) for one in answered.responses]
                    listener.on_finished(np.arange(first, first + count), tokens)
        except BaseException:  # whatever it is, nobody waits for the other answers
            threads.shutdown(wait=False, cancel_futures=True)
            self.client.close()
            raise

        threads.shutdown()
        return [one for one in responses if one is not None]

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
        """The tokens of the prompt of the q-th problem."""
        length = int(request.arrays.lengths[q])
        return np.asarray(request.arrays.prompts[q])[:length].tolist()

    def _asks(self, request: SampleRequest) -> list[RolloutAsk]:
        """The requests to the server: as few for each problem as the dialect allows (`max_n`).

        They are in the order of rollouts. A request's seed belongs to the batch's key, the problem
        and the first rollout that it asks for.
        """
        task, sampling = self.task, self.setup.sampling
        max_n = self.served.dialect.max_n
        key = np.asarray(jax.random.key_data(request.key)).ravel().tolist()
        texts = task.prompt_texts(request.problems)
        asks: list[RolloutAsk] = []
        for q, (problem, text) in enumerate(zip(request.problems, texts, strict=True)):
            prompt = self._prompt(request, q)
            for start in range(0, request.n, max_n):
                seed = np.random.SeedSequence([*key, problem.id, start]).generate_state(1)[0]
                ask = Ask(
                    prompt=prompt,
                    prompt_text=text,
                    n=min(max_n, request.n - start),
                    seed=int(seed) >> 1,  # of 32 bits; `Ask` has 31
                    temperature=sampling.temperature,
                    top_p=sampling.top_p,
                    max_tokens=self.setup.shapes.response_length,
                    stop_tokens=task.stops.tokens,
                    stop_strings=task.stop_strings,
                    with_logps=self.needs_logps,
                )
                asks.append(RolloutAsk(q * request.n + start, ask))
        return asks

    def _ask(self, ask: Ask) -> Answered:
        """The inspected responses to one request; called in a thread. Raises ServerFailed."""
        try:
            completions = self._complete(ask)
        except InputError as e:  # it has taken such requests before
            raise ServerFailed(str(e)) from e

        responses = [self._inspector.to_response(ask, one) for one in completions]
        server = self.policy_server
        if server is None:
            return Answered(responses, staleness=[])
        return Answered(responses, [server.staleness_of(one.version) for one in completions])

    def _complete(self, ask: Ask) -> list[Completion]:
        """What the server answers to a request, whose text begins with one BOS token.

        BOS is the special token that begins a prompt. Where the server writes it itself
        (`_adds_bos`), it is left out of the text that is sent.
        """
        bos = self.task.tokenizer.bos_token
        if self._adds_bos and isinstance(bos, str):
            ask = replace(ask, prompt_text=ask.prompt_text.removeprefix(bos))
        return self.server.complete(ask)

    def _check_settings(self) -> None:
        """Raise InputError where the server's log-probs, or its top-p, do not fit the config.

        It asks the server nothing: what its dialect says of it is compared with `cell.sampling`.
        """
        dialect, sampling = self.served.dialect, self.setup.sampling
        server = self.server.name
        if dialect.cuts_before_temperature and sampling.top_p < 1 and sampling.temperature != 1:
            raise InputError(
                found=(
                    f"{server} takes the nucleus of top_p before temperature, where isojax takes "
                    "it after"
                ),
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
            raise InputError(
                found=f"{server} does not tell how much of the distribution top-p has left",
                fix="Set cell.sampling.top_p=1 to train with its log-probs.",
            )

    def _check_server(self, asks: Sequence[Ask]) -> None:
        """Ask for one response, and raise InputError where the server cannot be used as it is.

        asks: those that are to follow. What `ResponseInspector.to_response` raises ServerFailed for
        (tokens, end, length, log-probs) is an InputError here. A text that is not that of its
        tokens it only counts, as a mismatch: of a first response it is an InputError too. Last,
        log-probs must be of the temperature that is asked for, where training reads them.
        """
        first = replace(asks[0], n=1)
        (completion,) = self._complete(first)

        # A server whose answers give no token ids (`gives_tokens`) is sent prompts as texts, as
        # llama-cpp-python is. It may write the BOS token itself, in addition to the prompt's: then
        # it counts one token more than the prompt has.
        bos = self.task.tokenizer.bos_token
        if not self.served.dialect.gives_tokens and isinstance(bos, str):
            begins_with_bos = first.prompt_text.startswith(bos)
            if begins_with_bos and completion.prompt_tokens == len(first.prompt) + 1:
                # From here on `_complete` leaves the BOS token out of the text that it sends.
                self._adds_bos = True
                (completion,) = self._complete(first)

        try:
            self._inspector.to_response(first, completion)
        except ServerFailed as e:
            raise InputError(str(e)) from e
        if self._inspector.mismatches:
            raise InputError(self._inspector.describe_mismatch())
        if self.needs_logps and first.temperature != 1:
            # all of them: a prompt whose first token is nearly certain cannot tell
            self._check_temperature([replace(ask, n=1) for ask in asks])

    def _check_temperature(self, asks: Sequence[Ask]) -> None:
        """Raise InputError where log-probs are not of the temperature that was asked for.

        At temperature t the difference of two tokens' log-probs is 1/t of that at 1. So a prompt's
        first token is asked for twice, at 1 and at t. The first prompt that can tell decides; where
        none can, it warns. asks: of one response each, all with the same temperature, not 1.
        """
        ask_by_prompt = {tuple(ask.prompt): ask for ask in asks}
        for ask in list(ask_by_prompt.values())[:CHECKED_PROMPTS]:
            # {token: log-prob} of the likeliest first tokens, each time.
            at_one = self._alternatives(replace(ask, temperature=1.0))
            as_asked = self._alternatives(ask)
            shared = sorted(at_one.keys() & as_asked.keys(), key=lambda token: at_one[token])
            if len(shared) < 2:
                continue

            # The least and the most likely token that both answers name.
            low, high = shared[0], shared[-1]
            difference_at_one = at_one[high] - at_one[low]
            expected = difference_at_one / ask.temperature
            received = as_asked[high] - as_asked[low]
            if abs(expected - difference_at_one) < MIN_LOGP_CHANGE:
                continue  # too even to tell
            if abs(received - expected) > LOGP_TOLERANCE * max(1, abs(expected)):
                fix = self.served.dialect.logp_fix
                fix = fix or "take one that gives those of the sampled distribution"
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

        warn(
            f"the server {self.options.url}: whether its log-probs are of temperature "
            f"{asks[0].temperature:g} could not be seen."
        )

    def _alternatives(self, ask: Ask) -> dict[int | str, float]:
        """Log-probs of the likeliest first tokens, by token id or by the server's name of it.

        Of a prompt, without top-p, at the temperature of `ask`; those of -inf are left out.
        """
        one_token = replace(ask, max_tokens=1, top_p=1.0, with_logps=True, alternatives=5)
        (completion,) = self._complete(one_token)
        return {
            name: logp
            for name, logp in completion.first_alternatives.items()
            if math.isfinite(logp)
        }
