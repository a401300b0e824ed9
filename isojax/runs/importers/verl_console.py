"""verl's console log (trainer.logger=console): lines "step:N - TAG:VALUE - TAG:VALUE", with Ray's
prefixes and colours, among whatever else was printed. n, B_p and the devices are read from the
config that verl prints, or from its command line (`set -x`). One file is one run, named after
trainer.experiment_name."""

import ast
import re
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from isojax.core.columns import parse_number
from isojax.core.errors import InputError
from isojax.core.table_files import read_lines
from isojax.core.tabular import DataRow
from isojax.core.yaml_files import flatten
from isojax.runs.importers import importer
from isojax.runs.logs import verl_columns
from isojax.runs.logs.log_files import LogStart
from isojax.runs.logs.log_table import SAME_NAME_FIELDS, LogTable, check_log_file

FIELDS = {
    **SAME_NAME_FIELDS,
    **verl_columns.TRAIN_COLUMNS,
    **verl_columns.SAMPLED_COLUMNS,
    "reward": verl_columns.METRIC_COLUMNS,
    "step_seconds": verl_columns.STEP_SECONDS,
    **verl_columns.CONFIG_COLUMNS,
}

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # and what moves the cursor, as progress bars do
# What kubectl and docker (--timestamps), ts, srun -l, torchrun, mpirun and docker compose put
# before a line.
_OUTER_PREFIX = re.compile(
    r"^(?:\d{4}-\d\d-\d\d[T ]\S+ (?:std(?:out|err) [FP] )?"
    r"|[A-Z][a-z]{2} [ \d]\d [\d:]{8} |[\d:.,]{8,} |\d+: "
    r"|\[[\w,:. -]+\](?:<\w+>)?:? ?|\S+ +\| )+"
)
# (TaskRunner pid=123); also within a line, where another process continues it
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
# The settings in which a log of several runs would differ.
SETTINGS_OF_ONE_RUN = (
    *verl_columns.CONFIG_COLUMNS["n"],
    *verl_columns.REPEATS,
    *verl_columns.CONFIG_COLUMNS["B_p"],
)


class _Piece(NamedTuple):
    """The part of a line that one process wrote."""

    prefix: str  # Ray's, which names the process; "" for text without one
    text: str


class _Line(NamedTuple):
    number: int  # in the file, from 1; each of a line's pieces has it
    prefix: str
    text: str


class _Config(NamedTuple):
    """Settings of verl, with dots, and the line where they are printed."""

    line: int
    settings: dict[str, Any]


class _Steps(NamedTuple):
    rows: list[DataRow]
    notes: list[str]


def is_step_line(text: str) -> bool:
    """Whether a line of a log has a step's metrics."""
    return any(_STEP_LINE.match(piece.text) for piece in _plain_pieces(text))


def detect(log: LogStart) -> bool:
    # A line of JSON is another format's, though it may have such a text in it.
    return any(is_step_line(text) for text in log.lines() if not text.startswith('{"'))


@importer(
    fields=FIELDS,
    detect=detect,
    suffixes=(".log", ".txt", ".out"),
    example="isojax records import logs/ --from verl_console --out runs/verl",
)
def read(path: Path) -> list[LogTable]:
    """The file as the table of one run, in a list of one.

    InputError where it has no step's line, or contains several runs.
    """
    check_log_file(path)
    # (number, text) of each line, with U+FFFD in the place of bytes that are no text
    numbered = list(read_lines(path, "replace"))
    lines = [_Line(number, *piece) for number, text in numbered for piece in _plain_pieces(text)]
    has_last_line_end = bool(numbered) and numbered[-1][1].endswith("\n")
    steps = _read_steps(path, lines, has_last_line_end)

    # Each start prints its config. Leave out starts that failed at once: no step follows them
    # before the next start. (A row's index counts lines from 0, a config's line from 1, so the
    # first line compared is the one after the config's.)
    starts = [*_printed_configs(lines), _Config(len(numbered) + 1, {})]
    configs = [
        config
        for config, next_start in pairwise(starts)
        if any(config.line <= row.index < next_start.line for row in steps.rows)
    ]
    commands = _settings_of_commands(lines)
    for name in SETTINGS_OF_ONE_RUN:
        _require_one_value(path, name, configs, commands)

    # The settings: of the command lines, overridden by the printed config, which has the defaults
    # too.
    config: dict[str, Any] = {}
    for settings in commands:
        config |= settings
    if configs:
        config |= configs[-1].settings
    # what follows from several settings, such as the devices; it replaces one of the same name
    config |= verl_columns.derived_settings(config, steps.rows)
    run = str(config.get("trainer.experiment_name", ""))
    return [LogTable(str(path), tuple(steps.rows), config, run=run, notes=tuple(steps.notes))]


def _read_steps(path: Path, lines: Sequence[_Line], has_last_line_end: bool) -> _Steps:
    """A row for each line "step:N - TAG:VALUE - ...".

    has_last_line_end: whether the file ends with a line end; otherwise its last line may be torn.
    InputError where there is no such line, or where a terminal has wrapped them over several lines.
    """
    rows: list[DataRow] = []
    notes: list[str] = []
    for i, line in enumerate(lines):
        if match := _STEP_LINE.match(line.text):
            is_torn = i == len(lines) - 1 and not has_last_line_end
            if is_torn:
                notes.append(
                    "its last line is torn (the run still writes it, or was stopped): "
                    "without its last value"
                )
            values = {"step": int(match[1]), **_metric_values(match[2], is_torn)}
            rows.append(DataRow(str(path), f"line {line.number}", values, index=line.number - 1))
            continue

        # Numbers of lines count from 1, indices of rows from 0: the line right behind the last
        # row's.
        follows_step = len(rows) > 0 and rows[-1].index == line.number - 2
        if follows_step and not line.prefix and _WRAPPED.match(line.text):
            # A single such line may be some program's output, so that it gets a note; a second
            # one shows that lines are wrapped.
            if notes:
                raise InputError(
                    found=f"{path}, {notes[0]}, and so does line {line.number}",
                    expected="a step's values on one line",
                    fix="Copy the log's file, not a terminal's text, or remove these lines.",
                )
            notes.append(
                f"line {line.number} looks like the rest of line {line.number - 1}, "
                "as if wrapped by a terminal"
            )
    if not rows:
        expected = (
            '"step:N - TAG:VALUE - ...", as verl prints for each step with trainer.logger=console'
        )
        raise InputError(
            where=path,
            found=f"no line {expected}",
            fix="Leave it out, save it as UTF-8, or name a format by --from.",
        )
    return _Steps(rows, notes)


def _settings_of_commands(lines: Sequence[_Line]) -> list[dict[str, str]]:
    """Hydra's overrides on each command line of verl's RL trainers, such as {"data.seed": "1"}.

    A command line may go on in the next line after a backslash.
    """
    text = "\n".join(line.text for line in lines)
    commands = re.sub(r"\\\n", " ", text).split("\n")
    return [
        dict(_OVERRIDE.findall(command))
        for command in commands
        if "verl." in command and "actor_rollout_" in command
    ]


def _require_one_value(
    path: Path, name: str, configs: Sequence[_Config], commands: Sequence[dict[str, str]]
) -> None:
    """InputError where a setting changes within the log, which then contains several runs.

    name: such as actor_rollout_ref.rollout.n. It is compared between the printed configs or,
    without any, between the command lines.
    """
    texts: list[str] = []  # values that differ from the one before, and their lines
    line_numbers: list[int] = []
    for source in configs or [_Config(0, settings) for settings in commands]:
        text = str(source.settings.get(name, ""))
        if name not in source.settings or "$" in text:  # $N is a variable of the shell
            continue
        if not texts or text != texts[-1]:
            texts.append(text)
            line_numbers.append(source.line)
    if len(texts) < 2:
        return

    where = f" before line {' and '.join(map(str, line_numbers[1:]))}" if configs else ""
    raise InputError(
        where=path,
        found=f"holds runs whose {name} is {', then '.join(texts)}",
        expected="one run",
        fix=f"Split it{where}.",
    )


def _plain_pieces(text: str) -> list[_Piece]:
    """A line without colours, divided where Ray lets another process go on with it."""
    # A progress bar writes over itself after \r: what stands last is what one saw.
    text = _COLOUR.sub("", text).rstrip("\r\n").rpartition("\r")[2]
    text = _RAY_REPEATED.sub("", text).rstrip()

    first, *others = _RAY_PREFIX.split(_OUTER_PREFIX.sub("", text))
    prefixes = others[::2]
    texts = others[1::2]
    pieces = list(map(_Piece, prefixes, texts))
    return [_Piece("", first), *pieces] if first or not pieces else pieces


def _metric_values(text: str, is_torn: bool) -> dict[str, float]:
    """The number of each tag in a text such as "actor/lr:0.001 - critic/score/mean:0.5".

    Of a torn line without the last one. A tag without a number is left out.
    """
    pieces = text.split(" - ")
    if is_torn:
        pieces = pieces[:-1]
    values = {}
    for piece in pieces:
        tag, _, value = piece.rpartition(":")
        number = parse_number(_NUMPY_NUMBER.sub(r"\1", value.strip().strip("'")))
        if tag and number is not None:
            values[tag.strip()] = number
    return values


def _printed_configs(lines: Sequence[_Line]) -> Iterator[_Config]:
    """Each whole config, as verl prints it at each start: {'actor_rollout_ref': {...}}.

    It may be spread over many lines, between those of other processes. Nested keys are joined with
    dots. A text that begins so and is no config is passed over.
    """
    starts = (i for i, line in enumerate(lines) if line.text.startswith("{'"))
    for start in islice(starts, MAX_CONFIG_TRIES):
        # The lines of the same process, until as many brackets are closed as were opened.
        printed: list[str] = []
        open_brackets = 0
        for line in lines[start : start + MAX_CONFIG_LINES]:
            if line.prefix != lines[start].prefix:
                continue
            printed.append(line.text)
            open_brackets += line.text.count("{") - line.text.count("}")
            if open_brackets <= 0:
                break

        try:
            config = ast.literal_eval("\n".join(printed))
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(config, dict) and "actor_rollout_ref" in config:
            yield _Config(lines[start].number, dict(flatten(config)))
