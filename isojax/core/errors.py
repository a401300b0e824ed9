"""Errors that a user can correct, and work that could not be done."""


class InputError(ValueError):
    """Something a user gave cannot be used.

    The command line prints the message, no traceback, and exits with 2.
    """


class DeadStart(InputError):
    """No run of a sweep can learn, as its base policy shows before the first update.

    It ends the whole sweep.
    """


class RunFailed(RuntimeError):
    """Some work could not be done.

    The command line prints each argument on a line, and exits with 1.
    """

    def __str__(self) -> str:
        return "\n  ".join(map(str, self.args))


class ServerFailed(RunFailed):
    """A server that samples is gone, too slow, or not what it was.

    A run then saves its state and ends.
    """


# In the messages of XLA's backends.
OUT_OF_MEMORY_MESSAGES = ("RESOURCE_EXHAUSTED", "Out of memory", "out of memory", "std::bad_alloc")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory was not enough."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, RunFailed):
        return False  # It may speak of a full disk, in similar words.
    return any(message in str(error) for message in OUT_OF_MEMORY_MESSAGES)
