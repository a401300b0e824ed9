"""Errors that a user can correct, and work that could not be done."""

from pathlib import Path
from typing import Self


class InputError(ValueError):
    """Something a user gave cannot be used.

    The command line prints the message, no traceback, and exits with 2.

    where: the setting, the file and line, or the argument, such as `cell.rl.kl`.
    found: what was given, or what is wrong with it, as a phrase.
    expected: what would be accepted, as a phrase.
    fix: what to do or to type, in whole sentences.

    The message is `where: found; expected expected. fix`, without the parts that are not given. An
    error that has no such parts has a `text` instead, which is its message as it is.
    """

    def __init__(
        self,
        text: str = "",
        *,
        where: str | Path = "",
        found: str = "",
        expected: str = "",
        fix: str = "",
    ) -> None:
        """Give either `text` alone or some of the four parts (see the class)."""
        self.where = str(where)
        self.found = found
        self.expected = expected
        self.fix = fix
        # A copy, as of another process, is made from the message alone, and then gets the fields.
        super().__init__(text or self._message())

    def _message(self) -> str:
        parts = [self.found, f"expected {self.expected}" if self.expected else ""]
        problem = "; ".join(part.removesuffix(".") for part in parts if part)
        sentence = ": ".join(part for part in (self.where, problem) if part)
        if sentence and not sentence.endswith(("?", "!")):
            sentence += "."
        return " ".join(part for part in (sentence, self.fix) if part)

    def within(self, where: str | Path) -> Self:
        """The same error for a caller that knows where the place is: in which setting or file."""
        whole_place = f"{where}: {self.where}" if self.where else str(where)
        return type(self)(
            where=whole_place, found=self._found_or_text(), expected=self.expected, fix=self.fix
        )

    def with_fix(self, fix: str) -> Self:
        """The same error for a caller that knows more of what to do."""
        fixes = " ".join(part for part in (self.fix, fix) if part)
        return type(self)(
            where=self.where, found=self._found_or_text(), expected=self.expected, fix=fixes
        )

    def _found_or_text(self) -> str:
        has_parts = self.where or self.found or self.expected or self.fix
        return self.found if has_parts else str(self)


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
