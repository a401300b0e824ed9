"""Record-breaking points found by hand."""

from isojax.scaling.curves.paper_mode import record_breaking_indices


def test_records_enter_a_higher_bin():
    #         bin: 60    60     61     59    61     63    62     63
    rewards = [0.300, 0.304, 0.306, 0.299, 0.309, 0.317, 0.311, 0.319]
    assert record_breaking_indices(rewards).tolist() == [0, 2, 5]


def test_edges_of_bins_survive_rounding():
    """.3 / .005 and .615 / .005 are not whole in floating point; each of these rewards enters its own bin."""
    rewards = [i * 0.005 for i in range(201)]
    assert record_breaking_indices(rewards).tolist() == list(range(201))


def test_one_point_is_a_record_and_none_is_none():
    assert record_breaking_indices([]).tolist() == []
    assert record_breaking_indices([0.5]).tolist() == [0]
