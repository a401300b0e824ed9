"""Says what a folder holds that is no model as isojax reads it, and which command makes a model of
it.

Each kind of folder that trainers and tools leave has one function here, which knows it by the names
of its files. Files are never opened, but for small JSON ones. `paths_below` with nested=False lists
what is directly in a folder, files and folders.
"""

from collections.abc import Callable
from pathlib import Path

from isojax.core.table_files import paths_below, read_json_object
from isojax.core.tabular import list_some

CONFIG_FILE, WEIGHT_PATTERN = "config.json", "*.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
# which no weight can hold
PROMPT_ADAPTERS = ("PROMPT_TUNING", "PREFIX_TUNING", "P_TUNING", "MULTITASK_PROMPT_TUNING")
PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.ckpt")
# Pickles of a trainer that hold no weights.
TRAINER_PICKLES = (
    "optim",
    "extra_state",
    "scheduler",
    "rng_state",
    "training_args",
    "scaler",
    "random_states",
    "trainer_state",
)
ORBAX_FILES = ("_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt", "ocdbt.process_0")
NEW = "models/merged"  # where the commands write
TOKENIZER = f"then copy the tokenizer's files to {NEW}"
CONFIG_AND_TOKENIZER = f"then copy {CONFIG_FILE} and the tokenizer's files to {NEW}"


def describe_folder(folder: Path) -> str:
    """Say what the folder holds and what makes a model of it, in sentences.

    Empty where nobody knows it. A function of KINDS returns such sentences, or "" where it does not
    know the folder."""
    for describe in KINDS:
        description = describe(folder)
        if description:
            return description
    return ""


def holds_model(folder: Path) -> bool:
    """Whether config.json and weights are there, as far as names tell."""
    if not (folder / CONFIG_FILE).is_file():
        return False
    files = paths_below(folder, WEIGHT_PATTERN, nested=False)
    return any(file.name not in ADAPTER_WEIGHTS for file in files)


def _broken_links(folder: Path) -> str:
    """Say what to do with links to files that are not there; "" for other folders."""
    paths = paths_below(folder, nested=False)
    broken = [path.name for path in paths if path.is_symlink() and not path.exists()]
    if not broken:
        return ""
    fix = "Copy the folder with what its links point to, by cp -rL, or fetch the model again"
    return f"It has links to files that are not there: {list_some(broken)}. {fix}."


def _isojax_run(folder: Path) -> str:
    """Say how a sweep's run becomes a model; "" for a folder outside of a sweep."""
    # a sweep's folder, or up to three levels below it, such as a run's checkpoint
    levels = [folder, *folder.absolute().parents[:3]]
    sweeps = [f for f in levels if (f / "config.yaml").is_file() and (f / "cells").is_dir()]
    if not sweeps:
        return ""

    sweep = sweeps[0]
    runs = paths_below(sweep / "cells", nested=False)
    runs_around = [run for run in runs if run in levels or run.absolute() in levels]
    run = [*runs_around, *runs, sweep / "cells"][0]
    command = f"isojax model export {run} {NEW}"
    return f"It belongs to a sweep of isojax, {sweep}. Write a run's policy as a model: {command}"


def _hub_cache(folder: Path) -> str:
    """Say which folder of a cache of huggingface_hub is a model; "" for other folders."""
    caches = [folder] if (folder / "snapshots").is_dir() else sorted(folder.glob("models--*"))
    commits = []
    for cache in caches:
        if (cache / "snapshots").is_dir():
            paths = paths_below(cache / "snapshots", nested=False)
            commits += [str(path) for path in paths if path.is_dir()]
    if not commits:
        return ""

    choice = "give" if len(commits) == 1 else "give one of"
    return (
        "It is a cache of huggingface_hub, and a model's files are in its snapshots: "
        f"{choice} {list_some(commits)}."
    )


def _adapter(folder: Path) -> str:
    """Say how an adapter of PEFT and its base model become one; "" for other folders."""
    names = [name for name in (ADAPTER_CONFIG, *ADAPTER_WEIGHTS) if (folder / name).is_file()]
    if not names:
        return ""

    settings = read_json_object(folder / ADAPTER_CONFIG) if ADAPTER_CONFIG in names else {}
    base = settings.get("base_model_name_or_path") or "not named"
    adapter = f"It holds an adapter of PEFT ({list_some(names)}), whose base model is {base}"
    # a file without the key counts as LoRA
    method = settings.get("peft_type", "LORA")
    if method in PROMPT_ADAPTERS:
        return (
            f"{adapter}. An adapter of type {method} cannot be merged into weights: "
            "give the base model itself."
        )

    merge = f"M.from_pretrained('{folder}').merge_and_unload().save_pretrained('{NEW}')"
    command = python_command("from peft import AutoPeftModelForCausalLM as M", merge)
    return f"{adapter}. Merge the two: {command}; {TOKENIZER}."


def _verl(folder: Path) -> str:
    """Say how verl's shards, by FSDP or Megatron, become a model; "" for other folders."""
    for actor in _verl_actors(folder):
        shards = sorted(path.name for path in actor.glob("model_world_size_*_rank_*.pt"))
        if shards:
            what = f"The weights are in {actor}, as FSDP's shards of verl ({list_some(shards)})"
            return f"{what}. Merge them: {_verl_command('fsdp', actor)}"
        if (actor / "dist_ckpt").is_dir():
            what = f"The weights are in {actor / 'dist_ckpt'}, as Megatron's shards of verl"
            return f"{what}. Merge them: {_verl_command('megatron', actor)}"
    return ""


def _verl_actors(folder: Path) -> list[Path]:
    """The folders that may hold the shards of verl's policy."""
    actors = [folder, folder / "actor", *sorted(folder.glob("global_step_*/actor"))]
    if folder.name == "huggingface":  # config.json and tokenizer, next to the shards
        actors.append(folder.absolute().parent)
    return actors


def _verl_command(backend: str, actor: Path) -> str:
    merge = f"python -m verl.model_merger merge --backend {backend}"
    return f"{merge} --local_dir {actor} --target_dir {NEW}"


def _deepspeed(folder: Path) -> str:
    """Say how DeepSpeed's shards become a model; "" for other folders."""
    # A copy may lack some of its files, and any tag may name the folder of the shards.
    names = ("*_model_states.pt", "*_optim_states.pt")
    shards = [path for name in names for path in [*folder.glob(name), *folder.glob(f"*/{name}")]]
    if not shards:
        return ""
    checkpoint = folder if shards[0].parent != folder else folder.absolute().parent
    command = f"{_deepspeed_command(checkpoint)}; {CONFIG_AND_TOKENIZER}"
    return f"It holds DeepSpeed's shards, such as {shards[0].name}. Merge them: {command}."


def _deepspeed_command(checkpoint: Path) -> str:
    """Merges the shards below a checkpoint, the folder of the file `latest`."""
    script = checkpoint / "zero_to_fp32.py"
    program = str(script) if script.is_file() else "-m deepspeed.utils.zero_to_fp32"
    return f"python {program} {checkpoint} {NEW} --safe_serialization"


def _megatron(folder: Path) -> str:
    """Say how a checkpoint of Megatron becomes a model; "" for other folders."""
    parts = [
        *folder.glob("latest_checkpointed_iteration.txt"),
        *folder.glob("iter_*"),
        *folder.glob("mp_rank_*"),
    ]
    if not parts and not (folder / "common.pt").is_file():
        return ""
    load = f"B.from_hf_pretrained('BASE').export_ckpt(megatron_path='{folder}', hf_path='{NEW}')"
    command = python_command("from megatron.bridge import AutoBridge as B", load)
    return (
        "It is a checkpoint of Megatron. With the base model as BASE, export it: "
        f"{command}; {TOKENIZER}."
    )


def _accelerate(folder: Path) -> str:
    """Say how accelerate's shards by FSDP become a model; "" for other folders."""
    sharded = [path for path in sorted(folder.glob("pytorch_model_fsdp_*")) if path.is_dir()]
    if folder.name.startswith("pytorch_model_fsdp_"):
        sharded.append(folder)
    if not sharded:
        return ""
    command = f"accelerate merge-weights {sharded[0]} {NEW}"
    return (
        f"The weights are FSDP's shards of accelerate, in {sharded[0]}. "
        f"Merge them: {command}; {CONFIG_AND_TOKENIZER}."
    )


def _distributed_checkpoint(folder: Path) -> str:
    """Say how shards of torch.distributed.checkpoint become a model; "" for others."""
    parts = sorted(folder.glob("*.distcp")) or sorted(folder.glob("*/*.distcp"))
    if not parts:
        return ""
    program = "python -m torch.distributed.checkpoint.format_utils"
    convert = f"{program} dcp_to_torch {parts[0].parent} merged.pt"
    save = f"then load merged.pt into the model in transformers and model.save_pretrained('{NEW}')"
    return (
        f"It holds shards of torch.distributed.checkpoint, such as {parts[0].name}. "
        f"Join them: {convert}; {save}."
    )


def _model_below(folder: Path) -> str:
    """Say which subfolders are models; "" where there are none."""
    paths = paths_below(folder, nested=False)
    models = [str(path) for path in paths if path.is_dir() and holds_model(path)]
    if not models:
        return ""
    choice = "give" if len(models) == 1 else "give one of"
    return f"It holds models in folders of their own: {choice} {list_some(models)}."


def _gguf(folder: Path) -> str:
    """Say how llama.cpp's file becomes a model; "" for other folders."""
    files = sorted(folder.glob("*.gguf"))
    if not files:
        return ""
    names = list_some([file.name for file in files])
    return f"It holds llama.cpp's file, {names}. {gguf_fix(files[0])}"


def gguf_fix(file: Path) -> str:
    """What makes a model of llama.cpp's file."""
    original = "Take the model that it was made from, isojax model import ORG/NAME"
    return f"{original}, or make a model of the file: isojax model import {file}"


def _meta(folder: Path) -> str:
    """Say how a model in Meta's original format is converted; "" for other folders."""
    files = sorted(path.name for path in folder.glob("consolidated*.pth"))
    if not files:
        return ""
    program = "python -m transformers.models.llama.convert_llama_weights_to_hf"
    options = f"--input_dir {folder} --model_size SIZE --llama_version VERSION --output_dir {NEW}"
    hub = "Take the model hub's *.safetensors, isojax model import ORG/NAME"
    return (
        f"It holds Meta's own format, {list_some(files)}. "
        f"{hub}, or convert it with transformers 4: {program} {options}"
    )


def describe_pickles(folder: Path) -> str:
    """Say how weights in pickles become safetensors; empty where there are none."""
    names = sorted(path.name for pattern in PICKLE_PATTERNS for path in folder.glob(pattern))
    files = [name for name in names if not name.startswith(TRAINER_PICKLES)]
    if not files:
        return ""

    weights = []
    for name in files:  # under transformers' names of one file, or of numbered ones
        if name == "pytorch_model.bin" or name.startswith("pytorch_model-0"):
            weights.append(name)
    if not weights or not (folder / CONFIG_FILE).is_file():
        load = "model.load_state_dict(torch.load(FILE, weights_only=True))"
        return (
            f"It holds pickles, {list_some(files)}. Where one is the model's weights: "
            f"in transformers, {load} and model.save_pretrained('{NEW}')."
        )

    save = f"M.from_pretrained('{folder}').save_pretrained('{NEW}')"
    convert = python_command("from transformers import AutoModelForCausalLM as M", save)
    return f"Convert {list_some(weights)}, if you trust who made it: {convert}; {TOKENIZER}."


def _other_frameworks(folder: Path) -> str:
    """Say what to do with files of Flax, TensorFlow, compilers or Orbax; "" for others."""
    options = {"flax_model*.msgpack": "from_flax=True", "tf_model*.h5": "from_tf=True"}
    for pattern, option in options.items():
        files = sorted(path.name for path in folder.glob(pattern))
        if files:
            save = f"M.from_pretrained('{folder}', {option}).save_pretrained('{NEW}')"
            convert = python_command("from transformers import AutoModelForCausalLM as M", save)
            return (
                f"It holds {list_some(files)}. "
                f"Convert it with transformers 4: {convert}; {TOKENIZER}."
            )

    compiled = [*folder.glob("*.onnx"), *folder.glob("*.engine"), *folder.glob("openvino_model.*")]
    if compiled:
        names = list_some([path.name for path in compiled])
        fix = "Give the model that it was made from, as *.safetensors"
        return f"It holds a model compiled for inference, {names}. {fix}."

    if any((folder / name).exists() for name in ORBAX_FILES):
        return (
            "It is a checkpoint of Orbax, from a JAX program. Restore it in the program that "
            "wrote it, and write *.safetensors under transformers' names there."
        )
    return ""


def _traces(folder: Path) -> str:
    """Say which shards of weights a trainer's folder lacks; "" for other folders."""
    if (folder / "zero_to_fp32.py").is_file():
        what = "It is a checkpoint of DeepSpeed without its shards, global_step*/*_states.pt"
        merge = f"{_deepspeed_command(folder)}; {CONFIG_AND_TOKENIZER}"
        return f"{what}. Copy them too, and merge them: {merge}."

    names = ("optim_world_size_*.pt", "extra_state_world_size_*.pt", "fsdp_config.json")
    for actor in _verl_actors(folder):
        traces = sorted(path.name for name in names for path in actor.glob(name))
        if traces:
            what = f"It is a checkpoint of verl ({list_some(traces)}) without its weights' shards"
            copy = f"Copy model_world_size_*_rank_*.pt into {actor} too, and merge them"
            return f"{what}. {copy}: {_verl_command('fsdp', actor)}"
    return ""


# The first that says something is taken. A folder may look like several: the order decides.
KINDS: tuple[Callable[[Path], str], ...] = (
    _broken_links, _isojax_run, _hub_cache, _verl, _adapter, _deepspeed, _accelerate, _megatron,
    _distributed_checkpoint, _model_below, _gguf, _meta, describe_pickles, _other_frameworks,
    _traces,
)  # fmt: skip


def python_command(imports: str, statement: str) -> str:
    """The two as a shell's command."""
    return f'python -c "{imports}; {statement}"'
