"""A server of language models for tests, in a thread: it draws tokens at random, writes them as
each project does, and may be faulty."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from isojax.tasks.task import TextTask

# The log-probs of three tokens at temperature 1, by the ids that a fake server draws its first
# token from.
FIRST_LOGITS = {80: 2.0, 81: 0.5, 82: -1.5}


NO_ANSWER = 0


@dataclass
class Drawn:
    tokens: list[int]
    logps: list[float]
    stopped: bool


@dataclass
class FakeServer:
    """Answers as the project `owner` does."""

    task: TextTask
    owner: str  # as /v1/models says
    url: str = ""
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # (path, body) of all
    # by prompt, in the order of draws
    drawn: dict[tuple[int, ...], list[Drawn]] = field(default_factory=dict)
    # What replaces an answer (status, JSON), of the number of the request and its body; None: an
    # honest answer; of status NO_ANSWER, the connection is closed without one.
    fault: Callable[[int, dict[str, Any]], tuple[int, Any] | None] = lambda count, body: None
    spoil: Callable[[Any], None] = lambda answer: None  # changes an honest answer
    logp_temperature: float | None = None  # that log-probs are of, whatever is asked for
    # What is answered to requests that announce weights, by path: (status, JSON or bytes).
    updates: dict[str, tuple[int, Any]] = field(default_factory=dict)
    version: str | None = None  # of the weights, as SGLang tells it
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        if body is None:
            assert path == "/v1/models"
            return 200, {"object": "list", "data": [{"id": "the-model", "owned_by": self.owner}]}
        with self.lock:
            self.requests.append((path, body))
            if path in self.updates:
                return self.updates[path]
            if (faulty := self.fault(len(self.requests), body)) is not None:
                return faulty
            answer = getattr(self, f"_as_{self.owner}")(body)
            self.spoil(answer)
            return 200, answer

    def _draw(self, prompt: Sequence[int], seed: int, most: int) -> Drawn:
        """A response of text tokens, which ends with the end token 2 in one case of three at each
        token."""
        rng = np.random.default_rng(seed)
        tokens: list[int] = []
        while len(tokens) < most and tokens[-1:] != [2]:
            tokens.append(2 if rng.random() < 1 / 3 else int(rng.integers(70, 90)))
        drawn = Drawn(tokens, [-0.25 * (1 + t % 4) for t in tokens], tokens[-1] == 2)
        self.drawn.setdefault(tuple(prompt), []).append(drawn)
        return drawn

    def _text(self, drawn: Drawn) -> str:
        return self.task.decode(np.array(drawn.tokens, np.int32))

    def _tops(self, temperature: float) -> dict[int, float]:
        scaled = {
            t: logit / (self.logp_temperature or temperature) for t, logit in FIRST_LOGITS.items()
        }
        total = math.log(sum(map(math.exp, scaled.values())))
        return {t: value - total for t, value in scaled.items()}

    def _as_vllm(self, body: dict[str, Any]) -> Any:
        assert (
            body["ignore_eos"]
            and body["return_token_ids"]
            and body["top_k"] == -1
            and body["model"] == "the-model"
        )
        assert body["stop_token_ids"] == list(self.task.stops.tokens)
        choices = []
        for i in range(body["n"]):
            drawn = self._draw(body["prompt"], body["seed"] + i, body["max_tokens"])
            choice = {
                "index": i, "text": self._text(drawn),
                "finish_reason": "stop" if drawn.stopped else "length",
                "token_ids": drawn.tokens, "logprobs": None,
            }  # fmt: skip
            if "logprobs" in body:
                tops = {
                    f"token_id:{t}": logp for t, logp in self._tops(body["temperature"]).items()
                }
                names = [f"token_id:{t}" for t in drawn.tokens]
                choice["logprobs"] = {
                    "tokens": names, "token_logprobs": drawn.logps,
                    "top_logprobs": [tops] * len(names),
                }  # fmt: skip
            choices.append(choice)
        return {"choices": choices[::-1], "usage": {"prompt_tokens": len(body["prompt"])}}

    def _as_sglang(self, body: dict[str, Any]) -> Any:
        sampling, answers = body["sampling_params"], []
        for _ in range(sampling["n"]):
            drawn = self._draw(
                body["input_ids"],
                len(self.requests) * 100 + len(answers),
                sampling["max_new_tokens"],
            )
            details: dict[str, Any] = {
                "finish_reason": {"type": "stop" if drawn.stopped else "length"},
                "prompt_tokens": len(body["input_ids"]),
                **({} if self.version is None else {"weight_version": self.version}),
            }
            if body.get("return_logprob"):
                tops = [[logp, t, None] for t, logp in self._tops(sampling["temperature"]).items()]
                pairs = zip(drawn.logps, drawn.tokens, strict=True)
                details["output_token_logprobs"] = [[logp, t, None] for logp, t in pairs]
                details["output_top_logprobs"] = [tops] * len(drawn.tokens)
            answers.append(
                {"text": self._text(drawn), "output_ids": drawn.tokens, "meta_info": details}
            )
        return answers if len(answers) > 1 else answers[0]

    def _as_llamacpp(self, body: dict[str, Any]) -> Any:
        assert body["samplers"] == ["temperature", "top_p"] and body["return_tokens"]
        drawn = self._draw(body["prompt"], body["seed"], body["n_predict"])
        answer: dict[str, Any] = {
            "content": self._text(drawn), "tokens": drawn.tokens,
            "stop_type": "eos" if drawn.stopped else "limit",
            "tokens_evaluated": len(body["prompt"]),
        }  # fmt: skip
        if "n_probs" in body:
            tops = [
                {"id": t, "prob": math.exp(logp)}
                for t, logp in self._tops(body["temperature"]).items()
            ]
            pairs = zip(drawn.tokens, drawn.logps, strict=True)
            answer["completion_probabilities"] = [
                {"id": t, "prob": math.exp(logp), "top_probs": tops} for t, logp in pairs
            ]
        return answer

    def _as_me(self, body: dict[str, Any]) -> Any:
        """llama-cpp-python, which tokenises prompts itself."""
        prompt = self.task.tokenizer(body["prompt"], add_special_tokens=False)["input_ids"]
        assert (body["top_k"], body["min_p"], body["repeat_penalty"]) == (0, 0, 1)
        drawn = self._draw(prompt, body["seed"], body["max_tokens"])
        choice = {
            "index": 0,
            "text": self._text(drawn),
            "finish_reason": "stop" if drawn.stopped else "length",
        }
        return {"choices": [choice], "usage": {"prompt_tokens": len(prompt)}}


@contextmanager
def running(server: FakeServer) -> Iterator[FakeServer]:
    """The server with its URL, while the context lasts."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply(None)

        def do_POST(self) -> None:
            self._reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _reply(self, body: dict[str, Any] | None) -> None:
            status, answer = server.answer(self.path, body)
            if status == NO_ANSWER:
                return
            data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            try:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(data)
            except (BrokenPipeError, ConnectionResetError):  # nobody waits any more
                pass

        def log_message(self, format: str, *args: Any) -> None: ...

    http_server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http_server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{http_server.server_port}"
    try:
        yield server
    finally:
        http_server.shutdown()
        http_server.server_close()
