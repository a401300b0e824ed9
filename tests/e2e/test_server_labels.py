"""Labels by a server, which is isojax's own sampler in a process of its own: killed and resumed,
the same files as without a server, and the same means."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.command_line import Isojax
from tests.e2e.own_server import FLAGS, OwnServer
from tests.e2e.test_text import killed_at, prepare

pytestmark = [pytest.mark.slow, pytest.mark.seconds(20)]

PROBLEMS, ATTEMPTS = 40, 24  # a request is for at most 16 rollouts
LABELLING = (
    "difficulty", "sums.yaml", f"cell.data.candidates={PROBLEMS}", f"cell.data.attempts={ATTEMPTS}",
    "--held-out", "4",
)  # fmt: skip
FILES = {
    "labels.jsonl",
    "labels.csv",
    "samples.txt",
    "start.json",
    "splits",
    "difficulty.png",
    "difficulty.pdf",
}


@pytest.fixture
def server(isojax: Isojax) -> Iterator[str]:
    """Its URL."""
    prepare(isojax)
    with OwnServer(isojax.folder / "sums.yaml") as process:
        yield process.url


def read_rates(folder: Path) -> dict[int, float]:
    with (folder / "labels.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert all(row["attempts"] == str(ATTEMPTS) for row in rows)
    return {int(row["id"]): float(row["avg"]) for row in rows}


def test_labels_by_a_server(isojax: Isojax, server: str) -> None:
    by_server, own = isojax.folder / "by-server", isojax.folder / "own"
    # The weights are the server's: of the model's folder no file of theirs is read.
    shutil.copytree(
        isojax.folder / "lm", isojax.folder / "text", ignore=shutil.ignore_patterns("*.safetensors")
    )
    without_weights = (*LABELLING, "cell.model.path=text", "--out", "by-server")
    options = ("--server", server, "--server-requests", "2")

    process = isojax.fork(*without_weights, *options, XLA_FLAGS=FLAGS)
    killed_at(process, by_server / "labels.jsonl", 9)
    done = len((by_server / "labels.jsonl").read_text().splitlines()) - 1
    assert 0 < done < PROBLEMS
    isojax.refused(*without_weights, saying=["text"])  # there are no weights to sample with
    isojax.quick_ok(*without_weights, *options, XLA_FLAGS=FLAGS)
    isojax.quick_ok(*LABELLING, "--out", "own", XLA_FLAGS=FLAGS)

    names, own_names = ({path.name for path in folder.iterdir()} for folder in (by_server, own))
    assert names - {".lock"} == own_names - {".lock"} == FILES
    rows = [json.loads(line) for line in (by_server / "labels.jsonl").read_text().splitlines()[1:]]
    assert len(rows) == len({row["id"] for row in rows}) == PROBLEMS
    metadata = json.loads((by_server / "splits" / "metadata.json").read_text())
    assert (
        metadata["engine"] == {"server": "isojax", "model": "own"} and "checkpoint" not in metadata
    )
    assert "engine" not in json.loads((own / "splits" / "metadata.json").read_text())

    rates, own_rates = read_rates(by_server), read_rates(own)
    assert rates.keys() == own_rates.keys()
    pairs = np.array([[rates[i], own_rates[i]] for i in sorted(rates)])
    pooled = pairs.mean(1)
    standard_error = np.sqrt((2 * pooled * (1 - pooled) / ATTEMPTS).sum()) / PROBLEMS
    assert 0.2 < pooled.mean() < 0.8 and standard_error < 0.03
    assert abs(pairs[:, 0].mean() - pairs[:, 1].mean()) < 3 * standard_error
    assert np.corrcoef(pairs.T)[0, 1] > 0.9  # each problem's rate is its own

    # Other labels than these are not taken for them.
    isojax.refused(
        *LABELLING,
        "--out",
        "by-server",
        saying=["a server of isojax that serves 'own'", "own sampler"],
    )
    shutil.rmtree(own / "splits")
    isojax.refused(*LABELLING, "--out", "own", *options, saying=["labels of other settings"])
    labelled = ("cell.task=tfds:by-server/splits#all", "cell.data.attempts=16")
    planned = isojax.quick_ok("launch", "sums.yaml", *labelled, "--dry-run", XLA_FLAGS=FLAGS)
    assert "its labels were sampled by a server of isojax that serves 'own'" in planned.stderr
