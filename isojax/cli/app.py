"""The command line: how commands are called, and how each of them ends.

A module of commands/ is imported when its command is called (command_files.py), so that
`isojax status` waits for neither SciPy nor jax. An InputError is one line `error: ...` on standard
error and exit code 2.
"""

import errno
import os
import shlex
import sys
import tempfile
import traceback
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer

from isojax import __version__
from isojax.cli.command_files import LazyCommand, find_commands, find_own_commands
from isojax.cli.command_text import COMMAND_ENDING, computes
from isojax.cli.options import CommandGroup, new_app
from isojax.core.config.load import SHARE
from isojax.core.errors import InputError, RunFailed
from isojax.core.exit_codes import ExitCode
from isojax.core.machine import use_huge_pages
from isojax.core.preemption import Preempted
from isojax.core.tabular import nearest_names
from isojax.core.terminal import guard_output, printable, shorten
from isojax.core.user_code import failed_plugin
from isojax.runs.mirror import localize

COMMANDS = find_commands()
_COMMAND_OF_NAME = {command.name: command for command in COMMANDS}
LAUNCH = _COMMAND_OF_NAME["launch"]
TRAIN = _COMMAND_OF_NAME["train"]
# The error of an unknown command, option or value, which typer does not name.
USAGE_ERROR: Any = typer.BadParameter.__base__
# Where it is set, to anything, an error that isojax did not expect ends as Python ends it.
TRACEBACK_VARIABLE = "ISOJAX_TRACEBACK"
# Of a path that no file can have, or that this user may not open.
UNUSABLE_PATH_ERRNOS = (
    errno.EACCES,
    errno.EPERM,
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
)


def find_command(name: str) -> LazyCommand | None:
    """The command of this name: isojax's, else the user's own; None where there is neither."""
    return _COMMAND_OF_NAME.get(name) or find_own_commands().get(name)


class LazyGroup(CommandGroup):
    """The group of COMMANDS and of the user's own, known by their summaries alone.

    The one that is called, or completed by a shell, is imported.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        names = super().list_commands(ctx)
        return [*names, *(name for name in sorted(find_own_commands()) if name not in names)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        own = find_own_commands().get(cmd_name) if command is None else None
        return command if own is None else typer.main.get_command(own.stub())

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if not ctx.resilient_parsing:  # as it is while a shell completes a word
            self._check_name(ctx, args[0])
        name, command, remaining = super().resolve_command(ctx, args)
        lazy_command = find_command(name) if name else None
        if lazy_command is not None:
            command = typer.main.get_command(lazy_command.load())
        return name, command, remaining

    def _check_name(self, ctx: Any, name: str) -> None:
        """A usage error, which names the nearest command, for the name of none."""
        if name.startswith("-") or find_command(name) is not None:
            return
        (nearest,) = nearest_names(name, self.list_commands(ctx))
        message = f"No such command {name!r}; the nearest is {nearest!r}."
        function_name = name.replace("-", "_")
        if function_name.isidentifier():
            file_name = f"{function_name}{COMMAND_ENDING}"
            message += f" One of your own is a file {file_name} in this directory."
        ctx.fail(message)


PAGES = (
    "The pages that help and messages name, such as docs/laws.md, are in this folder:\n\n"
    f"\b\n{SHARE}"
)
app = new_app(cls=LazyGroup, no_args_is_help=True, add_completion=True, epilog=PAGES)
for _command in COMMANDS:
    app.command(_command.name, help=_command.summary)(lambda: None)


def _print_version(requested: bool) -> None:
    if requested:
        print(__version__)
        raise typer.Exit


VERSION_OPTION = typer.Option(
    "--version", callback=_print_version, is_eager=True, help="Print the version."
)


@app.callback()
def _root(version: Annotated[bool, VERSION_OPTION] = False) -> None:
    """Given a base model, a problem set and a budget of C rollouts: which (B_p, n, M) gives the
    best policy?

    launch runs a sweep, fits it and reports; the other commands are its parts.
    """


def main() -> NoReturn:
    """The console script `isojax`, once start.py has prepared the process."""
    # As `python -m` does, so that a fork's modules in the working directory can be plug-ins.
    sys.path.insert(0, "")

    command = find_command(sys.argv[1]) if len(sys.argv) > 1 else None
    _run(app, "isojax", is_run=command is not None and command.is_run)


def main_module(command: LazyCommand) -> NoReturn:
    """`python -m isojax.launch` and `python -m isojax.train`."""
    _run(command.load(), f"python -m isojax.{command.name}", command.is_run)


def _check_words(words: Sequence[str]) -> None:
    """InputError for a word in another encoding than UTF-8, which is no JSON, and no path of C++.

    Python has put surrogates in the place of its bytes.
    """
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError as e:
            raise InputError(
                found=f"given {word!r}",
                expected="text in UTF-8",
                fix="Rename the file, or correct the word.",
            ) from e


def _run(typer_app: typer.Typer, program: str, is_run: bool) -> NoReturn:
    """Run a command on the words of the command line, and exit with an ExitCode.

    141 where nobody reads what a command prints that is no run.
    """
    if computes(is_run, sys.argv[1:]):
        use_huge_pages()  # It may start the process once more, so it comes first.
    guard_output(is_run)  # From here on, a reader of the output that goes away ends no run.

    try:
        exit_code = _call(typer_app, program)
    except (InputError, RunFailed) as e:
        _exit("error", e, ExitCode.REFUSED if isinstance(e, InputError) else ExitCode.FAILED)
    except Preempted as e:
        _exit("stopped", f"{e} Go on by: {resume_command(program, sys.argv[1:])}", 128 + e.signum)
    except (SystemExit, KeyboardInterrupt):
        raise  # 141, or Ctrl-C outside of the command: within it, typer makes it 130.
    except USAGE_ERROR as e:
        e.message = shorten(e.message)
        e.show()
        sys.exit(e.exit_code)
    except BaseException as e:  # The last boundary: a panic of a library in Rust is no Exception.
        # Merely to ask whether such a file exists raises an OSError.
        if isinstance(e, OSError) and e.errno in UNUSABLE_PATH_ERRNOS:
            _exit("error", f"{e}. Expected the path of a place that you may use.", ExitCode.REFUSED)
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        _exit("error", _describe_unexpected(e), ExitCode.FAILED)

    if exit_code == ExitCode.INTERRUPTED:
        _exit_at_once(program, is_run)
    sys.exit(exit_code or ExitCode.DONE)


def _call(typer_app: typer.Typer, program: str) -> int | None:
    """Call the command; its exit code, which is 130 after Ctrl-C, or None."""
    try:
        _check_words(sys.argv[1:])
        # Folders that are URLs are mirrored, and the command gets the paths of their mirrors.
        with localize(sys.argv[1:]) as arguments:
            return typer_app(arguments, prog_name=program, standalone_mode=False)
    finally:
        # Here, so that an error of it is reported as any other; at Python's end it would not be.
        if sys.stdout is not None:
            sys.stdout.flush()


def resume_command(program: str, words: Sequence[str]) -> str:
    """The command that goes on with a run, to be typed as it is.

    program: "isojax" or "python -m isojax.launch". words: those that began the run, all options
    included, as only they name all its processes.
    """
    command = [*program.split(), *words]
    # Labels of `isojax difficulty` go on when it is called again; it has no such option.
    if "--resume" not in command and command[:2] != ["isojax", "difficulty"]:
        command.append("--resume")
    return shlex.join(command)


def _exit_at_once(program: str, is_run: bool) -> NoReturn:
    """End after Ctrl-C, in the middle of whatever was running."""
    command = resume_command(program, sys.argv[1:])
    advice = f"; a run that has begun goes on by: {command}" if is_run else ""
    print(printable(f"stopped: by Ctrl-C{advice}"), file=sys.stderr, flush=True)

    # sys.exit would not do: a compiled program that runs cannot be interrupted, Python's end takes
    # away what its threads inside XLA still use, and they abort the process, with a message of C++
    # and another exit code. Nothing is lost: all contexts have been left, both streams are flushed,
    # and files are written whole or not at all.
    os._exit(ExitCode.INTERRUPTED)


def _describe_unexpected(error: BaseException) -> str:
    """A message for an error that nothing in isojax has foreseen, or that a plug-in raises.

    Its traceback goes to a file, which the message names.
    """
    try:
        with tempfile.NamedTemporaryFile(
            "w", errors="replace", prefix="isojax-", suffix=".txt", delete=False
        ) as f:
            traceback.print_exception(error, file=f)
        where_traceback = f"The traceback is in {f.name}"
    except OSError:  # no disk, or a full one
        where_traceback = f"With {TRACEBACK_VARIABLE}=1 it shows the traceback"

    summary = f"{type(error).__name__}: {error}"[:500]
    plugin_line = failed_plugin(error)
    if plugin_line:
        problem = f"the plug-in failed at {plugin_line} ({summary})"
        return f"{problem}. {where_traceback}. Correct the plug-in (docs/extending.md)."
    if isinstance(error, MemoryError | OSError):
        problem = f"this machine could not do it ({summary})"
        return f"{problem}. Look at its memory and its disks. {where_traceback}."
    return (
        f"isojax did not expect this ({summary}). "
        f"{where_traceback}: please report it, with your command."
    )


def _exit(label: str, message: object, code: int) -> NoReturn:
    """Print a message on standard error, as `label: ...`, and exit."""
    # A RunFailed may have a line for each cell that failed.
    lines = message.args if isinstance(message, RunFailed) else (message,)
    print(f"{label}: " + "\n  ".join(map(printable, lines)), file=sys.stderr)
    sys.exit(code)
