"""benchmarks/model_logprobs.py against transformers' logits (tests/models/references), and what it
refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.model_logprobs import compute, read_sequences
from tests.models.test_families import MOST, REFERENCES
from tests.refusals import refused

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "model_logprobs.py"


def write_tokens(file: Path, tokens: np.ndarray, lengths: np.ndarray) -> None:
    is_token = np.arange(tokens.shape[1])[None] < lengths[:, None]
    np.savez(
        file,
        input_ids=np.where(is_token, tokens, -1).astype(np.int32),
        lengths=lengths.astype(np.int32),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("gemma3", "data=2,fsdp=2,tensor=2"),
        ("gemma3", "data=2,sequence=2,tensor=2"),
        ("qwen2_sliding", "data=2,sequence=2,tensor=2"),
        # fewer sequences than shards
        ("qwen2_sliding", "fsdp=8"),
        # fsdp splits the biases of what is added to hidden states
        ("llama_biases", "data=2,fsdp=2,tensor=2"),
    ],
)
def test_both_passes_equal_transformers(name: str, axes: str, tmp_path: Path) -> None:
    """Of sequences of 40, 2, 23 and 31 tokens: longer than the windows, shorter than what is
    prefilled, and fewer than eight shards."""
    batch = np.load(REFERENCES / name / "batch.npz")
    lengths = batch["lengths"]
    write_tokens(tmp_path / "tokens.npz", batch["tokens"], lengths)

    compute({"path": str(REFERENCES / name)}, tmp_path / "tokens.npz", tmp_path / "out.npz", axes)
    out = np.load(tmp_path / "out.npz")

    is_token = np.arange(batch["tokens"].shape[1])[None] < lengths[:, None]
    expected = batch["logits"][is_token]
    for kind in ("logits", "decode_logits"):
        assert out[kind].shape == expected.shape and out[kind].dtype == np.float32
        assert np.abs(out[kind] - expected).max() < MOST, kind
    assert out["greedy_ids"].shape == (4, 24)
    last = np.cumsum(lengths) - 1
    np.testing.assert_array_equal(out["greedy_ids"][:, 0], expected[last].argmax(-1))


@pytest.mark.slow
def test_greedy_tokens_are_those_of_whole_passes(tmp_path: Path) -> None:
    """What the sampler continues with is, token by token, what a pass over all of it finds most
    likely."""
    model, first = {"path": str(REFERENCES / "gemma3")}, tmp_path / "first.npz"
    starts = np.load(REFERENCES / "gemma3" / "batch.npz")["tokens"][:2, :5]
    write_tokens(first, starts, np.array([2, 5]))
    compute(model, first, tmp_path / "out.npz", "auto")
    greedy = np.load(tmp_path / "out.npz")["greedy_ids"]

    lengths = np.array([2, 5]) + greedy.shape[1]
    tokens = np.zeros((2, lengths.max()), np.int32)
    for row, start, length, continued in zip(tokens, starts, (2, 5), greedy, strict=True):
        row[:length], row[length : length + len(continued)] = start[:length], continued
    write_tokens(first, tokens, lengths)
    compute(model, first, tmp_path / "out.npz", "auto")
    logits = np.split(np.load(tmp_path / "out.npz")["logits"], lengths[:1])
    for of_row, length, continued in zip(logits, (2, 5), greedy, strict=True):
        np.testing.assert_array_equal(of_row[length - 1 : -1].argmax(-1), continued)


TOKENS = np.array([[5, 6, -1], [7, 8, 9]])


@pytest.mark.parametrize(
    "given",
    [
        {"input_ids": TOKENS},
        {"input_ids": TOKENS * 1.0, "lengths": [2, 3]},
        {"input_ids": TOKENS, "lengths": [2]},
        {"input_ids": TOKENS, "lengths": [0, 3]},
        {"input_ids": TOKENS, "lengths": [2, 4]},
        {"input_ids": TOKENS, "lengths": [3, 3]},
        {"input_ids": TOKENS + 1, "lengths": [2, 3]},
    ],
)
def test_tokens_that_cannot_be_used_are_refused(given: dict[str, Any], tmp_path: Path) -> None:
    np.savez(tmp_path / "tokens.npz", **given)
    with refused():
        read_sequences(tmp_path / "tokens.npz", vocab=10)


def test_a_mesh_that_is_too_large_ends_with_2_before_any_work(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(SCRIPT),
        "folder",
        "tokens.npz",
        "out.npz",
        "--mesh",
        "fsdp=3",
        "--devices",
        "2",
    ]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 2
    assert (
        result.stderr.startswith("error: mesh: given 'fsdp=3', which needs 3 devices")
        and "Traceback" not in result.stderr
    )
