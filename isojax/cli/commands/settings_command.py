"""Show settings of a config: their defaults and what they mean."""

import difflib
import textwrap
from collections.abc import Sequence
from typing import Annotated

from typer import Argument

from isojax.cli.formatting import json_text, print_line
from isojax.cli.options import JsonOption
from isojax.core.config.describe import Setting, describe_settings
from isojax.core.errors import InputError

WIDTH = 100  # characters of a line of a setting's meaning, without its indent
WORD_HELP = "Part of a setting's name, such as cell.rl or learning_rate; without one, all settings."


def settings(
    words: Annotated[list[str] | None, Argument(metavar="WORD", help=WORD_HELP)] = None,
    as_json: JsonOption = False,
) -> None:
    """Show settings of a config: their defaults and what they mean.

    Write a setting into a YAML file, or give it as NAME=VALUE after the names of the configs.

    \b
    Examples
      isojax settings cell.rl
      isojax settings validation learning_rate
    """
    settings_shown = _settings_with_any(words or [])

    if as_json:
        print(json_text({"settings": settings_shown}))
        return
    for setting in settings_shown:
        print_line(f"{setting.name} = {setting.default}")
        for line in textwrap.wrap(setting.meaning, WIDTH):
            print_line(f"    {line}")


def _settings_with_any(words: Sequence[str]) -> list[Setting]:
    """The settings whose names hold any of these words; all where there is no word. words: parts of
    names, such as "cell.rl" or "learning_rate". InputError where no name holds one."""
    all_settings = describe_settings()
    matches = [s for s in all_settings if not words or any(word in s.name for word in words)]
    if matches:
        return matches

    # Somebody may mean a whole name, or its last part.
    names = [s.name for s in all_settings] + [s.name.rpartition(".")[2] for s in all_settings]
    nearest = difflib.get_close_matches(words[0], names, n=1)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    raise InputError(
        found=f"no setting has {' or '.join(words)} in its name",
        expected="a part of one",
        fix=hint.strip(),
    )
