"""`isojax fit-curve` as a document: columns read, points held out, flags, refusals with file and
line."""

import json

import numpy as np
import pytest

from isojax.scaling.curve_from_file import fit_curve_file
from isojax.scaling.curves.hill import curve_value
from tests.refusals import refused

TRUE = (0.2, 0.6, 1.1, 2e4)


def rows_of(points=40, sd=0.01, seed=0, end=1e6):
    C = np.geomspace(1e3, end, points).round()
    R = curve_value(C, *TRUE) + np.random.default_rng(seed).normal(0, sd, points)
    return [(0, 0.2), *zip(C.tolist(), R.tolist(), strict=True)]


def write(tmp_path, rows, header="rollouts,acc", name="run.csv"):
    path = tmp_path / name
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def test_the_document(tmp_path):
    result, read = fit_curve_file(write(tmp_path, rows_of()), "rollouts", "acc")
    assert result["A"] == pytest.approx(0.6, abs=0.02) and result["C_mid"] == pytest.approx(
        2e4, rel=0.2
    )
    for name in ("R0", "A", "exponent", "C_mid"):
        low, high = result["intervals"][name]
        assert low <= result[name] <= high
    assert (
        result["points"] == 41
        and result["beyond"] is None
        and result["determined"]
        and result["flags"] == []
    )
    assert result["rmse"] == pytest.approx(0.01, rel=0.35) and result["noise"][
        "sd"
    ] == pytest.approx(0.01, rel=0.35)
    assert (result["draws"]["replicates"], result["draws"]["seed"], result["draws"]["level"]) == (
        1000,
        0,
        0.9,
    )
    trial = result["trial"]
    assert trial["C_limit"] == pytest.approx(2.5e5) and trial["points"] == sum(
        c > 2.5e5 for c, _ in rows_of()
    )
    low, high = trial["interval_at_end"]
    assert low < trial["measured_at_end"] < high and 0.005 < result["departure_sd"] < 0.05
    assert result["band"][-1]["C"] == pytest.approx(1e6) and read.seed_names == ("",)
    json.dumps(result, allow_nan=False)
    assert fit_curve_file(tmp_path / "run.csv", "rollouts", "acc")[0] == result


def test_points_beyond_are_predicted(tmp_path):
    rows = rows_of(30)
    result, _ = fit_curve_file(write(tmp_path, rows), "rollouts", "acc", below=2e5)
    held = [(c, r) for c, r in rows if c > 2e5]
    beyond = result["beyond"]
    band_C, band_reward = ([p[key] for p in result["band"]] for key in ("C", "reward"))
    curve = np.interp([c for c, _ in held], band_C, band_reward)
    errors = curve - np.array([r for _, r in held])
    assert beyond["points"] == len(held) and result["points"] == 31 - len(held)
    assert beyond["mean_error"] == pytest.approx(errors.mean(), abs=1e-3)
    assert beyond["max_absolute_error"] == pytest.approx(np.abs(errors).max(), abs=1e-3)
    assert beyond["mean_absolute_error"] == pytest.approx(np.abs(errors).mean(), abs=1e-3)
    assert beyond["measured_at_end"] == pytest.approx(np.mean([r for _, r in held[-3:]]))
    assert beyond["predicted_at_end"] == pytest.approx(curve[-3:].mean(), abs=2e-3)
    low, high = beyond["interval_at_end"]
    assert low < beyond["measured_at_end"] < high


def test_seeds_share_a_curve_and_formats_agree(tmp_path):
    rows = [(c, r, s) for s in (0, 1) for c, r in rows_of(12, seed=s)]
    result, read = fit_curve_file(
        write(tmp_path, rows, "rollouts,acc,seed"), "rollouts", "acc", group="seed"
    )
    assert result["seeds"] == 2 and read.seed_names == ("0", "1")
    path = tmp_path / "run.jsonl"
    path.write_text(
        "\n".join(json.dumps({"val": {"acc": r}, "rollouts": c, "seed": s}) for c, r, s in rows)
    )
    same, _ = fit_curve_file(path, "rollouts", "val.acc", group="seed")
    assert [same[k] for k in ("R0", "A", "exponent", "C_mid")] == [
        result[k] for k in ("R0", "A", "exponent", "C_mid")
    ]
    one, _ = fit_curve_file(path, "rollouts", "val.acc", filters=["seed=1"])
    assert one["points"] == 13


def test_flags_say_what_the_points_do_not_carry(tmp_path):
    def flags(rows, **options):
        return " | ".join(
            fit_curve_file(write(tmp_path, rows), "rollouts", "acc", **options)[0]["flags"]
        )

    assert "plateau is not determined" in flags(rows_of(30, end=2e4))
    assert "the reward does not clearly rise" in flags(
        [(c, 0.5 - 0.01 * i) for i, (c, _) in enumerate(rows_of(20))]
    )
    assert "only 7 points" in flags(rows_of(6, sd=0.001))
    assert "not within [0, 1]" in flags([(c, 100 * r) for c, r in rows_of()])
    assert "3 rows without acc" in flags([*rows_of(), (5, ""), (6, ""), (7, " ")])
    late = [(c, r) for c, r in rows_of(40) if c > 3e4]
    assert "R0 is not determined" in flags(late) and "R0 is not" not in flags([(0, 0.2), *late])
    slow = rows_of(sd=0)
    assert "autocorrelated" in flags(
        [(c, r + 0.02 * np.sin(i / 2)) for i, (c, r) in enumerate(slow)]
    )


def test_a_file_of_several_n_is_no_file_of_seeds(tmp_path):
    """Where their C differ, nothing else would show that one curve goes through both."""
    rows = [(c + n, r, n) for n in (4, 8) for c, r in rows_of(6)]
    path = write(tmp_path, rows, "rollouts,acc,n")
    mixture = "the points mix n = 4, 8 in one curve; --where n=4 takes one of them"
    assert mixture in fit_curve_file(path, "rollouts", "acc")[0]["flags"]
    path = write(tmp_path, [(c - n, r, n) for c, r, n in rows], "rollouts,acc,n")
    with refused(where="run.csv, line 9"):
        fit_curve_file(path, "rollouts", "acc")


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        ([(1, 0.1), ("2,000", 0.2)], {}),
        ([(1, 0.1), ("2k", 0.2)], {}),
        ([(1, 0.1), (2, "20%")], {}),
        ([(1, 0.1), (2, "nan")], {}),
        ([(1, 0.1), (-2, 0.2)], {}),
        ([(1, 0.1), ("", 0.2)], {}),
        (
            [(1, 0.1), (2, 0.2), (1.0, 0.3)],
            {},
        ),
        ([(1, ""), (2, "")], {}),
        (
            rows_of(1),
            {},
        ),
        (rows_of(20), {"below": 1200}),
        (rows_of(20), {"below": 1e7}),
        (rows_of(20), {"filters": ["acc=7"]}),
        (rows_of(20), {"group": "sed"}),
    ],
)
def test_refusals(tmp_path, rows, options):
    with refused(where="run.csv"):
        fit_curve_file(write(tmp_path, rows), "rollouts", "acc", **options)


def test_a_missing_column_names_the_nearest(tmp_path):
    path = write(tmp_path, rows_of())
    for x, y in (
        ("rolouts", "acc"),
        ("rollouts", "ac"),
    ):
        with refused(where="run.csv, line 1"):
            fit_curve_file(path, x, y)
