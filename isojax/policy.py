"""The policy that a cell has trained, out of its checkpoint into a folder that transformers and vLLM load."""

from pathlib import Path

import jax
from jax.sharding import SingleDeviceSharding

from isojax import registry
from isojax.checkpoint import restore_params
from isojax.config import ModelConfig, read_saved
from isojax.models import hf
from isojax.types import InputError


def export(cell: Path, out: Path, dtype: str, base: Path | None = None) -> int:
    """Write the newest checkpoint of a cell's folder, runs/NAME/cells/16x8-s0; returns the updates that it has seen.

    config.json and tokenizer come from the checkpoint that the run began with, `cell.model.path`, or from `base` where that has moved.

    Raises:
        InputError: no cell's folder, nothing saved in it, a family without a published architecture, or `out` is there.
    """
    model = model_of(cell)
    hf.architecture(model)
    try:
        model = hf.resolve(model if base is None else model.model_copy(update={"path": str(base)}))
    except InputError as e:
        raise InputError(f"{e} Where the run's base model has moved, say so by --base FOLDER.") from e
    if model.path is None or model.vocab is None:
        raise InputError(f"{cell}: its run has no cell.model.path, so no tokenizer; give the folder that has it by --base FOLDER.")
    decoder = registry.load("models", model.family, "build").build(model, model.vocab)
    here = SingleDeviceSharding(jax.local_devices()[0])
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), decoder.shapes())
    restored = restore_params(cell / "checkpoint", like)
    if restored is None:
        raise InputError(
            f"{cell}: no state was saved in it yet; a cell saves at its end, and every run.checkpoint_seconds at an evaluation."
        )
    params, M = restored
    hf.save(params, model, Path(model.path), out, dtype)
    return M


def model_of(cell: Path) -> ModelConfig:
    """cell.model of the sweep that a cell's folder belongs to; InputError where it is no such folder."""
    config = cell.absolute().parent.parent / "config.yaml"
    if cell.is_dir() and (cell / "config.yaml").is_file():
        cells = sorted(path.name for path in cell.glob("cells/*"))
        raise InputError(
            f"{cell} is a sweep; expected one of its cells: {', '.join(f'{cell}/cells/{name}' for name in cells) or 'none yet'}."
        )
    if not cell.is_dir() or not config.is_file():
        raise InputError(f"{cell}: expected a cell's folder, such as runs/NAME/cells/16x8-s0, with config.yaml in runs/NAME.")
    return read_saved(config).cell.model
