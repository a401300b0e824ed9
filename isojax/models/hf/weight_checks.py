"""Checks a checkpoint before its weights are read: the tensors against config.json, and a stored
head against the flag that ties it to the embedding."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from isojax.core.config import ModelConfig
from isojax.core.errors import InputError
from isojax.core.terminal import warn
from isojax.models.architecture import EMBEDDING_WEIGHT, HEAD_WEIGHT
from isojax.models.folder_kinds import ADAPTER_CONFIG, CONFIG_FILE
from isojax.models.hf.quantised import describe_quantised_tensors
from isojax.models.hf.tensor_kinds import (
    Shapes,
    describe_adapters,
    explain_mismatch,
    is_beyond,
    unused_layers,
)
from isojax.models.safetensors_io import DTYPES, StoredTensor
from isojax.models.spec import Spec
from isojax.models.weight_files import INDEX_FILE, read_weight_map

MAX_LISTED = 4
COMPARED_VALUES = 2**22  # at a time, of a head and an embedding
_warn_once = functools.cache(warn)  # a sweep reads its base model once per cell


def check_tensors(
    folder: Path, config: ModelConfig, specs: Sequence[Spec], stored: Mapping[str, StoredTensor]
) -> None:
    """Raise InputError unless each tensor of the described parameters is as config.json says.

    Each must have its shape and a known dtype, and no other tensor may say that the weights are
    quantised, lack their adapters, or have another head; other unused ones are named on stderr.
    `specs`: of all parameters. `stored`: the folder's tensors, by name."""
    expected = {name: spec.stored_shape for spec in specs for name in spec.tensor_names()}
    # A tied model may store its head, which is compared with the embedding below.
    unused = sorted(stored.keys() - expected.keys() - {HEAD_WEIGHT})
    # what describes the weights as quantised: tensors that are not needed, or of other dtypes
    unreadable = {
        name: tensor.dtype
        for name, tensor in stored.items()
        if name not in expected or tensor.dtype not in DTYPES
    }
    # These first: with adapters or quantised weights, the others do not fit either.
    description = describe_adapters(unused) or describe_quantised_tensors(unreadable)
    if description:
        raise InputError(
            where=folder,
            found=description,
        )

    mismatches = _mismatches(folder, expected, stored)
    if mismatches:
        listed = "; ".join(mismatches[:MAX_LISTED])
        if len(mismatches) > MAX_LISTED:
            listed += f"; and {len(mismatches) - MAX_LISTED} more"
        fix = explain_mismatch(folder, config, specs, stored)
        raise InputError(
            where=folder,
            found=f"{len(mismatches)} weights are not as {CONFIG_FILE} says: {listed}",
            fix=fix,
        )

    if HEAD_WEIGHT in stored and HEAD_WEIGHT not in expected and EMBEDDING_WEIGHT in expected:
        _check_head(folder, stored[HEAD_WEIGHT], stored[EMBEDDING_WEIGHT])
    _warn_of_unused(folder, config, unused)


def _mismatches(folder: Path, expected: Shapes, stored: Mapping[str, StoredTensor]) -> list[str]:
    """Say in words what is wrong with each expected tensor that is not stored as expected.

    `expected`: shapes by name. Such as "lm_head.weight is missing, expected shape [49152, 576]"."""
    file_of_tensor = read_weight_map(folder)  # by the index; empty where the folder has none

    mismatches = []
    for name, shape in expected.items():
        if name in stored:
            problem = _describe_mismatch(stored[name], shape)
        else:
            problem = f"is missing, expected shape {list(shape)}"
            if name in file_of_tensor:
                problem += f", though {INDEX_FILE} puts it in {file_of_tensor[name]}"
        if problem:
            mismatches.append(f"{name} {problem}")
    return mismatches


def _describe_mismatch(tensor: StoredTensor, shape: tuple[int, ...]) -> str:
    """How a stored tensor differs from what is expected; "" where it does not."""
    file = tensor.file.name
    if tensor.shape != shape:
        return f"has shape {list(tensor.shape)} in {file}, expected {list(shape)}"
    if tensor.dtype not in DTYPES:
        return f"is stored as {tensor.dtype} in {file}, expected {', '.join(DTYPES)}"
    return ""


def _check_head(folder: Path, head: StoredTensor, embedding: StoredTensor) -> None:
    """Raise InputError where a tied model stores a head that differs from the embedding.

    transformers 5 computes logits by the stored head, and vLLM by the embedding, so neither can be
    taken for granted."""
    row = _first_different_row(head, embedding)
    if row is not None:
        raise InputError(
            where=folder,
            found=(
                f"{CONFIG_FILE} ties the head to the embedding, but {HEAD_WEIGHT} in "
                f"{head.file.name} differs from {EMBEDDING_WEIGHT} in {embedding.file.name}, "
                f"at row {row}"
            ),
            fix=(
                f"Set tie_word_embeddings to false in {CONFIG_FILE}, if the head was trained; "
                f"else remove {HEAD_WEIGHT} from its file."
            ),
        )


def _first_different_row(first: StoredTensor, second: StoredTensor) -> int | None:
    """None where the two are equal."""
    if first.shape != second.shape:
        return 0

    rows, columns = first.shape
    rows_at_once = max(1, COMPARED_VALUES // columns)
    for start in range(0, rows, rows_at_once):
        part = (slice(start, min(start + rows_at_once, rows)), slice(0, columns))
        differs = first.read(part).astype(np.float32) != second.read(part).astype(np.float32)
        if differs.any():
            return start + int(np.flatnonzero(differs.any(axis=1))[0])
    return None


def _warn_of_unused(folder: Path, config: ModelConfig, unused: list[str]) -> None:
    """Warn of an adapter that is not applied, layers beyond config.json's, and unused tensors.

    `unused`: the names of tensors that no parameter needs."""
    if (folder / ADAPTER_CONFIG).is_file():
        _warn_once(
            f"{folder}: the adapter of {ADAPTER_CONFIG} is not applied to the weights beside it."
        )
    extra_layers = unused_layers(config, unused)
    if extra_layers > 0:
        held = (
            f"the files hold {config.layers + extra_layers} layers, "
            f"and isojax reads the first {config.layers}"
        )
        _warn_once(
            f"{folder}: {held}, as num_hidden_layers in {CONFIG_FILE} says. "
            "Correct it if it is wrong."
        )

    # but tables that older files have of rotary positions, and the layers above
    names = []
    for name in unused:
        if not name.endswith("rotary_emb.inv_freq") and not is_beyond(config, name):
            names.append(name)
    if names:
        listed = ", ".join(names[:MAX_LISTED])
        if len(names) > MAX_LISTED:
            listed += ", ..."
        _warn_once(
            f"{folder} holds {len(names)} tensors that this architecture does not use: {listed}"
        )
