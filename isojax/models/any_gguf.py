"""A model's folder of any GGUF file, whether its package is known here or not."""

from pathlib import Path

from isojax.models import gemma3_270m, smollm2
from isojax.models.hf.gguf_file import sha256_of
from isojax.models.hf.gguf_import import import_gguf
from isojax.models.model_packages import import_package


def import_file(path: Path, folder: Path, accept_terms: bool = False) -> None:
    """Make a model's folder of a GGUF file, that of a known package included.

    One of a package that asks for agreement asks for it here too: `accept_terms`."""
    digest = sha256_of(path) if path.is_file() else ""
    for package in (smollm2.package(), gemma3_270m.package()):
        if package.sha256 == digest:
            return import_package(package, path, folder, accept_terms)
    return import_gguf(path, folder)
