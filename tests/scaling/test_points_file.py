"""A law from points alone: known laws come back, intervals and flags say what the points carry, bad
files are refused with their line.
"""

import numpy as np
import pytest

from isojax.scaling.law import law_from_file
from isojax.scaling.law.law_from_file import fit_law_file
from isojax.scaling.law.n_star_law import log2_n_star
from isojax.scaling.result import Law
from tests.refusals import refused


@pytest.fixture(autouse=True)
def fewer_replicates(monkeypatch):
    """Behind each interval, instead of 500."""
    monkeypatch.setattr(law_from_file, "REPLICATES", 100)


TRUE = Law("sigmoid", 6.0, 4.5, 5.8, 2.8)


def write(tmp_path, rows, header="n,rollouts"):
    path = tmp_path / "points.csv"
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def steps(law=TRUE, low=4.8, high=7.2, count=40):
    """Points of a frontier: the power of two nearest to the law."""
    C = np.logspace(low, high, count).round()
    return [(int(2 ** round(float(log2_n_star(law, c)))), int(c)) for c in C]


def test_a_known_law_is_recovered_from_its_own_points(tmp_path):
    C = np.logspace(4.8, 7, 30)
    result = fit_law_file(write(tmp_path, zip(2 ** log2_n_star(TRUE, C), C, strict=True)))
    law = result["n_star"]
    assert law["form"] == "sigmoid"
    assert [law[k] for k in ("L", "k", "log10_C0", "b")] == pytest.approx(
        [6.0, 4.5, 5.8, 2.8], abs=1e-6
    )
    assert result["rmse"] < 1e-6 and law["intervals"]["L"] == pytest.approx([6, 6], abs=1e-4)


def test_steps_give_the_law_back_as_well_as_rounding_lets_them_and_modes_agree(tmp_path):
    path = write(tmp_path, steps())
    hierarchical = fit_law_file(path)["n_star"]
    paper = fit_law_file(path, mode="paper")["n_star"]
    for name, value in (("L", 6.0), ("log10_C0", 5.8), ("b", 2.8)):
        low, high = hierarchical["intervals"][name]
        assert low <= hierarchical[name] <= high
        assert hierarchical[name] == pytest.approx(value, abs=0.35)  # n = 2^8.8 was rounded to 2^9
        assert paper[name] == pytest.approx(hierarchical[name], abs=0.3)
    assert paper["intervals"] is None and paper["aicc"] is None
    grid = [p["C"] for p in hierarchical["band"]]
    assert grid[0] == pytest.approx(10**4.8, rel=1e-3) and all(
        p["low"] <= p["high"] for p in hierarchical["band"]
    )


def test_few_distinct_n_and_the_last_n_are_said(tmp_path):
    rows = [(n, c) for n, c in steps() if n in (8, 32, 64, 256, 512)]
    result = fit_law_file(write(tmp_path, rows))
    assert any(
        f.startswith("only 5 distinct n (8, 32, 64, 256, 512) determine the 4 parameters")
        for f in result["flags"]
    )
    assert any("end at their largest n (512)" in f for f in result["flags"])


@pytest.mark.slow
def test_falls_mixed_settings_and_filters(tmp_path):
    rows = [(n, c, "easy") for n, c in steps(count=12)] + [
        (4, 10 ** (4.8 + i / 5), "hard") for i in range(12)
    ]
    path = write(tmp_path, rows, "n,rollouts,set")
    mixed = fit_law_file(path)
    assert any("mix set = easy, hard in one law; --where set=easy" in f for f in mixed["flags"])
    assert any(f.startswith("n falls as C rises") for f in mixed["flags"])
    easy = fit_law_file(path, ["set=easy"])
    assert easy["points"] == 12 and not any("mix" in f or "falls" in f for f in easy["flags"])


def test_one_n_is_a_constant_and_says_so(tmp_path):
    result = fit_law_file(write(tmp_path, [(8, 1e4), (8, 1e5), (8, 1e6)]))
    assert (result["n_star"]["form"], result["n_star"]["b"], result["n_star"]["intervals"]) == (
        "constant",
        3.0,
        {"b": [3.0, 3.0]},
    )
    assert result["flags"] == [
        (
            "all 3 points have n = 8: n*(C) is taken as constant, because no other n was compared "
            "with it"
        )
    ]
    assert fit_law_file(write(tmp_path, [(8, 1e4)]), mode="paper")["n_star"]["form"] == "constant"
    assert fit_law_file(write(tmp_path, [(8, 1e4)]))["n_star"]["b"] == 3


def test_three_distinct_n_carry_no_sigmoid(tmp_path):
    result = fit_law_file(
        write(tmp_path, [(8, 1e4), (8, 2e4), (16, 1e5), (16, 2e5), (32, 1e6), (32, 2e6)])
    )
    assert result["n_star"]["form"] == "linear" and result["n_star"]["aicc"]["sigmoid"] is None
    assert any("too few for sigmoid: 3 distinct n" in f for f in result["flags"])
    assert set(result["n_star"]["intervals"]) == {"k", "b"}


@pytest.mark.parametrize("mode", ["hierarchical", "paper"])
def test_two_distinct_n_give_no_law_and_say_where_each_was_best(tmp_path, mode):
    result = fit_law_file(write(tmp_path, [(8, 1e4), (8, 2e4), (16, 1e5), (16, 2e5)]), mode=mode)
    assert (
        result["n_star"] is None
        and result["intervals"] is None
        and result["distinct_n"] == {"8": 2, "16": 2}
    )
    text = (
        "no law: n = 8 from C = 1e+04 to 2e+04 and n = 16 from C = 1e+05 to 2e+05 are two values "
        "of n"
    )
    assert result["flags"] == [f"{text}, and a slope needs 3 at least"]


def test_no_trend_is_a_constant(tmp_path):
    result = fit_law_file(
        write(tmp_path, [((8, 16, 32)[i * 7 % 3], 10 ** (4 + i / 10)) for i in range(21)])
    )
    assert result["n_star"]["form"] == "constant" and any(
        "do not show n to change" in f for f in result["flags"]
    )


def test_a_point_of_two_sets_is_no_duplicate(tmp_path):
    path = write(
        tmp_path, [(8, 100, "easy"), (8, 100, "hard"), (16, 200, "easy")], "n,rollouts,set"
    )
    assert fit_law_file(path)["points"] == 3


@pytest.mark.parametrize(
    ("header", "rows", "filters"),
    [
        (
            "n,rollout",
            [(8, 1)],
            [],
        ),
        (
            "n,rollouts",
            [(8, 100), (0.5, 100)],
            [],
        ),
        (
            "n,rollouts",
            [(8, 100), (8, -5)],
            [],
        ),
        (
            "n,rollouts",
            [(8, 100), (8, "1M")],
            [],
        ),
        (
            "n,rollouts",
            [("nan", 100)],
            [],
        ),
        (
            "n,rollouts,set",
            [(8, 100, "easy"), (8, 100, "hard"), (8, 100, "easy")],
            [],
        ),
        (
            "n,rollouts",
            [(8, 100), (8, 200), (8, 100)],
            [],
        ),
        ("n,rollouts,set", [(8, 100, "easy")], ["set=hard"]),
        ("n,rollouts", [], []),
    ],
)
def test_bad_files_are_refused_with_their_line(tmp_path, header, rows, filters):
    with refused(where="points.csv"):
        fit_law_file(write(tmp_path, rows, header), filters)


def test_an_unknown_mode(tmp_path):
    with refused(where="mode"):
        fit_law_file(write(tmp_path, [(8, 1)]), mode="both")
