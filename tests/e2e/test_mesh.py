"""A sweep on eight simulated devices, through the command line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.compiler import AS_USERS_DO, flags

pytestmark = [pytest.mark.slow, pytest.mark.seconds(55)]

MESH = "data=4,tensor=2"


def test_a_cell_on_eight_devices(isojax: Any, whole: Any) -> None:
    """The same cell on data=4,tensor=2: C, targets and base policy as on one device; the draws
    differ by rounding alone.

    Compiled as users do."""
    words = ("tiny.yaml", "--mesh", MESH, "sweep.n=[2]", "sweep.seeds=1", "sweep.budget=200")
    done = isojax.quick_ok("train", *words, XLA_FLAGS=flags(AS_USERS_DO))
    assert "8 of 8 cpu devices per run" in done.stderr
    rows, one = isojax.rows("8x2-s0"), whole.rows("8x2-s0")
    assert [(row["target"], row["M"], row["rollouts"]) for row in rows] == [
        (row["target"], row["M"], row["rollouts"]) for row in one[: len(rows)]
    ]
    assert len(rows) == 5
    assert np.abs(np.subtract(rows[0]["counts"], one[0]["counts"])).sum() <= 3  # of 320 rollouts
    assert rows[1]["train"]["sampler_logp_gap"] < 1e-4  # sampler and trainer agree on the mesh
    isojax.refused(
        "train",
        *words,
        "--resume",
        "sweep.budget=300",
        "--mesh",
        "data=4,tensor=4",
        saying=["16 devices"],
    )
