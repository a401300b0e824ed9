"""Weights from a folder as a hub gives it (config.json, *.safetensors, a tokenizer), straight onto
the mesh.

A checkpoint stores one matrix per layer, [out, in], with heads joined; a decoder stacks layers and
splits heads: [L, in..., out...]. The embedding alone is stored as it is used, [V, D]. Some store
several matrices as one, one below the other. A parameter's Spec (models/spec.py) says which.
"""

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax.traverse_util import unflatten_dict
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Float

from isojax.core.config import ModelConfig
from isojax.core.errors import InputError
from isojax.core.table_files import read_json_object
from isojax.core.yaml_files import flatten
from isojax.models import families
from isojax.models.architecture import EMBEDDING_WEIGHT, HEAD_WEIGHT
from isojax.models.folder_kinds import CONFIG_FILE, describe_folder, holds_model
from isojax.models.hf.hf_config import check_model_type, find_family
from isojax.models.hf.text_part import text_config_json, text_tensors
from isojax.models.hf.weight_checks import check_tensors
from isojax.models.safetensors_io import StoredTensor, read_headers
from isojax.models.spec import Spec
from isojax.models.transformer import Decoder, Params

SOURCE_FILE = "model_source.json"  # where `isojax model import` took the folder from
HUB_ID = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"  # ORG/NAME
# of a Path
HUB_NAME = rf"(hf:/|https:/huggingface\.co/)?({HUB_ID}|[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?"
FINITE_BLOCK = 2**20  # values that are checked at a time
Region = tuple[tuple[int, int], ...]  # of a parameter: first and end index on each axis


@dataclass(frozen=True)
class WeightLayout:
    """One of our parameters, and the tensors it is stored in."""

    key: str
    spec: Spec

    @property
    def tensor_names(self) -> tuple[str, ...]:
        return self.spec.tensor_names()

    @property
    def num_stacked(self) -> int:
        """How many of its first axes count tensors."""
        return len(self.spec.stacked)

    def stored_index(self, index: tuple[slice, ...]) -> tuple[slice, ...]:
        """The part of each stored tensor that holds a part of the parameter in one layer."""
        slices = []
        for group in self.spec.stored_groups:
            outer, inner, index = index[0], index[1 : len(group)], index[len(group) :]
            whole = [slice(0, n) for n in group[1:]]
            assert list(inner) == whole, (
                f"{self.key}: sharding.py splits the inner axis of a stored one"
            )
            inner_size = math.prod(group[1:])
            slices.append(slice(outer.start * inner_size, outer.stop * inner_size))

        if self.spec.part is not None:
            outputs, first = slices[-1], self.spec.part.first
            slices[-1] = slice(first + outputs.start, first + outputs.stop)
        return tuple(slices[::-1] if self.spec.transposed else slices)

    def to_stored(self, value: np.ndarray) -> np.ndarray:
        """Its value in one layer as its tensor has it, or its part of one."""
        matrix = value.reshape([math.prod(group) for group in self.spec.stored_groups])
        return matrix.T if self.spec.transposed else matrix


@dataclass(frozen=True)
class TensorPart:
    """What a tensor holds of one of our parameters: all of it that has this number, as its
    `tensor_names` count."""

    layout: WeightLayout
    number: int

    @property
    def first_output(self) -> int:
        place = self.layout.spec.part
        return 0 if place is None else place.first

    def select(self, value: Any) -> Any:
        """The same of the parameter's value."""
        stacked_sizes = value.shape[: self.layout.num_stacked]
        return value[np.unravel_index(self.number, stacked_sizes)] if stacked_sizes else value


def tensor_parts(layouts: Sequence[WeightLayout]) -> dict[str, list[TensorPart]]:
    """By name, what each tensor of a checkpoint holds, in its order: mostly one parameter.
    InputError where two are in one place."""
    parts: dict[str, list[TensorPart]] = defaultdict(list)
    for layout in layouts:
        for number, name in enumerate(layout.tensor_names):
            parts[name].append(TensorPart(layout, number))

    for name, found in parts.items():
        found.sort(key=lambda part: part.first_output)
        if len({part.first_output for part in found}) < len(found):
            keys = " and ".join(part.layout.key for part in found)
            fix = "Name each tensor once; of one that holds several, `fused` of make_architecture says which"
            raise InputError(f"the family has {keys} in one tensor, {name}. {fix}.")
    return parts


def weight_layouts(decoder: Decoder) -> list[WeightLayout]:
    """Every parameter of the decoder but adapters, in its order, with its place in a checkpoint of
    the family."""
    return [WeightLayout(key, spec) for key, spec in flatten(decoder.base.specs())]


def resolve_model(model: ModelConfig) -> ModelConfig:
    """The model with config.json's shape and family where `path` is set; InputError where a field
    of it differs."""
    if model.path is None:
        return model
    folder = Path(model.path)
    config_json = read_text_config(folder)
    architectures = config_json.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise InputError(
            f"{folder / CONFIG_FILE}: architectures = {architectures!r}; expected a list such as ['LlamaForCausalLM']."
        )
    try:
        is_own = model.family not in families.family.names()
        family = model.family if is_own else find_family(str(architectures[0]))
        if not is_own:
            check_model_type(config_json, family)
        read_settings = families.family.load(family).traits.settings
        if read_settings is None:
            problem = f"the family {family} has no `settings`, by which {CONFIG_FILE} could be read"
            raise InputError(
                f"{CONFIG_FILE}: {problem}; expected @family(settings=...) in its file."
            )
        settings = read_settings(config_json)
    except InputError as e:
        raise InputError(f"{folder}/{e}") from e
    from_file = ModelConfig(family=family, path=model.path, lora=model.lora).model_copy(
        update=settings
    )
    requested_fields, file_fields = vars(model), vars(from_file)
    for key in sorted(model.model_fields_set):
        if requested_fields[key] != file_fields[key] and (key, requested_fields[key]) != (
            "vocab",
            None,
        ):
            raise InputError(
                f"cell.model.{key}: given {requested_fields[key]!r}, but {folder / CONFIG_FILE} says "
                f"{file_fields[key]!r}. Leave the key out: with a path, the shape comes from there."
            )
    return from_file


def read_config(folder: Path) -> dict[str, Any]:
    expected = "expected a model's folder with config.json, *.safetensors and a tokenizer"
    if not folder.is_dir():
        fix = "Fetch a model first: isojax model import smollm2, or isojax model import ORG/NAME"
        fix += "" if folder.exists() else f" --out {folder}"
        if folder.is_file() and holds_model(folder.parent):
            fix = f"Give the file's folder: cell.model.path={folder.parent}"
        url, name, revision = (
            match.groups() if (match := re.fullmatch(HUB_NAME, str(folder))) else ("", "", "")
        )
        folder_may_be_meant = (
            folder.exists()
            or name.startswith("models/")
            or ("/" in name and folder.parent.exists())
        )
        if url or revision or (name and not folder_may_be_meant):
            repository = name if "/" in name else f"ORG/{name}"
            command = f"isojax model import {repository}" + f" --revision {revision}" * bool(
                revision
            )
            fix = f"If it is a model hub's: {command}, and then cell.model.path=models/{Path(repository).name}"
        raise InputError(f"cell.model.path = {folder}: no such folder; {expected}. {fix}")
    if not (folder / CONFIG_FILE).is_file():
        fix = describe_folder(folder) or "Copy the whole folder of the model."
        raise InputError(f"{folder}: has no {CONFIG_FILE}; {expected}. {fix}")
    return read_json_object(folder / CONFIG_FILE)


def read_text_config(folder: Path) -> dict[str, Any]:
    """config.json, and for a model that reads images too that of its language model."""
    config_json = read_config(folder)
    try:
        return text_config_json(config_json) or config_json
    except InputError as e:
        raise InputError(f"{folder}/{e}") from e


def reads_images(folder: Path) -> bool:
    """Whether the folder's model is more than its language model, which alone is read."""
    return text_config_json(read_config(folder)) is not None


def read_source(folder: Path) -> dict[str, Any] | None:
    """None for a folder that isojax did not import."""
    return read_json_object(folder / SOURCE_FILE) if (folder / SOURCE_FILE).is_file() else None


def check_weights(config: ModelConfig) -> None:
    """InputError unless the weights of a resolved `config.path` are there as `load` needs them.
    Reads headers alone, and a head that a tied model stores."""
    if config.path is not None:
        decoder = Decoder(config)
        _checked_tensors(Path(config.path), config, weight_layouts(decoder))


def _checked_tensors(
    folder: Path, config: ModelConfig, layouts: list[WeightLayout]
) -> dict[str, StoredTensor]:
    """The folder's tensors by name, which are as config.json says."""
    stored_tensors = read_headers(folder)
    if reads_images(folder):
        stored_tensors = text_tensors(folder, stored_tensors)
    expected = tensor_parts(layouts).keys()
    is_head_alone = HEAD_WEIGHT in stored_tensors.keys() - expected
    if is_head_alone and EMBEDDING_WEIGHT in expected - stored_tensors.keys():
        # Of two tied tensors, safetensors may store either.
        stored_tensors[EMBEDDING_WEIGHT] = stored_tensors.pop(HEAD_WEIGHT)
    check_tensors(folder, config, [layout.spec for layout in layouts], stored_tensors)
    return stored_tensors


def load(folder: Path, config: ModelConfig, decoder: Decoder, mesh: Mesh) -> Params:
    """The checkpoint's parameters in float32 by `decoder.shardings(mesh)`; each process reads what
    its devices hold. InputError, before any is read, where a tensor is missing or has another shape
    or dtype, and where one holds values that are no finite numbers."""
    layouts = weight_layouts(decoder)
    stored_tensors = _checked_tensors(folder, config, layouts)
    shardings = dict(flatten(decoder.shardings(mesh)))
    order = sorted(layouts, key=lambda w: -math.prod(w.spec.shape))  # largest first
    params = {
        weight.key: load_weight(weight, stored_tensors, shardings[weight.key]) for weight in order
    }
    return unflatten_dict({weight.key: params[weight.key] for weight in layouts}, sep=".")


def load_weight(
    layout: WeightLayout, stored_tensors: Mapping[str, StoredTensor], sharding: NamedSharding
) -> Float[Array, "..."]:
    """One parameter in float32 on this process's devices, each of which gets its part of the
    layers' tensors alone."""
    devices_by_region: dict[Region, list[Any]] = defaultdict(list)
    shape = layout.spec.shape
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        assert index is not None
        devices_by_region[
            tuple(i.indices(n)[:2] for i, n in zip(index, shape, strict=True))
        ].append(device)
    arrays, k = [], layout.num_stacked
    names = np.array(layout.tensor_names).reshape(shape[:k])
    for region, devices in devices_by_region.items():
        values = np.empty([stop - start for start, stop in region], np.float32)
        index = tuple(slice(*bounds) for bounds in region)
        stored_index = layout.stored_index(index[k:])
        for name, tensor_values in zip(
            names[index[:k]].flat, values.reshape(-1, *values.shape[k:]), strict=True
        ):
            stored = stored_tensors[name].read(stored_index)
            tensor_values[...] = (stored.T if layout.spec.transposed else stored).reshape(
                tensor_values.shape
            )
            if not _is_finite(tensor_values):
                raise InputError(_describe_non_finite(stored_tensors[name]))
        arrays += [jax.block_until_ready(jax.device_put(values, device)) for device in devices]
    return jax.make_array_from_single_device_arrays(shape, sharding, arrays)


def _is_finite(values: np.ndarray) -> bool:
    """Whether no value is NaN or infinite; by blocks, so that it takes little memory."""
    flat = values.reshape(-1)
    return all(
        np.isfinite(flat[i : i + FINITE_BLOCK]).all() for i in range(0, flat.size, FINITE_BLOCK)
    )


def _describe_non_finite(tensor: StoredTensor) -> str:
    values = tensor.read(tuple(slice(0, size) for size in tensor.shape)).astype(np.float32)
    nans, infinities = int(np.isnan(values).sum()), int(np.isinf(values).sum())
    held = f"{tensor.name} holds {nans:,} NaN and {infinities:,} infinite values of {values.size:,}"
    fix = "Fetch the model again, or take an earlier checkpoint: a run that diverged leaves such weights"
    return f"{tensor.file}: {held}; expected finite numbers. {fix}."
