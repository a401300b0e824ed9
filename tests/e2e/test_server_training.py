"""Training and evaluations by a server, which is isojax's own sampler in a process of its own: as
without it, killed and resumed to the same bytes, and ended by a message where the server is at
fault."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import pytest
from safetensors.numpy import load_file

from tests.e2e.command_line import Isojax, Nursery
from tests.e2e.own_server import FLAGS, OwnServer
from tests.e2e.test_text import killed_at, prepare

pytestmark = [pytest.mark.slow, pytest.mark.seconds(65)]

UPDATES, CELL = 10, "4x4-s0"
WORDS = ("train", "sums.yaml", "sweep.n=[4]", f"sweep.budget={16 * UPDATES}", "cell.eval.ratio=2")
# Top-p cannot be trained on with a server. At this temperature log-probs show which one they are
# of.
SAMPLING = ("cell.sampling.top_p=1.0", "cell.sampling.temperature=0.3")
REQUESTS_PER_UPDATE = 4 + 16  # one for each problem, and the probe


class Place(Isojax):
    """Where runs by a server are. One of them, and one of isojax's own sampler, have run
    unbroken."""

    def __init__(self, folder: Any, nursery: Nursery, server: OwnServer) -> None:
        super().__init__(folder, nursery)
        self.server = server

    def words(self, name: str, *others: str) -> tuple[str, ...]:
        by_server = (
            "run.rollouts=server", f"run.server.url={self.server.url}",
            "run.server.weights=weights",
            "run.server.dtype=float32", "run.server.timeout=60",
        )  # fmt: skip
        return (*WORDS, *SAMPLING, f"name={name}", *by_server, *others)

    def ledger(self, name: str) -> bytes:
        return self.ledgers(name)[CELL]

    def saved_updates(self, name: str) -> list[int]:
        checkpoints = self.run(name) / "cells" / CELL / "checkpoint"
        return sorted(int(path.name) for path in checkpoints.iterdir() if path.name.isdigit())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("training") / "work"
    prepare(Isojax(folder, nursery))
    sums = folder / "sums.yaml"
    sums.write_text(sums.read_text().replace("temperature: 0.8, top_p: 0.9", "temperature: 0.3"))
    with OwnServer(sums) as server:
        made = Place(folder, nursery, server)
        made.swept(*made.words("unbroken"), XLA_FLAGS=FLAGS)
        made.swept(*WORDS, *SAMPLING, "name=inline", XLA_FLAGS=FLAGS)
        yield made


def test_training_by_a_server(place: Place) -> None:
    """The rewards of a run that isojax samples itself; and what the ledger says of the server."""
    rows, own_rows = place.rows(CELL, "unbroken"), place.rows(CELL, "inline")
    assert [row["M"] for row in rows] == [row["M"] for row in own_rows] and rows[-1][
        "M"
    ] == UPDATES * 4 // 5
    for row in rows[1:]:
        assert (
            0 < row["train"]["sampler_logp_gap"] < 1e-5
            and row["train"]["sampler_logp_gap_max"] < 1e-4
        )
        assert row["train"]["staleness_mean"] == row["train"]["staleness_max"] == 0
    assert rows[0]["metrics"] == own_rows[0]["metrics"]  # isojax's own sampler evaluates both

    headers = [json.loads(place.ledger(name).splitlines()[0]) for name in ("unbroken", "inline")]
    assert headers[0]["cell_hash"] != headers[1]["cell_hash"]  # which are not fitted together
    recorded = json.loads((place.run("unbroken") / "servers.json").read_text())
    assert recorded == {"rollouts": {"server": "isojax", "model": "own"}}

    # The server still has the policy that sampled last; isojax, the one after that update.
    (published,) = (place.folder / "weights" / "unbroken").iterdir()
    assert published.name == f"update-{rows[-1]['M'] - 1}"
    place.quick_ok("model", "export", f"runs/unbroken/cells/{CELL}", "trained")
    name = "model.layers.0.mlp.up_proj.weight"
    trained, sampled, base = (
        load_file(folder / "model.safetensors")[name]
        for folder in (place.folder / "trained", published, place.folder / "lm")
    )
    assert 0 < abs(trained - sampled).max() < abs(sampled - base).max()


def test_killed_and_resumed(place: Place) -> None:
    process = place.fork(*place.words("killed"), fit=False, report=False, XLA_FLAGS=FLAGS)
    killed_at(process, place.run("killed") / "cells" / CELL / "records.jsonl", 4)
    assert len(place.ledger("killed").splitlines()) < len(place.ledger("unbroken").splitlines())
    place.swept(*place.words("killed", "--resume"), XLA_FLAGS=FLAGS)
    assert place.ledger("killed") == place.ledger("unbroken")


# What a run says of each; tests/rl/test_server_engine.py has further ones.
FAULTS = {
    "dead": r"the server URL does not answer \(.*\)\. Start it again, and go on by --resume",
    "wrong token ids": r"the server URL .* gives token 385, expected one of a vocabulary of 384",
    "old weights": (
        r"answers with the weights of update (\d+), and was given those of update (\d+): since then"
    ),
}


def test_each_fault_on_the_way_ends_the_run_which_goes_on_without_it(place: Place) -> None:
    """One after the other, each two or three updates after the run has gone on."""
    words, before = place.words("faulty"), 0
    for fault, message in FAULTS.items():
        place.server.set_fault(fault, after=2 * REQUESTS_PER_UPDATE)
        done = place.quick(*words, "--resume", fit=False, report=False, XLA_FLAGS=FLAGS)
        said = done.stderr.replace(place.server.url, "URL")
        assert done.returncode == 1 and "Traceback" not in said, (fault, said)
        found = re.search(message, said)
        assert found is not None, (fault, said)
        if fault == "old weights":
            former, given = map(int, found.groups())
            assert former == given - 1
        saved = place.saved_updates("faulty")[-1]
        assert before < saved <= before + 3, fault
        before = saved
        if fault == "dead":
            place.server.kill()
            place.server.start()
        place.server.set_fault("")

    place.swept(*words, "--resume", XLA_FLAGS=FLAGS)
    assert place.ledger("faulty") == place.ledger("unbroken")


def test_evaluations_by_a_server(place: Place) -> None:
    """Of the policy at that time, whoever samples training; another model, or none, does not go on
    with them."""
    by_server = (
        f"run.eval_server={place.server.url}",
        "run.server.weights=weights",
        "run.server.dtype=float32",
    )
    words = (*WORDS, *SAMPLING, "name=evaluated", "sweep.budget=128", *by_server)
    plan = place.quick_ok("launch", *words[1:], "--dry-run", XLA_FLAGS=FLAGS).stderr
    assert (
        f"evaluations: sampled by a server of isojax that serves 'own' at {place.server.url}"
        in plan
    )
    assert "loaded by POST /collective_rpc, POST /reset_prefix_cache" in plan.replace("\n", " ")
    place.swept(*words, XLA_FLAGS=FLAGS)
    rows = place.rows(CELL, "evaluated")
    own_rows = place.rows(CELL, "inline")[: len(rows)]
    # isojax trains both alike, on rollouts of its own.
    assert [row["train"]["reward"] for row in rows[1:]] == [
        row["train"]["reward"] for row in own_rows[1:]
    ]
    counts = [sum(row["counts"]) for row in rows]
    own_counts = [sum(row["counts"]) for row in own_rows]
    rollouts = 8 * 4 * len(rows)
    assert abs(sum(counts) - sum(own_counts)) < 4 * math.sqrt(rollouts / 2) and counts != own_counts
    (published,) = (place.folder / "weights" / "evaluated").iterdir()
    assert published.name == f"update-{rows[-1]['M']}"
    recorded = json.loads((place.run("evaluated") / "servers.json").read_text())
    assert recorded == {"evaluations": {"server": "isojax", "model": "own"}}

    more = (*words, "sweep.budget=160", "--resume")
    place.server.set_fault("another model")
    place.refused(
        *more,
        saying=[
            "evaluations were sampled by a server of isojax that serves 'own' (now",
            "'another'",
        ],
    )
    place.server.set_fault("")
    place.swept(*more, XLA_FLAGS=FLAGS)
    assert place.rows(CELL, "evaluated")[: len(rows)] == rows


def test_what_cannot_be_sampled_by_a_server(place: Place) -> None:
    for words, said in (
        (("cell.sampling.top_p=0.9",), "cell.sampling.top_p"),
        (("run.server.weights=null",), "run.server.weights"),
        (("run.server.url=null",), "run.server.url"),
        (("cell.rl.max_staleness=1",), "isojax's own engine alone samples ahead"),
    ):
        place.refused(*place.words("refused", *words), saying=[said])
    two = place.words("refused", "sweep.n=[2,4]", "run.cells_at_once=2")
    place.refused(
        "launch",
        *two[1:],
        saying=["run.rollouts", "run.cells_at_once=1"],
    )
    evaluating = (*two[1:], "run.rollouts=local", f"run.eval_server={place.server.url}")
    place.refused("launch", *evaluating, saying=["run.eval_server", "run.cells_at_once=1"])
