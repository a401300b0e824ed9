"""`isojax model export`: the policy of a cell's checkpoint as a folder that transformers and vLLM
load, or as llama.cpp's file."""

import importlib
from dataclasses import dataclass
from pathlib import Path

import jax
from jax.sharding import SingleDeviceSharding

from isojax.core import registry
from isojax.core.config import Config, ModelConfig, load_config
from isojax.core.errors import InputError
from isojax.core.machine import silence_libtpu
from isojax.distributed.mesh_spec import MeshShape
from isojax.distributed.sharding import make_mesh, shapes_with_shardings
from isojax.launch.resume import BASE_FOLDER
from isojax.models.hf import hf_export, hf_load
from isojax.models.lora import merge_adapters, policy_params
from isojax.models.safetensors_io import fingerprint
from isojax.models.transformer import Decoder
from isojax.train.base_policy import load_base_policy
from isojax.train.checkpoint import restore_params


@dataclass(frozen=True)
class ExportKind:
    """What an export is written as."""

    dtype: str  # of a folder's weights as numpy names it, or of a GGUF file's as llama.cpp does
    is_gguf: bool = False
    adapter_only: bool = False


def export_cell(
    cell_folder: Path, out: Path, kind: ExportKind, base_folder: Path | None = None
) -> int:
    """Write the newest checkpoint of a run's folder to `out`; returns M, its number of updates.

    cell_folder: such as runs/NAME/cells/16x8-s0. out: a folder, or a GGUF file. config.json and
    tokenizer come from the checkpoint that the run began with, or from `base_folder` if that has
    moved. LoRA's adapters are merged into the base model's weights, or are written alone, as PEFT's
    folder. InputError where the folder holds no run's state, or its base model is not there.
    """
    config = _read_config(cell_folder)
    model, base_path = _resolve_base_model(cell_folder, config, base_folder)
    if kind.adapter_only and model.lora is None:
        raise InputError(
            where="--adapter",
            found=f"{cell_folder} was trained without cell.model.lora",
            expected="a run with it",
        )

    decoder = Decoder(model)
    silence_libtpu()
    device = jax.local_devices()[0]
    # Shapes of what a checkpoint holds: all parameters, or with LoRA the adapters alone.
    template = shapes_with_shardings(
        decoder.trained(decoder.shapes()), SingleDeviceSharding(device)
    )
    restored = restore_params(cell_folder / "checkpoint", template)
    if restored is None:
        raise InputError(
            where=cell_folder,
            found="no state was saved in it yet",
            fix="A run saves its state at its end, and on the way by run.checkpoint_seconds.",
        )
    params, M = restored

    if kind.adapter_only:
        # PEFT names the base model: as a hub does, or by its folder here.
        source = hf_load.read_source(base_path) or {}
        base_name = str(source.get("repository", model.path))
        hf_export.save_adapter(params, model, base_name, out, kind.dtype)
        return M

    if model.lora is not None:
        mesh = make_mesh(MeshShape(), [device])
        base_params = hf_load.load(base_path, model, decoder.base, mesh)
        with_adapters = policy_params(params, base_params)
        params = merge_adapters(with_adapters, model.lora)
    write = hf_export.save
    if kind.is_gguf:  # its package is optional
        write = importlib.import_module("isojax.models.hf.gguf_export").write_gguf
    write(params, decoder.base.config, base_path, out, kind.dtype)
    return M


def _read_config(cell_folder: Path) -> Config:
    """The config of the sweep that a run's folder belongs to; its plug-ins can be used from now on.

    InputError where it is no run's folder.
    """
    config_path = _sweep_folder(cell_folder) / "config.yaml"
    if not cell_folder.is_dir() or not config_path.is_file():
        expected = "a run's folder, such as runs/NAME/cells/16x8-s0, with config.yaml in runs/NAME"
        cells = ", ".join(map(str, sorted(cell_folder.glob("cells/*"))))
        if cells:
            expected = f"one of this sweep's runs: {cells}"
        raise InputError(
            where=cell_folder,
            found="no run's folder",
            expected=expected,
        )
    config = load_config(str(config_path))
    registry.set_plugin_folders(config.run.plugin_folders)
    return config


def _sweep_folder(cell_folder: Path) -> Path:
    return cell_folder.absolute().parent.parent


def _resolve_base_model(
    cell_folder: Path, config: Config, base_folder: Path | None
) -> tuple[ModelConfig, Path]:
    """The run's model and the folder of the checkpoint that it began with, which gives its shape.

    base_folder: where that checkpoint is now; None: where the config says. InputError where it is
    not there, where it is not the one whose adapters were trained, or for a model of isojax's own.
    """
    model = config.cell.model
    hf_export.architecture_of(model)  # InputError for a family that no other program could load
    if base_folder is not None:
        model = model.model_copy(update={"path": str(base_folder)})

    try:
        model = hf_load.resolve_model(model)
        base_policy_folder = _sweep_folder(cell_folder) / BASE_FOLDER
        if model.lora is not None and model.path is not None and base_policy_folder.is_dir():
            cell_config = config.cell.model_copy(update={"model": model})
            # For its InputError alone: of another checkpoint than the run began with.
            load_base_policy(base_policy_folder, cell_config, fingerprint(Path(model.path)))
    except InputError as e:
        raise e.with_fix("Where the run's base model has moved, give its --base FOLDER.") from e

    if model.path is None or model.vocab is None:
        raise InputError(
            where=cell_folder,
            found="without cell.model.path it has no tokenizer",
            fix="Give its folder by --base FOLDER.",
        )
    return model, Path(model.path)
