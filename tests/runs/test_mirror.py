"""Runs at a URL, without a run: what is put there, in which order, and what a pull makes of it
after a kill at any instant.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import known_implementations

from isojax.core import atomic_files
from isojax.core.errors import RunFailed
from isojax.core.mirrored_folders import MIRRORED_FOLDERS
from isojax.core.nouns import Cell, EvalPoint
from isojax.core.terminal import printable
from isojax.runs import mirror, storage
from isojax.runs.ledger import Ledger
from isojax.runs.mirror import (
    Mirror,
    is_url,
    localize,
    remote_workspace,
    working_folder,
)
from isojax.runs.mirrored_checkpoints import (
    ALONE,
    MirroredCheckpoints,
    UploadPeers,
    mirrored_checkpoints,
)
from tests.refusals import refused

CELL = Cell(8, 2, 0)


@pytest.fixture(params=["memory", "file"])
def url(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A sweep's place, in an object store that forgets and on a disk."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(MIRRORED_FOLDERS, "folders", ())
    yield "memory://bucket/runs" if request.param == "memory" else f"file://{tmp_path}/bucket/runs"
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def there(url: str) -> set[str]:
    """What is at the URL."""
    return storage.RemoteFolder(url).find()


def state(mirror: Mirror, M: int, text: str = "weights") -> Path:
    """A state as Orbax leaves it: folders in folders, an empty file."""
    folder = mirror.local / "cells" / CELL.name / "checkpoint" / str(M)
    (folder / "state" / "d").mkdir(parents=True)
    (folder / "state" / "d" / "array").write_text(text)
    (folder / "_METADATA").write_text("")
    return folder


def of_cell(mirror: Mirror, peers: UploadPeers = ALONE) -> MirroredCheckpoints:
    """The checkpoints of CELL."""
    folder = mirror.local / "cells" / CELL.name / "checkpoint"
    return MirroredCheckpoints(mirror, folder, peers)


def point(target: int) -> EvalPoint:
    return EvalPoint(target, target, target, target, {"avg@4": 0.5}, (1,), 4)


@pytest.mark.parametrize(
    "text", ["gs://b/runs", "s3://b", "file:///x", "memory://x", "abfs://c@a/x"]
)
def test_urls(text: str) -> None:
    assert is_url(text) and not is_url(f"run.dir={text}") and not is_url(str(Path(text)))


def test_what_is_written_is_there_at_once_and_comes_back(url: str, tmp_path: Path) -> None:
    with remote_workspace(url, "tiny"):
        folder = working_folder(url, "tiny")
        ledger = Ledger(folder / "cells" / CELL.name, CELL, "abc")
        ledger.append(point(4), 1.0, 1)
        atomic_files.write_text(folder / "base" / "problems.jsonl", "{}\n")
        other = Mirror(f"{url}/tiny", tmp_path / "other")
        other.pull()
        for name in ("records.jsonl", "timing.jsonl"):
            path = f"cells/{CELL.name}/{name}"
            assert (tmp_path / "other" / path).read_bytes() == (folder / path).read_bytes()
        (folder / "figures").mkdir()
        (folder / "figures" / "a.png").write_bytes(b"by another library")
    assert not folder.exists(), "the scratch folder goes when all is at the URL"
    assert {"base/problems.jsonl", "figures/a.png"} <= there(
        f"{url}/tiny"
    ) and ".lock" not in there(f"{url}/tiny")
    with remote_workspace(url, "tiny"):
        assert Ledger(folder / "cells" / CELL.name, CELL, "abc").targets == [4]


def test_a_folder_is_left_as_it_is(tmp_path: Path) -> None:
    with remote_workspace(str(tmp_path / "runs"), "tiny"):
        assert (
            working_folder("runs", "tiny") == Path("runs/tiny") and MIRRORED_FOLDERS.uploaded == ()
        )
    assert list(tmp_path.iterdir()) == []


def test_states_come_back_whole_and_the_old_ones_go(url: str, tmp_path: Path) -> None:
    mirror = Mirror(url, tmp_path / "a")
    for M in (3, 7):
        of_cell(mirror).push(state(mirror, M, f"weights {M}"))
    (tmp_path / "a" / "cells" / CELL.name / "checkpoint" / "3").rename(tmp_path / "elsewhere")
    of_cell(mirror).push(state(mirror, 9))
    again = Mirror(url, tmp_path / "b")
    again.pull()
    states = tmp_path / "b" / "cells" / CELL.name / "checkpoint"
    assert sorted(p.name for p in states.iterdir()) == ["7", "9"]
    assert not list(states.rglob("array")), "arrays come when they are read"
    of_cell(again).fetch(states / "7" / "state", lambda name: name == "d/array")
    assert not (states / "9" / "state").exists()
    assert (states / "7" / "state" / "d" / "array").read_text() == "weights 7" and (
        states / "9" / "_METADATA"
    ).exists()
    assert not [name for name in there(url) if "/3" in name]
    light = Mirror(url, tmp_path / "c")
    assert light.pull(with_checkpoints=False) == 0 and not (tmp_path / "c").exists()


class Torn(MemoryFileSystem):
    """Storage that is gone after some objects more."""

    protocol, left, cachable = "torn", 1000, False

    def put_file(self, *args: Any, **kwargs: Any) -> None:
        self._spend()
        super().put_file(*args, **kwargs)

    def pipe_file(self, *args: Any, **kwargs: Any) -> None:
        self._spend()
        super().pipe_file(*args, **kwargs)

    @classmethod
    def _spend(cls) -> None:
        if not cls.left:
            raise ConnectionError("the network is gone")
        cls.left -= 1


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_torn_upload_is_not_taken(
    left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two files and a mark: whichever of them is missing, the state before it stands, and the next
    upload clears up."""
    fsspec.register_implementation("torn", Torn, clobber=True)
    monkeypatch.setattr(Torn, "store", {})
    monkeypatch.setattr(Torn, "left", 1000)
    mirror = Mirror("torn://bucket/tiny", tmp_path / "a")
    of_cell(mirror).push(state(mirror, 3))
    second = state(mirror, 7)
    # by the rule of what is kept, before the new one is there
    (second.parent / "3").rename(tmp_path / "gone")
    Torn.left = left
    with pytest.raises(RunFailed, match="the network is gone"):
        of_cell(mirror).push(second)
    Torn.left = 1000
    again = Mirror("torn://bucket/tiny", tmp_path / "b")
    again.pull()
    states = tmp_path / "b" / "cells" / CELL.name / "checkpoint"
    assert sorted(p.name for p in states.iterdir()) == ["3"]
    of_cell(again).push(state(again, 9))
    assert not [name for name in there("torn://bucket/tiny") if "checkpoint/7" in name]


class Meeting:
    """Two processes, as threads, that tell each other what went wrong."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2)
        self.problems = ["", ""]

    def of(self, process: int) -> UploadPeers:
        def agree(problem: str) -> str:
            self.problems[process] = problem
            self.barrier.wait(10)
            first = next(filter(None, self.problems), "")
            self.barrier.wait(10)
            return first

        return UploadPeers(is_primary=process == 0, agree=agree)


def two_parts(url: str, tmp_path: Path) -> tuple[list[Mirror], list[Path]]:
    """The mirrors of two processes, and in each its part of checkpoint 9: a shard, and files that
    are equal in both."""
    mirrors = [Mirror(url, tmp_path / f"host{i}", writes=i == 0) for i in range(2)]
    parts = []
    for i, one in enumerate(mirrors):
        parts.append(state(one, 9, f"weights {i}"))
        array = parts[-1] / "state" / "d" / "array"
        array.rename(array.with_name(f"{i}.0"))
    return mirrors, parts


def test_a_state_of_two_processes_counts_when_both_parts_are_there(
    url: str, tmp_path: Path
) -> None:
    mirrors, parts = two_parts(url, tmp_path)
    folder = f"cells/{CELL.name}/checkpoint"
    # an earlier state of the same name, which was set aside
    mirrors[0].remote.write(f"{folder}/9.whole", b"whole\n")
    mirrors[0].remote.write(f"{folder}/8/state/d/0.0", b"old")
    meeting = Meeting()
    first, second = (of_cell(mirrors[i], meeting.of(i)) for i in range(2))

    upload = second.start_upload(parts[1], lambda: False)
    time.sleep(0.1)
    assert not [name for name in there(url) if name.endswith("/1.0")]  # the old mark is there
    first.start_upload(parts[0], lambda: False).result()
    upload.result()
    assert {name.removeprefix(f"{folder}/") for name in there(url)} == {
        "9.whole",
        "9/_METADATA",
        "9/state/d/0.0",
        "9/state/d/1.0",
    }

    # each fetches what it lacks
    first.fetch(parts[0] / "state", lambda name: True)
    shards = parts[0] / "state" / "d"
    assert [(shards / f"{i}.0").read_text() for i in range(2)] == ["weights 0", "weights 1"]


def test_a_state_of_which_a_part_is_missing_does_not_count(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both processes fail where one does."""
    mirrors, parts = two_parts(url, tmp_path)
    meeting = Meeting()
    monkeypatch.setattr(mirrors[1].remote, "put_all", lambda pairs: 1 / 0)
    uploads = [
        of_cell(mirrors[i], meeting.of(i)).start_upload(parts[i], lambda: False) for i in range(2)
    ]
    for upload in uploads:
        with pytest.raises(RunFailed, match=r"ZeroDivisionError.*--resume"):
            upload.result()
    assert not [name for name in there(url) if name.endswith(".whole")]

    # one could not write it: nothing is uploaded, and that one says why
    shutil.rmtree(parts[1])
    for upload in [
        of_cell(mirrors[i], meeting.of(i)).start_upload(parts[i], lambda: False) for i in range(2)
    ]:
        upload.result()
    assert not [name for name in there(url) if name.endswith(".whole")]


def test_a_process_writes_its_part_as_long_as_process_0_has_the_lease(
    url: str, tmp_path: Path
) -> None:
    with remote_workspace(url, "tiny", multi_process=True):
        first = Mirror(f"{url}/tiny", tmp_path / "first")
        second = mirror.find_mirror(working_folder(url, "tiny"))
        assert second is not None
        atomic_files.write_text(second.local / "late.json", "{}")
        assert there(f"{url}/tiny") == set(), "it does not know yet whether it is process 0"

        second.follow_lease(first.take_lease())
        with second.guarded_write():
            pass
        atomic_files.write_text(second.local / "late.json", "{}")
        first.remote.write("base/problems.jsonl", b"{}\n")
        MIRRORED_FOLDERS.fetch_below(second.local / "base")
        assert (second.local / "base" / "problems.jsonl").read_text() == "{}\n"

        first.release_lease()
        lock(url)
        with (
            pytest.raises(RunFailed, match=r"process 0 of this run has lost the lease.*host-b"),
            second.guarded_write(),
        ):
            raise AssertionError("refused before anything is written")
    assert there(f"{url}/tiny") == {".lock", "base/problems.jsonl"}


def test_processes_of_one_machine_have_folders_of_their_own(url: str) -> None:
    with remote_workspace(url, "tiny", multi_process=True):
        first = working_folder(url, "tiny")
        with remote_workspace(url, "tiny", multi_process=True):
            second = working_folder(url, "tiny")
            assert first != second
    with remote_workspace(url, "tiny", multi_process=True):
        assert working_folder(url, "tiny") == first


def test_a_cell_that_has_no_state_yet_differs_from_one_whose_states_were_removed(
    url: str, tmp_path: Path
) -> None:
    mirror = Mirror(url, tmp_path / "a")
    with mirror.auto_upload():
        states = tmp_path / "a" / "cells" / CELL.name / "checkpoint"
        assert (
            mirrored_checkpoints(states) is not None
            and mirrored_checkpoints(tmp_path / "elsewhere") is None
        )
        atomic_files.write_text(tmp_path / "a" / "cells" / "8x4-s0" / "records.jsonl", "{}\n")
    again = Mirror(url, tmp_path / "b")
    again.pull()
    cells = tmp_path / "b" / "cells"
    assert (
        list((cells / CELL.name / "checkpoint").iterdir()) == []
        and not (cells / "8x4-s0" / "checkpoint").exists()
    )


def test_a_state_is_sent_when_it_is_written_and_its_future_raises_an_error(
    url: str, tmp_path: Path, monkeypatch: Any
) -> None:
    mirror, writing = Mirror(url, tmp_path / "a"), [True, True, False]
    with mirror.auto_upload():
        states = tmp_path / "a" / "cells" / CELL.name / "checkpoint"
        checkpoints = mirrored_checkpoints(states)
        assert checkpoints is not None
        start_upload = checkpoints.start_upload
        start_upload(state(mirror, 3), lambda: writing.pop(0)).result()
        assert writing == [] and f"cells/{CELL.name}/checkpoint/3.whole" in there(url)
        start_upload(states / "4", lambda: False).result()  # could not be written
        monkeypatch.setattr(mirror.remote, "write", lambda *_: 1 / 0)
        with pytest.raises(RunFailed, match=r"ZeroDivisionError.*--resume"):
            start_upload(state(mirror, 5), lambda: False).result()


def test_a_worker_has_its_own_part(url: str, tmp_path: Path) -> None:
    """Of a sweep whose writer is another process, the files of one cell and of all."""
    with remote_workspace(url, "tiny"):
        for name in (
            "base/problems.jsonl",
            f"cells/{CELL.name}/records.jsonl",
            "cells/8x4-s0/records.jsonl",
        ):
            atomic_files.write_text(working_folder(url, "tiny") / name, "{}\n")
        with remote_workspace(url, "tiny", cell_name=CELL.name):
            folder = working_folder(url, "tiny")
            assert (folder / "base" / "problems.jsonl").exists() and [
                p.name for p in (folder / "cells").iterdir()
            ] == [CELL.name]
            atomic_files.append_bytes(folder / "cells" / CELL.name / "records.jsonl", b"{}\n")
        mirror = Mirror(f"{url}/tiny", tmp_path / "a")
        mirror.pull()
        assert (tmp_path / "a" / "cells" / CELL.name / "records.jsonl").read_text() == "{}\n{}\n"


def lock(url: str, **changed: Any) -> dict[str, Any]:
    """Says at the URL that somebody writes there."""
    content = {"host": "host-b", "pid": 77, "token": "x", "time": time.time()} | changed
    storage.RemoteFolder(f"{url}/tiny").write(".lock", json.dumps(content).encode())
    return content


def test_a_second_writer_is_refused_where_the_first_lives(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    now = lock(url)
    # it renews
    monkeypatch.setattr(storage.time, "sleep", lambda _: lock(url, time=now["time"] + 10))
    with (
        refused(),
        remote_workspace(url, "tiny"),
    ):
        raise AssertionError("refused before any work")
    assert "waiting to see whether process 77 on host-b" in capsys.readouterr().err
    assert there(f"{url}/tiny") == {".lock"}


@pytest.mark.parametrize("left", [{"time": 0.0}, {"host": storage._host_id(), "pid": 2**22 + 1}])
def test_a_dead_writers_place_is_taken_at_once(url: str, left: dict[str, Any]) -> None:
    """Its last sign of life is old, or it was a process of this machine that is no more."""
    lock(url, **left)
    began = time.monotonic()
    with remote_workspace(url, "tiny"):
        held = json.loads(storage.RemoteFolder(f"{url}/tiny").read(".lock") or b"")
        assert held["pid"] == os.getpid()
    assert time.monotonic() - began < 2


def test_a_dead_writer_whose_clock_is_ahead_is_not_waited_for_until_that_time(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock(url, time=time.time() + 7200)
    now, began = time.monotonic, time.monotonic()
    waited = [0.0]
    monkeypatch.setattr(storage.time, "sleep", lambda seconds: waited.append(waited[-1] + seconds))
    monkeypatch.setattr(storage.time, "monotonic", lambda: now() + waited[-1])
    monkeypatch.setattr(storage.time, "time", lambda clock=time.time: clock() + waited[-1])
    with remote_workspace(url, "tiny"):
        assert waited[-1] <= storage.STALE_SECONDS + 1 and now() - began < 10


def test_a_writer_whose_place_was_taken_writes_no_more(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "RENEW_SECONDS", 0.01)
    with (
        pytest.raises(RunFailed, match="taken over by process 77 on host-b"),
        remote_workspace(url, "tiny"),
    ):
        monkeypatch.setattr(
            storage.Lease, "_write_lock", lambda _: None
        )  # else it may write over the other's, between a look and a sign
        time.sleep(0.05)
        lock(url)
        time.sleep(0.2)
        atomic_files.write_text(working_folder(url, "tiny") / "late.json", "{}")
    assert there(f"{url}/tiny") == {".lock"}


def test_a_writer_that_was_frozen_looks_before_it_goes_on(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sign of life would come too late."""
    with (
        pytest.raises(RunFailed, match="taken over by process 77 on host-b"),
        remote_workspace(url, "tiny"),
    ):
        lock(url)
        clock = time.time
        monkeypatch.setattr(storage.time, "time", lambda: clock() + storage.STALE_SECONDS + 1)
        atomic_files.write_text(working_folder(url, "tiny") / "late.json", "{}")
    assert there(f"{url}/tiny") == {".lock"}


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setitem(
        known_implementations,
        "far",
        {"class": "no_such_package.far.Far", "err": "Please install it"},
    )
    for location in (
        f"file://{tmp_path}/file/runs",
        "far://bucket/runs",
        "nothing://bucket/runs",
    ):
        with refused(where="/runs/tiny"), remote_workspace(location, "tiny"):
            raise AssertionError("refused before any work")
    with refused(where="run.dir = memory://nobody"):
        working_folder("memory://nobody", "tiny")


def test_storage_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "CONNECT_TIMEOUT", 0.1)
    monkeypatch.setattr(MemoryFileSystem, "find", lambda *_: time.sleep(1))
    with refused(where="memory://slow"):
        Mirror("memory://slow", tmp_path / "a").pull()


def test_words_that_are_urls(url: str, capsys: Any) -> None:
    with remote_workspace(url, "tiny"):
        atomic_files.write_text(working_folder(url, "tiny") / "fit.json", "{}")
    with localize(["fit", f"{url}/tiny", f"{url}/tiny/fit.json", f"run.dir={url}"]) as words:
        assert words[0] == "fit" and words[3] == f"run.dir={url}"
        folder, file = Path(words[1]), Path(words[2])
        assert folder.name == "tiny" and (folder / "fit.json").read_text() == "{}"
        assert (file.parent.name, file.name, file.read_text()) == ("tiny", "fit.json", "{}")
        atomic_files.write_text(folder / "validation.json", "[]")
        assert (
            printable(f"wrote {folder / 'validation.json'}") == f"wrote {url}/tiny/validation.json"
        )
    assert "validation.json" in there(f"{url}/tiny") and not folder.exists()
    with (
        refused(),
        localize([f"{url}/other"]),
    ):
        raise AssertionError("refused before any work")


@pytest.mark.parametrize(
    ("holder", "written"),
    [
        ({}, True),
        ({"time": time.time() - storage.STALE_SECONDS - 1}, False),
        ({"host": storage._host_id(), "pid": 2**22 + 1}, False),
        ({"host": storage._host_id(), "pid": os.getpid()}, True),
        (None, False),
    ],
)
def test_a_mirror_is_written_while_the_lease_at_its_url_is_fresh(
    url: str, holder: dict[str, Any] | None, written: bool
) -> None:
    """Its own folder has no lock, whoever writes to the URL."""
    storage.RemoteFolder(f"{url}/tiny").write("config.yaml", b"name: tiny")
    if holder is not None:
        lock(url, **holder)
    with localize([f"{url}/tiny"]) as (folder,):
        assert mirror.is_written(Path(folder)) is written


def test_a_copied_folder_with_the_lock_of_a_disk_is_not_written_and_can_be(url: str) -> None:
    folder = storage.RemoteFolder(f"{url}/tiny")
    folder.write("config.yaml", b"name: tiny")
    folder.write(storage.LOCK_FILE, b"")
    with localize([f"{url}/tiny"]) as (local,):
        assert not mirror.is_written(Path(local))
    with remote_workspace(url, "tiny"):
        assert (working_folder(url, "tiny") / "config.yaml").exists()


def test_a_folder_is_written_while_it_is_locked(tmp_path: Path) -> None:
    assert not mirror.is_written(tmp_path)
    with storage.exclusive_lock(tmp_path):
        assert mirror.is_written(tmp_path)
    assert not mirror.is_written(tmp_path)
