"""Folders that people give in a model's place: what the refusal says that they hold, and the
command that makes a model of them. Through what a user's config reaches: resolve_model,
check_weights and load."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from isojax.core.config import ModelConfig
from isojax.models.hf import hf_load
from tests.models.test_hf_load import checkpoint, config_json, edit_config, expected, flat, load
from tests.refusals import refused

Make = Callable[[Path], object]
QUERY = "model.layers.0.self_attn.q_proj.weight"


def refusal(folder: Path) -> str:
    with refused() as e:
        hf_load.check_weights(hf_load.resolve_model(ModelConfig(path=str(folder))))
    return str(e.value)


def with_files(*names: str, config: bool = True) -> Make:
    """A folder of files of no bytes, JSON of no keys, and config.json."""

    def make(folder: Path) -> None:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("{}" if name.endswith(".json") else "")
        if config:
            (folder / "config.json").write_text(json.dumps(config_json()))

    return make


def with_adapter(**settings: str) -> Make:
    def make(folder: Path) -> None:
        with_files("adapter_model.safetensors")(folder)
        (folder / "adapter_config.json").write_text(json.dumps(settings))

    return make


def with_tensors(
    change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]], tied: bool = False
) -> Make:
    def make(folder: Path) -> None:
        stored = checkpoint(folder, tied=tied)
        save_file(change(stored), folder / "model.safetensors")

    return make


def with_unmerged_lora(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors under the names that PEFT gives them, and one of an adapter."""
    in_peft = {
        f"base_model.model.{name.replace('q_proj.', 'q_proj.base_layer.')}": value
        for name, value in tensors.items()
    }
    adapter = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"
    return in_peft | {adapter: np.zeros((2, 8), np.float32)}


def with_config(key: str, value: object) -> Make:
    def make(folder: Path) -> None:
        checkpoint(folder)
        edit_config(folder, **{key: value})

    return make


def linked_to_nothing(folder: Path) -> None:
    with_files()(folder)
    (folder / "model.safetensors").symlink_to("../blobs/0123")


def pointer_of_git_lfs(folder: Path) -> None:
    with_files()(folder)
    (folder / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    )


# What is in the folder `model` -> what the refusal says.
FOLDERS: dict[str, tuple[Make, tuple[str, ...]]] = {
    "an adapter of PEFT": (
        with_adapter(peft_type="LORA", base_model_name_or_path="org/base"),
        ("adapter", "base model is org/base", "AutoPeftModelForCausalLM",
            "merge_and_unload().save_pretrained("),
    ),
    "an adapter without config.json": (
        with_files("adapter_config.json", "adapter_model.bin", config=False),
        ("adapter", "merge_and_unload()"),
    ),
    "a prompt of PEFT": (
        with_adapter(peft_type="PROMPT_TUNING", base_model_name_or_path="org/base"),
        ("cannot be merged", "give the base model"),
    ),
    "verl's actor": (
        with_files("model_world_size_2_rank_0.pt", "huggingface/config.json", config=False),
        (
            "FSDP's shards of verl",
            "python -m verl.model_merger merge --backend fsdp --local_dir model --target_dir",
        ),
    ),
    "verl's step": (
        with_files("actor/model_world_size_2_rank_0.pt", "critic/model_world_size_2_rank_0.pt",
            config=False),
        ("--backend fsdp --local_dir model/actor --target_dir",),
    ),
    "verl's experiment": (
        with_files("global_step_20/actor/model_world_size_1_rank_0.pt", config=False),
        ("--local_dir model/global_step_20/actor",),
    ),
    "verl on Megatron": (
        with_files("dist_ckpt/__0_0.distcp", "huggingface/config.json", config=False),
        ("python -m verl.model_merger merge --backend megatron --local_dir model",),
    ),
    "DeepSpeed": (
        with_files("global_step9/zero_pp_rank_0_mp_rank_00_model_states.pt", "zero_to_fp32.py",
            "latest"),
        ("DeepSpeed", "python model/zero_to_fp32.py model models/merged --safe_serialization"),
    ),
    "DeepSpeed without its script": (
        with_files("global_step9/mp_rank_00_model_states.pt"),
        ("python -m deepspeed.utils.zero_to_fp32 model models/merged",),
    ),
    "DeepSpeed's shards of the optimizer alone": (
        with_files(
            "global_step20/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "zero_to_fp32.py",
            "latest"
        ),
        (
            "DeepSpeed's shards",
            "python model/zero_to_fp32.py model models/merged --safe_serialization",
        ),
    ),
    "DeepSpeed's shards under a tag of another name": (
        with_files("pytorch_model/zero_pp_rank_0_mp_rank_00_optim_states.pt"),
        ("DeepSpeed's shards", "python -m deepspeed.utils.zero_to_fp32 model models/merged"),
    ),
    "DeepSpeed's script alone": (
        with_files("zero_to_fp32.py", "latest"),
        ("DeepSpeed without its shards", "python model/zero_to_fp32.py model models/merged"),
    ),
    "pickles beside DeepSpeed's script": (
        with_files("pytorch_model.bin", "zero_to_fp32.py"),
        ("pickles can run code", "M.from_pretrained('model').save_pretrained("),
    ),
    "verl's actor without its weights": (
        with_files("optim_world_size_2_rank_0.pt", "extra_state_world_size_2_rank_0.pt",
            config=False),
        ("verl (extra_state_world_size", "Copy model_world_size_*_rank_*.pt into model too"),
    ),
    "accelerate": (
        with_files("pytorch_model_fsdp_0/__0_0.distcp", "optimizer_0/__0_0.distcp"),
        ("accelerate merge-weights model/pytorch_model_fsdp_0 models/merged",),
    ),
    "Megatron": (
        with_files("latest_checkpointed_iteration.txt", "iter_0000100/mp_rank_00/model.pt",
            config=False),
        ("Megatron", "export_ckpt(megatron_path='model'"),
    ),
    "torch.distributed": (
        with_files("__0_0.distcp", ".metadata"),
        ("python -m torch.distributed.checkpoint.format_utils dcp_to_torch model merged.pt",),
    ),
    "a trainer's folder": (
        lambda folder: [with_files(config=False)(folder), checkpoint(folder / "checkpoint-500")],
        ("give model/checkpoint-500",),
    ),
    "a cache of the hub": (
        lambda folder: checkpoint(folder / "models--org--name" / "snapshots" / "0123"),
        ("cache of huggingface_hub", "give model/models--org--name/snapshots/0123"),
    ),
    "links to nothing": (linked_to_nothing, (("links to files that are not there: "
"model.safetensors"), "cp -rL")),
    "a pointer of Git LFS": (pointer_of_git_lfs, (("model.safetensors: a pointer of Git "
"LFS"), "git lfs pull")),
    "llama.cpp": (
        with_files("model-q4_k_m.gguf", config=False),
        ("llama.cpp", "isojax model import model/model-q4_k_m.gguf"),
    ),
    "Meta's format": (
        with_files("consolidated.00.pth", "params.json", config=False),
        ("convert_llama_weights_to_hf --input_dir model",),
    ),
    "pickles": (
        with_files("pytorch_model-00001-of-00002.bin", "training_args.bin"),
        ("pickles can run code", "M.from_pretrained('model').save_pretrained("),
    ),
    "a pickle of another name": (with_files("policy.pt", "optimizer.pt"),
        ("policy.pt", "load_state_dict(torch.load")),
    "Flax": (with_files("flax_model.msgpack"), ("from_flax=True",)),
    "TensorFlow": (with_files("tf_model.h5"), ("from_tf=True",)),
    "ONNX": (with_files("model.onnx"), ("compiled for inference",)),
    "Orbax": (with_files("_CHECKPOINT_METADATA", "manifest.ocdbt", config=False),
        ("checkpoint of Orbax",)),
    "a sweep of isojax": (
        with_files("config.yaml", "cells/8x4-s0/records.jsonl", config=False),
        ("sweep of isojax", "isojax model export model/cells/8x4-s0 models/merged"),
    ),
    "unmerged LoRA": (
        with_tensors(with_unmerged_lora),
        ("adapters", "not merged", "merge_and_unload()"),
    ),
    "LoRA beside a whole model": (
        with_tensors(lambda t: t | {QUERY.replace("weight", "lora_A"): np.zeros((2, 8),
                    np.float32)}),
        ("adapters", "not merged", "merge_and_unload()"),
    ),
    "FP8 without its config": (
        with_tensors(lambda t: {k: v.astype(ml_dtypes.float8_e4m3fn) if "proj" in k else v for k,
                v in t.items()}),
        ("quantised (fp8)", "FineGrainedFP8Config", "dequantize=True", "fetch it again"),
    ),
    "FP8 by blocks": (
        with_tensors(lambda t: t | {f"{QUERY}_scale_inv": np.ones((1, 1), np.float32)}),
        ("quantised (fp8)",),
    ),
    "bitsandbytes": (
        with_tensors(
            lambda t: t | {QUERY: np.zeros((96, 1), np.uint8),
                f"{QUERY}.absmax": np.ones(3, np.float32)}
        ),
        ("quantised (bitsandbytes)",
            "M.from_pretrained('FOLDER').dequantize().save_pretrained('NEW')"),
    ),
    "AWQ": (
        with_tensors(
            lambda t: {k: v for k, v in t.items() if k != QUERY}
            | {QUERY.replace("weight", x): np.zeros((8, 3), np.int32) for x in ("qweight", "qzeros",
                    "scales")}
        ),
        ("quantised (gptq or awq)", "take the model that it was quantised from"),
    ),
    "compressed-tensors": (
        with_tensors(lambda t: {f"{k}_packed" if "proj" in k else k: v for k, v in t.items()}),
        ("quantised (compressed-tensors)", "CompressedTensorsConfig"),
    ),
    "packed in integers": (
        with_tensors(lambda t: t | {QUERY: np.zeros((24, 1), np.int32)}),
        ("quantised (I32)", "float weights"),
    ),
    "quantisation in config.json": (
        with_config("quantization_config", {"quant_method": "gptq", "bits": 4}),
        ("quantised (gptq)", "take the model that it was quantised from",
            "remove quantization_config"),
    ),
    "compression in config.json": (
        with_config("compression_config", {"format": "pack-quantized"}),
        ("compressed-tensors", "dequantize=True"),
    ),
    "MLX": (
        with_config("quantization", {"group_size": 64, "bits": 4}),
        ("mlx_lm.convert --hf-path FOLDER", "--dequantize"),
    ),
    "float64": (
        with_tensors(lambda t: {k: v.astype(np.float64) for k, v in t.items()}),
        ("stored as F64", "M.from_pretrained('model', dtype='float32').save_pretrained("),
    ),
    "empty tensors of ZeRO-3": (
        with_tensors(lambda t: {k: v if "norm" in k else np.zeros(0, np.float32) for k,
                v in t.items()}),
        ("ZeRO-3", "zero_to_fp32.py"),
    ),
    "no head of its own": (
        with_tensors(lambda t: {k.removeprefix("model."): v for k,
                v in t.items() if k != "lm_head.weight"}),
        ("names lack 'model.'", "AutoModelForCausalLM"),
    ),
    "Meta's names": (
        with_tensors(lambda t: {k.replace("model.embed_tokens", "tok_embeddings"): v for k,
                v in t.items()}),
        ("Meta's and Mistral's own, such as tok_embeddings.weight",),
    ),
    "a reward model": (
        with_config("architectures", ["LlamaForSequenceClassification"]),
        ("classifier or reward model",),
    ),
    "a model of images": (
        with_config("architectures", ["Qwen2_5_VLForConditionalGeneration"]),
        ("a model of images, sound",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FOLDERS)
def test_a_refusal_says_what_the_folder_holds_and_what_makes_a_model_of_it(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, words = FOLDERS[case]
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    make(Path("model"))
    error = refusal(Path("model"))
    assert error.startswith("model") and [word for word in words if word not in error] == []


def test_a_folder_inside_a_checkpoint_says_where_the_weights_are(tmp_path: Path) -> None:
    """verl puts config.json and the tokenizer in a folder below the shards, and a run of isojax its
    checkpoint."""
    actor = tmp_path / "actor"
    with_files("model_world_size_1_rank_0.pt", "huggingface/tokenizer.json", config=False)(actor)
    with_files()(actor / "huggingface")
    assert f"--local_dir {actor} " in refusal(actor / "huggingface")

    run = tmp_path / "sweep" / "cells" / "8x4-s0"
    with_files("config.yaml", "cells/8x2-s0/checkpoint/_METADATA", config=False)(tmp_path / "sweep")
    with_files("checkpoint/_METADATA", config=False)(run)
    for folder in (run, run / "checkpoint"):
        assert f"isojax model export {run} models/merged" in refusal(folder)


def test_a_file_in_a_models_folder_is_not_the_folder(tmp_path: Path) -> None:
    checkpoint(tmp_path / "model")
    error = refusal(tmp_path / "model" / "model.safetensors")
    assert f"Give the file's folder: cell.model.path={tmp_path / 'model'}" in error


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda name: f"_orig_mod.{name}",
        lambda name: f"module.{name}",
        lambda name: f"module._orig_mod.{name}",
        lambda name: name.replace("model.layers.", "model._orig_mod.layers."),
        lambda name: name.replace(".mlp.", "._checkpoint_wrapped_module.mlp."),
        lambda name: f"_fsdp_wrapped_module.{name}".replace(
            ".self_attn.", "._fsdp_wrapped_module.self_attn."
        ),
    ],
)
def test_wrappers_in_names_are_read_through(tmp_path: Path, wrapped: Callable[[str], str]) -> None:
    stored = checkpoint(tmp_path)
    save_file(
        {wrapped(name): value for name, value in stored.items()}, tmp_path / "model.safetensors"
    )
    params = flat(load(tmp_path))
    for name, value in expected(stored, "llama", tied=False).items():
        np.testing.assert_array_equal(params[name], value, err_msg=name)

    both = {QUERY: stored[QUERY] + 1} | {
        f"_orig_mod.{name}": value for name, value in stored.items()
    }
    save_file(both, tmp_path / "model.safetensors")
    assert f"{QUERY} is stored 2 times" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("renamed", "tied"),
    [
        (lambda name: f"policy.{name}", False),
        (lambda name: name.removeprefix("model."), True),
        (lambda name: name.replace("model.", "model.language_model.", 1), True),
    ],
)
def test_the_command_that_renames_tensors_makes_a_model(
    tmp_path: Path, renamed: Callable[[str], str], tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stored = checkpoint(Path("model"), tied=tied, dtype=ml_dtypes.bfloat16)
    save_file({renamed(name): value for name, value in stored.items()}, "model/model.safetensors")
    error = refusal(Path("model"))
    program, option, code = shlex.split(
        error[error.index("python -c") : error.index("; then copy")]
    )
    assert (program, option) == ("python", "-c")
    subprocess.run([sys.executable, "-c", code], check=True)

    shutil.copyfile("model/config.json", "models/merged/config.json")
    params = flat(load(Path("models/merged")))
    for name, value in expected(stored, "llama", tied).items():
        np.testing.assert_array_equal(params[name], value, err_msg=name)
