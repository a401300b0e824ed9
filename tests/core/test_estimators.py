"""Estimators against enumeration of subsets and of sequences, verl's against its procedure."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from isojax.core.estimators import estimate_at_k, summarize_rewards
from tests.refusals import refused


@pytest.mark.parametrize("k", [1, 2, 3, 5, 6])
def test_unbiased_estimators_equal_enumeration_of_all_subsets(k: int) -> None:
    """avg, best, pass and worst over all k-subsets of 6 samples, without replacement."""
    for c in range(7):
        subsets = list(combinations([1] * c + [0] * (6 - c), k))
        best = np.mean([max(s) for s in subsets])
        expected = {"avg": np.mean([np.mean(s) for s in subsets]), "best": best, "pass": best}
        expected["worst"] = np.mean([min(s) for s in subsets])
        for kind, value in expected.items():
            assert estimate_at_k([c], 6, kind, k)[0] == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_verls_estimators_equal_enumeration_of_all_draws_with_replacement(k: int) -> None:
    for c in range(5):
        draws = list(product([1] * c + [0] * (4 - c), repeat=k))
        for kind, reduce in (("verl/best", max), ("verl/worst", min)):
            assert estimate_at_k([c], 4, kind, k)[0] == pytest.approx(
                np.mean([reduce(d) for d in draws]), abs=1e-12
            )


def test_verls_estimators_are_what_its_bootstrap_tends_to() -> None:
    """verl resamples 1000 times; 200,000 times come within .005 (4.8 standard errors at most) of
    ours."""
    rng = np.random.default_rng(42)
    drawn = rng.integers(0, 8, (200_000, 4))
    for c in range(9):
        right = (np.arange(8) < c)[drawn]
        assert estimate_at_k([c], 8, "verl/best", 4)[0] == pytest.approx(
            right.any(1).mean(), abs=5e-3
        )
        assert estimate_at_k([c], 8, "verl/worst", 4)[0] == pytest.approx(
            right.all(1).mean(), abs=5e-3
        )


def test_one_right_of_four() -> None:
    """Unbiased, the best of all four is right for certain; verl's draws miss it (3/4)^4 of the
    time."""
    assert estimate_at_k([1], 4, "best", 4).tolist() == [1.0]
    assert estimate_at_k([1], 4, "verl/best", 4)[0] == pytest.approx(0.684, abs=5e-4)
    assert estimate_at_k([3], 4, "verl/worst", 4)[0] == pytest.approx(1 - 0.684, abs=5e-4)


def test_a_summary_is_the_mean_over_problems_at_k_of_all_samples() -> None:
    """0, 1, 2 and 4 right of 4: 7 / 16 on average, three with a right one, one with all right."""
    counts = np.array([0, 1, 2, 4])
    rewards = (np.arange(4) < counts[:, None]).astype(np.float32)
    assert summarize_rewards(rewards, counts) == {
        "avg@4": 7 / 16,
        "best@4": 3 / 4,
        "worst@4": 1 / 4,
    }
    graded = np.array([[0.3, 0.5], [1.0, 0.0]], np.float32)
    assert summarize_rewards(graded, np.array([0.8, 1.0])) == {
        "avg@2": 0.45,
        "best@2": 0.75,
        "worst@2": 0.15,
    }


@pytest.mark.parametrize(
    ("counts", "samples", "kind", "k"),
    [
        (
            [1],
            4,
            "best",
            8,
        ),
        ([1], 4, "verl/best", 8),
        ([1], 4, "best", 0),
        ([5], 4, "avg", 4),
        ([-1], 4, "avg", 4),
        ([1.5], 4, "best", 4),
        ([1], 4, "verl/pass", 4),
    ],
)
def test_estimates_refuse(counts: list[float], samples: int, kind: str, k: int) -> None:
    with refused():
        estimate_at_k(counts, samples, kind, k)


def test_an_empty_set_has_no_summary() -> None:
    with refused():
        summarize_rewards(np.zeros((0, 4)), np.zeros(0))
