"""Import and export language models."""

import importlib
import os
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from typer import Argument, Option

from isojax.cli.formatting import print_line
from isojax.cli.options import new_app
from isojax.core.errors import InputError
from isojax.launch.device_budget import format_bytes
from isojax.runs.mirror import MODEL_URL


class PackagedModel(NamedTuple):
    """A model inside Python packages, and what takes it out."""

    module: str
    function: str  # (its file, or None for the installed package's, folder, accept_terms)
    folder: str  # the name of its folder in models/


PACKAGED = {
    "smollm2": PackagedModel("isojax.models.smollm2", "import_smollm2", "smollm2-135m"),
    "gemma3-270m": PackagedModel("isojax.models.gemma3_270m", "import_gemma3_270m", "gemma3-270m"),
}
SOURCE_HELP = (
    "A model hub's repository, a GGUF file of llama.cpp, or a model inside Python packages."
)
TERMS_HELP = "You have read and accept the terms that the command shows without it."
REVISION_HELP = (
    "A branch, tag or commit of the hub's repository; the commit is recorded in model_source.json."
)
BASE_HELP = "Where config.json and tokenizer are, if the run's cell.model.path has moved."
GGUF_HELP = "The file to write, for llama.cpp, in the place of a folder."
# What weights may be stored in; the first is the default.
FOLDER_DTYPES = ("float32", "bfloat16")
GGUF_DTYPES = ("f32", "f16", "bf16", "q8_0")
Dtype = Literal["float32", "bfloat16", "f32", "f16", "bf16", "q8_0"]
DTYPE_HELP = (
    "What weights are stored in: float32 or bfloat16 in a folder; "
    "f32, f16, bf16 or q8_0 in a GGUF file."
)

app = new_app(no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Import and export language models.

    A model is a folder with config.json, *.safetensors and a tokenizer, as hubs give it:
    cell.model.path.
    """
    # Files are read and written here: no accelerator is needed, and one may be training.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")


@app.command("import")
def import_model(
    source: Annotated[
        str, Argument(metavar="ORG/NAME|FILE.gguf|smollm2|gemma3-270m", help=SOURCE_HELP)
    ],
    out: Annotated[
        Path | None, Option(metavar="DIR", help="The folder to write.", show_default="models/NAME")
    ] = None,
    revision: Annotated[str | None, Option(help=REVISION_HELP, show_default="main")] = None,
    accept_terms: Annotated[bool, Option("--accept-terms", help=TERMS_HELP)] = False,
) -> None:
    """Make a model's folder, ready for cell.model.path, of a model hub's repository or of a GGUF
    file.

    ORG/NAME is fetched from a model hub: *.safetensors, config.json, tokenizer and licence, as they
    are stored there. The hub is HF_ENDPOINT; HF_TOKEN logs in, and HF_HUB_OFFLINE=1 takes the model
    from huggingface_hub's cache.

    FILE.gguf is llama.cpp's file of a model, of any quantisation. Weights become float32.

    smollm2 is SmolLM2-135M-Instruct (Apache-2.0), 89 MiB, and gemma3-270m is Gemma 3 270M (Gemma's
    terms), 222 MiB. Both come out of Python packages, from the registry that pip is set up for, for
    machines that reach no hub.

    \b
    Examples
      isojax model import smollm2
      isojax model import Qwen/Qwen2.5-0.5B-Instruct --revision main
      isojax model import Qwen3-0.6B-Q8_0.gguf --out models/qwen3
    """
    # The address of a model's page on a hub names it as well as ORG/NAME does.
    url = MODEL_URL.match(source)
    if url:
        source = source[url.end() :].strip("/")

    is_packaged = source in PACKAGED
    is_gguf = source.endswith(".gguf")
    if revision is not None and (is_packaged or is_gguf):
        raise InputError(
            where="--revision",
            found=f"given {revision!r} with {source}",
            expected="a model hub's ORG/NAME, which alone has revisions",
        )

    if is_packaged:
        packaged = PACKAGED[source]
        folder = out or Path("models") / packaged.folder
        importer = getattr(importlib.import_module(packaged.module), packaged.function)
        importer(None, folder, accept_terms)
    elif is_gguf:
        folder = out or Path("models") / Path(source).stem.lower()
        any_gguf = importlib.import_module("isojax.models.any_gguf")
        any_gguf.import_file(Path(source), folder, accept_terms)
    else:
        folder = out or Path("models") / Path(source).name
        hub = importlib.import_module("isojax.models.hf.hub_download")
        hub.import_from_hub(source, revision, folder)

    size = format_bytes(sum(file.stat().st_size for file in folder.iterdir()))
    print_line(f"model: {folder} ({size}); use it by cell.model.path={folder}")


@app.command()
def export(
    run: Annotated[Path, Argument(metavar="RUN", help="A run's folder: runs/NAME/cells/16x8-s0.")],
    out: Annotated[
        Path | None, Argument(metavar="DIR", help="The folder to write.", show_default=False)
    ] = None,
    dtype: Annotated[Dtype | None, Option(help=DTYPE_HELP, show_default="float32, or f32")] = None,
    base: Annotated[Path | None, Option(metavar="FOLDER", help=BASE_HELP)] = None,
    adapter: Annotated[
        bool, Option("--adapter", help="Only LoRA's adapters, as a folder that PEFT loads.")
    ] = False,
    gguf: Annotated[
        Path | None, Option(metavar="FILE.gguf", help=GGUF_HELP, show_default=False)
    ] = None,
) -> None:
    """Write the policy that a run has trained as a folder that transformers and vLLM load, or as
    llama.cpp's file.

    Adapters of cell.model.lora are merged into the base model's weights, or written alone by
    --adapter.

    \b
    Examples
      isojax model export runs/NAME/cells/16x8-s0 models/trained --dtype bfloat16
      isojax model export runs/NAME/cells/16x8-s0 models/adapter --adapter
      isojax model export runs/NAME/cells/16x8-s0 --gguf trained.gguf --dtype q8_0
    """
    target = gguf or out
    if target is None or (gguf and out) or (gguf and adapter):
        given = f"{out or 'no folder'}, "
        given += f"--gguf {gguf}" if gguf else "no --gguf"
        given += ", --adapter" if adapter else ""
        raise InputError(
            found=f"given {given}",
            expected="either DIR or --gguf FILE.gguf, and --adapter with DIR alone",
        )
    dtypes = GGUF_DTYPES if gguf else FOLDER_DTYPES
    if dtype not in (None, *dtypes):
        raise InputError(
            where="--dtype",
            found=f"given {dtype} with {target}",
            expected=f"one of {', '.join(dtypes)}",
        )

    model_folders = importlib.import_module("isojax.launch.local.model_folders")
    kind = model_folders.ExportKind(
        dtype or dtypes[0], is_gguf=gguf is not None, adapter_only=adapter
    )
    num_updates = model_folders.export_cell(run, target, kind, base)
    print_line(f"model: {target}, after {num_updates} updates")
