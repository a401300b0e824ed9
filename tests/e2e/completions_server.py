"""isojax's own sampler behind OpenAI's completions API, as vLLM extends it:

    python -m tests.e2e.completions_server CONFIG.yaml

serves the model of a config with its sampling settings, and prints its URL. Texts are made by the
tokenizer itself. Weights are loaded by vLLM's request for it. POST /fault {"kind": KIND, "after":
N} makes the server faulty, when it has answered N more requests for responses."""

from __future__ import annotations

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from isojax.core.config import Config, load_config
from isojax.core.nouns import Problem
from isojax.core.shapes import SamplerShapes
from isojax.distributed.mesh_spec import parse_mesh
from isojax.distributed.sharding import make_mesh
from isojax.launch.local.setup import resolve_config
from isojax.models.hf import hf_load
from isojax.models.transformer import Decoder
from isojax.rl.engines import EngineSetup, Listener, SampleRequest
from isojax.rl.engines.local import local_engine
from isojax.rl.rollout_lists import SampledResponse, lists_from_rollouts
from isojax.sampling.batch import ProblemArrays, Rollouts
from isojax.sampling.layout import Layout
from isojax.tasks.task import TextTask, build_task, is_on_device

MAX_N = 16  # responses of a request
FAULTS = ("", "dead", "wrong token ids", "old weights", "another model")


class OwnSampler:
    """Answers one request at a time."""

    def __init__(self, config: Config) -> None:
        cell = config.cell
        task = build_task(cell, 1)
        mesh = make_mesh(parse_mesh("data=1", 1), jax.local_devices()[:1])
        assert not is_on_device(task) and cell.model.path is not None
        self.task: TextTask = task
        self.model, self.mesh = cell.model, mesh
        self.decoder = Decoder(cell.model, task.vocab)
        self.load_weights(cell.model.path)
        lengths = {
            "prompt_length": cell.sampling.prompt_length,
            "response_length": cell.sampling.response_length,
        }
        self.shapes = SamplerShapes(
            [(1, MAX_N)], 1, slots=8, microbatch=8, **lengths, prefill_batch=1
        )
        self.engine = local_engine(
            EngineSetup(self.decoder, task, self.shapes, mesh, cell.sampling)
        )
        self.next_logits = jax.jit(self.compute_next_logits)
        self.lock = threading.Lock()
        self.next_fault, self.requests_to_fault = "", 0

    @property
    def fault(self) -> str:
        return self.next_fault if self.requests_to_fault <= 0 else ""

    def load_weights(self, folder: str) -> None:
        model = self.model.model_copy(update={"path": folder})
        self.params = hf_load.load(Path(folder), model, self.decoder, self.mesh)

    def compute_next_logits(self, params: Any, tokens: Any, length: Any) -> Any:
        hidden = self.decoder.forward(params, tokens[None], jnp.zeros(1, jnp.int32))
        return self.decoder.logits(params, hidden[0, length - 1])

    def respond(self, path: str, body: dict[str, Any]) -> Any:
        if path == "/fault":
            assert body["kind"] in FAULTS
            self.next_fault, self.requests_to_fault = body["kind"], body["after"]
            return {}
        if path == "/v1/completions":
            self.requests_to_fault -= 1
        if self.fault == "dead":
            os._exit(1)
        with self.lock:
            if path == "/v1/completions":
                return self.answer(body)
            if path == "/collective_rpc" and self.fault != "old weights":
                assert body["method"] == "reload_weights"
                self.load_weights(body["kwargs"]["weights_path"])
            assert path in ("/collective_rpc", "/reset_prefix_cache")
            return None

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        if body["max_tokens"] == 1:
            choices = [self.one_token(body)]
        else:
            responses = self.sample(body)
            choices = [
                self.choice(i, response, "logprobs" in body) for i, response in enumerate(responses)
            ]
        if self.fault == "wrong token ids":
            for choice in choices:
                choice["token_ids"] = [self.task.vocab + 1, *choice["token_ids"][1:]]
        return {"choices": choices, "usage": {"prompt_tokens": len(body["prompt"])}}

    def sample(self, body: dict[str, Any]) -> list[SampledResponse]:
        sampling = self.engine.setup.sampling
        assert (body["temperature"], body["top_p"]) == (sampling.temperature, sampling.top_p)
        rows, P = self.shapes.problem_rows, self.shapes.prompt_length
        prompt = np.zeros(P, np.int32)
        prompt[: len(body["prompt"])] = body["prompt"]
        arrays = ProblemArrays(
            prompts=np.tile(prompt, (rows, 1)),
            lengths=np.full(rows, len(body["prompt"]), np.int32),
            answers=np.zeros((rows, 0), np.int32),
            ids=np.zeros(rows, np.int32),
        )
        request = SampleRequest(
            [Problem(0, "", "")], arrays, body["n"], jax.random.key(body["seed"])
        )
        rollouts = self.engine.sample(self.params, request, Listener(lambda *_: None))
        assert isinstance(rollouts, Rollouts)
        return lists_from_rollouts(rollouts, Layout(1, body["n"], shards=1))

    def one_token(self, body: dict[str, Any]) -> dict[str, Any]:
        """The likeliest token, with the log-probs of so many of the likeliest as were asked for."""
        prompt = np.zeros(self.shapes.prompt_length + self.shapes.response_length, np.int32)
        prompt[: len(body["prompt"])] = body["prompt"]
        logits = np.asarray(self.next_logits(self.params, prompt, len(body["prompt"])), np.float64)
        scaled = logits / body["temperature"]
        log_p = scaled - scaled.max()
        log_p -= np.log(np.exp(log_p).sum())
        order = np.argsort(-log_p)[: max(1, body.get("logprobs", 0))].tolist()
        tops = {f"token_id:{token}": float(log_p[token]) for token in order}
        name, logp = next(iter(tops.items()))
        logprobs = {"tokens": [name], "token_logprobs": [logp], "top_logprobs": [tops]}
        text = self.task.tokenizer.decode(order[:1])
        return {
            "index": 0,
            "text": text,
            "token_ids": order[:1],
            "finish_reason": "length",
            "logprobs": logprobs,
        }

    def choice(self, index: int, response: SampledResponse, with_logps: bool) -> dict[str, Any]:
        ids = [int(token) for token in response.tokens]
        ends_by_token = response.stopped and ids[-1] in self.task.stops.tokens
        text = str(
            self.task.tokenizer.decode(ids[:-1] if ends_by_token else ids, skip_special_tokens=True)
        )
        if response.stopped and not ends_by_token:  # a stop string did
            text = text[: min(text.find(stop) for stop in self.task.stop_strings if stop in text)]
        reason = "stop" if response.stopped else "length"
        names = [f"token_id:{token}" for token in ids]
        logprobs = {"tokens": names, "token_logprobs": [float(logp) for logp in response.logps]}
        return {
            "index": index, "text": text, "token_ids": ids, "finish_reason": reason,
            "logprobs": logprobs if with_logps else None,
        }  # fmt: skip


def main() -> None:
    sampler = OwnSampler(resolve_config(load_config(sys.argv[1])))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            model = "another" if sampler.fault == "another model" else "own"
            self.reply({"data": [{"id": model, "owned_by": "isojax"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.reply(sampler.respond(self.path, body))

        def reply(self, answer: Any) -> None:
            data = b"" if answer is None else json.dumps(answer).encode()
            try:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(data)
            except (BrokenPipeError, ConnectionResetError):  # nobody waits any more
                pass

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(
        ("127.0.0.1", int(sys.argv[2]) if len(sys.argv) > 2 else 0), Handler
    )
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
