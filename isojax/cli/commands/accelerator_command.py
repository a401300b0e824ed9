"""Check this machine's TPU, GPU or CPU: its kernels, and the speed of a run."""

import importlib
from pathlib import Path
from typing import Annotated

from typer import Option

from isojax.cli import options
from isojax.cli.formatting import print_line
from isojax.core.errors import RunFailed

IS_RUN = True  # for command_files.py

OUT_HELP = "A folder for accelerator.txt and accelerator.json."


def accelerator(
    words: options.ConfigArguments = None,
    mesh: options.MeshOption = None,
    out: Annotated[Path, Option(metavar="FOLDER", help=OUT_HELP)] = Path("runs/accelerator"),
) -> None:
    """Check this machine's TPU, GPU or CPU: its kernels, and the speed of a run.

    Every kernel is compared with float32. Then the smallest cell of CONFIG is sampled and trained,
    on random weights, and its times are compared with the plan's. Without CONFIG: the largest of
    Qwen3-1.7B, Qwen2.5-0.5B and a small model that fits. On a CPU, the kernels of a TPU are
    interpreted.

    Plans for this kind of chip, by --dry-run here and by --topology anywhere, take their hours from
    what is measured. The file is in $ISOJAX_CHIPS, else in ~/.config/isojax/chips.

    Exit code 0: all is right. 1: a kernel is wrong. 2: the config cannot be used.

    \b
    Examples
      isojax accelerator
      isojax accelerator gsm8k models/qwen2.5-0.5b-instruct
      isojax accelerator cell.sampling.response_length=1024 --out FOLDER
    """
    configs, overrides = options.split_arguments(words or ())
    if mesh is not None:
        overrides.append(f"run.mesh={mesh}")
    config = options.read_config(words, mesh, None) if configs else None

    check = importlib.import_module("isojax.launch.local.accelerator_check")
    report = check.check_accelerator(config, overrides)
    report.write(out)
    for line in report.lines():
        print_line(line)
    print_line(f"this text, to be pasted into an issue: {out}/accelerator.txt")
    if report.rates_file is not None:
        print_line(f"plans for a {report.machine.kind} read its rates: {report.rates_file}")
    if report.wrong_kernels:
        names = ", ".join(dict.fromkeys(line.kernel for line in report.wrong_kernels))
        raise RunFailed(
            f"wrong here: {names}. Runs leave out an attention kernel that is wrong for them, with"
            " a warning. Please report it with the text above."
        )
