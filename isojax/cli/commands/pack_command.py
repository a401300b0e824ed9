"""Put a config and all files that it refers to into one file, which other machines run."""

import os
from pathlib import Path
from typing import Annotated

from typer import Option

from isojax.cli import options
from isojax.cli.formatting import print_line
from isojax.core.errors import InputError
from isojax.launch.packing.pack_file import SUFFIX, is_pack, write_pack
from isojax.launch.packing.pack_plan import PackPlan, format_bytes, plan_pack

OUT_HELP = f"The file to write; by default NAME{SUFFIX} here, NAME being the sweep's."
LIST_HELP = "List the files; write nothing."
SHARED_HELP = (
    "The hosts see this machine's disks, as nodes of SLURM do: absolute paths stay as they are, "
    "and what is too large to be sent is read where it is."
)


def pack(
    words: options.ConfigArguments = None,
    out: Annotated[Path | None, Option(metavar="FILE", help=OUT_HELP)] = None,
    list_only: Annotated[bool, Option("--list", help=LIST_HELP)] = False,
    shared: Annotated[bool, Option("--shared", help=SHARED_HELP)] = False,
    mesh: options.MeshOption = None,
) -> None:
    """Put a config and all files that it refers to into one file, which other machines run.

    These are plug-ins, reward functions and the files that they import, problems, the model's
    folder, and run.files. A file that is not there is refused. Hidden files and keys stay here
    unless a setting names them. What the hosts have already, such as a large model, is named by its
    path there: run.host_folders=[/mnt/models].

    On another machine, with isojax alone: isojax launch NAME.pack.tgz. The templates for clusters
    (isojax template) do all this.

    \b
    Examples
      isojax pack my.yaml --list          what would go along, and why
      isojax pack gsm8k my.yaml sweep.seeds=2 run.files=[words.txt]
      isojax launch my.pack.tgz --resume run.dir=/mnt/runs      on any machine
    """
    config = options.read_config(words, mesh, None)
    plan = plan_pack(config, is_shared=shared)
    _print_plan(plan)
    if list_only:
        return

    out = out or Path(f"{config.name}{SUFFIX}")
    if out.exists() and not is_pack(str(out)):
        raise InputError(
            where=out,
            found="exists already and is no pack",
            expected="a new file, or an older pack",
            fix="Choose another place by --out FILE.",
        )
    write_pack(plan, out)
    print_line(f"{out}: {format_bytes(out.stat().st_size)}; runs by: isojax launch {out.name}")


def _print_plan(plan: PackPlan) -> None:
    """Print what goes along, from the working folder on, and what does not."""
    print_line(f"{plan.summary}, go along:")
    for file in plan.files:
        print_line(f"  {os.path.relpath(file.path)}  {format_bytes(file.size)}  {file.reason}")
    if plan.requirements:
        print_line(f"packages that the hosts must have: {' '.join(plan.requirements)}")
    for path, setting in plan.on_hosts.items():
        print_line(f"on the hosts already: {path}  {setting}")
    for path in plan.in_place:
        if str(path) not in plan.on_hosts:
            print_line(f"read where it is, as it is large: {path}")
    for note in plan.notes:
        print_line(f"note: {note}")
