"""Headers of safetensors files, indices and config.json that no model has: refused with the file's
name, at once."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from isojax.models.hf.hf_load import check_weights, resolve_model
from isojax.models.safetensors_io import fingerprint, read_headers
from tests.e2e.tiny_lm import SHAPE, make_model
from tests.refusals import refused

NAME = "model.norm.weight"
ENTRY = '{"%s": {"dtype": "F32", "shape": %s, "data_offsets": %s}}'
HEADERS = {
    "offsets of Infinity": ENTRY % (NAME, "[16]", "[0, Infinity]"),
    "offsets of NaN": ENTRY % (NAME, "[16]", "[NaN, 64]"),
    "offsets beyond int64": ENTRY % (NAME, "[16]", f"[0, {10**30}]"),
    "a shape of 10**30": ENTRY % (NAME, f"[{10**30}]", "[0, 64]"),
    "a shape whose product overflows": ENTRY % (NAME, f"[{2**40}, {2**40}]", "[0, 64]"),
    "a shape below 0": ENTRY % (NAME, "[-16]", "[0, 64]"),
    "a shape of 5,000 digits": ENTRY % (NAME, f"[{'9' * 5000}]", "[0, 64]"),
    "lists 3,000 deep": ENTRY % (NAME, "[" * 3000 + "]" * 3000, "[0, 64]"),
    "an unknown dtype": '{"a": {"dtype": "F99", "shape": [16], "data_offsets": [0, 64]}}',
    "no JSON": "\0" * 64,
}


def write(folder: Path, header: bytes, size: int | None = None) -> Path:
    (folder / "model.safetensors").write_bytes(
        struct.pack("<Q", len(header) if size is None else size) + header + bytes(64)
    )
    return folder


@pytest.mark.parametrize("case", HEADERS)
def test_headers(tmp_path: Path, case: str) -> None:
    with refused(where="model.safetensors"):
        read_headers(write(tmp_path, HEADERS[case].encode()))


@pytest.mark.parametrize("size", [0, 2**31, 2**63, 2**64 - 1])
def test_header_sizes(tmp_path: Path, size: int) -> None:
    (tmp_path / "config.json").write_text("{}")
    write(tmp_path, HEADERS["a shape below 0"].encode(), size)
    with refused(where="model.safetensors"):
        read_headers(tmp_path)
    assert len(fingerprint(tmp_path)) == 12


@pytest.mark.parametrize(
    "text",
    [
        "[" * 3000,
        "{}",
        '{"weight_map": [1]}',
        '{"weight_map": {"a": "\\u0000"}}',
        '{"weight_map": {"a": 1}}',
    ],
)
def test_indices(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with refused():
        read_headers(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", 10**30),
        ("vocab_size", 10**12),
        ("hidden_size", 2**63),
        ("head_dim", 10**9),
        ("rms_norm_eps", 1e308),
        ("rope_parameters", {"rope_theta": float("inf")}),
        ("rope_scaling", [[]]),
        ("architectures", ["\0"]),
    ],
)
def test_shapes(tmp_path: Path, key: str, value: object) -> None:
    folder = make_model(tmp_path / "lm")
    model = SHAPE.model_validate({"family": "llama", "path": str(folder)})
    check_weights(resolve_model(model))
    config_json = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config_json | {key: value}))
    with refused(where="config.json"):
        check_weights(resolve_model(model))
