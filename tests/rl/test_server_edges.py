"""What a server is sent and what is read of its answers, by hand; and where exactly a response, or
a server, is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from isojax.core.errors import InputError, ServerFailed
from isojax.rl.servers import http_json, server_engine, weight_check
from isojax.rl.servers import inspector as inspector_module
from isojax.rl.servers.dialect import Ask, Completion
from isojax.rl.servers.http_json import JsonClient, ServerOptions
from isojax.rl.servers.inspector import ResponseInspector
from isojax.rl.servers.llama_cpp import LlamaCpp
from isojax.rl.servers.llama_cpp_python import LlamaCppPython
from isojax.rl.servers.openai_completions import OpenAICompletions
from isojax.rl.servers.policy_server import PolicyServer
from isojax.rl.servers.server_engine import ServerEngine
from isojax.rl.servers.sglang import SGLang
from isojax.rl.servers.weight_check import Moves, ProbeLogps, WeightCheck, measure_moves
from tests.refusals import refused

T, VOCAB, END = 4, 10, 2
ASK = Ask(
    (5, 6),
    "five six",
    n=1,
    seed=3,
    temperature=0.5,
    top_p=1.0,
    max_tokens=T,
    stop_tokens=(END,),
    stop_strings=(),
    with_logps=True,
)


def test_nothing_but_top_p_cuts_the_distribution() -> None:
    """Whatever a model's own settings, or a server's, say."""
    whole = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    vllm = OpenAICompletions().write("m", ASK).body
    sglang = SGLang().write("m", ASK).body["sampling_params"]
    for body in (vllm, sglang):
        assert {name: body[name] for name in whole} == whole
    of_texts = LlamaCppPython().write("m", ASK).body
    assert (of_texts["top_k"], of_texts["min_p"], of_texts["repeat_penalty"]) == (0, 0.0, 1.0)
    assert LlamaCpp().write("m", ASK).body["samplers"] == ["temperature", "top_p"]


def test_a_probability_of_zero_has_no_logarithm() -> None:
    token = {"prob": 0.0, "top_probs": [{"id": 4, "prob": 0.0}, {"id": 5, "prob": 1.0}]}
    answer = {
        "content": "x",
        "stop_type": "limit",
        "tokens": [4],
        "completion_probabilities": [token],
    }
    [completion] = LlamaCpp().read(answer)
    assert completion.logps == [-math.inf]
    assert completion.first_alternatives == {4: -math.inf, 5: 0.0}


class Texts:
    """A task whose tokens are letters, a, b, c ..., of which c ends a response."""

    vocab, folder = VOCAB, "folder"
    stops = SimpleNamespace(tokens=(END,))
    tokenizer = SimpleNamespace(added_tokens_decoder={})

    def find_end(self, tokens: np.ndarray) -> int | None:
        return next((i + 1 for i, token in enumerate(tokens) if token == END), None)

    def decode(self, tokens: np.ndarray) -> str:
        return "".join(chr(97 + token) for token in tokens)

    def tokens_of_text(self, text: str, stopped: bool) -> np.ndarray:
        return np.array([ord(letter) - 97 for letter in text] + [END] * stopped)


def make_inspector(gives_tokens: bool = True) -> ResponseInspector:
    task: Any = Texts()
    dialect: Any = SimpleNamespace(gives_tokens=gives_tokens, token_fix="take another")
    served: Any = SimpleNamespace(dialect=dialect, project="p", model="m")
    return ResponseInspector(task, T, served, "URL")


def answer(
    tokens: Sequence[int], stopped: bool, logps: int | None = None, text: str = ""
) -> Completion:
    """With the text of its tokens, and as many log-probs as tokens."""
    count = len(tokens) if logps is None else logps
    own = "".join(chr(97 + token) for token in tokens)
    return Completion(text or own, stopped, list(tokens), [-0.5 * i for i in range(count)])


@pytest.mark.parametrize(
    ("tokens", "says_stopped", "length", "stopped"),
    [
        ([0, END], True, 2, True),
        ([0, 1, 3, END], True, 4, True),  # its last token may be the T-th
        ([0, 1, 3, 4], False, 4, False),
        ([0, 1, 3, 4], True, 4, False),  # what a server says of T tokens is not looked at
        ([0, 1, 3, 4, END], True, 4, False),
        ([VOCAB - 1, 0, 0, 0], False, 4, False),
    ],
)
def test_a_response_ends_where_isojax_would_end_it(
    tokens: list[int], says_stopped: bool, length: int, stopped: bool
) -> None:
    text = Texts().decode(np.array(tokens[:length]))
    response = make_inspector().to_response(ASK, answer(tokens, says_stopped, text=text))
    assert np.asarray(response.tokens).tolist() == tokens[:length]
    assert np.asarray(response.logps).tolist() == [-0.5 * i for i in range(length)]
    assert response.stopped == stopped


@pytest.mark.parametrize(
    ("completion", "words"),
    [
        (answer([0, 1, 3], True), "ended a response after token 3"),
        (answer([0, 1, 3], False), "cut a response after 3 tokens, expected 4"),
        (answer([0, VOCAB, 0, 0], False), "gives token 10"),
        (answer([0, -1, 0, 0], False), "gives token -1"),
        (answer([], False), "a response without tokens"),
        (answer([0, 1, 3, END], True, logps=3), "3 log-probs with 4 tokens"),
        (replace(answer([0, END], True), logps=None), "no log-probs with 2 tokens"),
        (replace(answer([0, END], True), prompt_tokens=3), "counts 3 tokens in a prompt of 2"),
    ],
)
def test_what_is_no_such_response(completion: Completion, words: str) -> None:
    with pytest.raises(ServerFailed, match=words):
        make_inspector().to_response(ASK, completion)


def test_zeros_where_no_log_probs_were_asked_for() -> None:
    response = make_inspector().to_response(replace(ASK, with_logps=False), answer([0, END], True))
    assert np.asarray(response.logps).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("text", "stopped", "tokens"),
    [("ab", True, [0, 1, END]), ("abde", False, [0, 1, 3, 4]), ("", False, [])],
)
def test_of_a_text_alone_the_tokens_are_isojaxs(
    text: str, stopped: bool, tokens: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few they are: those that were drawn may be others."""
    inspector = make_inspector(gives_tokens=False)
    compared: list[tuple[str, str]] = []
    monkeypatch.setattr(inspector, "_compare", lambda *texts: compared.append(texts))
    response = inspector.to_response(replace(ASK, with_logps=False), Completion(text, stopped))
    assert np.asarray(response.tokens).tolist() == tokens and response.stopped == stopped
    assert compared == [(text, f"{text}c" if stopped else text)]


def test_a_few_texts_may_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two, or one in a hundred: three of 300 responses may, and not of 299. The first
    mismatch is warned of, unless it is the first response, which is refused elsewhere."""
    warned: list[str] = []
    monkeypatch.setattr(inspector_module, "warn", warned.append)
    inspector = make_inspector()
    inspector._compare("a", "a")
    for _ in range(2):
        inspector._compare("b", "c")
    assert (inspector.responses, inspector.mismatches, len(warned)) == (3, 2, 1)
    for _ in range(296):
        inspector._compare("a", " a\n")
    assert inspector.responses == 299
    inspector._compare("b", "c")
    assert (inspector.responses, inspector.mismatches) == (300, 3)

    strict = make_inspector()
    for _ in range(296):
        strict._compare("a", "a")
    strict._compare("b", "c")
    strict._compare("b", "c")
    with pytest.raises(ServerFailed, match="the text of 3 of 299 responses"):
        strict._compare("b", "c")

    warned.clear()
    first = make_inspector()
    first._compare("b", "c")
    assert first.mismatches == 1 and not warned
    assert (
        "the text of 1 of 1 responses" in first.describe_mismatch()
        and "'b' and 'c'" in first.describe_mismatch()
    )


def temperature_check(
    at_one: Sequence[dict[int, float]],
    as_asked: Sequence[dict[int, float]],
    monkeypatch: pytest.MonkeyPatch,
) -> list[str]:
    """What is warned of, where prompt i has these log-probs of first tokens, at temperature 1 and
    at 1/2."""
    warned: list[str] = []
    monkeypatch.setattr(server_engine, "warn", warned.append)
    engine: Any = SimpleNamespace(
        options=SimpleNamespace(url="URL"),
        served=SimpleNamespace(dialect=SimpleNamespace(logp_fix="")),
        _alternatives=lambda ask: (at_one if ask.temperature == 1 else as_asked)[ask.prompt[0]],
    )
    asks = [replace(ASK, prompt=(i,)) for i in range(len(at_one))]
    ServerEngine._check_temperature(engine, asks)
    return warned


@pytest.mark.parametrize(
    ("at_one", "as_asked", "is_refused"),
    [
        ({4: -1.0, 5: -2.0}, {4: -0.5, 5: -2.5}, False),  # 1 nat, and twice that
        ({4: -1.0, 5: -2.0}, {4: -1.0, 5: -2.0}, True),
        ({4: -1.0, 5: -2.0}, {4: -0.5, 5: -2.25}, True),  # off by 0.25, of which 0.2 is borne
        ({4: -1.0, 5: -2.0}, {4: -0.5, 5: -2.375}, False),
        ({4: -1.0, 5: -1.375}, {4: -1.0, 5: -1.625}, True),  # by 0.125; below 1 nat 0.1 is borne
        ({4: -1.0, 5: -1.375}, {4: -1.0, 5: -1.6875}, False),
        # the least and the most likely of the tokens that both answers name
        ({4: -1.0, 5: -2.0, 6: -9.0}, {7: -0.1, 4: -0.5, 5: -2.5}, False),
    ],
)
def test_the_temperature_that_two_tokens_tell(
    at_one: dict[int, float],
    as_asked: dict[int, float],
    is_refused: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not is_refused:
        assert not temperature_check([at_one], [as_asked], monkeypatch)
        return
    with refused(where="the server URL"):
        temperature_check([at_one], [as_asked], monkeypatch)


def test_a_prompt_that_tells_no_temperature_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """One token, or two that are nearly as likely; after four such prompts it is warned of."""
    one, even, wrong = {4: 0.0}, {4: -1.0, 5: -1.25}, {4: -1.0, 5: -2.0}
    assert len(temperature_check([one, even, even, one], [one, even, even, one], monkeypatch)) == 1
    assert (
        len(
            temperature_check(
                [one, even, even, one, wrong], [one, even, even, one, wrong], monkeypatch
            )
        )
        == 1
    )
    with refused(where="the server URL"):
        temperature_check([one, even, even, wrong], [one, even, even, wrong], monkeypatch)
    # at 0.5 a difference of 0.5 changes by as much, which is enough
    monkeypatch.setattr(server_engine, "MIN_LOGP_CHANGE", 0.5)
    with refused(where="the server URL"):
        temperature_check([{4: -1.0, 5: -1.5}], [{4: -1.0, 5: -1.5}], monkeypatch)


def logps_of(update: int, of_server: Sequence[float], own: Sequence[float]) -> ProbeLogps:
    return ProbeLogps(update, np.float32([of_server]), np.float32([own]))


def test_moves_are_of_the_tokens_that_both_answers_have() -> None:
    """Own 3 and 1, of the server 1 and 7; a third token has no log-prob any more."""
    before = logps_of(1, [-1, -2, -3], [-1, -2, -3])
    after = logps_of(2, [-2, -9, math.nan], [-4, -1, -30])
    moves = measure_moves(after, before)
    assert moves.own == pytest.approx(math.sqrt(5)) and moves.of_server == pytest.approx(5)
    assert not Moves(own=2.0, of_server=1.0).server_stayed
    assert Moves(own=2.0, of_server=0.99).server_stayed
    assert logps_of(3, [-1, -2, -3, math.nan], [-1.5, -2, -5, -9]).gap == 0.5


def weight_check_of(*history: ProbeLogps) -> WeightCheck:
    check = object.__new__(WeightCheck)
    check.history, check.first = list(history), history[0]
    return check


def test_the_newest_answers_that_are_far_enough_are_compared_with() -> None:
    """A move of MIN_MOVE is; nearer ones are not, and are kept for later."""
    move = weight_check.MIN_MOVE
    old, near, newest = (logps_of(i, [-1.0], [-1.0 + move * i / 2]) for i in range(3))
    check = weight_check_of(old, near)
    far = measure_moves(newest, old).own
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weight_check, "MIN_MOVE", far)
        assert check._find_former(newest) is old
        patch.setattr(weight_check, "MIN_MOVE", far * 1.01)
        assert check._find_former(newest) is None
        patch.setattr(weight_check, "MIN_MOVE", far / 4)
        assert check._find_former(newest) is near
        check._remember(newest)
        assert check.history == [near, newest]


@pytest.mark.parametrize(
    ("first_gap", "own_move", "gap", "is_old"),
    [
        (0.01, 0.0, 0.0625, True),  # five times the first gap, and more
        (0.02, 0.0, 0.0625, False),
        (0.01, 1.0, 0.0625, False),  # no tenth of the policy's own move
        (0.0, 0.5, 0.0625, True),
        (0.0, 0.0, 0.0019, False),
        (0.0, 0.0, 0.0022, True),
    ],
)
def test_a_gap_that_grows_shows_a_part_of_old_weights(
    first_gap: float, own_move: float, gap: float, is_old: bool
) -> None:
    first = logps_of(0, [-1.0 - first_gap], [-1.0])
    now = logps_of(9, [-1.0 + own_move - gap], [-1.0 + own_move])
    assert bool(weight_check_of(first)._find_old_part(now)) == is_old


def test_an_unlikely_token_shows_no_other_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start; a likely one is off by more than any rounding from half a nat on."""

    def begin(of_server: float, own: float) -> None:
        check = object.__new__(WeightCheck)
        check.server = SimpleNamespace(name="server")  # type: ignore[assignment]
        check._ask = lambda contexts: [weight_check.OneToken({4: of_server}, None)]  # type: ignore[method-assign]
        check._compute_own = lambda params: np.float32([[own, 0, 0, 0, 0]])  # type: ignore[method-assign]
        check.begin({}, 3, [[1, 2]])

    begin(-2.0, -2.5)
    begin(-7.0, -9.0)
    for of_server, own in ((-2.0, -2.625), (-2.0, -1.375), (-6.875, -9.0)):
        with pytest.raises(ServerFailed, match="does not have the weights of update 3"):
            begin(of_server, own)


def test_a_request_is_repeated_after_waits_that_double(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice; after the last attempt nobody waits."""
    waits: list[float] = []
    monkeypatch.setattr(http_json.time, "sleep", waits.append)
    attempts: list[str] = []

    def fail(self: JsonClient, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        attempts.append(path)
        raise OSError("lost")

    monkeypatch.setattr(JsonClient, "_ask_once", fail)
    client = JsonClient(ServerOptions("here:1", retries=2, first_wait=0.5))
    with pytest.raises(ServerFailed, match="does not answer"):
        client.get("/x")
    assert attempts == ["/x"] * 3 and waits == [0.5, 1.0] and client.lost_requests == 3


@pytest.mark.parametrize(
    ("status", "attempts"), [(499, 1), (500, 3), (501, 3), (429, 3), (400, 1), (201, 1)]
)
def test_which_statuses_may_pass(
    status: int, attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(http_json.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(JsonClient, "_ask_once", lambda *_: asked.append(status) or (status, b"{}"))
    client = JsonClient(ServerOptions("here:1", retries=2))
    with pytest.raises((InputError, ServerFailed), match=f"status {status}"):
        client.get("/x")
    assert len(asked) == attempts


@pytest.mark.parametrize(
    ("url", "kind", "path"),
    [
        ("https://here:1/v1", "HTTPSConnection", "/x"),
        ("here:1/models/v1/", "HTTPConnection", "/models/x"),
    ],
)
def test_where_a_request_goes(
    url: str, kind: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    class Connection:
        def __init__(self, host: str, port: int, timeout: float):
            made.append((host, port))

        def request(self, method: str, path: str, body: Any, headers: Any) -> None:
            made.append((method, path))
            raise OSError("lost")

        def close(self) -> None: ...

    monkeypatch.setattr(http_json, kind, Connection)
    with pytest.raises(ServerFailed):
        JsonClient(ServerOptions(url, retries=0)).get("/x")
    assert made == [("here", 1), ("GET", path)]


def test_the_weights_are_checked_by_rollouts_of_many_problems() -> None:
    """Of 35 every second one; and each with the first half of its response."""
    begun: list[Any] = []
    check = SimpleNamespace(begin=lambda *arguments: begun.append(arguments))
    server: Any = SimpleNamespace(check=check, update=3)
    PolicyServer.begin_check(server, {"w": 1}, [[i] for i in range(35)])
    assert begun == [({"w": 1}, 3, [[i] for i in range(0, 35, 2)])]
    PolicyServer.begin_check(server, {}, [[i] for i in range(5)])
    assert begun[1][2] == [[i] for i in range(5)]

    engine: Any = SimpleNamespace(_prompt=lambda request, q: [100 + q])
    responses: Any = [SimpleNamespace(tokens=list(range(k))) for k in (1, 2, 5, 6)]
    request: Any = SimpleNamespace(n=2)
    assert ServerEngine._begun_sequences(engine, request, responses) == [
        [100],
        [100, 0],
        [101, 0, 1],
        [101, 0, 1, 2],
    ]
