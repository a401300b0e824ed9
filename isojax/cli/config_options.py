"""Which config a command runs: `CONFIG [CONFIG ...] [KEY=VALUE ...]`, later configs over earlier ones, overrides over
all.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

import typer

from isojax.core.config import Config, load_configs
from isojax.core.errors import InputError

ConfigArguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="CONFIG|KEY=VALUE", help="Configs, later ones over earlier ones, then overrides."),
]
MeshOption = Annotated[
    str | None,
    typer.Option(metavar="auto|AXIS=N,...", help="Device mesh, such as data=2,tensor=1; the same as run.mesh=..."),
]

RayOption = Annotated[
    str | None,
    typer.Option(
        metavar="local|auto|ADDRESS",
        help="Run the cells on a Ray cluster, this machine (local) or one that is up; as run.ray=...",
    ),
]
ProcessCountOption = Annotated[
    str | None,
    typer.Option(
        metavar="N|auto",
        envvar="JAX_NUM_PROCESSES",
        help="How many processes are one run; auto: as TPU pod, SLURM or MPI say.",
    ),
]
ProcessIndexOption = Annotated[
    int | None, typer.Option(metavar="I", envvar="JAX_PROCESS_ID", help="The number of this one, from 0.")
]
CoordinatorOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", envvar="JAX_COORDINATOR_ADDRESS", help="Where process 0 is reached by the others."
    ),
]


def read_config(
    arguments: Sequence[str] | None, mesh: str | None, default_config: str | None, ray: str | None = None
) -> Config:
    """The config that the words of a command mean; `default` where they name none."""
    configs, overrides = split_arguments(arguments or ())
    if not configs:
        if default_config is None:
            raise InputError("no config given; expected a YAML file or a config's name first, such as quickstart.")
        configs = [default_config]
    options = {"run.mesh": mesh, "run.ray": ray}
    return load_configs(
        configs, [*overrides, *(f"{key}={value}" for key, value in options.items() if value is not None)]
    )


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """(configs, overrides): a word is an override when it has a '=' and is no file; configs come first."""
    is_config = ["=" not in word or os.path.isfile(word) for word in arguments]
    num_configs = is_config.index(False) if False in is_config else len(arguments)
    if True in is_config[num_configs:]:
        late_config, first_override = (
            arguments[num_configs:][is_config[num_configs:].index(True)],
            arguments[num_configs],
        )
        raise InputError(
            f"given {late_config!r} after the override {first_override!r}; expected key=value there. "
            f"Configs come first: {late_config} {first_override}"
        )
    return list(arguments[:num_configs]), list(arguments[num_configs:])
