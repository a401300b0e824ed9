"""Options as a message says to type them, with a log's own names in them, quoted for a shell."""

import re
import shlex
from collections.abc import Sequence
from glob import escape


def map_option(field: str, column: str) -> str:
    """`--map reward=val/acc`; 'reward=val acc' where the shell would divide it."""
    return f"--map {shlex.quote(f'{field}={column}')}"


def leave_out_option(run: str, others: Sequence[str]) -> str:
    """What leaves a run out, by its name; where that is a word of other names too, such as the
    log's, a pattern that fits the whole name alone."""
    is_word_of_others = any(
        re.search(rf"(?i)(?<![a-z]){re.escape(run)}(?![a-z])", name) for name in others
    )
    pattern = f"{escape(run[:-1])}[{run[-1]}]" if is_word_of_others else escape(run)
    return f"--leave-out {shlex.quote(pattern)}"
