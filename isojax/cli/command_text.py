"""What the text of a command's file says of it, before anything is imported."""

import re
from collections.abc import Sequence

COMMAND_ENDING = "_command.py"
# The options with which a command trains nothing and samples nothing.
OPTIONS_WITHOUT_WORK = frozenset({"--dry-run", "--help"})
_IS_RUN = re.compile(r"^IS_RUN = True\b", re.MULTILINE)


def says_it_is_a_run(text: str) -> bool:
    """Whether a command's file has the line `IS_RUN = True`."""
    return _IS_RUN.search(text) is not None


def computes(is_run: bool, words: Sequence[str]) -> bool:
    """Whether a command trains or samples.

    is_run: whether its file says so. words: those of the command line.
    """
    return is_run and OPTIONS_WITHOUT_WORK.isdisjoint(words)
