"""A place in the text of an answer, which moves from left to right as the answer is read."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

MAX_DEPTH = 60  # of brackets in brackets
_COMMAND = re.compile(r"\\(?:[A-Za-z]+|[^A-Za-z])")  # \frac, \%


class Unreadable(Exception):
    """A text that is no answer this package knows."""


class Cursor:
    """A text and a place in it; what reads from it leaves `position` behind what it has read. All
    methods but `take` and `inside` first skip spaces."""

    def __init__(self, text: str, with_exponents: bool) -> None:
        """A cursor at the beginning of a normalized answer, whose dollars are gone."""
        self.text = text
        self.position = 0
        self.depth = 0  # brackets that are open here
        self.bars = 0  # absolute values | that are open here
        self.commas_separate = False  # whether 1,234 are two numbers here
        self.with_exponents = with_exponents  # 3e-1 is .3 rather than 3 e - 1

    def at_end(self) -> bool:
        self.skip_space()
        return self.position == len(self.text)

    def skip_space(self) -> None:
        while self.position < len(self.text) and self.text[self.position].isspace():
            self.position += 1

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """The match of a pattern here, which is taken if there is one."""
        match = pattern.match(self.text, self.position)
        if match:
            self.position = match.end()
        return match

    def next_is(self, *texts: str) -> bool:
        self.skip_space()
        return self.text.startswith(texts, self.position)

    def take_text(self, expected: str) -> bool:
        """Whether a text is here, which then is taken."""
        if not self.next_is(expected):
            return False
        self.position += len(expected)
        return True

    def expect(self, expected: str) -> None:
        """Take a text; Unreadable where something else is here."""
        if not self.take_text(expected):
            raise Unreadable(f"{expected} missing")

    def command(self) -> str:
        """The LaTeX command here, "" where there is none; it is not taken."""
        self.skip_space()
        match = _COMMAND.match(self.text, self.position)
        return match[0] if match else ""

    @contextmanager
    def inside(self, *, commas_separate: bool) -> Iterator[None]:
        """A context for reading between brackets: `with cursor.inside(commas_separate=True): ...`
        stands between taking the opening and the closing bracket.

        commas_separate: whether 1,234 are two numbers here; False: only if they are outside, too.
        Unreadable is raised where more than MAX_DEPTH brackets are open. After any Unreadable the
        cursor is not used any more, so that its state need not be restored. Bars are counted from 0
        in there, since a bracket within |...| may hold absolute values itself.
        """
        saved_commas_separate = self.commas_separate
        saved_bars = self.bars
        self.commas_separate = self.commas_separate or commas_separate
        self.bars = 0
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable("too deep")

        yield

        self.depth -= 1
        self.commas_separate = saved_commas_separate
        self.bars = saved_bars
