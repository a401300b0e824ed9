"""The messages of refusals: those in messages.txt are whole sentences, and the file is kept."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isojax.core.errors import DeadStart, InputError
from tests.refusals import (
    MessagesPlugin,
    format_messages,
    has_words,
    read_messages,
    record,
    refused,
)

# A message ends its last sentence, or ends in what is to be typed, which is copied without a stop:
# `Merge them: python -m verl...`, `... is used as it is: cell.model.path=lm`.
ENDS = re.compile(r"[.?!)]$|: [^:]*[^:\s]$")
LEFT_OVER = re.compile(r"\bexpected expected\b|[^.]\.\.$|; ;|: :|\. expected|[^.]\. ; ")


def test_messages_are_whole_sentences() -> None:
    for test_id, messages in read_messages().items():
        for message in messages:
            if ": " not in message:
                continue  # a test's own words
            assert ENDS.search(message), (test_id, message)
            assert not LEFT_OVER.search(message), (test_id, message)


def test_the_message_has_the_parts_that_are_given() -> None:
    error = InputError(
        where="sweep.B_p", found="given 0", expected="numbers from 1 on", fix="Take 16."
    )
    assert str(error) == "sweep.B_p: given 0; expected numbers from 1 on. Take 16."
    assert str(InputError(where="a.csv, line 2", found="is empty.")) == "a.csv, line 2: is empty."
    assert str(InputError(where=Path("a"), expected="a file")) == "a: expected a file."
    assert str(InputError(found="no config given", fix="Name one.")) == "no config given. Name one."
    assert str(InputError("any text")) == "any text"


def test_a_copy_and_a_caller_keep_class_and_fields() -> None:
    error = DeadStart(where="n", found="given 1", expected="2", fix="Take 2.")
    for same in (pickle.loads(pickle.dumps(error)), error.within("")):
        assert type(same) is DeadStart and vars(same) == vars(error) | {"where": same.where}

    inside = error.within("sweep")
    assert str(inside) == "sweep: n: given 1; expected 2. Take 2."
    assert inside.where == "sweep: n"
    assert str(InputError("Two. Sentences.").within("cell.task")) == "cell.task: Two. Sentences."


def test_fields_are_compared_word_by_word() -> None:
    with refused(where="sweep.n", found="0"):
        raise InputError(where="sweep.n", found="given 0", fix="Take 2.")
    assert has_words("sweep.n", "sweep.n") and has_words("a/b.csv, line 2", "b.csv")
    assert not has_words("sweep.n_train", "sweep.n") and not has_words("line 21", "line 2")
    assert has_words("anything", "")
    with pytest.raises(AssertionError, match=r"'sweep\.n' is not in where = 'sweep\.B_p'"):
        _raise_within_refused()


def _raise_within_refused() -> None:
    with refused(where="sweep.n"):
        raise InputError(where="sweep.B_p", found="given 0")


def test_messages_are_read_as_they_were_written(tmp_path: Path) -> None:
    messages = {"tests/b.py::t[x-1]": ["one.", "two\nlines\n\n.", "back\\slash\\n."], "a": ["c."]}
    file = tmp_path / "messages.txt"
    file.write_text(format_messages(messages))
    assert read_messages(file) == messages
    assert list(read_messages(file)) == sorted(messages)


def run_test(plugin: MessagesPlugin, test_id: str, *messages: str) -> None:
    """What pytest does with a test that is refused with these messages."""
    item: Any = SimpleNamespace(nodeid=test_id)
    call = plugin.pytest_runtest_call(item)
    next(call)
    for message in messages:
        record(message)
    with pytest.raises(StopIteration):
        next(call)


def collect(plugin: MessagesPlugin, *test_ids: str) -> None:
    config: Any = SimpleNamespace(args=["tests"])
    items: Any = [SimpleNamespace(nodeid=test_id) for test_id in test_ids]
    plugin.pytest_collection_modifyitems(config, items)


def test_workers_merge_what_they_have_seen(tmp_path: Path) -> None:
    file = tmp_path / "messages.txt"
    here = "tests/test_messages.py"
    before = {
        f"{here}::gone": ["a."],
        f"{here}::kept": ["b."],
        "tests/core/test_config.py::c": ["c."],
    }
    file.write_text(format_messages(before))

    workers = [MessagesPlugin(write=True, file=file) for _ in range(2)]
    for worker, name in zip(workers, ["kept", "new"], strict=True):
        collect(worker, f"{here}::kept", f"{here}::new")
        run_test(worker, f"{here}::{name}", f"{name} in {tmp_path}/x.")
        worker.pytest_sessionfinish()

    # tests/core/test_config.py was not collected, so that its messages stay.
    assert read_messages(file) == {
        "tests/core/test_config.py::c": ["c."],
        f"{here}::kept": ["kept in TMP/x."],
        f"{here}::new": ["new in TMP/x."],
    }


def test_a_test_fails_whose_messages_differ(tmp_path: Path) -> None:
    file = tmp_path / "messages.txt"
    file.write_text(format_messages({"tests/test_messages.py::a": ["one.", "two."]}))
    plugin = MessagesPlugin(write=False, file=file)
    run_test(plugin, "tests/test_messages.py::a", "one.", "two.")
    for messages in ([], ["one."], ["two.", "one."], ["one.", "two!"]):
        with pytest.raises(pytest.fail.Exception, match="other messages of this test"):
            run_test(plugin, "tests/test_messages.py::a", *messages)


def test_messages_of_no_test_fail_one_test(tmp_path: Path) -> None:
    file = tmp_path / "messages.txt"
    file.write_text(format_messages({"tests/no_such_file.py::a": ["one."]}))
    plugin = MessagesPlugin(write=False, file=file)
    collect(plugin, "tests/test_messages.py::b")
    with pytest.raises(pytest.fail.Exception, match="tests that do not exist"):
        run_test(plugin, "tests/test_messages.py::b")
    run_test(plugin, "tests/test_messages.py::b")
