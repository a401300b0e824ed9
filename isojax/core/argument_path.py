"""The path in the argument of a plug-in's name.

Verifiers use it, in worker processes that load neither pydantic nor NumPy: so it is in no room
that does.
"""

from typing import NamedTuple


class ArgumentPath(NamedTuple):
    """What the argument of a plug-in's name refers to, as `jsonl:problems.jsonl` does."""

    text: str  # as the argument has it: a file, a folder or a pattern of files
    # Which of a folder's files are read, as patterns from the folder on.
    inside: tuple[str, ...] = ("**/*",)
    is_module: bool = False  # the text is a module's dotted name instead
