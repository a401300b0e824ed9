"""`isojax model export`: the policy of a cell's checkpoint as a folder that transformers and vLLM load."""

from pathlib import Path

import jax
from jax.sharding import SingleDeviceSharding

from isojax.core import registry
from isojax.core.config import load_config
from isojax.core.errors import InputError
from isojax.core.machine import silence_libtpu
from isojax.models.hf import hf_export, hf_load
from isojax.train.checkpoint import restore_params


def export_cell(cell_folder: Path, out_folder: Path, dtype: str, base_folder: Path | None = None) -> int:
    """Writes the newest checkpoint of a cell's folder, runs/NAME/cells/16x8-s0; returns the updates that it has seen.
    config.json and tokenizer come from the checkpoint that the run began with, or from `base_folder` if that has
    moved."""
    config_path = cell_folder.absolute().parent.parent / "config.yaml"
    if not cell_folder.is_dir() or not config_path.is_file():
        cells = ", ".join(map(str, sorted(cell_folder.glob("cells/*"))))
        expected = "a cell's folder, such as runs/NAME/cells/16x8-s0, with config.yaml in runs/NAME"
        if cells:
            expected = f"one of this sweep's cells: {cells}"
        raise InputError(f"{cell_folder} is no cell's folder; expected {expected}.")
    config = load_config(str(config_path))
    registry.set_plugin_folders(config.run.plugin_folders)
    model = config.cell.model
    hf_export.architecture_of(model)
    if base_folder is not None:
        model = model.model_copy(update={"path": str(base_folder)})
    try:
        model = hf_load.resolve_model(model)
    except InputError as e:
        raise InputError(f"{e} Where the run's base model has moved, say so by --base FOLDER.") from e
    if model.path is None or model.vocab is None:
        raise InputError(
            f"{cell_folder}: its run has no cell.model.path, so no tokenizer; give the folder that has it by --base "
            "FOLDER."
        )
    decoder = registry.load("models.families", model.family, "build").build(model, model.vocab)
    silence_libtpu()
    sharding = SingleDeviceSharding(jax.local_devices()[0])
    template = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), decoder.shapes())
    restored = restore_params(cell_folder / "checkpoint", template)
    if restored is None:
        raise InputError(
            f"{cell_folder}: no state was saved in it yet; a cell saves at its end, and every "
            "run.checkpoint_seconds at an evaluation."
        )
    params, M = restored
    hf_export.save(params, model, Path(model.path), out_folder, dtype)
    return M
