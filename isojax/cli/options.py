"""Options that several commands share, which config they mean, and how every command looks."""

import importlib
import os
from collections.abc import Sequence
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from typer import Argument, Context, Option, Typer
from typer.core import TyperGroup

from isojax.core import registry
from isojax.core.config import Config, config_names, load_config
from isojax.core.config.load import find_config
from isojax.core.config.marks import Mark, PluginName, field_mark
from isojax.core.errors import InputError
from isojax.core.yaml_files import config_keys
from isojax.launch.packing.pack_file import SUFFIX, is_pack, unpack_file
from isojax.launch.packing.pack_plan import with_host_paths_in, with_plugin_folders_here
from isojax.runs.importers import importer
from isojax.runs.ledger import INCLUDE_FLAGGED


def complete_config(ctx: Context, incomplete: str) -> list[str]:
    """For a shell: the configs, settings and values whose names begin with `incomplete`.

    incomplete: the word so far, such as "cell.rl.lo" or "cell.rl.loss=d". This folder's YAML files
    and packs are among the configs. Settings are offered as "cell.rl.loss=", values as bash wants
    them.
    """
    keys = [key for key, is_section in config_keys(Config).items() if not is_section]
    files = [*Path().glob("*.yaml"), *Path().glob(f"*{SUFFIX}")]
    configs = [*config_names(), *map(str, files)]

    # bash takes "=" for a word of its own, so that a value may be alone in `incomplete`: of
    # "cell.rl.loss=d" the words before are "cell.rl.loss" and "=", and `incomplete` is "d".
    words_before = [word for word in ctx.params.get("words") or () if word != "="]
    if words_before and words_before[-1] in keys:
        return [value for value in setting_values(words_before[-1]) if value.startswith(incomplete)]

    key, equals, _ = incomplete.partition("=")
    if equals and key in keys:
        words = [f"{key}={value}" for value in setting_values(key)]
        return [word for word in words if word.startswith(incomplete)]

    # Without a letter there would be all settings.
    settings = [f"{key}=" for key in keys if incomplete]
    completions = [word for word in (*configs, *settings) if word.startswith(incomplete)]

    # A setting alone is offered as two words, after which bash adds no space.
    if len(completions) == 1 and completions[0] in settings:
        completions.append(f"{completions[0]}VALUE")
    return completions


def setting_values(key: str) -> list[str]:
    """The values that a setting may have, where they are few or have names; else [].

    That is for plug-ins, a choice, and false or true. key: a setting's dotted name, such as
    "cell.rl.loss".
    """
    annotation: Any = Config
    mark: Mark | None = None
    for name in key.split("."):
        field = annotation.model_fields[name]
        annotation = field.annotation
        mark = field_mark(field)
    if isinstance(mark, PluginName) and get_origin(annotation) is not tuple:
        return registry.file_names(mark.folders)
    if annotation is bool:
        return ["false", "true"]

    # The choices of `Literal["a", "b"]`, or of one that may also be null.
    values: list[str] = []
    for option in (annotation, *get_args(annotation)):
        if get_origin(option) is Literal:
            values += map(str, get_args(option))
    return values


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
RESUMED_HELP = (
    "Join what was logged of a run before and after it was resumed (by name, else seed); "
    "its steps may fall."
)
ResumedOption = Annotated[bool, Option("--resumed", help=RESUMED_HELP)]
FORMAT_HELP = (
    f"{', '.join(importer.names())}, or NAME of your NAME.py in this folder, or a module path; "
    "else as the logs look."
)
FormatOption = Annotated[
    str | None,
    Option("--from", metavar="FORMAT", help=FORMAT_HELP, autocompletion=complete_log_format),
]
MAP_HELP = (
    "Which column is what; n=16 holds for every row, n=n{} is in the name of the run or the file. "
    "Repeatable."
)
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
            first_paragraph, _, _ = cleandoc(command.help or "").partition("\n\n")
            command.short_help = first_paragraph.replace("\n", " ")
        return command


def new_app(**settings: Any) -> Typer:
    """A typer app that looks as all of isojax's do; `settings`: of typer, over isojax's.

    Its help is plain text, of which nothing is cut at any width.
    """
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
    """The config that the words of a command mean.

    arguments: names or files of configs, then overrides, such as ["quickstart", "sweep.seeds=1"].
    mesh, ray: the options of these names, as typed; None where they are not given.
    default_config: the config where the words name none; None: that is an InputError.

    It changes this process: from here on, plug-ins are looked up in the folders of the config's
    files too; and where a config is a pack (`isojax pack`), it works in the pack's folder. Then
    `run.dir` still begins where the command was called. InputError for whatever cannot be used.
    """
    configs, overrides = split_arguments(arguments or ())
    if not configs:
        if default_config is None:
            raise InputError(
                found="no config given",
                expected="a YAML file or a config's name first, such as quickstart",
            )
        configs = [default_config]

    # Options are behind the other overrides, and so count where both are given.
    for key, value in (("run.mesh", mesh), ("run.ray", ray)):
        if value is not None:
            overrides.append(f"{key}={value}")
    called_in = os.getcwd()
    configs = _enter_pack(configs)
    config = load_config(configs, overrides)
    if os.getcwd() != called_in:
        # What is written, as in run.dir, still begins where the command was called.
        config = with_plugin_folders_here(with_host_paths_in(config, called_in))
    if config.sweep.schedules:
        # They may need a fit, which takes a while to import.
        config = importlib.import_module("isojax.launch.fitted_schedules").resolve_schedules(config)

    # The folder of the last config first, as its settings count before others'.
    config_folders = [str(find_config(name).resolve().parent) for name in reversed(configs)]
    folders = list(dict.fromkeys([*config_folders, *config.run.plugin_folders]))
    registry.set_plugin_folders(folders)

    # Those that may hold a plug-in are kept in the config: a run that is resumed has other words.
    saved_folders = tuple(folder for folder in folders if any(Path(folder).glob("*.py")))
    return config.with_settings(run={"plugin_folders": saved_folders})


def _enter_pack(configs: Sequence[str]) -> list[str]:
    """The configs with the file of settings in the place of a pack, in whose working folder this
    process then works; as they are where none is a pack. InputError where several are."""
    packs = [word for word in configs if is_pack(word)]
    if not packs:
        return list(configs)
    if len(packs) > 1:
        raise InputError(
            found=f"given {' and '.join(packs)}",
            expected="one pack, with configs over it",
            fix=f"Pack all configs together: isojax pack CONFIG CONFIG writes NAME{SUFFIX}",
        )

    # Files of other configs are where they are, whatever the working folder.
    paths = [os.path.abspath(word) if os.path.isfile(word) else word for word in configs]
    pack_path = os.path.abspath(packs[0])
    unpacked = unpack_file(Path(pack_path))
    os.chdir(unpacked.folder)
    return [str(unpacked.config) if path == pack_path else path for path in paths]


class ConfigWords(NamedTuple):
    """The words of a command that make up its config."""

    configs: list[str]  # names or files
    overrides: list[str]  # key=value


def split_arguments(arguments: Sequence[str]) -> ConfigWords:
    """Configs and overrides: a word is an override when it has a '=' and is no file.

    ["quickstart", "mine.yaml", "name=two"] is the configs "quickstart" and "mine.yaml" and the
    override "name=two". InputError where a config comes after an override.
    """
    words = ConfigWords([], [])
    for word in arguments:
        if "=" in word and not os.path.isfile(word):
            words.overrides.append(word)
        elif words.overrides:
            first_override = words.overrides[0]
            raise InputError(
                found=f"given {word!r} after the override {first_override!r}",
                expected="key=value there",
                fix=f"Configs come first: {word} {first_override}",
            )
        else:
            words.configs.append(word)
    return words
