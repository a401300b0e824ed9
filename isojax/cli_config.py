"""Which config a command runs: `CONFIG [CONFIG ...] [KEY=VALUE ...]`, later configs over earlier ones, overrides over all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

import typer

from isojax.config import Config, load_configs
from isojax.types import InputError

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="CONFIG|KEY=VALUE", help="Configs, later ones over earlier ones, then overrides."),
]
Mesh = Annotated[str | None, typer.Option(metavar="auto|AXIS=N,...", help="Device mesh, such as data=2,tensor=1; the same as run.mesh=...")]

Ray = Annotated[
    str | None,
    typer.Option(
        metavar="local|auto|ADDRESS", help="Run the cells on a Ray cluster, this machine (local) or one that is up; as run.ray=..."
    ),
]
Processes = Annotated[
    str | None,
    typer.Option(metavar="N|auto", envvar="JAX_NUM_PROCESSES", help="How many processes are one run; auto: as TPU pod, SLURM or MPI say."),
]
Process = Annotated[int | None, typer.Option(metavar="I", envvar="JAX_PROCESS_ID", help="The number of this one, from 0.")]
Coordinator = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", envvar="JAX_COORDINATOR_ADDRESS", help="Where process 0 is reached by the others.")
]


def read_config(words: Sequence[str] | None, mesh: str | None, default: str | None, ray: str | None = None) -> Config:
    """The config that the words of a command mean; `default` where they name none.

    Raises:
        InputError: no config and no default, a config after an override, or as `load_configs`.
    """
    configs, overrides = split(words or ())
    if not configs:
        if default is None:
            raise InputError("no config given; expected a YAML file or a config's name first, such as quickstart.")
        configs = [default]
    options = {"run.mesh": mesh, "run.ray": ray}
    return load_configs(configs, [*overrides, *(f"{key}={value}" for key, value in options.items() if value is not None)])


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """(configs, overrides): a word is an override when it has a '=' and is no file; configs come first."""
    is_config = ["=" not in word or os.path.isfile(word) for word in words]
    count = is_config.index(False) if False in is_config else len(words)
    if True in is_config[count:]:
        late, key = words[count:][is_config[count:].index(True)], words[count]
        raise InputError(f"given {late!r} after the override {key!r}; expected key=value there. Configs come first: {late} {key}")
    return list(words[:count]), list(words[count:])
