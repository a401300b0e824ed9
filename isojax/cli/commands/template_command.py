"""Write a script or manifest that starts sweeps on a cluster to launch/, or list them."""

from pathlib import Path
from typing import Annotated

from typer import Argument

from isojax.cli.formatting import print_line
from isojax.core.atomic_files import read_file, write_bytes
from isojax.core.config.load import SHARE
from isojax.core.errors import InputError

TEMPLATES = {path.name: path for path in sorted((SHARE / "launch").iterdir())}
NameArgument = Annotated[
    str | None, Argument(metavar="NAME", help="A template.", autocompletion=lambda: [*TEMPLATES])
]


def template(name: NameArgument = None) -> None:
    """Write a script or manifest that starts sweeps on a cluster to launch/, or list them.

    Its first lines say what to set, and how to start and to end it; docs/clusters.md explains the
    rest.

    Example: isojax template tpu_pod.sh
    """
    if name is None:
        for name, path in TEMPLATES.items():
            print_line(f"{name:<18}{_first_comment(path)}")
        return

    if name not in TEMPLATES:
        raise InputError(
            found=f"given the template {name!r}",
            expected=f"one of {', '.join(TEMPLATES)}",
        )
    path = Path("launch", name)
    if path.exists():
        raise InputError(
            where=path,
            found="exists already and is kept",
            fix="Rename or remove it to get the template again.",
        )

    write_bytes(path, read_file(TEMPLATES[name]))
    path.chmod(0o755 if path.suffix == ".sh" else 0o644)
    print_line(str(path))


def _first_comment(path: Path) -> str:
    """What a template is for, as its first comment says."""
    return path.read_text().partition("# ")[2].splitlines()[0]
