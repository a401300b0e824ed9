"""Sweeps that no curve was made for end in a document of finite numbers, in either mode, or in a
refusal in words; never in a warning.
"""

import math

import numpy as np
import pytest

from isojax.core.errors import InputError
from isojax.scaling.allocate.curve_ensemble import load_ensemble
from isojax.scaling.result import FitResult
from tests.refusals import refused
from tests.scaling.sweeps import fit, run

pytestmark = pytest.mark.seconds(30)

C = np.geomspace(1e3, 1e5, 10).round()
RNG = np.random.default_rng(0)


def rising(c):
    return 0.3 + 0.3 * c / (c + 1e4) + 0.01 * RNG.standard_normal(len(c)) * (c > 0)


def two(reward, first=C, second=C, seeds=1, base=True):
    """n = 2 and 8, at B_p = 1."""
    zero = [0.0] if base else []
    return [
        run(1, n, s, c := np.array([*zero, *specific]), reward(c)).run
        for n, specific in ((2, first), (8, second))
        for s in range(seeds)
    ]


SWEEPS = {
    "never right": two(lambda c: np.zeros(len(c))),
    "always right": two(lambda c: np.ones(len(c))),
    "flat": two(lambda c: np.full(len(c), 0.5)),
    "noise alone": two(lambda c: RNG.uniform(0, 1, len(c))),
    "falling": two(lambda c: 0.5 - 0.4 * np.minimum(1, c / 1e5)),
    "falling, no base policy": two(lambda c: 0.5 - 0.4 * np.minimum(1, c / 1e5), base=False),
    "a step": two(lambda c: (c > 1e4) * 1.0),
    "a line up to 1": two(lambda c: np.minimum(1, c / 1e5)),
    "ten problems": two(lambda c: np.round(10 * rising(c)) / 10),
    "three points": two(rising, C[:3], C[3:6]),
    "two points a seed": two(rising, C[:2], C[:2], seeds=3),
    "never measured together": two(rising, C[:5], C[5:] * 100),
    "single rollouts": two(rising, np.arange(1.0, 7), np.arange(2.0, 9, 2)),
    "very many": two(rising, C * 1e10, C * 1e10, seeds=2),
    "one cell": two(rising)[:1],
}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["hierarchical", "paper"])
@pytest.mark.parametrize("name", SWEEPS)
def test_a_document_or_a_refusal(name, mode):
    try:
        document = fit(SWEEPS[name], mode=mode, replicates=20)
    except InputError as e:
        assert (
            mode == "paper"
            and "give no curve" in str(e)
            and "expected at least one cell with enough points" in str(e)
        )
        return
    assert FitResult.model_validate_json(document.model_dump_json()) == document
    ends = [r.C_max for r in document.runs]
    assert np.isfinite(load_ensemble(document).expected_rewards(max(ends))).all()
    assert all(
        -1 <= c.A < 1.1 and c.exponent > 0 and c.C_mid > 0 and math.isfinite(c.rmse)
        for c in document.curves
    )
    assert document.draws is None or np.max(document.draws.A) <= 1
    assert all(p.low is None or p.low <= p.high for p in document.joint.frontier)


def test_a_cell_with_too_few_points_is_left_out_in_words():
    document = fit(two(rising, C, C[:2]), replicates=0)
    assert [c.n for c in document.curves] == [2]
    assert "no curve for B_p=1 n=8: 2 points at C > 0, at least 3 needed" in [
        f.text for f in document.flags
    ]
    disjoint = [run(1, 2, s, C[4 * s : 4 * s + 4], rising(C[:4])).run for s in (0, 1)]
    with refused():
        fit(disjoint)
    with refused():
        fit([run(1, 2, 0, C[:3], rising(C[:3])).run])
