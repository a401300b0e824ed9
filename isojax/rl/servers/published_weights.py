"""The policy as a checkpoint folder that a server reads: `update-12` after update 12, written whole
or not at all."""

import re
import shutil
from pathlib import Path

import jax
from safetensors import SafetensorError

from isojax.core.errors import InputError, ServerFailed
from isojax.models.hf import hf_export
from isojax.models.lora import merge_adapters
from isojax.models.transformer import Decoder, Params

FOLDER_NAME = re.compile(r"update-\d+|\.update-\d+\.\d+")  # or what a kill left of one


class PublishedWeights:
    """Folders of a run's policies, of which the last one is kept."""

    def __init__(self, folder: Path, decoder: Decoder, model_folder: Path, dtype: str) -> None:
        """folder: for these weights alone. model_folder: where config.json and the tokenizer are
        copied from."""
        self.folder = folder.absolute()
        self.decoder = decoder
        self.model_folder = model_folder
        self.dtype = dtype

    def write(self, params: Params, update: int) -> Path:
        """Write the policy after `update` updates, and return its folder, such as update-12.

        Adapters are merged into the weights. Raises ServerFailed where it cannot be written.
        """
        path = self.folder / f"update-{update}"
        if path.exists():  # of the same update, before the run was killed
            shutil.rmtree(path)

        # On the host, because devices may have no room for merged weights and the policy.
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            merged = merge_adapters(jax.device_get(params), self.decoder.config.lora)
        try:
            hf_export.save(merged, self.decoder.base.config, self.model_folder, path, self.dtype)
        except (InputError, SafetensorError) as e:  # the latter of a full disk
            raise ServerFailed(f"weights for the server cannot be written to {path}: {e}") from e
        return path

    def remove_all_but(self, kept: Path) -> None:
        """Those of other updates; whatever else is in the folder stays."""
        for path in self.folder.iterdir():
            if path != kept and FOLDER_NAME.fullmatch(path.name):
                shutil.rmtree(path)
