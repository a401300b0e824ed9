"""Options as a message says to type them, with a log's own names in them, quoted for a shell."""

import re
import shlex
from collections.abc import Sequence
from glob import escape


def map_option(field: str, column: str) -> str:
    """`--map reward=val/acc`; 'reward=val acc' where the shell would divide it."""
    return f"--map {shlex.quote(f'{field}={column}')}"


def leave_out_option(run: str, others: Sequence[str]) -> str:
    """The option that leaves a run out, such as `--leave-out n8-s0`.

    others: other names to which it must not apply, such as the log's. Where the run's name is a
    word of one of them, the option is a pattern that fits the run's whole name alone.
    """
    is_word_of_others = any(
        re.search(rf"(?i)(?<![a-z]){re.escape(run)}(?![a-z])", name) for name in others
    )
    # [x] makes it a pattern, which is compared with whole names, where a plain word is looked for
    # within them.
    pattern = f"{escape(run[:-1])}[{run[-1]}]" if is_word_of_others else escape(run)
    return f"--leave-out {shlex.quote(pattern)}"
