"""What a server is given of a policy: a folder with its weights, and the requests that announce
it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from isojax.core.config import CellConfig
from isojax.core.config.model import LoraConfig
from isojax.core.config.sweep import ServerConfig
from isojax.core.errors import InputError, ServerFailed
from isojax.models.hf import hf_load
from isojax.models.transformer import Decoder
from isojax.rl.servers.policy_server import PolicyServer
from isojax.tasks.task import TextTask, build_task, is_on_device
from tests.device import mesh
from tests.e2e.tiny_lm import VOCAB, make_model
from tests.refusals import refused
from tests.rl.fake_servers import FakeServer, running

EMPTY = (200, b"")
VLLM = {"/collective_rpc": (200, {"results": [None]}), "/reset_prefix_cache": EMPTY}


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("lm"))


@pytest.fixture(scope="module")
def task(lm: Path) -> TextTask:
    sections: dict[str, Any] = {"model": {"path": str(lm)}, "prompt": {"format": "raw"}}
    made = build_task(CellConfig.model_validate({"task": "addition", **sections}), 1)
    assert not is_on_device(made)
    return made


def make_decoder(lm: Path, lora: LoraConfig | None = None) -> Decoder:
    config = CellConfig.model_validate({"model": {"path": str(lm)}}).model
    return Decoder(hf_load.resolve_model(config).model_copy(update={"lora": lora}), VOCAB)


def draw(decoder: Decoder, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: jax.device_put(rng.normal(size=x.shape).astype(np.float32)), decoder.shapes()
    )


def open_server(
    server: FakeServer, decoder: Decoder, weights: Path | None, **settings: Any
) -> PolicyServer:
    config = ServerConfig(
        weights=None if weights is None else str(weights), timeout=20.0, **settings
    )
    return PolicyServer(config, server.url, decoder, mesh("data=1"), "run")


def test_each_policy_is_written_announced_and_the_last_one_kept(
    lm: Path, task: TextTask, tmp_path: Path
) -> None:
    decoder, folder = make_decoder(lm), tmp_path / "weights" / "run"
    first, second = draw(decoder), draw(decoder, seed=1)
    with running(FakeServer(task, "vllm", updates=VLLM)) as server:
        policy_server = open_server(server, decoder, tmp_path / "weights")
        assert policy_server.description == {"server": "vllm", "model": "the-model"}
        policy_server.publish(first, 0)
        policy_server.publish(dict(first), 0)  # the same arrays: it has them
        (folder / "mine").mkdir()
        (folder / "update-7").mkdir()  # of a run before that was killed, like the next
        (folder / ".update-6.123").mkdir()
        policy_server.publish(second, 7)

    paths = [str(folder / f"update-{update}") for update in (0, 7)]
    assert server.requests == [
        request
        for path in paths
        for request in (
            ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": path}}),
            ("/reset_prefix_cache", {}),
        )
    ]
    assert {path.name for path in folder.iterdir()} == {"mine", "update-7"}
    model = decoder.config.model_copy(update={"path": paths[1]})
    loaded = hf_load.load(Path(paths[1]), model, decoder, mesh("data=1"))
    for expected, found in zip(jax.tree.leaves(second), jax.tree.leaves(loaded), strict=True):
        rounded = np.asarray(expected).astype("bfloat16").astype(np.float32)
        np.testing.assert_array_equal(np.asarray(found), rounded)
    assert (Path(paths[1]) / "tokenizer.json").read_bytes() == (lm / "tokenizer.json").read_bytes()


def test_adapters_are_merged(lm: Path, task: TextTask, tmp_path: Path) -> None:
    """W + alpha / rank * A B, as the published name has it: transposed."""
    decoder = make_decoder(lm, LoraConfig(rank=2, alpha=6.0, targets=("query",)))
    params = draw(decoder)
    with running(FakeServer(task, "vllm", updates=VLLM)) as server:
        open_server(server, decoder, tmp_path, dtype="float32").publish(params, 3)
    (stack,) = (value for value in params.values() if isinstance(value, dict))
    w, a, b = (np.asarray(stack[f"query{part}"])[0] for part in ("", "_lora_a", "_lora_b"))
    merged = w.reshape(len(w), -1) + 3 * a @ b.reshape(len(b), -1)
    stored = load_file(tmp_path / "run" / "update-3" / "model.safetensors")
    np.testing.assert_allclose(
        stored["model.layers.0.self_attn.q_proj.weight"], merged.T, rtol=1e-5, atol=1e-5
    )


def test_requests_of_ones_own(lm: Path, task: TextTask, tmp_path: Path) -> None:
    update = {
        "/models/{version}/load": {
            "files": ["{path}/model.safetensors"],
            "at": {"step": "{version}"},
            "n": 1,
        }
    }
    with running(FakeServer(task, "llamacpp", updates={"/models/5/load": EMPTY})) as server:
        open_server(server, make_decoder(lm), tmp_path, update=update).publish(
            draw(make_decoder(lm)), 5
        )
    file = str(tmp_path / "run" / "update-5" / "model.safetensors")
    assert server.requests == [("/models/5/load", {"files": [file], "at": {"step": "5"}, "n": 1})]


def test_what_sglang_tells(lm: Path, task: TextTask, tmp_path: Path) -> None:
    """Whether it has loaded the weights; then it serves them by the name of their folder."""
    updates: dict[str, Any] = {
        "/update_weights_from_disk": (200, {"success": True, "message": "done"})
    }
    with running(FakeServer(task, "sglang", updates=updates)) as server:
        policy_server = open_server(server, make_decoder(lm), tmp_path)
        policy_server.publish(draw(make_decoder(lm)), 4)
        assert [policy_server.staleness_of(version) for version in ("4", "1", None, "default")] == [
            0,
            3,
            0,
            0,
        ]
        updates["/update_weights_from_disk"] = (200, {"success": False, "message": "no such file"})
        with pytest.raises(
            ServerFailed, match=r"does not load the weights in .*: no such file\. Does it read"
        ):
            policy_server.publish(draw(make_decoder(lm)), 5)
    path = str(tmp_path / "run" / "update-4")
    assert server.requests[0] == (
        "/update_weights_from_disk",
        {"model_path": path, "weight_version": "4"},
    )


def test_a_server_that_cannot_be_given_weights(lm: Path, task: TextTask, tmp_path: Path) -> None:
    decoder = make_decoder(lm)
    no_request = pytest.raises(
        InputError, match=r"\(llama-cpp-python\) has no request .* Set run.server.update"
    )
    with running(FakeServer(task, "me")) as server, no_request:
        open_server(server, decoder, tmp_path)
    with running(
        FakeServer(task, "vllm", updates={"/collective_rpc": (404, "Not Found")})
    ) as server:
        with refused():
            open_server(server, decoder, None)
        with pytest.raises(
            ServerFailed,
            match=r"status 404: .*Not Found.* To mend it, start vLLM with VLLM_SERVER_DEV_MODE=1",
        ):
            open_server(server, decoder, tmp_path).publish(draw(decoder), 0)
    shutil.rmtree(tmp_path / "run")
    with running(FakeServer(task, "vllm", updates=VLLM)) as server:
        (tmp_path / "run").write_text("a file")
        with pytest.raises(
            ServerFailed, match=r"weights for the server cannot be written to .*update-0"
        ):
            open_server(server, decoder, tmp_path).publish(draw(decoder), 0)
