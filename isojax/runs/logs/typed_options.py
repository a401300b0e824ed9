"""Options as a message says to type them, with a log's own names in them, quoted for a shell."""

import shlex
from glob import escape


def map_option(field: str, column: str) -> str:
    """`--map reward=val/acc`; 'reward=val acc' where the shell would divide it."""
    return f"--map {shlex.quote(f'{field}={column}')}"


def leave_out_option(run: str) -> str:
    """What leaves a run out, by its name, of which no letter stands for others."""
    return f"--leave-out {shlex.quote(escape(run))}"
