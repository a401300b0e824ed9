"""What a server samples comes back as rollouts, whichever dialect it speaks; and what is wrong with
one is said."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from isojax.core.config import CellConfig, SamplingConfig
from isojax.core.errors import InputError, RunFailed
from isojax.core.nouns import Problem
from isojax.core.shapes import SamplerShapes
from isojax.rl.engines import EngineSetup, Listener, SampleRequest
from isojax.rl.rollout_lists import lists_from_rollouts
from isojax.rl.servers.dialect import Ask, Completion
from isojax.rl.servers.http_json import ServerOptions
from isojax.rl.servers.language_server import LanguageServer
from isojax.rl.servers.policy_server import PolicyServer
from isojax.rl.servers.server_engine import ServerEngine
from isojax.sampling.batch import Rollouts
from isojax.sampling.layout import Layout
from isojax.tasks.task import TextTask, build_task, is_on_device, tokenize
from isojax.train.evaluate import pad_problems
from tests.device import DECODER, Parity, mesh
from tests.refusals import refused
from tests.rl.fake_servers import NO_ANSWER, FakeServer, running
from tests.tasks.tokenizer_folders import byte_level

T, n = 4, 20
PROBLEMS = [Problem(7, "1 + 2 = ", "3"), Problem(9, "4 + 4 = ", "8"), Problem(4, "5 + 5 = ", "10")]
DIALECTS = ("vllm", "sglang", "llamacpp", "me")
GIVES_TOKENS = DIALECTS[:3]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> TextTask:
    folder = byte_level(tmp_path_factory.mktemp("lm"), vocab=340)
    sections: dict[str, Any] = {"model": {"path": str(folder)}, "prompt": {"format": "raw"}}
    made = build_task(CellConfig.model_validate({"task": "addition", **sections}), 1)
    assert not is_on_device(made) and made.stops.tokens == (2,)
    return made


def make_setup(task: TextTask, **sampling: Any) -> EngineSetup:
    shapes = SamplerShapes(
        [(len(PROBLEMS), n)], 1, 1, 1, prompt_length=16, response_length=T, prefill_batch=1
    )
    sampling_config = SamplingConfig(
        **{"prompt_length": 16, "response_length": T, "temperature": 0.5, **sampling}
    )
    return EngineSetup(DECODER, task, shapes, mesh("data=1"), sampling_config)


def make_request(setup: EngineSetup, seed: int = 0) -> SampleRequest:
    problem_set = tokenize(setup.task, setup.sampling, PROBLEMS)
    return SampleRequest(
        PROBLEMS, pad_problems(problem_set.arrays, setup.shapes), n, jax.random.key(seed)
    )


def options(server: FakeServer, **others: Any) -> ServerOptions:
    return ServerOptions(
        server.url, **{"timeout": 20.0, "in_flight": 3, "retries": 2, "first_wait": 0.01, **others}
    )


def sample(engine: ServerEngine, listener: Listener | None = None) -> Rollouts:
    request = make_request(engine.setup)
    assert engine.compile({}) == engine.setup.rollout_shapes
    return engine.sample({}, request, listener)


@pytest.mark.parametrize("owner", DIALECTS)
def test_what_the_server_draws_are_the_rollouts(task: TextTask, owner: str) -> None:
    """Each problem's, in its place, end token and log-probs too; a listener is told of each
    once."""
    told: dict[int, list[int]] = {}

    def on_finished(rollouts: np.ndarray, tokens: list[np.ndarray]) -> None:
        assert not told.keys() & set(rollouts.tolist())
        told.update(zip(rollouts.tolist(), (row.tolist() for row in tokens), strict=True))

    with running(FakeServer(task, owner)) as server:
        needs_logps = owner in GIVES_TOKENS
        engine = ServerEngine(make_setup(task), LanguageServer(options(server)), needs_logps)
        rollouts = sample(engine, Listener(on_finished))
        server.drawn, before = {}, server.drawn
        again = sample(engine)

    responses = lists_from_rollouts(rollouts, Layout(len(PROBLEMS), n, shards=1))
    assert [told[r] for r in range(len(PROBLEMS) * n)] == [list(one.tokens) for one in responses]
    prompts = task.tokenizer([p.prompt for p in PROBLEMS], add_special_tokens=False)["input_ids"]
    for q, prompt in enumerate(prompts):
        # Drawn in any order, as requests overlap; those of the checks at the start are the first.
        drawn = sorted(tuple(one.tokens) for one in before[tuple(prompt)][-n:])
        own = responses[q * n : (q + 1) * n]
        if needs_logps:
            assert sorted(tuple(map(int, one.tokens)) for one in own) == drawn
        texts = sorted(task.decode(np.array(tokens, np.int32)) for tokens in drawn)
        assert sorted(task.decode(np.asarray(one.tokens)) for one in own) == texts
        assert sum(one.stopped for one in own) == sum(tokens[-1] == 2 for tokens in drawn)
    for one in responses:
        expected = (
            [-0.25 * (1 + int(t) % 4) for t in one.tokens] if needs_logps else [0] * len(one.tokens)
        )
        np.testing.assert_allclose(one.logps, expected, rtol=1e-6)
    if owner != "sglang":  # which follows no seeds
        np.testing.assert_array_equal(np.asarray(again.tokens), np.asarray(rollouts.tokens))


def test_a_request_is_for_at_most_sixteen_with_a_seed_of_its_own(task: TextTask) -> None:
    with running(FakeServer(task, "vllm")) as server:
        engine = ServerEngine(
            make_setup(task, temperature=0.7, top_p=0.9), LanguageServer(options(server))
        )
        sample(engine)
        other = replace(make_request(engine.setup), key=jax.random.key(1))
        engine.sample({}, other, None)
    bodies = [body for _, body in server.requests]
    assert [body["n"] for body in bodies[:1]] == [1]  # the check
    assert sorted(body["n"] for body in bodies[1:7]) == [4, 4, 4, 16, 16, 16]
    seeds = [body["seed"] for body in bodies[1:]]
    assert len(set(seeds)) == 12 and all(0 <= seed < 2**31 for seed in seeds)
    assert {(body["temperature"], body["top_p"], body["max_tokens"]) for body in bodies} == {
        (0.7, 0.9, T)
    }
    assert all("logprobs" not in body for body in bodies)


def test_a_server_that_recovers_is_asked_again(task: TextTask) -> None:
    statuses = iter([503, 429, 500])

    def fault(count: int, body: dict[str, Any]) -> tuple[int, Any] | None:
        return (status, "busy") if count > 2 and (status := next(statuses, 0)) else None

    with running(FakeServer(task, "llamacpp", fault=fault)) as server:
        rollouts = sample(
            ServerEngine(make_setup(task), LanguageServer(options(server, retries=5)))
        )
    assert (np.asarray(rollouts.lengths)[0, : 3 * n] > 0).all()
    assert len(server.requests) == 1 + 3 * n + 3


class LookedAt(PolicyServer):
    """A policy server of which is noted what it is asked for, and that asks nobody."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    @property
    def has_begun_check(self) -> bool:
        return bool(self.calls)

    def begin_check(self, params: Any, sequences: Sequence[Sequence[int]]) -> None:
        assert len(sequences) == len(PROBLEMS) * n
        self.calls.append(("begin", params))

    def look_for_weights(self, params: Any) -> None:
        self.calls.append(("look", params))

    def staleness_of(self, version: str | None) -> int:
        return 0


def test_a_server_that_lost_a_request_is_asked_for_its_weights(task: TextTask) -> None:
    """It may have ended and begun anew, with the weights that it had at its start. A busy one has
    not."""
    faults = {"busy": (503, "busy"), "lost": (NO_ANSWER, None)}
    fault_of_call: list[str] = []  # that the next request meets, once

    def fault(count: int, body: dict[str, Any]) -> tuple[int, Any] | None:
        return faults[fault_of_call.pop()] if fault_of_call else None

    policy_server = LookedAt()
    with running(FakeServer(task, "vllm", fault=fault)) as server:
        engine = ServerEngine(
            make_setup(task), LanguageServer(options(server)), policy_server=policy_server
        )
        request = make_request(engine.setup)
        params: list[dict[str, Any]] = [{"update": i} for i in range(5)]

        engine.sample(params[0], request, None)
        assert policy_server.calls == [("begin", params[0])]

        engine.sample(params[1], request, None)
        fault_of_call.append("busy")
        engine.sample(params[2], request, None)
        assert policy_server.calls == [("begin", params[0])]

        fault_of_call.append("lost")
        rollouts = engine.sample(params[3], request, None)
        assert policy_server.calls[1:] == [("look", params[3])]
        assert (np.asarray(rollouts.lengths)[0, : len(PROBLEMS) * n] > 0).all()

        # That request is answered for; the next batch is not looked at again.
        engine.sample(params[4], request, None)
        assert len(policy_server.calls) == 2


def refusal_text(task: TextTask, owner: str, needs_logps: bool = False, **faults: Any) -> str:
    """What is said of a faulty server; InputError at the start, RunFailed later on."""
    with running(FakeServer(task, owner, **faults)) as server:
        with pytest.raises((InputError, RunFailed)) as e:
            sample(
                ServerEngine(
                    make_setup(task), LanguageServer(options(server, timeout=0.3)), needs_logps
                )
            )
        kind = "at the start" if isinstance(e.value, InputError) else "later"
        return f"{kind}: {e.value}".replace(server.url, "URL")


def later(change: Callable[[Any], None]) -> Callable[[Any], None]:
    """Spoils the answers but for the first."""
    answers: list[None] = []

    def spoil(answer: Any) -> None:
        answers.append(None)
        if len(answers) > 1:
            change(answer)

    return spoil


def test_a_server_that_is_not_there(task: TextTask) -> None:
    nobody = ServerOptions("localhost:9", retries=1, first_wait=0.01)
    with pytest.raises(
        RunFailed, match=r"the server localhost:9 does not answer \(.*refused.*\)\. Start it again"
    ):
        LanguageServer(nobody)


def test_a_server_that_dies(task: TextTask) -> None:
    """While others of its requests are under way."""
    said = refusal_text(
        task, "vllm", fault=lambda count, body: (500, b"gone") if count > 3 else None
    )
    assert said.startswith(
        "later: the server URL does not answer (POST /v1/completions gives status 500: gone). "
        "Start it again"
    )


def test_a_server_that_is_too_slow(task: TextTask) -> None:
    start = time.monotonic()
    said = refusal_text(task, "vllm", fault=lambda count, body: time.sleep(1.0))
    assert said.startswith(
        "later: the server URL is too slow: no answer within 0.3 s, 2 times; raise --server-timeout"
    )
    assert time.monotonic() - start < 10


def test_a_request_that_is_refused(task: TextTask) -> None:
    said = refusal_text(
        task, "vllm", fault=lambda count, body: (400, {"message": "max_tokens is too large"})
    )
    assert "at the start: the server URL: refuses" in said and "max_tokens is too large" in said


def test_tokens_outside_the_vocabulary(task: TextTask) -> None:
    def change(answer: Any) -> None:
        answer["tokens"][0] = task.vocab

    said = refusal_text(task, "llamacpp", spoil=later(change))
    assert f"gives token {task.vocab}, expected one of a vocabulary of {task.vocab}" in said
    assert said.startswith("later") and refusal_text(task, "llamacpp", spoil=change).startswith(
        "at the start"
    )


def test_tokens_that_are_not_those_of_the_text(task: TextTask) -> None:
    def change(answer: Any) -> None:
        answer["content"] = "something else"

    for spoil, kind in ((change, "at the start"), (later(change), "later")):
        said = refusal_text(task, "llamacpp", spoil=spoil)
        assert (
            said.startswith(kind)
            and "is not that of its token ids, the first 'something else' and" in said
        )


def test_no_token_ids(task: TextTask) -> None:
    def change(answer: Any) -> None:
        for choice in answer["choices"]:
            choice.pop("token_ids")

    said = refusal_text(task, "vllm", spoil=change)
    assert (
        said.startswith("at the start")
        and "gives no token ids; vLLM gives them from 0.10.2 on" in said
    )


def test_another_tokenizer(task: TextTask) -> None:
    def change(answer: Any) -> None:
        answer["usage"]["prompt_tokens"] += 2

    assert "at the start" in refusal_text(task, "me", spoil=change)
    said = refusal_text(task, "me", spoil=later(change))
    received, expected = re.findall(
        r"counts (\d+) tokens in a prompt of (\d+): it has another tokenizer", said
    )[0]
    assert int(received) == int(expected) + 2


def test_no_log_probs_where_they_are_needed(task: TextTask) -> None:
    def change(answer: Any) -> None:
        answer["meta_info"].pop("output_token_logprobs", None)

    said = refusal_text(task, "sglang", needs_logps=True, spoil=change)
    assert said.startswith("at the start") and "gives no log-probs with" in said
    said = refusal_text(task, "me", needs_logps=True)
    assert said.startswith(
        "at the start: the server URL (llama-cpp-python) gives no log-probs of the distribution"
    )


@pytest.mark.parametrize("owner", GIVES_TOKENS)
def test_log_probs_of_another_temperature(task: TextTask, owner: str) -> None:
    """Of two tokens whose logits differ by 3.5, at temperature 0.5 log-probs differ by 7."""
    said = refusal_text(task, owner, needs_logps=True, logp_temperature=1.0)
    assert said.startswith(
        "at the start: the server URL: gives log-probs of another temperature than 0.5"
    )
    assert "two tokens differ by 3.500; expected 7.000 (3.500 at temperature 1)" in said


def test_an_end_that_is_none(task: TextTask) -> None:
    def change(answer: Any) -> None:
        answer |= {
            "tokens": [75],
            "content": task.decode(np.array([75], np.int32)),
            "stop_type": "eos",
        }

    assert "ended a response after token 75, which ends none for isojax ((2,) do)" in refusal_text(
        task, "llamacpp", spoil=change
    )


@pytest.mark.parametrize(
    ("answer", "problem"), [(b"<html>", "gives no JSON"), ({"x": 1}, "is not as those of vllm")]
)
def test_answers_of_another_shape(task: TextTask, answer: Any, problem: str) -> None:
    assert problem in refusal_text(task, "vllm", fault=lambda count, body: (200, answer))


def test_what_a_server_cannot_sample(task: TextTask) -> None:
    with running(FakeServer(task, "me")) as server:
        with refused():
            ServerEngine(make_setup(task, top_p=0.9), LanguageServer(options(server)))
        with refused():
            ServerEngine(replace(make_setup(task), task=Parity()), LanguageServer(options(server)))
    with (
        running(FakeServer(task, "sglang")) as server,
        refused(),
    ):
        ServerEngine(make_setup(task, top_p=0.9), LanguageServer(options(server)), needs_logps=True)
    with refused(where="the server 'ftp://x'"):
        LanguageServer(ServerOptions("ftp://x"))


def test_the_key_of_a_server(task: TextTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISOJAX_SERVER_KEY", "a key")
    with running(FakeServer(task, "vllm")) as server:
        client = LanguageServer(options(server)).client
        assert client._headers(b"") == {
            "Content-Type": "application/json",
            "Authorization": "Bearer a key",
        }


def test_stop_strings_and_texts(tmp_path: Path) -> None:
    """Where a response ends by a stop string, as the local sampler counts it."""
    folder = byte_level(tmp_path / "lm")
    sections: dict[str, Any] = {
        "model": {"path": str(folder)},
        "prompt": {"format": "raw", "stop": ("\n",)},
    }
    task = build_task(CellConfig.model_validate({"task": "addition", **sections}), 1)
    assert not is_on_device(task) and task.stop_strings == ("\n",)
    tokens = np.array(task.tokenizer("12\n7", add_special_tokens=False)["input_ids"])
    end = task.find_end(tokens)
    assert (
        end is not None
        and task.decode(tokens[: end - 1]) == "12"
        and task.find_end(tokens[: end - 1]) is None
    )
    assert task.decode(task.tokens_of_text("12", stopped=True)) == "12"
    assert task.tokens_of_text("12", stopped=True)[-1] == 2
    assert task.find_end(task.tokens_of_text("12", stopped=False)) is None


@pytest.mark.parametrize(
    ("adds_bos", "counts", "text", "sent"),
    [
        (True, True, "<s>2+2=", ["<s>2+2=", "2+2="]),
        (False, True, "<s>2+2=", ["<s>2+2="]),
        (True, True, "2+2=", ["2+2="]),
        (True, False, "<s>2+2=", ["<s>2+2="]),  # it does not say how many tokens it has read
    ],
)
def test_a_server_of_texts_that_adds_the_first_token_is_sent_prompts_without_it(
    adds_bos: bool, counts: bool, text: str, sent: list[str]
) -> None:
    """Its count of the prompt's tokens shows that there is one too many."""
    prompts: list[str] = []
    prompt = (1, 5, 6, 7)

    def complete(ask: Ask) -> list[Completion]:
        prompts.append(ask.prompt_text)
        number = 3 + ask.prompt_text.startswith("<s>") + adds_bos
        return [Completion("4", True, prompt_tokens=number if counts else None)]

    engine: Any = SimpleNamespace(
        task=SimpleNamespace(tokenizer=SimpleNamespace(bos_token="<s>")),
        served=SimpleNamespace(dialect=SimpleNamespace(gives_tokens=False)),
        server=SimpleNamespace(complete=complete),
        needs_logps=False,
        _adds_bos=False,
        _inspector=SimpleNamespace(to_response=lambda ask, completion: None, mismatches=[]),
    )
    engine._complete = partial(ServerEngine._complete, engine)
    ask = Ask(
        prompt,
        text,
        n=4,
        seed=0,
        temperature=1.0,
        top_p=1.0,
        max_tokens=3,
        stop_tokens=(),
        stop_strings=(),
    )
    ServerEngine._check_server(engine, [ask])
    assert prompts == sent and engine._adds_bos == (len(sent) == 2)
