"""Which config a command runs: `CONFIG [CONFIG ...] [KEY=VALUE ...]`, later configs over earlier ones, overrides over
all; and how many processes run it.
"""

import os
from collections.abc import Sequence
from typing import Annotated

from typer import Argument, Option

from isojax.core.config import Config, load_configs
from isojax.core.errors import InputError

ConfigArguments = Annotated[
    list[str] | None,
    Argument(metavar="CONFIG|KEY=VALUE", help="Configs, later ones over earlier ones, then overrides."),
]
MeshOption = Annotated[
    str | None,
    Option(metavar="auto|AXIS=N,...", help="Device mesh, such as data=2,tensor=1; the same as run.mesh=..."),
]
RayOption = Annotated[
    str | None,
    Option(
        metavar="local|auto|ADDRESS",
        help="Run the cells on a Ray cluster, this machine (local) or one that is up; as run.ray=...",
    ),
]
ProcessCountOption = Annotated[
    str | None,
    Option(
        metavar="N|auto",
        envvar="JAX_NUM_PROCESSES",
        help="How many processes are one run; auto: as TPU pod, SLURM or MPI say.",
    ),
]
ProcessIndexOption = Annotated[
    int | None, Option(metavar="I", envvar="JAX_PROCESS_ID", help="The number of this one, from 0.")
]
CoordinatorOption = Annotated[
    str | None,
    Option(metavar="HOST:PORT", envvar="JAX_COORDINATOR_ADDRESS", help="Where process 0 is reached by the others."),
]


def read_config(
    arguments: Sequence[str] | None, mesh: str | None, default_config: str | None, ray: str | None = None
) -> Config:
    """The config that the words of a command mean; `default_config` where they name none."""
    configs, overrides = split_arguments(arguments or ())
    if not configs:
        if default_config is None:
            raise InputError("no config given; expected a YAML file or a config's name first, such as quickstart.")
        configs = [default_config]
    options = {"run.mesh": mesh, "run.ray": ray}
    option_overrides = [f"{key}={value}" for key, value in options.items() if value is not None]
    return load_configs(configs, [*overrides, *option_overrides])


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """(configs, overrides): a word is an override when it has a '=' and is no file; configs come first."""
    configs: list[str] = []
    overrides: list[str] = []
    for word in arguments:
        if "=" in word and not os.path.isfile(word):
            overrides.append(word)
        elif overrides:
            raise InputError(
                f"given {word!r} after the override {overrides[0]!r}; expected key=value there. Configs come first:"
                f" {word} {overrides[0]}"
            )
        else:
            configs.append(word)
    return configs, overrides
