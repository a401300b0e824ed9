"""Finds the files that hold a model's weights: by the index where there is one, as transformers and
vLLM write them.

Where two sources in a folder could differ, such as a model.safetensors and an index of other
files, no program's choice is right for all, and the folder is refused.
"""

import functools
import re
from pathlib import Path

from isojax.core.errors import InputError
from isojax.core.table_files import paths_below, read_json_object
from isojax.core.tabular import list_some
from isojax.core.terminal import warn
from isojax.models.folder_kinds import describe_folder, describe_pickles

SINGLE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d+)-of-(?P<total>\d+)(?P<end>\.safetensors)")
NO_WEIGHTS = ("adapter", "optim")  # how safetensors files begin that hold no weights of the model
# What torch.compile, FSDP and activation checkpointing add to the names in a state dict; DDP adds a
# first `module`.
WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_warn_once = functools.cache(warn)  # a sweep reads its base model once per cell


def weight_files(folder: Path) -> list[Path]:
    """Return the files that hold the model's weights.

    They are model.safetensors where the index does not name it, else the index's files, else all
    safetensors but adapters and optimizers' states. InputError where some are missing, or where the
    folder holds weights twice."""
    indexed = indexed_names(folder)
    present = [name for name in indexed if (folder / name).is_file()]

    if (folder / SINGLE_FILE).is_file() and SINGLE_FILE not in indexed:
        _check_single(folder, indexed, present)
        return [folder / SINGLE_FILE]

    if indexed:
        _check_indexed(folder, indexed, present)
        return [folder / name for name in indexed]

    paths = _weights_beside(folder)
    if not paths:
        raise InputError(_no_weights(folder))
    _check_shards(folder, paths)
    return paths


def _check_single(folder: Path, indexed: list[str], present: list[str]) -> None:
    """Raise InputError where the files of an index are there as well as model.safetensors.

    A warning of an index whose files are not there, and of shards without an index. `indexed`: the
    names in the index; `present`: those of them that are there."""
    if present:
        raise InputError(
            where=folder,
            found=(
                f"has weights twice, in {SINGLE_FILE} and in the files of {INDEX_FILE} "
                f"({list_some(present)}), and programs differ in which they read"
            ),
            fix=f"Remove one of the two: {SINGLE_FILE}, or the index and its files.",
        )
    if indexed:
        _warn_once(
            f"{folder}: {SINGLE_FILE} is read; {INDEX_FILE} names {list_some(indexed)}, "
            "which is not there."
        )
        return

    shards = [path.name for path in _weights_beside(folder) if SHARD_NAME.fullmatch(path.name)]
    if shards:
        _warn_once(
            f"{folder}: {SINGLE_FILE} is read; {list_some(shards)} beside it, "
            "without an index, is not."
        )


def _weights_beside(folder: Path) -> list[Path]:
    """Return the folder's safetensors but adapters and optimizers' states.

    `consolidated`, Mistral's copy, only if it is alone."""
    paths = [path for path in paths_below(folder, "*.safetensors", nested=False) if path.is_file()]
    paths = [path for path in paths if not path.name.startswith(NO_WEIGHTS)]
    return [path for path in paths if not path.name.startswith("consolidated")] or paths


def _check_indexed(folder: Path, indexed: list[str], present: list[str]) -> None:
    """Raise InputError where files of the index are missing; warn of shards that it does not name.

    `indexed`: the names in the index; `present`: those of them that are there."""
    unnamed = [path.name for path in _weights_beside(folder) if path.name not in indexed]
    missing = sorted(set(indexed) - set(present))
    if missing:
        fix = "Copy it too."
        if unnamed:
            fix += f" Or, if {list_some(unnamed)} are the whole model, remove {INDEX_FILE}."
        raise InputError(
            where=folder,
            found=f"{INDEX_FILE} names {', '.join(missing)}, which is not there",
            fix=fix,
        )

    shards = [name for name in unnamed if SHARD_NAME.fullmatch(name)]
    if shards:
        _warn_once(
            f"{folder}: {list_some(shards)} is not read, because {INDEX_FILE} does not name it."
        )


def _check_shards(folder: Path, paths: list[Path]) -> None:
    """Raise InputError unless shards, which no index names, are all of one save.

    A shard's name is such as model-00001-of-00004.safetensors; files of other names are not looked
    at."""
    numbers_of_save: dict[str, set[str]] = {}  # by model-*-of-00004.safetensors
    totals: dict[str, int] = {}
    for path in paths:
        match = SHARD_NAME.fullmatch(path.name)
        if match is not None:
            save = f"{match['stem']}-*-of-{match['total']}{match['end']}"
            numbers_of_save.setdefault(save, set()).add(match["number"])
            totals[save] = int(match["total"])

    if len(numbers_of_save) > 1:
        counts = [f"{len(numbers)} of {save}" for save, numbers in numbers_of_save.items()]
        listed = " and ".join(counts)
        raise InputError(
            where=folder,
            found=f"has shards of several saves, {listed}, and no index",
            fix=f"Remove those of the older save, or put {INDEX_FILE} back.",
        )
    for save, numbers in numbers_of_save.items():
        if len(numbers) < totals[save]:
            held = f"{len(numbers)} of the {totals[save]} files {save}"
            raise InputError(
                where=folder,
                found=f"has {held}",
                fix="Copy the others too.",
            )


def _no_weights(folder: Path) -> str:
    """Say what the folder holds in the place of weights, and what to do."""
    description = describe_folder(folder)
    pickles = describe_pickles(folder)
    if description and description != pickles:  # of pickles more is said below
        return f"{folder}: has no {SINGLE_FILE} or {INDEX_FILE}. {description}"

    names = sorted(
        path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern)
    )
    held = "it has none"
    if names:
        held = f"it has {list_some(names)}, and pickles can run code, so only safetensors are read"
    fix = pickles or (
        "Get the *.safetensors of the same model, or convert it with transformers: "
        "model.save_pretrained(FOLDER)."
    )
    return f"{folder}: expected {SINGLE_FILE} or {INDEX_FILE} with its files; {held}. {fix}"


def indexed_names(folder: Path) -> list[str]:
    """The files that the folder's index names; none where there is no index."""
    return sorted(set(read_weight_map(folder).values()))


def read_weight_map(folder: Path) -> dict[str, str]:
    """The index's file of each tensor, by its plain name; empty where there is no index."""
    if not (folder / INDEX_FILE).is_file():
        return {}
    names = read_json_object(folder / INDEX_FILE).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise InputError(
            where=folder / INDEX_FILE,
            found="no weight_map (tensor -> file)",
            fix="Copy it again.",
        )
    return {plain_name(tensor): Path(str(file)).name for tensor, file in names.items()}


def plain_name(name: str) -> str:
    """Return a tensor's name without the wrappers that a state dict shows.

    They are those of torch.compile, FSDP, checkpointing and DDP: "module._orig_mod.lm_head.weight"
    is "lm_head.weight"."""
    parts = [part for part in name.split(".") if part not in WRAPPERS]
    return ".".join(parts[1:] if parts[:1] == ["module"] else parts)
