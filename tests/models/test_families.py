"""The published families: logits against transformers' (references/, written by
make_references.py), config.json, presets.
"""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from safetensors.numpy import load_file

from isojax.core.config import ModelConfig, RopeScaling, load_config
from isojax.core.yaml_files import flatten
from isojax.models.families import family, gemma3, llama, mistral, olmo2, qwen2, qwen3
from isojax.models.hf.hf_config import check_model_type, find_family
from isojax.models.hf.hf_export import make_config_json
from isojax.models.hf.hf_load import weight_layouts
from isojax.models.layers.rope import rope_frequencies
from isojax.models.transformer import Decoder
from tests.device import mesh, quick_jit
from tests.models.agreement import differences, from_checkpoint
from tests.refusals import refused

pytestmark = pytest.mark.seconds(40)

REFERENCES = Path(__file__).parent / "references"
NAMES = (
    "llama",
    "llama_tied",
    "llama_biases",
    "qwen2",
    "qwen2_sliding",
    "qwen3",
    "mistral",
    "olmo2",
    "gemma3",
)
FAMILIES = {
    "llama": llama,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "mistral": mistral,
    "olmo2": olmo2,
    "gemma3": gemma3,
}
MOST, MOST_RMS = 3e-4, 3e-5
CONFIGS = Path(__file__).parents[2] / "configs" / "models"


def read(name: str, file: str = "config.json") -> dict[str, Any]:
    return json.loads((REFERENCES / name / file).read_text())


def model_of(name: str) -> tuple[Decoder, Any]:
    """A reference's decoder and parameters, by its family file alone."""
    hf = read(name)
    module = FAMILIES[find_family(hf["architectures"][0])]
    config = ModelConfig(family=find_family(hf["architectures"][0]), **module.settings(hf))
    decoder = Decoder(config)
    return decoder, from_checkpoint(load_file(REFERENCES / name / "model.safetensors"), decoder)


SPLIT = "data=2,fsdp=2,tensor=2"
# On a mesh, layers with norms of queries and keys in fast tests, the other families in slow ones.
ON_A_MESH = [
    pytest.param(SPLIT, name, marks=[] if name == "qwen3" else pytest.mark.slow) for name in NAMES
]


@pytest.mark.parametrize(("axes", "name"), [*(("auto", name) for name in NAMES), *ON_A_MESH])
def test_logits_equal_transformers(axes: str, name: str) -> None:
    decoder, params = model_of(name)
    batch = np.load(REFERENCES / name / "batch.npz")
    std = batch["logits"][np.arange(40)[None] < batch["lengths"][:, None]].std()
    assert std > 3 and batch["lengths"].tolist() == [40, 2, 23, 31]
    if axes != "auto":
        params = jax.device_put(params, decoder.shardings(mesh(axes)))
        assert not all(x.sharding.is_fully_replicated for x in jax.tree.leaves(params))
    for way, difference in differences(
        decoder, params, batch["tokens"], batch["lengths"], batch["logits"]
    ).items():
        assert np.abs(difference).max() < MOST, way
        assert np.sqrt(np.mean(difference**2)) < MOST_RMS, way
        assert difference.shape[0] > 40 and difference.shape[1] == decoder.vocab


# Of llama's three checkpoints fast tests have the gradients of one, that with biases everywhere;
# other families are tied too.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in ("llama", "llama_tied") else [])
        for name in NAMES
    ],
)
def test_gradients_equal_torchs(name: str) -> None:
    """Of the mean log-probability; by tensor of the checkpoint, the gradient's norm and entries of
    it."""
    decoder, params = model_of(name)
    batch = np.load(REFERENCES / name / "batch.npz")
    tokens = batch["tokens"]
    follows = np.arange(1, 40)[None] < batch["lengths"][:, None]

    def mean_logp(params: Any) -> Any:
        logits = decoder.logits(
            params, decoder.forward(params, tokens, np.zeros(len(tokens), np.int32))
        )
        logps = jax.nn.log_softmax(logits[:, :-1])
        of_tokens = jax.numpy.take_along_axis(logps, tokens[:, 1:, None], 2)[..., 0]
        return (of_tokens * follows).sum() / follows.sum()

    gradients = dict(flatten(jax.device_get(quick_jit(jax.grad(mean_logp))(params))))
    expected = json.loads((REFERENCES / name / "gradients.json").read_text())
    for layout in weight_layouts(decoder):
        gradient = gradients[layout.key]
        of_each = gradient.reshape(-1, *gradient.shape[layout.num_stacked :])
        for value, tensor in zip(of_each, layout.tensor_names, strict=True):
            of_tensor = layout.to_stored(value).ravel().astype(np.float64)
            norm, *entries = expected.pop(tensor)
            places = np.linspace(0, of_tensor.size - 1, len(entries)).astype(int)
            assert np.linalg.norm(of_tensor) == pytest.approx(norm, rel=1e-4), tensor
            # An entry may be a small difference of large terms: as exact as the tensor's typical
            # entry.
            typical = norm * of_tensor.size**-0.5
            np.testing.assert_allclose(
                of_tensor[places], entries, rtol=1e-4, atol=1e-4 * typical, err_msg=tensor
            )
    assert not expected


@pytest.mark.parametrize(
    "name", [name for name in NAMES if (REFERENCES / name / "config_v4.json").is_file()]
)
def test_both_spellings_of_config_json_are_one_model(name: str) -> None:
    old, new = read(name, "config_v4.json"), read(name)
    assert "rope_theta" in old and "rope_theta" not in new
    module = FAMILIES[find_family(new["architectures"][0])]
    assert module.settings(old) == module.settings(new)


def test_every_setting_of_a_config_json_arrives() -> None:
    result = ModelConfig(**llama.settings(read("llama")))
    scaling = RopeScaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16
    )
    shape = {
        "layers": 2,
        "width": 36,
        "heads": 6,
        "kv_heads": 2,
        "head_dim": 10,
        "mlp": 53,
        "vocab": 97,
    }
    assert result == ModelConfig(**shape, norm_eps=1e-5, rope_base=500.0, rope_scaling=scaling)
    assert (
        ModelConfig(**qwen2.settings(read("qwen2"))).qkv_bias
        and ModelConfig(**qwen3.settings(read("qwen3"))).qk_norm
    )
    assert qwen3.settings(read("qwen3"))["tied"] and not qwen2.settings(read("qwen2"))["tied"]


def without(name: str, *keys: str, **more: Any) -> dict[str, Any]:
    return {k: v for k, v in read(name).items() if k not in keys} | more


def test_what_a_config_json_leaves_out() -> None:
    """transformers' own defaults: heads of width / heads and as many for keys; 128 in Qwen3; no
    tying; rope's base 10,000.
    """
    short = llama.settings(without("llama", "head_dim", "num_key_value_heads"))
    assert (short["head_dim"], short["kv_heads"]) == (6, 6)
    assert qwen3.settings(without("qwen3", "head_dim"))["head_dim"] == 128
    bare = llama.settings(without("llama", "rope_parameters", "tie_word_embeddings"))
    assert (bare["rope_base"], bare["rope_scaling"], bare["tied"]) == (10_000.0, None, False)


def test_gemma_3s_absent_keys_mean_its_class() -> None:
    """As files of 4B and larger leave them out: `text_config` of gemma-3-4b."""
    text_config = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    result = ModelConfig(
        **gemma3.settings(text_config | {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}})
    )
    assert (result.heads, result.kv_heads, result.head_dim, result.vocab) == (8, 4, 256, 262_208)
    assert result.tied and result.rope_base == 1e6 and result.norm_eps == 1e-6
    sliding = [i for i in range(34) if i % 6 != 5]
    expected = {"window": 1024, "sliding_layers": sliding, "local_rope_base": 1e4}
    assert result.options == expected | {"rope_factor": 8.0, "query_scalar": 256.0}


@pytest.mark.parametrize(
    ("name", "change", "sliding"),
    [
        ("mistral", {}, [0, 1]),
        ("mistral", {"sliding_window": None}, []),
        ("qwen2_sliding", {}, [1, 2]),
        ("qwen2_sliding", {"layer_types": None}, [1, 2]),
        ("qwen2_sliding", {"layer_types": None, "max_window_layers": 0}, [0, 1, 2]),
        # the default is 28
        ("qwen2_sliding", {"layer_types": None, "max_window_layers": None}, []),
        # beside use_sliding_window = false
        ("qwen2", {"layer_types": None, "sliding_window": 7}, []),
        ("gemma3", {}, [0, 1, 2, 3, 4, 6, 7]),
        ("gemma3", {"layer_types": None}, [0, 1, 2, 3, 4, 6, 7]),
        ("gemma3", {"layer_types": None, "sliding_window_pattern": 2}, [0, 2, 4, 6]),
        ("olmo2", {}, []),
    ],
)
def test_which_layers_slide(name: str, change: dict[str, Any], sliding: list[int]) -> None:
    hf = read(name) | change
    used = find_family(hf["architectures"][0])
    decoder = Decoder(ModelConfig(family=used, **FAMILIES[used].settings(hf)))
    windows = {i: stack.attention.window for i, (stack, _) in enumerate(decoder.layers)}
    assert [i for i, window in windows.items() if window is not None] == sliding
    assert {windows[i] for i in sliding} <= {read(name).get("sliding_window")}


@pytest.mark.parametrize("name", NAMES)
def test_a_config_json_is_written_as_it_is_read(name: str) -> None:
    used = find_family(read(name)["architectures"][0])
    config = ModelConfig(family=used, **FAMILIES[used].settings(read(name)))
    written = make_config_json(config, 4096, "float32")
    assert ModelConfig(family=used, **FAMILIES[used].settings(written)) == config
    assert (written["model_type"], written["architectures"]) == (
        read(name)["model_type"],
        read(name)["architectures"],
    )
    assert isinstance(written.get("query_pre_attn_scalar", 11), int)  # transformers takes no float
    if "rope_scaling" in written:  # as transformers 4 reads it
        of_4 = {key: value for key, value in written.items() if key != "rope_parameters"}
        assert ModelConfig(family=used, **FAMILIES[used].settings(of_4)) == config


REFUSED = [
    (
        "llama",
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}},
        "rope_type = 'yarn'",
    ),
    (
        "qwen2",
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        "rope_scaling has rope_type = 'linear'",
    ),
    (
        "llama",
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}},
        "rope_parameters has no factor",
    ),
    ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 0}}, "rope_theta = 0"),
    ("llama", {"rope_parameters": [1]}, "rope_parameters = [1]"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
    ("qwen3", {"attention_bias": True}, "attention_bias = True"),
    ("llama", {"use_sliding_window": True}, "use_sliding_window = True"),
    (
        "qwen2",
        {
            "use_sliding_window": True,
            "max_window_layers": 1,
            "sliding_window": None,
            "layer_types": None,
        },
        "sliding_window is not there",
    ),
    ("llama", {"mlp_bias": 1}, "mlp_bias = 1"),
    ("llama", {"layer_types": ["sliding_attention"] * 2}, "layer_types has sliding_attention"),
    (
        "qwen2_sliding",
        {"layer_types": ["full_attention"] * 2},
        "2 layer_types, and num_hidden_layers = 3",
    ),
    (
        "qwen3",
        {"layer_types": ["full_attention", "linear_attention"]},
        "layer_types has linear_attention",
    ),
    (
        "mistral",
        {"layer_types": ["full_attention", "sliding_attention"]},
        "layer_types has full_attention",
    ),
    ("mistral", {"sliding_window": 0}, "sliding_window = 0"),
    ("olmo2", {"attention_bias": True}, "attention_bias = True"),
    ("olmo2", {"layer_types": ["sliding_attention"] * 2}, "layer_types has sliding_attention"),
    ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
    ("gemma3", {"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0"),
    ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
    ("gemma3", {"attention_bias": True}, "attention_bias = True"),
    ("gemma3", {"hidden_activation": "silu"}, "hidden_activation = 'silu'"),
    ("gemma3", {"layer_types": ["chunked_attention"] * 8}, "layer_types has chunked_attention"),
    (
        "gemma3",
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}
            }
        },
        "rope_type = 'yarn'",
    ),
    (
        "gemma3",
        {
            "rope_parameters": {
                "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
            }
        },
        "rope_type = 'linear'",
    ),
    ("qwen3", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
    ("qwen2", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
    ("llama", {"hidden_size": -1}, "hidden_size = -1"),
    ("llama", {"vocab_size": None}, "vocab_size = None"),
    ("llama", {"num_hidden_layers": 2.5}, "num_hidden_layers = 2.5"),
    ("llama", {"rms_norm_eps": True}, "rms_norm_eps = True"),
    ("llama", {"tie_word_embeddings": "yes"}, "tie_word_embeddings = 'yes'"),
    ("qwen2", {"head_dim": None, "hidden_size": 41}, "no head_dim, and hidden_size = 41"),
]


@pytest.mark.parametrize("name, change, said", REFUSED, ids=[said for _, _, said in REFUSED])
def test_what_the_decoder_cannot_do_is_refused(
    name: str, change: dict[str, Any], said: str
) -> None:
    with refused() as e:
        FAMILIES[name.partition("_")[0]].settings(read(name) | change)
    assert said in str(e.value)
    assert e.value.expected or e.value.fix


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (
            "gemma3",
            {"windw": 4},
        ),
        ("gemma3", {"window": 0}),
        (
            "mistral",
            {"sliding_layers": [-1]},
        ),
        (
            "llama",
            {"window": 4},
        ),
        (
            "olmo2",
            {"window": 4},
        ),
        (
            "tiny",
            {"window": 4},
        ),
    ],
)
def test_options_that_a_family_lacks_are_refused(name: str, options: dict[str, Any]) -> None:
    with refused(where="cell.model.options"):
        Decoder(ModelConfig(family=name, vocab=8, options=options))


def test_a_mistral_of_two_kinds_of_layers_has_no_config_json() -> None:
    config = ModelConfig(family="mistral", vocab=8, options={"window": 4, "sliding_layers": [0]})
    with refused(where="cell.model.options.sliding_layers"):
        make_config_json(config, 64, "float32")


def test_a_family_names_a_model_type_of_its_own() -> None:
    """Gemma 3's text models call themselves gemma3_text; no warning."""
    assert family.load("gemma3").traits.model_type == read("gemma3")["model_type"] == "gemma3_text"
    check_model_type(read("gemma3"), "gemma3")
    with refused(where="config.json"):
        check_model_type(read("llama") | {"model_type": "gemma3_text"}, "llama")


@pytest.mark.parametrize(
    "key",
    [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "rms_norm_eps",
    ],
)
def test_a_key_that_is_missing_is_named(key: str) -> None:
    with refused(where="config.json"):
        llama.settings(without("llama", key))


def test_families_are_found_by_architecture() -> None:
    names = {
        "Llama": "llama",
        "Qwen2": "qwen2",
        "Qwen3": "qwen3",
        "Mistral": "mistral",
        "Olmo2": "olmo2",
        "Gemma3": "gemma3",
    }
    assert {x: find_family(f"{x}ForCausalLM") for x in names} == names
    with refused(where="config.json"):
        find_family("MambaForCausalLM")


@pytest.mark.parametrize(
    ("head_dim", "base"), [(64, 100_000.0), (64, 500_000.0), (128, 1_000_000.0)]
)
def test_frequencies_are_rounded_once_a_step(head_dim: int, base: float) -> None:
    """The nearest float32 to the power of float32's exponent, of which float32's reciprocal: as
    torch rounds, save for one in a hundred.
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    powers = np.array([float(Decimal(base) ** Decimal(float(x))) for x in exponents]).astype(
        np.float32
    )
    np.testing.assert_array_equal(rope_frequencies(head_dim, base, None), np.float32(1) / powers)


def test_llama_3s_stretching_by_hand() -> None:
    """Base 100, 4 dimensions: frequencies 1 and 1/10, wavelengths 2 pi and 20 pi."""

    def stretched(original: int) -> np.ndarray:
        return rope_frequencies(
            4,
            100.0,
            RopeScaling(
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=original,
            ),
        )

    # both turn over 4 times in the original context
    np.testing.assert_allclose(stretched(10_000), [1, 0.1], rtol=1e-6)
    np.testing.assert_allclose(stretched(6), [1 / 8, 0.1 / 8], rtol=1e-6)  # neither turns once
    remaining = (100 / (20 * np.pi) - 1) / 3  # 1.59 turns: a part of the way from 1 to 4
    np.testing.assert_allclose(
        stretched(100), [1, 0.1 * (remaining + (1 - remaining) / 8)], rtol=1e-6
    )


def test_a_scaling_without_a_middle_is_refused() -> None:
    with refused(where="cell.model.rope_scaling"):
        Decoder(ModelConfig(rope_scaling=RopeScaling(high_freq_factor=1.0)), 8)


def test_a_tied_embedding_gathers_both_gradients() -> None:
    """The gradient of the one matrix is the sum of those that an untied copy gives each."""
    decoder, params = model_of("qwen3")
    untied = Decoder(decoder.config.model_copy(update={"tied": False}), decoder.vocab)
    tokens, start = np.arange(12, dtype=np.int32).reshape(2, 6), np.zeros(2, np.int32)

    def total(which: Decoder, params: Any) -> Any:
        return jax.nn.logsumexp(
            which.logits(params, which.forward(params, tokens, start)), axis=-1
        ).sum()

    one = quick_jit(jax.grad(lambda p: total(decoder, p)))(params)
    two = quick_jit(jax.grad(lambda p: total(untied, p)))({**params, "unembed": params["embed"].T})
    assert (
        "unembed" not in one
        and np.abs(two["embed"]).max() > 0.1
        and np.abs(two["unembed"]).max() > 0.1
    )
    np.testing.assert_allclose(one["embed"], two["embed"] + two["unembed"].T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        one["blocks"]["query_norm"], two["blocks"]["query_norm"], rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(
    "preset, parameters",
    [
        ("llama-3.1-8b-instruct", 8_030_261_248),
        ("qwen2.5-7b-instruct", 7_615_616_512),
        ("qwen3-4b-instruct", 4_022_468_096),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("smollm2-135m", 134_515_008),
    ],
)
def test_presets_have_the_published_number_of_parameters(preset: str, parameters: int) -> None:
    cell = load_config(str(CONFIGS / f"{preset}.yaml")).cell
    decoder = Decoder(cell.model)
    shapes = jax.tree_util.tree_flatten_with_path(decoder.shapes())[0]
    assert sum(x.size for _, x in shapes) == parameters
    assert ("unembed" in decoder.shapes()) != cell.model.tied


def test_fresh_biases_and_head_norms_change_nothing_and_are_laid_out() -> None:
    config = ModelConfig(
        layers=2,
        width=16,
        heads=4,
        kv_heads=2,
        head_dim=4,
        mlp=8,
        qkv_bias=True,
        qk_norm=True,
        tied=True,
    )
    decoder = Decoder(config, 8)
    other = Decoder(ModelConfig(layers=2, width=16, heads=4, kv_heads=2, head_dim=4, mlp=8), 8)
    params, plain = quick_jit(lambda key: (decoder.init(key), other.init(key)))(jax.random.key(0))
    for name, weights in plain["blocks"].items():
        np.testing.assert_array_equal(params["blocks"][name], weights)
    assert (
        params["blocks"]["query_bias"].shape == (2, 4, 4) and not params["blocks"]["key_bias"].any()
    )
    assert (params["blocks"]["query_norm"] == 1).all() and params["blocks"]["key_norm"].shape == (
        2,
        4,
    )
    spec = decoder.shardings(mesh("data=2,fsdp=2,tensor=2"))["blocks"]
    assert spec["query_bias"].spec == PartitionSpec(None, "tensor", None)
    assert spec["key_norm"].spec == PartitionSpec(None, None)
