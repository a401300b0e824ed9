"""Percent in one log of several, and rewards in [0, 1] in the others: asked for, or decided by each
run's rewards."""

from __future__ import annotations

import pytest

from isojax.runs.logs.import_logs import read_logs
from isojax.runs.logs.log_table import read_settings
from tests.refusals import refused

MAPS = {"n": "n{}", "B_p": "8", "reward": "acc"}
REWARDS = [0.1, 0.25, 0.4]


@pytest.fixture
def folder(tmp_path):
    """n = 4 in percent, n = 8 not, and n = 16 all 0, which is the same in both."""
    (tmp_path / "logs").mkdir()
    for n, factor in ((4, 100), (8, 1), (16, 0)):
        rows = [f"{10 * i},{round(reward * factor, 6)}\n" for i, reward in enumerate(REWARDS)]
        (tmp_path / f"logs/n{n}.csv").write_text("step,acc\n" + "".join(rows))
    return tmp_path / "logs"


def rewards_by_n(result):
    return {run.cell.n: [point.metrics["acc"] for point in run.points] for run in result.runs}


@pytest.mark.parametrize("scale", [{}, {"scale": "0.01"}])
def test_a_mixture_is_refused(folder, scale):
    with refused(where="n4.csv, line 2"):
        read_logs([folder], None, MAPS | scale)
    with refused(where="n4.csv, line 2"):
        read_logs(sorted(folder.iterdir()), None, MAPS | scale)


def test_each_runs_own_rewards_decide(folder):
    result = read_logs([folder], None, MAPS | {"scale": "auto"})
    assert rewards_by_n(result) == {4: pytest.approx(REWARDS), 8: REWARDS, 16: [0, 0, 0]}
    (note,) = result.notes
    assert (
        note.startswith("scale=auto: rewards are percent in ")
        and "n4.csv" in note
        and "n8" not in note
    )


def test_a_table_says_the_scale_of_each(folder, tmp_path):
    (tmp_path / "table.csv").write_text("run,scale\nn4,0.01\nn8,1\nn16,1\n")
    result = read_logs([folder], None, MAPS, read_settings(tmp_path / "table.csv"))
    assert rewards_by_n(result) == {4: pytest.approx(REWARDS), 8: REWARDS, 16: [0, 0, 0]}


def test_runs_of_one_file(logged):
    text = "run,step,acc\n" + "".join(
        f"n{n},{i},{r * f}\n" for n, f in ((4, 100), (8, 1)) for i, r in enumerate(REWARDS)
    )
    with refused(where="log.csv, line 2 (run 'n4')"):
        logged("csv", text, "n=n{},B_p=8,reward=acc")
    assert rewards_by_n(logged("csv", text, "n=n{},B_p=8,reward=acc,scale=auto"))[
        4
    ] == pytest.approx(REWARDS)


def test_all_percent_or_none_needs_one_scale(logged):
    text = "step,acc\n0,10\n1,25\n2,40\n"
    assert rewards_by_n(logged("csv", text, "n=8,B_p=8,reward=acc,scale=0.01")) == {
        8: pytest.approx(REWARDS)
    }
    with refused(where="log.csv, line 2: reward (column acc)"):
        logged("csv", text, "n=8,B_p=8,reward=acc")
    result = logged("csv", "step,acc\n0,.1\n1,.25\n", "n=8,B_p=8,reward=acc,scale=0.01")
    assert (
        "the highest reward is 0.25 before scale=0.01 makes it less: are these percent?"
        in result.notes
    )


def test_one_wrong_row_is_named_itself(logged):
    logs = {"n4.csv": "step,acc\n0,.1\n1,42\n2,.3\n", "n8.csv": "step,acc\n0,.1\n1,.2\n2,.3\n"}
    with refused(where="n4.csv, line 3: reward (column acc)"):
        logged("csv", logs, "n=n{},B_p=8,reward=acc")


def test_rewards_off_by_rounding_are_0_or_1(logged):
    """As means of float weights are, in double and in single precision; what is off by more is
    named in full."""
    text = "step,acc\n0,-1e-17\n1,1.0000000000000002\n2,1.0000001192\n"
    (run,) = logged("csv", text, "n=8,B_p=8,reward=acc").runs
    assert [point.metrics["acc"] for point in run.points] == [0.0, 1.0, 1.0]
    (run,) = logged(
        "csv", "step,acc\n0,50\n1,100.00000000000001\n", "n=8,B_p=8,reward=acc,scale=auto"
    ).runs
    assert [point.metrics["acc"] for point in run.points] == [0.5, 1.0]
    counts = 'step,counts\n0,"[0.5, 4.000000000000001]"\n1,"[4, 4]"\n'
    (run,) = logged("csv", counts, "n=8,B_p=8,samples=4").runs
    assert [point.counts for point in run.points] == [(0.5, 4.0), (4, 4)]
    with refused(where="log.csv, line 2: reward (column acc)"):
        logged("csv", "step,acc\n0,1.00001\n", "n=8,B_p=8,reward=acc")
