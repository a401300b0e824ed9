"""Options that several commands share, which config they mean, and how every command looks."""

import importlib
import os
from collections.abc import Sequence
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from typer import Argument, Context, Option, Typer
from typer.core import TyperGroup

from isojax.core import registry
from isojax.core.config import Config, config_names, load_config
from isojax.core.config.load import find_config
from isojax.core.errors import InputError
from isojax.core.yaml_files import config_keys
from isojax.runs.importers import importer
from isojax.runs.ledger import INCLUDE_FLAGGED

# Settings that name a plug-in -> the folders of its file.
PLUGIN_FOLDERS = {
    "cell.model.family": ("models.families",),
    "cell.rl.advantage": ("rl.advantages",),
    "cell.rl.aggregation": ("rl.aggregations",),
    "cell.rl.kl_estimator": ("rl.kl_estimators",),
    "cell.rl.loss": ("rl.losses",),
    "cell.task": ("tasks.device", "tasks.sources"),
    "cell.verifier.use": ("tasks.verifiers",),
}


def complete_config(ctx: Context, incomplete: str) -> list[str]:
    """For a shell: the configs (this folder's YAML files among them), settings and values whose
    names begin so. A setting alone is offered as two words, so that bash, to which "=" is a word of
    its own, adds no space after it."""
    keys = [key for key, is_section in config_keys(Config).items() if not is_section]
    words_before = [word for word in ctx.params.get("words") or () if word != "="]
    if words_before and words_before[-1] in keys:
        return [value for value in setting_values(words_before[-1]) if value.startswith(incomplete)]
    key = incomplete.partition("=")[0]
    if "=" in incomplete and key in keys:
        return [
            word
            for value in setting_values(key)
            if (word := f"{key}={value}").startswith(incomplete)
        ]
    settings = [f"{key}=" for key in keys if incomplete]
    words = [*config_names(), *map(str, Path().glob("*.yaml")), *settings]
    completions = [word for word in words if word.startswith(incomplete)]
    is_setting = len(completions) == 1 and completions[0] in settings
    return [*completions, f"{completions[0]}VALUE"] if is_setting else completions


def setting_values(key: str) -> list[str]:
    """The values that a setting may have, where they are few or have names: plug-ins, a choice,
    false and true."""
    if key in PLUGIN_FOLDERS:
        return registry.file_names(PLUGIN_FOLDERS[key])
    annotation: Any = Config
    for name in key.split("."):
        annotation = annotation.model_fields[name].annotation
    choices = [one for one in (annotation, *get_args(annotation)) if get_origin(one) is Literal]
    return (
        ["false", "true"]
        if annotation is bool
        else [str(value) for one in choices for value in get_args(one)]
    )


def complete_run(incomplete: str) -> list[str]:
    """For a shell: the runs whose folders begin so, in runs/ or where the word points to."""
    folder = Path(incomplete.rpartition("/")[0]) if "/" in incomplete else Path("runs")
    runs = [str(path) for path in folder.glob("*/") if (path / "cells").is_dir()]
    return sorted(run for run in runs if run.startswith(incomplete))


def complete_log_format(incomplete: str) -> list[str]:
    """For a shell: the formats of other trainers' logs."""
    return [name for name in importer.names() if name.startswith(incomplete)]


RUNS_HELP = "Sweep folders, cell folders or ledgers, such as runs/quickstart."
RunsArgument = Annotated[
    list[Path], Argument(metavar="RUN", help=RUNS_HELP, autocompletion=complete_run)
]
MODE_HELP = (
    "hierarchical: all points in one model, with intervals; says when n makes no difference. "
    "paper: the published workflow, step by step."
)
ModeOption = Annotated[Literal["hierarchical", "paper"], Option(help=MODE_HELP)]
JsonOption = Annotated[
    bool, Option("--json", help="Print one JSON document on standard output, nothing else there.")
]
ResumeOption = Annotated[
    bool, Option("--resume", help="Go on with what is in the folder, or start where nothing is.")
]
RESUMED_HELP = "Join what was logged of a run before and after it was resumed (by name, else seed); its steps may fall."
ResumedOption = Annotated[bool, Option("--resumed", help=RESUMED_HELP)]
FORMAT_HELP = f"{', '.join(importer.names())}, or a module of yours; else as the logs look."
FormatOption = Annotated[
    str | None,
    Option("--from", metavar="FORMAT", help=FORMAT_HELP, autocompletion=complete_log_format),
]
MAP_HELP = "Which column is what; n=16 holds for every row, n=n{} is in the name of the run or the file. Repeatable."
MapOption = Annotated[list[str] | None, Option("--map", metavar="FIELD=COLUMN,...", help=MAP_HELP)]
DryRunOption = Annotated[
    bool, Option("--dry-run", help="Check everything and show the plan; run nothing.")
]
IncludeFlaggedOption = Annotated[
    bool, Option(INCLUDE_FLAGGED, help="Fit runs that are flagged as broken, too.")
]
WHERE_HELP = "Take only the rows of the file with this value; may be repeated."
WhereOption = Annotated[list[str] | None, Option(metavar="COL=VALUE", help=WHERE_HELP)]
CONFIG_HELP = "Configs, later ones over earlier ones, then overrides."
ConfigArguments = Annotated[
    list[str] | None,
    Argument(metavar="CONFIG|KEY=VALUE", help=CONFIG_HELP, autocompletion=complete_config),
]
MESH_HELP = "Device mesh, such as data=2,tensor=1; the same as run.mesh=..."
MeshOption = Annotated[str | None, Option(metavar="auto|AXIS=N,...", help=MESH_HELP)]
RAY_HELP = "Train the runs on a Ray cluster, this machine (local) or one that is up; as run.ray=..."
RayOption = Annotated[str | None, Option(metavar="local|auto|ADDRESS", help=RAY_HELP)]
COUNT_HELP = "How many processes are one run; auto: as TPU pod, SLURM, Kubernetes or Open MPI say."
ProcessCountOption = Annotated[
    str | None, Option(metavar="N|auto", envvar="JAX_NUM_PROCESSES", help=COUNT_HELP)
]
ProcessIndexOption = Annotated[
    int | None, Option(metavar="I", envvar="JAX_PROCESS_ID", help="Its number, from 0.")
]
CoordinatorOption = Annotated[
    str | None,
    Option(
        metavar="HOST:PORT",
        envvar="JAX_COORDINATOR_ADDRESS",
        help="Where process 0 is reached by the others.",
    ),
]


class CommandGroup(TyperGroup):
    """Commands, each listed by the whole first paragraph of its help."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            command.short_help = (
                cleandoc(command.help or "").partition("\n\n")[0].replace("\n", " ")
            )
        return command


def new_app(**settings: Any) -> Typer:
    """A typer app that looks as all of isojax's do: its help is plain text, of which nothing is cut
    at any width."""
    defaults: dict[str, Any] = {
        "cls": CommandGroup,
        "add_completion": False,
        "pretty_exceptions_enable": False,
    }
    contexts = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
    return Typer(context_settings=contexts, rich_markup_mode=None, **(defaults | settings))


def read_config(
    arguments: Sequence[str] | None,
    mesh: str | None,
    default_config: str | None,
    ray: str | None = None,
) -> Config:
    """The config that the words of a command mean; `default_config` where they name none."""
    configs, overrides = split_arguments(arguments or ())
    if not configs:
        if default_config is None:
            raise InputError(
                "no config given; expected a YAML file or a config's name first, such as quickstart."
            )
        configs = [default_config]
    options = {"run.mesh": mesh, "run.ray": ray}
    option_overrides = [f"{key}={value}" for key, value in options.items() if value is not None]
    config = load_config(configs, [*overrides, *option_overrides])
    if config.sweep.schedules:  # they may need a fit, which takes a while to import
        config = importlib.import_module("isojax.launch.strategy").resolve_schedules(config)
    config_folders = [str(find_config(name).resolve().parent) for name in reversed(configs)]
    folders = list(dict.fromkeys([*config_folders, *config.run.plugin_folders]))
    registry.set_plugin_folders(folders)
    # a resumed run needs them
    saved_folders = tuple(folder for folder in folders if any(Path(folder).glob("*.py")))
    return config.with_settings(run={"plugin_folders": saved_folders})


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """(configs, overrides): a word is an override when it has a '=' and is no file; configs come
    first."""
    configs: list[str] = []
    overrides: list[str] = []
    for word in arguments:
        if "=" in word and not os.path.isfile(word):
            overrides.append(word)
        elif overrides:
            problem = f"given {word!r} after the override {overrides[0]!r}"
            raise InputError(
                f"{problem}; expected key=value there. Configs come first: {word} {overrides[0]}"
            )
        else:
            configs.append(word)
    return configs, overrides
