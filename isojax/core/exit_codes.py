"""How a command ends, as a code for scripts and schedulers, which decide by it whether to go on.

docs/faults.md and `isojax launch --help` have the same table for users.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """The codes with which isojax ends; a kill by the system adds 128 + the signal's number."""

    DONE = 0
    FAILED = 1  # a run failed, or an error that isojax did not expect
    REFUSED = 2  # by an InputError, before any work; as of usage errors
    PEER_LOST = 75  # another process of the run is gone: EX_TEMPFAIL of sysexits.h
    INTERRUPTED = 130  # Ctrl-C, 128 + SIGINT
    TERMINATED = 143  # SIGTERM or run.time_limit, 128 + SIGTERM
