"""verl's console log (trainer.logger=console): lines "step:N - TAG:VALUE - TAG:VALUE", with Ray's
prefixes and colours, among whatever else was printed. n, B_p and the devices are read from the
config that verl prints, or from its command line (`set -x`). One file is one run, named after
trainer.experiment_name."""

import ast
import re
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from isojax.core.errors import InputError
from isojax.core.table_files import read_lines
from isojax.core.tabular import DataRow, parse_number
from isojax.core.yaml_files import flatten
from isojax.runs.importers import importer, verl
from isojax.runs.logs.log_table import LogTable, check_log_file

FIELDS = verl.FIELDS | verl.CONFIG_COLUMNS

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # and what moves the cursor, as progress bars do
# What kubectl and docker (--timestamps), ts, srun -l, torchrun, mpirun and docker compose put
# before a line.
_OUTER_PREFIX = re.compile(
    r"^(?:\d{4}-\d\d-\d\d[T ]\S+ (?:std(?:out|err) [FP] )?|[A-Z][a-z]{2} [ \d]\d [\d:]{8} |[\d:.,]{8,} |\d+: "
    r"|\[[\w,:. -]+\](?:<\w+>)?:? ?|\S+ +\| )+"
)
# within a line, another process goes on with it
_RAY_PREFIX = re.compile(r"(\((?:[\w:.]+ )*(?:pid|ip)=[^()]*\)) ?")
_RAY_REPEATED = re.compile(r"\[repeated \d+x across cluster\].*$")
# A progress bar may stand before it, or, where its first tag has a slash as verl's do, other
# output.
_STEP_LINE = re.compile(
    r"^(?:(?:.*(?:it/s|s/it|\?)\])? *|.*[\s\]>:|](?=step:\d+ - [\w-]+/\S+:))step:(\d+) - (.*)$"
)
_NUMPY_NUMBER = re.compile(r"^np\.\w+\((.*)\)$")  # as pprint writes a number of numpy
# Of the line after a step's, without Ray's prefix: tags that a terminal has wrapped.
_WRAPPED = re.compile(
    r"(?=.*/)[\w/@.() -]*:(?:np\.\w+\()?-?[\d.]+(?:e[+-]?\d+)?\)?(?: - (?:\S+:\S|[\w-]+/)|$)"
)
_OVERRIDE = re.compile(r"(?:^|[\s'\"+])([a-z_]+(?:\.[a-z_0-9]+)+)=([^\s'\"]+)")
# the config is printed before whatever else looks like one
MAX_CONFIG_LINES = 3000
MAX_CONFIG_TRIES = 100


def is_step_line(text: str) -> bool:
    """Whether a line of a log has a step's metrics."""
    return any(_STEP_LINE.match(piece) for _, piece in _plain_pieces(text))


@importer(fields=FIELDS, suffixes=(".log", ".txt", ".out"))
def read(path: Path) -> list[LogTable]:
    """The file as one run; InputError where it has no step."""
    check_log_file(path)
    numbered = list(read_lines(path, "replace"))
    lines = [(number, *piece) for number, text in numbered for piece in _plain_pieces(text)]
    rows, notes = list[DataRow](), list[str]()
    for i, (number, prefix, text) in enumerate(lines):
        if match := _STEP_LINE.match(text):
            is_torn = i == len(lines) - 1 and not numbered[-1][1].endswith("\n")
            if is_torn:
                notes.append(
                    "its last line is torn (the run still writes it, or was stopped): without its last value"
                )
            values = _metric_values(match[2], is_torn)
            rows.append(
                DataRow(str(path), f"line {number}", {"step": int(match[1]), **values}, number - 1)
            )
        elif rows and rows[-1].index == number - 2 and not prefix and _WRAPPED.match(text):
            if notes:  # one may be another program's output
                problem = f"{path}, {notes[0]}, and so does line {number}; expected a step's values on one line"
                raise InputError(
                    f"{problem}. Copy the log's file, not a terminal's text, or remove these lines."
                )
            notes.append(
                f"line {number} looks like the rest of line {number - 1}, as if wrapped by a terminal"
            )
    if not rows:
        expected = (
            '"step:N - TAG:VALUE - ...", as verl prints for each step with trainer.logger=console'
        )
        raise InputError(
            f"{path} has no line {expected}. Leave it out, save it as UTF-8, or name a format by --from."
        )
    starts = [*_printed_configs(lines), (len(numbered) + 1, {})]
    # others failed at once
    configs = [a for a, b in pairwise(starts) if any(a[0] <= row.index < b[0] for row in rows)]
    # Hydra's overrides on the command lines of verl's RL trainers
    printed = re.sub(r"\\\n", " ", "\n".join(text for _, _, text in lines)).split("\n")
    commands = [
        (0, dict(_OVERRIDE.findall(x))) for x in printed if "verl." in x and "actor_rollout_" in x
    ]
    for name in (*verl.CONFIG_COLUMNS["n"], *verl.REPEATS, *verl.CONFIG_COLUMNS["B_p"]):
        known = [
            (str(config[name]), number) for number, config in configs or commands if name in config
        ]
        settings = [(text, number) for text, number in known if "$" not in text]
        if changes := [b for a, b in pairwise(settings) if a[0] != b[0]]:
            values = ", then ".join(text for text, _ in (settings[0], *changes))
            where = (
                f" before line {' and '.join(str(number) for _, number in changes)}"
                if configs
                else ""
            )
            raise InputError(
                f"{path} holds runs whose {name} is {values}; expected one run. Split it{where}."
            )
    config = {
        name: value for _, source in (*commands, *configs[-1:]) for name, value in source.items()
    }
    config |= verl.derived_settings(config, rows)
    run = str(config.get("trainer.experiment_name", ""))
    return [LogTable(str(path), tuple(rows), config, run=run, notes=tuple(notes))]


def _plain_pieces(text: str) -> list[tuple[str, str]]:
    """(Ray's prefix, what it stands before) of each process that wrote a part of a line, without
    colours."""
    text = _RAY_REPEATED.sub("", _COLOUR.sub("", text).rstrip("\r\n").rpartition("\r")[2]).rstrip()
    first, *others = _RAY_PREFIX.split(_OUTER_PREFIX.sub("", text))
    pieces = list(zip(others[::2], others[1::2], strict=True))
    return [("", first), *pieces] if first or not pieces else pieces


def _metric_values(text: str, is_torn: bool) -> dict[str, float]:
    """ "actor/lr:0.001 - critic/score/mean:0.5" -> the number of each tag; of a torn line without
    its last."""
    pieces = text.split(" - ")
    values = {}
    for piece in pieces[:-1] if is_torn else pieces:
        tag, _, value = piece.rpartition(":")
        number = parse_number(_NUMPY_NUMBER.sub(r"\1", value.strip().strip("'")))
        if tag and number is not None:
            values[tag.strip()] = number
    return values


def _printed_configs(lines: Sequence[tuple[int, str, str]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, the whole config) as verl prints it before each start, {'actor_rollout_ref': {...}},
    with dots."""
    starts = (i for i, (_, _, text) in enumerate(lines) if text.startswith("{'"))
    for start in islice(starts, MAX_CONFIG_TRIES):
        prefix, printed, opened = lines[start][1], list[str](), 0
        for _, line_prefix, line in lines[start : start + MAX_CONFIG_LINES]:
            if line_prefix != prefix:
                continue
            printed.append(line)
            opened += line.count("{") - line.count("}")
            if opened <= 0:
                break
        try:
            config = ast.literal_eval("\n".join(printed))
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(config, dict) and "actor_rollout_ref" in config:
            yield lines[start][0], dict(flatten(config))
