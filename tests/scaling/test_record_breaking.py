"""Record-breaking points found by hand."""

import pytest

from isojax.core.errors import InputError
from isojax.scaling.curves.record_breaking import record_breaking_indices


def test_records_enter_a_higher_bin():
    #         bin: 60    60     61     59    61     63    62     63
    rewards = [0.300, 0.304, 0.306, 0.299, 0.309, 0.317, 0.311, 0.319]
    assert record_breaking_indices(rewards, 0.005).tolist() == [0, 2, 5]


def test_edges_of_bins_survive_rounding():
    """.3 / .005 and .615 / .005 are not whole in floating point; each of these rewards enters its own bin."""
    rewards = [i * 0.005 for i in range(201)]
    assert record_breaking_indices(rewards, 0.005).tolist() == list(range(201))


def test_width_decides():
    rewards = [0.0, 0.04, 0.06, 0.09, 0.11]
    assert record_breaking_indices(rewards, 0.1).tolist() == [0, 4]
    assert record_breaking_indices(rewards, 0.05).tolist() == [0, 2, 4]
    assert record_breaking_indices([], 0.05).tolist() == []
    assert record_breaking_indices([0.5], 0.05).tolist() == [0]


@pytest.mark.parametrize("width", [0, -0.1, 2, float("nan")])
def test_bad_widths_are_refused(width):
    with pytest.raises(InputError, match="bin width"):
        record_breaking_indices([0.1], width)
