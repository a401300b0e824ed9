"""isojax's own sampler behind OpenAI's completions API, as vLLM extends it:

    python -m tests.e2e.completions_server CONFIG.yaml

serves the model of a config with its sampling settings, and prints its URL. Texts are made by the
tokenizer itself."""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jax
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


class OwnSampler:
    """Answers one request at a time."""

    def __init__(self, config: Config) -> None:
        cell = config.cell
        task = build_task(cell, 1)
        mesh = make_mesh(parse_mesh("data=1", 1), jax.local_devices()[:1])
        assert not is_on_device(task) and cell.model.path is not None
        self.task: TextTask = task
        decoder = Decoder(cell.model, task.vocab)
        self.params = hf_load.load(Path(cell.model.path), cell.model, decoder, mesh)
        lengths = {
            "prompt_length": cell.sampling.prompt_length,
            "response_length": cell.sampling.response_length,
        }
        self.shapes = SamplerShapes(
            [(1, MAX_N)], 1, slots=8, microbatch=8, **lengths, prefill_batch=1
        )
        self.engine = local_engine(EngineSetup(decoder, task, self.shapes, mesh, cell.sampling))
        self.lock = threading.Lock()

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
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
        with self.lock:
            rollouts = self.engine.sample(self.params, request, Listener(lambda *_: None))
        assert isinstance(rollouts, Rollouts)
        responses = lists_from_rollouts(rollouts, Layout(1, body["n"], shards=1))
        choices = [self.choice(i, response) for i, response in enumerate(responses)]
        return {"choices": choices, "usage": {"prompt_tokens": len(body["prompt"])}}

    def choice(self, index: int, response: SampledResponse) -> dict[str, Any]:
        ids = [int(token) for token in response.tokens]
        ends_by_token = response.stopped and ids[-1] in self.task.stops.tokens
        text = str(
            self.task.tokenizer.decode(ids[:-1] if ends_by_token else ids, skip_special_tokens=True)
        )
        if response.stopped and not ends_by_token:  # a stop string did
            text = text[: min(text.find(stop) for stop in self.task.stop_strings if stop in text)]
        reason = "stop" if response.stopped else "length"
        return {
            "index": index,
            "text": text,
            "token_ids": ids,
            "finish_reason": reason,
            "logprobs": None,
        }


def main() -> None:
    sampler = OwnSampler(resolve_config(load_config(sys.argv[1])))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply({"data": [{"id": "own", "owned_by": "isojax"}]})

        def do_POST(self) -> None:
            self.reply(
                sampler.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            )

        def reply(self, answer: dict[str, Any]) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
