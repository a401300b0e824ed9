"""Finds the logs in a folder, and the format of logs where the user gives no --from. How a log of a
format is recognized is defined in the format's importer (runs/importers/)."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from isojax.core import registry
from isojax.core.errors import InputError
from isojax.core.plugins import refuse_own_name
from isojax.core.table_files import paths_below
from isojax.runs.importers import Importer, importer
from isojax.runs.logs.log_files import LogStart
from isojax.runs.logs.log_table import check_log_file

# A reader refuses all but .gz, and says what to do; a packed log is not to be left out in silence.
PACKED_SUFFIXES = ("", ".gz", ".zip", ".xz", ".bz2", ".zst")
# of a user's file that has an importer which says how its logs are detected
_IMPORTER_IMPORT = re.compile(r"^from isojax\.runs\.importers import .*\bimporter\b", re.MULTILINE)
_IMPORTER_WITH_DETECT = re.compile(r"^@importer\([^@]*\bdetect\s*=", re.MULTILINE)


def logs_of_folder(folder: Path, log_importer: Importer) -> list[Path]:
    """The logs of one format below a folder, sorted by name.

    They are what the importer's `find_logs` finds, otherwise the files that end in its suffixes or
    are detected as this format; the folder itself, for an importer that has none of these.
    InputError where there is no log.
    """
    traits = log_importer.traits
    if traits.find_logs is not None:
        return traits.find_logs(folder)
    if traits.suffixes is None and traits.detect is None:
        return [folder]

    endings = tuple(
        suffix + packed for suffix in traits.suffixes or () for packed in PACKED_SUFFIXES
    )
    own_importers = _own_importers()
    logs = []
    for path in paths_below(folder):
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if not path.is_file() or is_hidden:
            continue
        if path.name.lower().endswith(endings) or _is_detected(path, log_importer, own_importers):
            logs.append(path)
    if not logs:
        what_is_missing = f"no file that ends in {' or '.join(traits.suffixes or ())}"
        if not endings:
            what_is_missing = f"no log of the format {log_importer.name}"
        raise InputError(
            where=folder,
            found=f"holds {what_is_missing}",
            fix="Name the logs themselves.",
        )
    return sorted(logs, key=_numbers_as_numbers)


def _numbers_as_numbers(path: Path) -> list[int | str]:
    """A sorting key of paths by which n8 comes before n16."""
    pieces = re.split(r"(\d+)", str(path.with_suffix("")))
    return [int(piece) if piece.isdigit() else piece for piece in pieces]


def detect_format(paths: Sequence[Path]) -> str:
    """The name of the format that all these logs or folders have, such as "csv".

    It is recognized by their names and first lines. InputError where none or several are.
    """
    first_log_of_format: dict[str, Path] = {}
    for path in paths:
        for name in _formats(path):
            first_log_of_format.setdefault(name, path)
    if len(first_log_of_format) == 1:
        return next(iter(first_log_of_format))

    if first_log_of_format:
        formats = [f"{name} ({path})" for name, path in sorted(first_log_of_format.items())]
        raise InputError(
            where="formats of the logs",
            found=f"{', '.join(formats)}",
            expected="one",
            fix="Name it by --from, or leave logs out.",
        )
    problem = f"{' '.join(map(str, paths))}: the format is not known by name or first lines"
    raise InputError(
        found=f"{problem}; name it, such as --from csv, or save it as CSV",
        fix=(
            "Of a trainer other than verl, import the run in W&B or TensorBoard, or "
            "trainer_state.json."
        ),
    )


def _own_importers() -> list[Importer]:
    return importer.load_own()


def _user_importers() -> list[Importer]:
    """The importers in the user's folders of plug-ins that can detect their format.

    Only files that contain such an importer, by their text, are run. InputError where one has the
    name of an importer of isojax's.
    """
    own_importers = {one.name: one for one in _own_importers()}
    names = []
    for folder in registry.plugin_folders():
        for file in sorted(Path(folder).glob("*.py")):
            try:
                text = file.read_text(errors="replace") if file.is_file() else ""
            except OSError:  # a file that this user may not read is none that is meant
                continue
            if _IMPORTER_IMPORT.search(text) and _IMPORTER_WITH_DETECT.search(text):
                if file.stem in own_importers:
                    refuse_own_name(own_importers[file.stem], file)
                names.append(file.stem)
    return [importer.load(name) for name in dict.fromkeys(names)]


def _formats(path: Path) -> set[str]:
    """The names of the formats recognized in a log, or in the logs below a folder; may be empty.

    The user's importers are tried before isojax's, which count only where no user's one does.
    """
    user_importers = _user_importers()
    if path.is_dir():
        return _formats_of_folder(path, user_importers) or _formats_of_folder(
            path, _own_importers()
        )

    log = LogStart(path)
    if names := _formats_of_file(log, user_importers):
        return names
    check_log_file(path)
    own_importers = _own_importers()
    # Where the content is not recognized, the end of the name decides: the importer will then
    # report what is wrong with the file.
    return _formats_of_file(log, own_importers) or {
        one.name
        for one in own_importers
        if one.traits.is_general and log.ends_in(one.traits.suffixes or ())
    }


def _formats_of_folder(folder: Path, importers: Sequence[Importer]) -> set[str]:
    """The names of the formats in a folder.

    Those that have a file of a certain name there (`folder_pattern`, such as "*tfevents*"),
    otherwise those of any of its files.
    """
    marked = [
        one
        for one in importers
        if one.traits.folder_pattern and paths_below(folder, one.traits.folder_pattern)
    ]
    if marked:
        return _names_of_most_specific(marked)

    names: set[str] = set()
    for file in paths_below(folder) if importers else ():
        if file.is_file():
            names |= _formats_of_file(LogStart(file), importers)
    return names


def _formats_of_file(log: LogStart, importers: Iterable[Importer]) -> set[str]:
    """The names of the formats whose importers detect a file, mostly one; empty for none."""
    return _names_of_most_specific(
        [one for one in importers if one.traits.detect and one.traits.detect(log)]
    )


def _names_of_most_specific(detected: Sequence[Importer]) -> set[str]:
    """The names of importers, without the general ones (such as csv) if there is another."""
    special = [one for one in detected if not one.traits.is_general]
    return {one.name for one in special or detected}


def _is_detected(path: Path, log_importer: Importer, own_importers: Sequence[Importer]) -> bool:
    """Whether a file is of this format, by its content, and of no other that counts before it."""
    if log_importer.traits.detect is None:
        return False
    log = LogStart(path)
    if not log_importer.is_own:
        return log_importer.traits.detect(log)
    return log_importer.name in _formats_of_file(log, own_importers)
