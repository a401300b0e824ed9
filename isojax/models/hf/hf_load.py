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
# What a user may have meant as a hub's model, where a folder is expected: its address, name and
# revision. A Path has made one slash of two.
HUB_NAME = rf"(hf:/|https:/huggingface\.co/)?({HUB_ID}|[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?"
FINITE_BLOCK = 2**20  # values that are checked at a time
Region = tuple[tuple[int, int], ...]  # of a parameter: first and end index on each axis


@dataclass(frozen=True)
class WeightLayout:
    """One of our parameters, and the tensors of a checkpoint that it is stored in.

    `key`: its dotted name in the parameters' tree, such as "blocks.query" or "embed"."""

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
        """Return the part of each stored tensor that holds a part of the parameter in one layer.

        `index`: a slice with start and stop for each of its axes but stacked ones: inputs, then
        outputs. Of axes that are one in the tensor, only the outermost may be a part, else the part
        would be no slice there."""
        slices = []
        # sizes of axes that are one in the tensor: of queries [(D,), (N, H)]
        for group in self.spec.stored_groups:
            outer, *inner = index[: len(group)]
            index = index[len(group) :]
            inner_sizes = group[1:]
            assert inner == [slice(0, size) for size in inner_sizes], (
                f"{self.key}: sharding.py splits the inner axis of a stored one"
            )
            inner_size = math.prod(inner_sizes)
            slices.append(slice(outer.start * inner_size, outer.stop * inner_size))

        if self.spec.part is not None:
            outputs = slices[-1]
            first = self.spec.part.first
            slices[-1] = slice(first + outputs.start, first + outputs.stop)
        return tuple(slices[::-1] if self.spec.transposed else slices)

    def to_stored(self, value: np.ndarray) -> np.ndarray:
        """Its value in one layer as its tensor has it, or its part of one."""
        matrix = value.reshape([math.prod(group) for group in self.spec.stored_groups])
        return matrix.T if self.spec.transposed else matrix


@dataclass(frozen=True)
class TensorPart:
    """What a tensor holds of one of our parameters: its value at one index of the stacked axes.

    `number`: of that index, as the Spec's `tensor_names` count."""

    layout: WeightLayout
    number: int

    @property
    def first_output(self) -> int:
        part = self.layout.spec.part
        return 0 if part is None else part.first

    def select(self, value: Any) -> Any:
        """Return this part of the parameter's whole value."""
        stacked_sizes = value.shape[: self.layout.num_stacked]
        if not stacked_sizes:
            return value
        return value[np.unravel_index(self.number, stacked_sizes)]


def tensor_parts(layouts: Sequence[WeightLayout]) -> dict[str, list[TensorPart]]:
    """Return by name what each tensor of a checkpoint holds, in its order: mostly one parameter.

    `layouts`: of all parameters. InputError where two are in one place."""
    parts: dict[str, list[TensorPart]] = defaultdict(list)
    for layout in layouts:
        for number, name in enumerate(layout.tensor_names):
            parts[name].append(TensorPart(layout, number))

    for name, in_tensor in parts.items():
        in_tensor.sort(key=lambda part: part.first_output)
        if len({part.first_output for part in in_tensor}) < len(in_tensor):
            keys = " and ".join(part.layout.key for part in in_tensor)
            raise InputError(
                found=f"the family has {keys} in one tensor, {name}",
                fix=(
                    "Name each tensor once; of one that holds several, "
                    "`fused` of make_architecture says which."
                ),
            )
    return parts


def weight_layouts(decoder: Decoder) -> list[WeightLayout]:
    """Return every parameter of the decoder but adapters, in its order, with its tensors.

    The tensors are those of the family's published checkpoints."""
    return [WeightLayout(key, spec) for key, spec in flatten(decoder.base.specs())]


def resolve_model(model: ModelConfig) -> ModelConfig:
    """Return the model with config.json's shape and family where `path` is set.

    Without a path it comes back as it is. InputError where a field that the user has set differs
    from the file, or where the file cannot be read as a model."""
    if model.path is None:
        return model

    folder = Path(model.path)
    config_json = read_text_config(folder)
    architectures = config_json.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise InputError(
            where=folder / CONFIG_FILE,
            found=f"architectures = {architectures!r}",
            expected="a list such as ['LlamaForCausalLM']",
        )
    try:
        from_file = _read_model(model, config_json, str(architectures[0]))
    except InputError as e:
        raise _in_folder(e, folder) from e

    requested_fields = vars(model)
    file_fields = vars(from_file)
    for key in sorted(model.model_fields_set):
        requested = requested_fields[key]
        is_unset = key == "vocab" and requested is None  # null: the vocabulary of what is there
        if requested != file_fields[key] and not is_unset:
            raise InputError(
                where=f"cell.model.{key}",
                found=f"given {requested!r}, but {folder / CONFIG_FILE} says {file_fields[key]!r}",
                fix="Leave the key out: with a path, the shape comes from there.",
            )
    return from_file


def _read_model(
    model: ModelConfig, config_json: Mapping[str, Any], architecture: str
) -> ModelConfig:
    """Return the model of a config.json, with the path and LoRA of `model`.

    `architecture`: the first of config.json's, such as "LlamaForCausalLM". A family that is a
    user's file stays; else it is that of the architecture."""
    is_own = model.family not in families.family.names()
    family = model.family if is_own else find_family(architecture)
    if not is_own:
        check_model_type(config_json, family)

    read_settings = families.family.load(family).traits.settings
    if read_settings is None:
        problem = f"the family {family} has no `settings`, by which {CONFIG_FILE} could be read"
        raise InputError(
            where=CONFIG_FILE,
            found=problem,
            expected="@family(settings=...) in its file",
        )
    # the file's fields replace the defaults; path and LoRA are no field of a file
    config = ModelConfig(family=family, path=model.path, lora=model.lora)
    return config.model_copy(update=read_settings(config_json))


def read_config(folder: Path) -> dict[str, Any]:
    """Return config.json as a dict; InputError, with what would help, where it is missing."""
    expected = "a model's folder with config.json, *.safetensors and a tokenizer"
    if not folder.is_dir():
        fix = _fix_missing_folder(folder)
        raise InputError(
            where=f"cell.model.path = {folder}",
            found="no such folder",
            expected=expected,
            fix=fix,
        )
    if not (folder / CONFIG_FILE).is_file():
        fix = describe_folder(folder) or "Copy the whole folder of the model."
        raise InputError(
            where=folder,
            found=f"no {CONFIG_FILE}",
            expected=expected,
            fix=fix,
        )
    return read_json_object(folder / CONFIG_FILE)


def _fix_missing_folder(folder: Path) -> str:
    """Say what to do where `cell.model.path` is no folder.

    It may be a model hub's name, such as ORG/NAME, its address, or a file in a model's folder."""
    hub_model = re.fullmatch(HUB_NAME, str(folder))
    if hub_model:
        url, name, revision = hub_model.groups()
        # a name of a hub's form that is more likely a path here
        folder_may_be_meant = (
            folder.exists()
            or name.startswith("models/")
            or ("/" in name and folder.parent.exists())
        )
        if url or revision or not folder_may_be_meant:
            repository = name if "/" in name else f"ORG/{name}"
            command = f"isojax model import {repository}"
            if revision:
                command += f" --revision {revision}"
            path = f"models/{Path(repository).name}"
            return f"If it is a model hub's: {command}, and then cell.model.path={path}"

    if folder.is_file() and holds_model(folder.parent):
        return f"Give the file's folder: cell.model.path={folder.parent}"
    fix = "Fetch a model first: isojax model import smollm2, or isojax model import ORG/NAME"
    return fix if folder.exists() else f"{fix} --out {folder}"


def _in_folder(error: InputError, folder: Path) -> InputError:
    """The error of a folder's config.json, whose path its reader does not know."""
    return InputError(
        where=f"{folder}/{error.where}",
        found=error.found,
        expected=error.expected,
        fix=error.fix,
    )


def read_text_config(folder: Path) -> dict[str, Any]:
    """config.json, and for a model that reads images too that of its language model."""
    config_json = read_config(folder)
    try:
        return text_config_json(config_json) or config_json
    except InputError as e:
        raise _in_folder(e, folder) from e


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
    """Return the folder's tensors by name, which are as config.json says.

    `layouts`: of all parameters. Names are those of a model of text alone. Headers are read, and no
    values but those that `check_tensors` compares."""
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
    """Return the checkpoint's parameters in float32, by `decoder.shardings(mesh)`.

    `config`: of the folder (`resolve_model`). Each process reads what its devices hold. InputError,
    before any value is read, where a tensor is missing or has another shape or dtype; and where one
    holds values that are no finite numbers."""
    layouts = weight_layouts(decoder)
    stored_tensors = _checked_tensors(folder, config, layouts)
    shardings = dict(flatten(decoder.shardings(mesh)))

    # The largest first, while the most memory is free; then back in the decoder's order.
    params = {}
    for layout in sorted(layouts, key=lambda layout: -math.prod(layout.spec.shape)):
        params[layout.key] = load_weight(layout, stored_tensors, shardings[layout.key])
    return unflatten_dict({layout.key: params[layout.key] for layout in layouts}, sep=".")


def load_weight(
    layout: WeightLayout, stored_tensors: Mapping[str, StoredTensor], sharding: NamedSharding
) -> Float[Array, "..."]:
    """Return one parameter in float32 on this process's devices, read from the layers' tensors.

    Each device gets its part alone; a part that several devices hold is read once.
    `stored_tensors`: by name, all that the parameter needs. `sharding`: of the parameter.
    InputError for values that are no finite numbers."""
    spec = layout.spec
    devices_by_region: dict[Region, list[Any]] = defaultdict(list)
    for device, index in sharding.addressable_devices_indices_map(spec.shape).items():
        assert index is not None
        # first and end index on each axis, which the slices leave out where they are whole
        bounds = [i.indices(size)[:2] for i, size in zip(index, spec.shape, strict=True)]
        devices_by_region[tuple(bounds)].append(device)

    # the first k axes count tensors, the others are one layer's
    k = layout.num_stacked
    names = np.array(layout.tensor_names).reshape(spec.shape[:k])
    arrays = []
    for region, devices in devices_by_region.items():
        values = np.empty([stop - start for start, stop in region], np.float32)
        index = tuple(slice(*bounds) for bounds in region)
        stored_index = layout.stored_index(index[k:])

        # One tensor after the other, each into its place among the stacked ones: in the order of
        # the names, the last stacked axis fastest. It is a view, so that filling it fills `values`.
        values_by_tensor = values.reshape(-1, *values.shape[k:])
        for name, tensor_values in zip(names[index[:k]].flat, values_by_tensor, strict=True):
            stored = stored_tensors[name].read(stored_index)
            matrix = stored.T if spec.transposed else stored
            tensor_values[...] = matrix.reshape(tensor_values.shape)
            if not _is_finite(tensor_values):
                raise InputError(_describe_non_finite(stored_tensors[name]))

        # waited for, so that the host holds the values of one region at a time
        arrays += [jax.block_until_ready(jax.device_put(values, device)) for device in devices]
    return jax.make_array_from_single_device_arrays(spec.shape, sharding, arrays)


def _is_finite(values: np.ndarray) -> bool:
    """Whether no value is NaN or infinite; by blocks, so that it takes little memory."""
    flat = values.reshape(-1)
    starts = range(0, flat.size, FINITE_BLOCK)
    return all(np.isfinite(flat[start : start + FINITE_BLOCK]).all() for start in starts)


def _describe_non_finite(tensor: StoredTensor) -> str:
    values = tensor.read(tuple(slice(0, size) for size in tensor.shape)).astype(np.float32)
    nans = int(np.isnan(values).sum())
    infinities = int(np.isinf(values).sum())
    held = f"{tensor.name} holds {nans:,} NaN and {infinities:,} infinite values of {values.size:,}"
    fix = (
        "Fetch the model again, or take an earlier checkpoint: "
        "a run that diverged leaves such weights"
    )
    return f"{tensor.file}: {held}; expected finite numbers. {fix}."
