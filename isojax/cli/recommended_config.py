"""`isojax recommend --write`: a recommendation as a trainer's config, and how to run it."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isojax.cli.formatting import check_new_file, print_line
from isojax.core.atomic_files import write_text
from isojax.core.config import Config, load_config
from isojax.core.errors import InputError
from isojax.core.user_code import MAX_CHARACTERS
from isojax.report import exporters
from isojax.report.exporters import Exporter
from isojax.scaling.allocate.recommendation import Recommendation


def load_exporter(framework: str | None, write: Path | None, growing: bool) -> Exporter:
    """What writes the config of a framework, as --for, --write and --growing say.

    framework: such as "verl"; None: isojax itself. write: the file to write; None: none is.
    growing: whether a schedule of a rising n is written. InputError where it cannot write what is
    asked for, before any work.
    """
    if framework is not None and write is None:
        raise InputError(
            where="--for",
            found=f"given {framework}, whose config is to be written",
            expected="--write FILE with it",
        )
    check_new_file(write, "--write")
    if growing and write is None:
        raise InputError(
            where="--growing",
            found="writes the recommended schedule as a config",
            expected="--write FILE with it",
        )

    exporter = exporters.exporter.load(framework or "isojax")
    _check_templates(exporter)
    # Such a trainer is given the config's name, and looks for a .yaml of that name.
    is_run_by_name = "{name}" in exporter.traits.how_to_run
    if write is not None and is_run_by_name and write.suffix != ".yaml":
        raise InputError(
            where=f"--write {write}",
            found=f"{framework} finds a config by its name",
            expected="one that ends in .yaml",
        )
    if growing and exporter.traits.render_growing is None:
        raise InputError(
            where=f"--growing --for {framework}",
            found="there is no schedule for it",
            expected="isojax, trl or verl",
        )
    return exporter


def _check_templates(exporter: Exporter) -> None:
    """InputError where a command of the exporter has a placeholder that isojax does not fill in.

    The commands are "how_to_run" and "how_to_go_on" of its traits, such as "isojax train
    {file}"; an exporter may be the user's. They are tried with a path that stands for any.
    """
    traits = exporter.traits
    for name, template in (
        ("how_to_run", traits.how_to_run),
        ("how_to_go_on", traits.how_to_go_on),
    ):
        if template is None:
            continue
        try:
            _fill_in(template, Path("best.yaml"))
        except (KeyError, IndexError, ValueError, AttributeError) as e:
            raise InputError(
                where=exporter.place,
                found=f"{name} = {template!r} cannot be filled in ({type(e).__name__}: {e})",
                expected="no placeholder but {file}, {folder} and {name}",
                fix="Write a brace of the command itself twice, as {{ and }}.",
            ) from e


def _fill_in(template: str, path: Path) -> str:
    """A command for the config written at `path`: the template with {file}, {folder} and {name}, as
    a shell takes them. Raises what str.format raises."""
    return template.format(
        file=shlex.quote(str(path)),
        folder=shlex.quote(str(path.parent)),
        name=shlex.quote(path.stem),
    )


def write_configs(
    path: Path, run: Path, exporter: Exporter, recommendation: Recommendation, growing: bool
) -> list[Path]:
    """Write the recommendation for a sweep as configs; returns the paths of the files.

    path: such as best.yaml. One config is there, and those of a series of runs, as some trainers
        need for a schedule, at best-1.yaml, best-2.yaml, ... in the order of the runs.
    run: the sweep's folder, or a fit.json in it.
    growing: write the schedule of a rising n in place of the fixed allocation.

    InputError where one of the files exists, or where the exporter returns anything else than
    texts; then none is written.
    """
    config = _sweep_config(run if run.is_dir() else run.parent)
    if growing and exporter.traits.render_growing is not None:
        # What the runs of a series share is named after the file, such as a checkpoints' folder.
        texts = exporter.traits.render_growing(recommendation, config, path.stem)
    else:
        texts = [exporter(recommendation, config)]
    _check_texts(exporter, texts)

    paths = [path]
    if len(texts) > 1:
        numbers = range(1, len(texts) + 1)
        paths = [path.with_name(f"{path.stem}-{number}{path.suffix}") for number in numbers]

    # All are checked before the first is written, so that no series is left half written.
    for new_path in paths:
        check_new_file(new_path, "--write")
    for new_path, text in zip(paths, texts, strict=True):
        write_text(new_path, text)
    return paths


def _check_texts(exporter: Exporter, texts: Any) -> None:
    """InputError where what an exporter, which may be the user's, returned is no list of texts, or
    one of them is empty."""
    if not isinstance(texts, list) or not texts:
        raise InputError(
            where=exporter.place,
            found=f"render_growing returned {texts!r}"[:MAX_CHARACTERS],
            expected="a list of texts, one for each config",
        )
    for text in texts:
        if not isinstance(text, str) or not text.strip():
            returned = "a blank text" if isinstance(text, str) else type(text).__name__
            raise InputError(
                where=exporter.place,
                found=f"the exporter returned {returned}",
                expected="the text of the config",
                fix="Nothing was written.",
            )


def _sweep_config(folder: Path) -> Config | None:
    """The config of a sweep's folder; None of imported logs, which have none."""
    path = folder / "config.yaml"
    if not path.exists():
        return None

    config = load_config(str(path))
    if (folder / "base").is_dir():
        # A new run can start from the base policy and the labels that this sweep has made.
        config = config.with_settings(run={"base_from": str(folder)})
    return config


def print_how_to_run(exporter: Exporter, paths: Sequence[Path]) -> None:
    """For each config that was written, the command that runs it."""
    traits = exporter.traits
    for index, path in enumerate(paths):
        is_later = index > 0  # a run that goes on from the one before
        template = traits.how_to_run
        if is_later and traits.how_to_go_on is not None:
            template = traits.how_to_go_on

        command = _fill_in(template, path)
        print_line(f"wrote {path}; run it {'then ' if is_later else ''}with: {command}")
