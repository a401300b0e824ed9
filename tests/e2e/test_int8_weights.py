"""int8 weights for rollouts from end to end: a sweep that trains, by an asynchronous sampler,
and on a mesh, also after a kill; the gap of log-probabilities is in the ledger.
"""

from __future__ import annotations

import pytest

from tests.compiler import QUICK, flags
from tests.e2e.command_line import Isojax, Nursery
from tests.e2e.test_text import FLAGS, killed_at, prepare

pytestmark = [pytest.mark.slow, pytest.mark.seconds(40)]

INT8 = "cell.precision.rollout_weights=int8"
WORDS = ("train", "sums.yaml", "sweep.n=[4]", "sweep.budget=90", INT8)
CELL = "4x4-s0"


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> Isojax:
    """Where a sweep has run without a break; to be read only."""
    location = prepare(Isojax(tmp_path_factory.mktemp("int8") / "work", nursery))
    location.swept(*WORDS, XLA_FLAGS=FLAGS)
    return location


def gaps(place: Isojax, cell: str, name: str) -> list[float]:
    return [row["train"]["sampler_logp_gap"] for row in place.rows(cell, name) if row["M"]]


def test_a_sweep_trains_and_its_ledger_has_the_gap(unbroken: Isojax) -> None:
    """Float32's own is below 1e-5; that of 8 bits a weight is above 1e-4."""
    updates = [row["train"] for row in unbroken.rows(CELL, "sums") if row["M"]]
    assert len(updates) > 3 and all(train["grad_norm"] > 0 for train in updates)
    assert all(1e-4 < gap < 0.1 for gap in gaps(unbroken, CELL, "sums"))


@pytest.mark.nightly
def test_an_asynchronous_sampler_in_turns_draws_the_same(isojax: Isojax, unbroken: Isojax) -> None:
    prepare(isojax)
    isojax.swept(*WORDS, "cell.rl.max_staleness=0", XLA_FLAGS=FLAGS)
    for one, other in zip(isojax.rows(CELL, "sums"), unbroken.rows(CELL, "sums"), strict=True):
        assert (one["M"], one["counts"]) == (other["M"], other["counts"])


# The quickstart's task, which devices verify, on a mesh that splits rollouts and weights.

MESH_WORDS = (
    "isojax.train",
    "tiny.yaml",
    "run.mesh=fsdp=2,tensor=2",
    "sweep.seeds=1",
    "sweep.n=[4]",
    "sweep.budget=300",
    INT8,
)
MESH_CELL = "8x4-s0"
FOUR = flags(QUICK, devices=4)


@pytest.fixture(scope="module")
def unbroken_mesh(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> Isojax:
    """Where a sweep on a mesh has run without a break; to be read only."""
    location = Isojax(tmp_path_factory.mktemp("int8-mesh") / "work", nursery)
    location.swept(*MESH_WORDS, XLA_FLAGS=FOUR)
    return location


def test_a_mesh_trains(unbroken_mesh: Isojax) -> None:
    updates = [row["train"] for row in unbroken_mesh.rows(MESH_CELL) if row["M"]]
    assert len(updates) > 4 and all(train["grad_norm"] > 0 for train in updates)
    assert all(1e-4 < gap < 0.1 for gap in gaps(unbroken_mesh, MESH_CELL, "tiny"))


def test_adapters_on_a_mesh_are_merged_and_rounded_also_after_a_kill(
    isojax: Isojax, unbroken_mesh: Isojax
) -> None:
    """They begin as nothing: the first evaluation is that of the base policy in int8."""
    words = (*MESH_WORDS, "cell.model.lora={rank: 2}")
    isojax.swept(*words, "name=whole", XLA_FLAGS=FOUR)
    rows = isojax.rows(MESH_CELL, "whole")
    assert rows[0] == unbroken_mesh.rows(MESH_CELL)[0]
    assert len(rows) > 4 and all(row["train"]["grad_norm"] > 0 for row in rows[1:])
    assert all(1e-4 < gap < 0.1 for gap in gaps(isojax, MESH_CELL, "whole"))

    ledger = isojax.run() / "cells" / MESH_CELL / "records.jsonl"
    killed_at(isojax.fork(*words, "run.checkpoint_seconds=0", XLA_FLAGS=FOUR), ledger, 4)
    isojax.swept(*words, "run.checkpoint_seconds=0", "--resume", XLA_FLAGS=FOUR)
    assert isojax.ledgers() == isojax.ledgers("whole")
