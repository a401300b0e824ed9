"""Checkpoints in and out: against the safetensors library and against indices worked out by hand,
on meshes, and every refusal.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from isojax.core.config import ModelConfig, RopeScaling
from isojax.models import safetensors_io
from isojax.models.hf import hf_export, hf_load
from isojax.models.transformer import Decoder
from tests.device import mesh
from tests.refusals import refused

pytestmark = pytest.mark.slow

L, D, N, K, H, F, V = 3, 8, 4, 2, 6, 10, 16
FAMILIES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def config_json(family: str = "llama", tied: bool = False, **more: Any) -> dict[str, Any]:
    return {
        "architectures": [FAMILIES[family]],
        "model_type": family,
        "hidden_size": D,
        "num_hidden_layers": L,
        "num_attention_heads": N,
        "num_key_value_heads": K,
        "head_dim": H,
        "intermediate_size": F,
        "vocab_size": V,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": tied,
        "torch_dtype": "float32",
    } | more


def shapes(family: str = "llama", tied: bool = False) -> dict[str, tuple[int, ...]]:
    """What transformers stores for such a model."""
    result: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (V, D),
        "model.norm.weight": (D,),
    }
    result |= {} if tied else {"lm_head.weight": (V, D)}
    for i in range(L):
        layer = f"model.layers.{i}."
        heads = {"q": N, "k": K, "v": K}
        result |= {f"{layer}self_attn.{x}_proj.weight": (n * H, D) for x, n in heads.items()}
        result |= {
            f"{layer}self_attn.{x}_proj.bias": (n * H,)
            for x, n in heads.items()
            if family == "qwen2"
        }
        result |= {f"{layer}self_attn.{x}_norm.weight": (H,) for x in "qk" if family == "qwen3"}
        result |= {
            f"{layer}self_attn.o_proj.weight": (D, N * H),
            f"{layer}mlp.down_proj.weight": (D, F),
        }
        result |= {f"{layer}mlp.{x}_proj.weight": (F, D) for x in ("gate", "up")}
        result |= {f"{layer}{x}_layernorm.weight": (D,) for x in ("input", "post_attention")}
    return result


def checkpoint(
    folder: Path, family: str = "llama", tied: bool = False, dtype: Any = np.float32, files: int = 1
) -> dict[str, np.ndarray]:
    """A random checkpoint written by the safetensors library, tensors dealt out to `files` files;
    returns its tensors.
    """
    rng = np.random.default_rng(0)
    stored = {
        name: rng.standard_normal(shape).astype(dtype)
        for name, shape in shapes(family, tied).items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_json(family, tied)))
    if files == 1:
        save_file(stored, folder / "model.safetensors")
        return stored
    location = {
        name: f"model-{i % files + 1:05}-of-{files:05}.safetensors" for i, name in enumerate(stored)
    }
    for file in set(location.values()):
        save_file({name: stored[name] for name in stored if location[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": location})
    )
    return stored


def expected(stored: dict[str, np.ndarray], family: str, tied: bool) -> dict[str, np.ndarray]:
    """Our parameters of a checkpoint, by their dotted names: each matrix transposed, then its heads
    separated."""

    def layers(name: str, *shape: int) -> np.ndarray:
        every = [stored[f"model.layers.{i}.{name}"].astype(np.float32) for i in range(L)]
        return np.stack([(w.T if w.ndim == 2 else w).reshape(shape) for w in every])

    result = {
        "embed": stored["model.embed_tokens.weight"].astype(np.float32),
        "norm": stored["model.norm.weight"].astype(np.float32),
        "blocks.attention_norm": layers("input_layernorm.weight", D),
        "blocks.query": layers("self_attn.q_proj.weight", D, N, H),
        "blocks.key": layers("self_attn.k_proj.weight", D, K, H),
        "blocks.value": layers("self_attn.v_proj.weight", D, K, H),
        "blocks.out": layers("self_attn.o_proj.weight", N, H, D),
        "blocks.mlp_norm": layers("post_attention_layernorm.weight", D),
        "blocks.gate": layers("mlp.gate_proj.weight", D, F),
        "blocks.up": layers("mlp.up_proj.weight", D, F),
        "blocks.down": layers("mlp.down_proj.weight", F, D),
    }
    if not tied:
        result["unembed"] = stored["lm_head.weight"].astype(np.float32).T
    if family == "qwen2":
        for x, name, n in (("q", "query", N), ("k", "key", K), ("v", "value", K)):
            result[f"blocks.{name}_bias"] = layers(f"self_attn.{x}_proj.bias", n, H)
    if family == "qwen3":
        result |= {
            "blocks.query_norm": layers("self_attn.q_norm.weight", H),
            "blocks.key_norm": layers("self_attn.k_norm.weight", H),
        }
    return result


def resolved(folder: Path) -> tuple[ModelConfig, Decoder]:
    config = hf_load.resolve_model(ModelConfig(path=str(folder)))
    assert config.vocab
    return config, Decoder(config)


def load(folder: Path, text: str = "auto") -> dict[str, Any]:
    config, decoder = resolved(folder)
    return hf_load.load(folder, config, decoder, mesh(text))


def flat(params: dict[str, Any]) -> dict[str, Any]:
    return {
        ".".join(k.key for k in path): x for path, x in jax.tree_util.tree_leaves_with_path(params)
    }


def random_params(shape: ModelConfig) -> dict[str, Any]:
    """Host arrays for a model of `shape`."""
    draw = np.random.default_rng(0).standard_normal(1 << 20, np.float32)
    decoder = Decoder(shape)
    return jax.tree.map(lambda x: np.resize(draw, x.shape), decoder.shapes())


CASES = [
    ("llama", False, np.float32, 1, "auto"),
    ("llama", True, ml_dtypes.bfloat16, 3, "fsdp=8"),
    ("qwen2", False, np.float16, 2, "data=2,fsdp=2,tensor=2"),
    ("qwen3", True, ml_dtypes.bfloat16, 1, "fsdp=4,tensor=2"),
    ("qwen2", True, np.float32, 1, "data=8"),
]


@pytest.mark.parametrize(("family", "tied", "dtype", "files", "text"), CASES)
def test_every_parameter_is_what_is_stored(
    tmp_path: Path, family: str, tied: bool, dtype: Any, files: int, text: str
) -> None:
    want = expected(checkpoint(tmp_path, family, tied, dtype, files), family, tied)
    params = flat(load(tmp_path, text))
    assert params.keys() == want.keys()
    _, decoder = resolved(tmp_path)
    shardings = flat(decoder.shardings(mesh(text)))
    for name, value in want.items():
        assert params[name].dtype == np.float32 and params[name].sharding == shardings[name], name
        np.testing.assert_array_equal(params[name], value, err_msg=name)
        for shard in params[name].addressable_shards:
            np.testing.assert_array_equal(
                shard.data, value[shard.index], err_msg=f"{name} on {shard.device}"
            )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_what_is_saved_is_what_was_loaded(tmp_path: Path, family: str, tied: bool) -> None:
    stored = checkpoint(tmp_path / "a", family, tied)
    (tmp_path / "a" / "tokenizer.json").write_text("{}")
    config, decoder = resolved(tmp_path / "a")
    params = hf_load.load(tmp_path / "a", config, decoder, mesh("data=2,fsdp=2,tensor=2"))
    hf_export.save(params, config, tmp_path / "a", tmp_path / "b")
    again = load_file(tmp_path / "b" / "model.safetensors")
    assert again.keys() == stored.keys()
    for name, value in stored.items():
        np.testing.assert_array_equal(again[name], value)
    with safe_open(tmp_path / "b" / "model.safetensors", "np") as f:
        assert f.metadata() == {"format": "pt"}
    assert json.loads((tmp_path / "b" / "config.json").read_text()) == config_json(family, tied)
    assert (tmp_path / "b" / "tokenizer.json").read_text() == "{}"
    host = jax.device_get(params)
    hf_export.save(host, config, tmp_path / "a", tmp_path / "c")
    assert (tmp_path / "c" / "model.safetensors").read_bytes() == (
        tmp_path / "b" / "model.safetensors"
    ).read_bytes()


def test_saved_in_bfloat16_and_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safetensors_io, "MAX_FILE_BYTES", 1000)
    stored = checkpoint(tmp_path / "a")
    config, decoder = resolved(tmp_path / "a")
    params = hf_load.load(tmp_path / "a", config, decoder, mesh())
    hf_export.save(params, config, tmp_path / "a", tmp_path / "b", "bfloat16")
    index = json.loads((tmp_path / "b" / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == stored.keys()
    assert index["metadata"]["total_size"] == sum(2 * value.size for value in stored.values())
    files = sorted(set(index["weight_map"].values()))
    assert (
        files == sorted(p.name for p in (tmp_path / "b").glob("*.safetensors")) and len(files) > 5
    )
    for name, file in index["weight_map"].items():
        got = load_file(tmp_path / "b" / file)[name]
        assert got.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(got, stored[name].astype(ml_dtypes.bfloat16))
        assert sum(2 * stored[n].size for n, f in index["weight_map"].items() if f == file) <= 1000
    assert json.loads((tmp_path / "b" / "config.json").read_text())["torch_dtype"] == "bfloat16"
    np.testing.assert_array_equal(
        load(tmp_path / "b")["embed"],
        stored["model.embed_tokens.weight"].astype(ml_dtypes.bfloat16),
    )


def test_a_config_of_its_own_reads_back(tmp_path: Path) -> None:
    scaling = RopeScaling(factor=4.0, original_max_position_embeddings=64)
    shape = ModelConfig(
        family="llama",
        layers=2,
        width=8,
        heads=2,
        kv_heads=1,
        head_dim=4,
        mlp=6,
        vocab=9,
        rope_base=5e5,
        rope_scaling=scaling,
    )
    params, source = random_params(shape), tmp_path / "source"
    source.mkdir()
    hf_export.write_json(source / "config.json", hf_export.make_config_json(shape, 64, "float32"))
    hf_export.save(params, shape, source, tmp_path / "a")
    assert hf_load.resolve_model(ModelConfig(path=str(tmp_path / "a"))) == shape.model_copy(
        update={"path": str(tmp_path / "a")}
    )
    spelling_4 = {
        k: v
        for k, v in json.loads((tmp_path / "a" / "config.json").read_text()).items()
        if k not in ("rope_parameters", "dtype")
    }
    (tmp_path / "a" / "config.json").write_text(json.dumps(spelling_4))
    assert hf_load.resolve_model(ModelConfig(path=str(tmp_path / "a"))).rope_scaling == scaling
    with refused():
        hf_export.save(params, shape, source, tmp_path / "a")
    with refused():
        hf_export.save(params, shape.model_copy(update={"family": "tiny"}), source, tmp_path / "b")
    # and nothing is left behind
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "source"]


def test_a_shape_set_in_addition_to_the_path_must_agree(tmp_path: Path) -> None:
    checkpoint(tmp_path, "qwen3")
    result = hf_load.resolve_model(
        ModelConfig(path=str(tmp_path), layers=L, family="qwen3", vocab=None)
    )
    assert (
        result.width,
        result.heads,
        result.kv_heads,
        result.head_dim,
        result.mlp,
        result.vocab,
    ) == (
        D,
        N,
        K,
        H,
        F,
        V,
    )
    assert result.qk_norm and not result.qkv_bias and not result.tied and result.norm_eps == 1e-5
    # as a saved config is read again, every field set
    assert hf_load.resolve_model(result) == result
    assert hf_load.resolve_model(ModelConfig()) == ModelConfig()
    for field, value in (
        ("layers", 4),
        ("family", "llama"),
    ):
        with refused():
            hf_load.resolve_model(ModelConfig.model_validate({"path": str(tmp_path), field: value}))


def test_a_family_of_ones_own_is_a_file_beside_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(tmp_path / "model", "qwen3")
    edit_config(tmp_path / "model", architectures=["MyForCausalLM"])
    (tmp_path / "my_family.py").write_text("from isojax.models.families.qwen3 import qwen3\n")
    monkeypatch.chdir(tmp_path)
    result = hf_load.resolve_model(ModelConfig(path="model", family="my_family"))
    assert (result.family, result.layers, result.width) == ("my_family", L, D)
    (tmp_path / "bare_family.py").write_text(
        "from isojax.models.architecture import llama_architecture\nfrom isojax.models.families "
        "import family\nbare = family(architectures=['QwenForCausalLM'])(llama_architecture)\n"
    )
    with refused():
        hf_load.resolve_model(ModelConfig(path="model", family="bare_family"))
    with refused():
        hf_load.resolve_model(ModelConfig(path="model", family="no_family"))


def edit_config(folder: Path, **changes: Any) -> None:
    (folder / "config.json").write_text(json.dumps(config_json(**changes)))


def rewrite(folder: Path, change: Any) -> None:
    stored = dict(load_file(folder / "model.safetensors"))
    change(stored)
    save_file(stored, folder / "model.safetensors")


def index(folder: Path, text: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(text)


def cut(folder: Path, size: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])


BROKEN: dict[str, tuple[Any, str]] = {
    "no folder": shutil.rmtree,
    "no config": lambda f: (f / "config.json").unlink(),
    "broken config": lambda f: (f / "config.json").write_text('{\n"a": 1,\n'),
    "a list": lambda f: (f / "config.json").write_text("[]"),
    "unknown architecture": lambda f: edit_config(f, architectures=["GPT2LMHeadModel"]),
    "no architecture": lambda f: edit_config(f, architectures=None),
    "other rope": lambda f: edit_config(f, rope_scaling={"rope_type": "yarn", "factor": 4.0}),
    "missing weight": lambda f: rewrite(f, lambda s: s.pop("model.layers.1.mlp.up_proj.weight")),
    "misshapen": lambda f: rewrite(
        f, lambda s: s.update({"model.norm.weight": np.ones(9, np.float32)})
    ),
    "another vocabulary": lambda f: edit_config(f, vocab_size=20),
    "all misshapen": lambda f: edit_config(f, hidden_size=12),
    "integers": lambda f: rewrite(
        f, lambda s: s.update({"model.norm.weight": np.ones(8, np.int8)})
    ),
    "no weights": lambda f: (f / "model.safetensors").unlink(),
    "a pickle": lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
    "cut off": lambda f: cut(f, 4000),
    "cut off in its header": lambda f: cut(f, 200),
    "empty": lambda f: cut(f, 0),
    "missing file": lambda f: index(
        f, '{"weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}}'
    ),
    "an index of nothing": lambda f: index(f, "{}"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_cannot_be_loaded_is_said(tmp_path: Path, case: str) -> None:
    folder = tmp_path / "model"
    checkpoint(folder)
    breakage = BROKEN[case]
    breakage(folder)
    with refused() as e:
        load(folder)
    assert str(folder) in str(e.value)


def test_tensors_nobody_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = checkpoint(tmp_path, tied=True)
    extra = {
        "lm_head.weight": stored["model.embed_tokens.weight"],
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(3, np.float32),
    }
    rewrite(tmp_path, lambda s: s.update(extra))
    assert "unembed" not in load(tmp_path)
    assert capsys.readouterr().err == ""
    rewrite(
        tmp_path,
        lambda s: s.update({"model.layers.0.self_attn.q_proj.bias": np.ones(24, np.float32)}),
    )
    load(tmp_path)
    assert (
        "holds 1 tensors that this architecture does not use: model.layers.0.self_attn.q_proj.bias"
        in capsys.readouterr().err
    )


def test_the_fingerprint_knows_an_exchanged_checkpoint(tmp_path: Path) -> None:
    checkpoint(tmp_path / "a")
    checkpoint(tmp_path / "b")
    first = safetensors_io.fingerprint(tmp_path / "a")
    assert len(first) == 12 and first == safetensors_io.fingerprint(tmp_path / "b")
    edit_config(tmp_path / "b", rope_theta=5e5)
    assert safetensors_io.fingerprint(tmp_path / "b") != first
    checkpoint(tmp_path / "c", dtype=np.float16)
    assert safetensors_io.fingerprint(tmp_path / "c") != first
    checkpoint(tmp_path / "d")
    rewrite(
        tmp_path / "d", lambda s: s["model.norm.weight"].__iadd__(0.001)
    )  # trained a little further: the same header
    assert safetensors_io.fingerprint(tmp_path / "d") != first


def test_the_fingerprint_knows_one_bit_and_takes_any_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    file = tmp_path / os.fsdecode(b"w\xff.safetensors")
    weights = bytearray(2**20)
    file.write_bytes(weights)
    first = safetensors_io.fingerprint(tmp_path)
    weights[2**19 + 5000] ^= 1
    file.write_bytes(weights)
    assert safetensors_io.fingerprint(tmp_path) != first


def test_a_file_is_not_named_as_the_place_for_a_model(tmp_path: Path) -> None:
    for name, place in (("passwd", ""), ("new", f" --out {tmp_path / 'new'}")):
        (tmp_path / "passwd").touch()
        with refused() as refusal:
            hf_load.read_config(tmp_path / name)
        assert str(refusal.value).endswith(f"isojax model import ORG/NAME{place}")
