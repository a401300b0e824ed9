"""Pipes that nobody writes to, devices without an end, and links to themselves, in the place of
what a command reads: none waits, and each is named. A pipe with a writer is a file like others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from isojax.core.atomic_files import read_file
from isojax.core.limits import MAX_DOCUMENT_BYTES
from isojax.core.table_files import read_table
from isojax.launch.status_file import read_status
from isojax.models.safetensors_io import weight_files
from isojax.report.page.fit_sections import provenance_section
from isojax.runs.ledger import read_run
from isojax.runs.spend_file import read_spending
from isojax.scaling.result import read_fit_file
from isojax.train.base_policy import read_labels
from tests.cli.conftest import Isojax, error_of
from tests.refusals import refused
from tests.scaling.documents import document

TABLE = "n,rollouts,reward\n8,100,.1\n8,200,.2\n"
READERS: dict[str, Callable[[Path], object]] = {
    "fit.json": lambda folder: read_fit_file(folder / "fit.json"),
    "records.jsonl": read_run,
    "spend.json": read_spending,
    "status.json": read_status,
    "table.csv": lambda folder: read_table(folder / "table.csv"),
    "table.csv.gz": lambda folder: read_table(folder / "table.csv.gz"),
    "model.safetensors": weight_files,
}


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_that_nobody_writes_to_is_refused(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with refused():
        READERS[name](tmp_path)


def test_labels_in_a_pipe_are_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "labels.jsonl")
    assert read_labels(tmp_path / "labels.jsonl", "key", attempts=4, replaces_others=False) == {}


def test_commands_end(isojax: Isojax, tmp_path: Path) -> None:
    os.mkfifo("log.csv")
    Path("loop.csv").symlink_to("loop.csv")
    for words in (
        ["fit-law"],
        ["fit-curve", "--x", "n", "--y", "reward"],
        ["watch"],
        ["records", "import", "--out", "o"],
    ):
        assert "log.csv" in error_of(isojax(*words, "log.csv"))
        assert "loop.csv" in error_of(isojax(*words, "loop.csv"))


def test_trl_arguments_in_a_pipe_are_none(isojax: Isojax) -> None:
    fixture = Path(__file__).parents[1] / "runs" / "importers" / "fixtures" / "trl" / "checkpoint-6"
    shutil.copytree(fixture, "checkpoint-6", ignore=shutil.ignore_patterns("*.bin"))
    arguments = Path("checkpoint-6/training_args.bin")
    os.mkfifo(arguments)
    assert isojax("records", "import", "checkpoint-6", "--map", "n=4,B=16", "--out", "out")[0] in (
        0,
        2,
    )
    arguments.unlink()
    arguments.symlink_to("/dev/zero")
    program = "import sys; from isojax.cli.app import main; sys.exit(main())"
    words = [
        sys.executable,
        "-c",
        program,
        "records",
        "import",
        "checkpoint-6",
        "--map",
        "n=4,B=16",
        "--out",
        "again",
    ]
    # KiB: the device has no end
    limited = ["bash", "-c", 'ulimit -d 2097152 && exec "$@"', "bash", *words]
    done = subprocess.run(limited, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "MemoryError" not in done.stderr, done.stderr


def test_a_config_in_a_pipe_is_not_in_the_report(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("name: known")
    assert "name: known" in provenance_section(tmp_path, document())
    (tmp_path / "config.yaml").unlink()
    os.mkfifo(tmp_path / "config.yaml")
    assert "config.yaml" not in provenance_section(tmp_path, document())


def test_a_device_without_an_end_is_read_as_far_as_a_document_may_go() -> None:
    assert len(read_file(Path("/dev/zero"))) == MAX_DOCUMENT_BYTES


def test_a_writer_that_is_there_is_waited_for(tmp_path: Path) -> None:
    """One that has opened the pipe, and that of a shell's <(...)."""
    path = tmp_path / "table.csv"
    os.mkfifo(path)
    writer = os.fdopen(os.open(path, os.O_RDWR), "w")  # opened so, it waits for no reader
    writer.write(TABLE)
    threading.Timer(0.2, writer.close).start()
    assert len(read_table(path).rows) == 2
    program = (
        "import sys; from pathlib import Path; from isojax.core.table_files import read_table as "
        "read; "
    )
    program += "print(len(read(Path(sys.argv[1])).rows))"
    command = f"{sys.executable} -c '{program}' <(sleep 1; printf '{TABLE}')"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout == "2\n", done.stderr
