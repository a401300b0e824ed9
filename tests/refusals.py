"""How tests look at refusals: by the fields of an InputError.

The whole messages are in messages.txt, in one place, so that a better sentence is a change of that
file alone: each test's messages, in the order in which they came, under the test's id. A test whose
messages differ from the file fails. `pytest --write-messages FILE...` writes those of the tests
that it runs and that pass; read the difference before you commit it.
"""

from __future__ import annotations

import fcntl
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from isojax.core.errors import InputError

MESSAGES_FILE = Path(__file__).with_name("messages.txt")
REPOSITORY = MESSAGES_FILE.parents[1]
MESSAGE_INDENT = "    "
LINE_INDENT = "        "
MAX_LENGTH = 1000  # of a message in characters; the rest of a longer one is left out
# Of a message before what varies is replaced: the time of that grows with the square of a word's
# length.
MAX_LENGTH_BEFORE = 5 * MAX_LENGTH

# The messages of the test that runs now; None outside of a test's call, as in a fixture.
_current_messages: ContextVar[list[str] | None] = ContextVar("current_messages", default=None)

_OWN_FILES = {re.escape(path.name) for path in (REPOSITORY / "isojax").rglob("*.py")}

# What differs from one machine, or run, to another.
_VARYING = (
    # The folders of plug-ins are those of all commands that ran before in this process.
    (re.compile(r"(?<=a file of your own )\([^)]*\)"), "(FOLDERS)"),
    # With the folder of the test, whose name has a number that depends on what else has run.
    (re.compile(r"[^\s'\"(=]*/pytest-of-[^/]+/pytest-\d+(/popen-gw\d+)?(/[\w\[\].-]+)?"), "TMP"),
    (re.compile(r"(127\.0\.0\.1|localhost):\d+"), r"\1:PORT"),
    (re.compile(re.escape(str(REPOSITORY))), "REPOSITORY"),
    (re.compile(rf"\b{re.escape(socket.gethostname())}\b"), "HOST"),
    (re.compile(r"(?<=[ :@])0x[0-9a-f]{6,}"), "ADDRESS"),
    # Where in isojax something was raised changes with every line above it.
    (re.compile(rf"\b({'|'.join(sorted(_OWN_FILES))}):\d+"), r"\1:LINE"),
    (re.compile(r"(?<=_)\d{15,}"), "HASH"),  # in the names of modules that tests write
    (re.compile(r"\.[\w-]+\.\d+/tmp\w{8}(?=/)"), "TEMPORARY"),
    (re.compile(r"[^\s'\"(=]*/lib/python3\.\d+(?=/)"), "PYTHON"),
)


@contextmanager
def refused(
    where: str = "",
    *,
    found: str = "",
    expected: str = "",
    fix: str = "",
    kind: type[InputError] = InputError,
    recorded: bool = True,
) -> Iterator[pytest.ExceptionInfo[InputError]]:
    """As pytest.raises: the block raises an InputError with these words in its fields.

    recorded: whether its message is compared with messages.txt; not where it depends on the
    machine or on the version of a library.
    """
    with pytest.raises(kind) as refusal:
        yield refusal

    error = refusal.value
    wanted = {"where": where, "found": found, "expected": expected, "fix": fix}
    for field, words in wanted.items():
        value = getattr(error, field)
        assert has_words(value, words), f"{words!r} is not in {field} = {value!r} of: {error}"
    if recorded:
        record(str(error))


def has_words(text: str, words: str) -> bool:
    """Whether a text has these words, as whole words: `sweep.n` is not in `sweep.n_train`."""
    start = r"(?<!\w)" if words[:1].isalnum() else ""
    end = r"(?!\w)" if words[-1:].isalnum() else ""
    return re.search(start + re.escape(words) + end, text) is not None


def record(message: str) -> None:
    """Adds a message, such as a command's on standard error, to those of the test."""
    messages = _current_messages.get()
    if messages is None:
        return
    message = message.strip()[:MAX_LENGTH_BEFORE]
    for pattern, name in _VARYING:
        message = pattern.sub(name, message)
    text = "".join(map(_as_printable, message))
    messages.append(text if len(text) <= MAX_LENGTH else f"{text[:MAX_LENGTH]}...")


def _as_printable(character: str) -> str:
    if character.isprintable() or character == "\n":
        return character
    return character.encode("unicode_escape").decode()


def read_messages(file: Path = MESSAGES_FILE) -> dict[str, list[str]]:
    """The messages of each test, by its id."""
    messages: dict[str, list[str]] = {}
    test_id = ""
    for line in file.read_text("utf-8").split("\n"):
        if line.startswith(LINE_INDENT):
            messages[test_id][-1] += "\n" + line.removeprefix(LINE_INDENT)
        elif line.startswith(MESSAGE_INDENT):
            messages[test_id].append(line.removeprefix(MESSAGE_INDENT))
        elif line:
            test_id = line
            messages[test_id] = []
    return messages


def format_messages(messages: dict[str, list[str]]) -> str:
    """A file of messages: those of a test are indented below its id, their further lines deeper."""
    tests = []
    for test_id, texts in sorted(messages.items()):
        indented = [MESSAGE_INDENT + text.replace("\n", "\n" + LINE_INDENT) for text in texts]
        tests.append("\n".join([test_id, *indented]) + "\n")
    return "\n".join(tests)


class MessagesPlugin:
    """The plug-in of pytest that compares each test's messages with the file, or writes them."""

    def __init__(self, write: bool, file: Path = MESSAGES_FILE) -> None:
        self._write = write
        self._file = file
        self._messages_of_file = read_messages(file)
        self._written: dict[str, list[str]] = {}
        self._ids_of_no_test: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: Sequence[pytest.Item]
    ) -> None:
        """Finds the ids of no test, before -k and -m take tests out."""
        if any("::" in argument for argument in config.args):
            return  # of such files only some tests are collected
        collected_ids = {item.nodeid for item in items}
        collected_files = {_file_of(test_id) for test_id in collected_ids}
        for test_id in self._messages_of_file:
            file = _file_of(test_id)
            is_gone = not (REPOSITORY / file).exists()
            if is_gone or (file in collected_files and test_id not in collected_ids):
                self._ids_of_no_test.add(test_id)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        messages: list[str] = []
        token = _current_messages.set(messages)
        try:
            result = yield
        finally:
            _current_messages.reset(token)

        if self._write:
            self._written[item.nodeid] = messages
        else:
            self._compare(item.nodeid, messages)
        return result

    def _compare(self, test_id: str, messages: list[str]) -> None:
        from_file = self._messages_of_file.get(test_id, [])
        if messages != from_file:
            pytest.fail(
                f"{self._file.name} has other messages of this test:\n"
                f"  file: {_on_lines(from_file)}\n  now:  {_on_lines(messages)}\n"
                "If the new ones are better, write them: pytest --write-messages "
                f"'{test_id}'",
                pytrace=False,
            )

        if self._ids_of_no_test:
            listed = _on_lines(sorted(self._ids_of_no_test))
            self._ids_of_no_test.clear()  # one test fails for all of them
            pytest.fail(
                f"{self._file.name} has messages of tests that do not exist:\n  {listed}\n"
                "Remove them: pytest --write-messages, on their files.",
                pytrace=False,
            )

    def pytest_sessionfinish(self) -> None:
        """Merges what this process has seen into the file: workers take turns."""
        if not self._write:
            return
        with self._file.open("r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            messages = read_messages(self._file) | self._written
            kept = {
                test_id: texts
                for test_id, texts in messages.items()
                if texts and test_id not in self._ids_of_no_test
            }
            text = format_messages(kept)
            if text != self._file.read_text("utf-8"):
                file.write(text)
                file.truncate()


def _file_of(test_id: str) -> str:
    return test_id.partition("::")[0]


def _on_lines(texts: Sequence[str]) -> str:
    return "\n        ".join(texts) or "none"


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-messages",
        action="store_true",
        help="write the messages of refusals to tests/messages.txt instead of comparing them",
    )


def use_messages(config: Any) -> None:
    config.pluginmanager.register(MessagesPlugin(config.getoption("--write-messages")))
