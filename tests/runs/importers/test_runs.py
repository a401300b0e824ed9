"""Rows -> runs: cells, seeds, C from steps, training averages, tokens; numbers by hand."""

from __future__ import annotations

import pytest

from isojax.core.nouns import Cell
from isojax.runs.logs import run_records
from tests.linear_time import assert_linear
from tests.refusals import refused


def curve(run):
    return [(p.M, p.rollouts, *p.metrics.values()) for p in run.points]


def test_a_csv_of_four_runs_without_a_map(logged):
    text = "model,n,B_p,step,rollouts,reward\n" + "".join(
        f"base,{n},512,{step},{512 * n * step},0.{step}\n"
        for n in (4, 8, 16, 32)
        for step in (2, 3)
    )
    result = logged("csv", text)
    assert [run.cell for run in result.runs] == [Cell(512, n, 0) for n in (4, 8, 16, 32)]
    assert curve(result.runs[0]) == [(2, 4096, 0.2), (3, 6144, 0.3)]
    assert result.notes == ()


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
def test_delimiters_are_found_and_a_byte_order_mark_is_no_name(logged, delimiter):
    text = "\ufeffstep,val acc,n,B_p\n1,0.25,4,2\n2,0.5,4,2\n".replace(",", delimiter)
    (run,) = logged("csv", text, "reward=val acc").runs
    assert run.cell == Cell(2, 4, 0) and curve(run) == [(1, 8, 0.25), (2, 16, 0.5)]


def test_rollouts_are_steps_times_the_batch_and_B_gives_B_p(logged):
    rows = [{"step": s, "acc": 0.1 * s} for s in (0, 5)]
    (run,) = logged("jsonl", rows, "reward=acc", "n=8,B=64").runs
    assert run.cell == Cell(8, 8, 0)
    assert curve(run) == [(0, 0, 0.0), (5, 320, 0.5)]  # the base policy is kept


def test_updates_follow_from_rollouts_where_a_log_has_no_steps(logged):
    (run,) = logged("csv", "rollouts,reward\n100,.1\n200,.2\n", "n=5,B_p=10").runs
    assert curve(run) == [(2, 100, 0.1), (4, 200, 0.2)]


def test_rollouts_of_the_log_win_over_steps_and_it_is_said(logged):
    result = logged("csv", "step,rollouts,reward\n1,100,.1\n2,180,.2\n", "n=5,B_p=20")
    assert curve(result.runs[0]) == [(1, 100, 0.1), (2, 180, 0.2)]
    assert "180 at step 2, not 2 x 20 x 5 = 200" in result.notes[0]


def test_lines_of_one_step_are_joined_and_training_is_averaged_between_evaluations(logged):
    rows = [{"step": 0, "val": 0.25}]
    for step in range(1, 5):
        rows.append({"step": step, "loss/reward": step / 10, "kl": step, "length": 10 * step})
        if step % 2 == 0:
            rows.append({"step": step, "val": 0.25 + step / 10, "ood": 0.5})
    rows.append({"step": 5, "loss/reward": 1.0})
    result = logged(
        "jsonl",
        rows,
        "reward=val,metric:ood=ood,train_reward=loss/reward,response_length=length,n=2,B_p=3",
    )
    base, first, second = result.runs[0].points
    assert base.metrics == {"val": 0.25} and base.train == {}
    assert first.metrics == {"val": 0.45, "ood": 0.5}
    assert first.train == pytest.approx({"reward": 0.15, "kl": 1.5, "response_length": 15})
    assert second.train == pytest.approx({"reward": 0.35, "kl": 3.5, "response_length": 35})
    assert [p.tokens for p in (base, first, second)] == [
        0,
        6 * 30,
        6 * 100,
    ]  # 6 rollouts per step, of 10, 20, 30, 40 tokens
    assert "1 training rows after the last evaluation" in result.notes[0]


def test_an_evaluation_between_two_logged_lengths_takes_the_last_one(logged):
    rows = [
        {"step": 2, "length": 10},
        {"step": 3, "val": 0.5},
        {"step": 4, "length": 40, "val": 0.6},
    ]
    (run,) = logged("jsonl", rows, "reward=val,response_length=length,n=1,B_p=1").runs
    assert [p.tokens for p in run.points] == [30, 20 + 80]


def test_a_run_column_separates_runs_and_seeds_are_numbered(logged):
    text = "name,step,reward\n" + "".join(
        f"{name},{s},{v}\n"
        for s in (1, 2)
        for name, v in (("b", 0.2 + s / 10), ("a", 0.1 + s / 10))
    )
    result = logged("csv", text, "run=name", "n=4,B_p=2")
    assert [(r.cell.seed, r.points[0].metrics["reward"]) for r in result.runs] == [
        (0, pytest.approx(0.3)),
        (1, pytest.approx(0.2)),
    ]
    assert result.notes == (
        "seeds of B_p = 2, n = 4 are numbered in the order given: b is 0, a is 1",
    )


def test_runs_side_by_side_in_one_file_need_no_name(logged):
    text = "step,n,B_p,reward\n" + "".join(
        f"{s},{n},2,0.{s}\n" for s in (1, 2, 3) for n in (2, 4, 8)
    )
    assert [(r.cell.n, len(r.points)) for r in logged("csv", text).runs] == [(2, 3), (4, 3), (8, 3)]


def test_files_are_runs_with_seeds_in_order_and_n_from_their_names(logged):
    logs = {
        f"run-n{n}-{i}.jsonl": [{"step": s, "reward": 0.1 * s + i / 100} for s in (1, 2)]
        for n in (4, 16)
        for i in (0, 1)
    }
    result = logged("jsonl", logs, "n=n{}", "B_p=2")
    assert [r.cell for r in result.runs] == [
        Cell(2, 4, 0),
        Cell(2, 4, 1),
        Cell(2, 16, 0),
        Cell(2, 16, 1),
    ]
    assert len(result.notes) == 2


def test_the_seed_column_is_taken(logged):
    result = logged(
        "csv", "seed,step,reward,n,B_p\n7,1,.1,2,2\n3,1,.2,2,2\n7,2,.3,2,2\n3,2,.3,2,2\n"
    )
    assert [r.cell.seed for r in result.runs] == [3, 7] and result.notes == ()


def test_names_of_metrics(logged):
    row = {"step": 1, "val/math/acc/mean@8": 0.5, "val/b": 0.25}
    by_default = (
        logged("jsonl", [row], "reward=val/math/acc/mean@8,metric:hard=val/b,n=2,B_p=2")
        .runs[0]
        .points[0]
    )
    assert by_default.metrics == {"avg@8": 0.5, "hard": 0.25} and by_default.samples == 8
    requested = logged("jsonl", [row], "best@4=val/b,n=2,B_p=2").runs[0].points[0]
    assert requested.metrics == {"best@4": 0.25} and requested.samples == 0


def test_percent_is_scaled(logged):
    assert logged("jsonl", [{"step": 1, "reward": 42}], "n=2,B_p=2,scale=0.01").runs[0].points[
        0
    ].metrics["reward"] == pytest.approx(0.42)


def test_right_answers_are_kept_and_make_the_metric(logged):
    text = 'step,right\n1,"[4, 0, 1]"\n2,"[4, 2, 1]"\n'
    (run,) = logged("csv", text, "counts=right,samples=4,n=2,B_p=2").runs
    assert [(p.counts, p.samples) for p in run.points] == [((4, 0, 1), 4), ((4, 2, 1), 4)]
    assert [p.metrics for p in run.points] == [
        {"avg@4": pytest.approx(5 / 12)},
        {"avg@4": pytest.approx(7 / 12)},
    ]


def test_sums_of_graded_rewards_make_the_mean_reward(logged):
    text = 'step,sums\n1,"[4, 0, 1.5]"\n2,"[4, 2.25, 1.5]"\n'
    (run,) = logged("csv", text, "counts=sums,samples=4,n=2,B_p=2").runs
    assert [p.counts for p in run.points] == [(4.0, 0.0, 1.5), (4.0, 2.25, 1.5)] and all(
        p.graded for p in run.points
    )
    assert [p.metrics["avg@4"] for p in run.points] == [
        pytest.approx(5.5 / 12),
        pytest.approx(7.75 / 12),
    ]


def test_device_hours_and_tokens_of_the_log(logged):
    (run,) = logged(
        "csv", "step,reward,tokens,device_hours\n0,.1,0,0.5\n4,.2,900,1.5\n", "n=2,B_p=2"
    ).runs
    assert run.device_hours == (0.5, 1.5) and [p.tokens for p in run.points] == [0, 900]


def test_training_metrics_nobody_asked_for_may_be_nan(logged):
    rows = [{"step": 1, "kl": float("nan"), "entropy": 2.0, "reward": 0.5}]
    assert logged("jsonl", rows, "n=2,B_p=2").runs[0].points[0].train == {"entropy": 2.0}
    with refused(where="log.jsonl, line 1: train:kl (column kl)"):
        logged("jsonl", rows, "n=2,B_p=2,train:kl=kl")


def console(*steps):
    return {"job.log": "".join(f"step:{i} - {text}\n" for i, text in enumerate(steps))}


CONSOLE_MAP = "n=2,B_p=2,reward=val/acc,metric:ood=val/ood,train:kl=actor/kl"
CONSOLE_STEPS = (
    "val/acc:0.1 - val/ood:0.1",
    "val/acc:nan - val/ood:0.2 - actor/kl:1 - timing_s/step:nan",
    "val/acc:0.3 - val/ood:np.float64(inf) - actor/kl:nan - timing_s/step:2",
    "val/acc:0.4 - val/ood:-inf - actor/kl:2 - timing_s/step:2",
)


def test_numbers_of_a_trainers_log_that_are_not_finite_are_left_out_and_said(logged, tmp_path):
    result = logged("verl_console", console(*CONSOLE_STEPS), CONSOLE_MAP + ",devices=2")
    (run,), job = result.runs, tmp_path / "job.log"
    assert [(p.M, p.metrics) for p in run.points] == [
        (0, {"val/acc": 0.1, "ood": 0.1}), (2, {"val/acc": 0.3}), (3, {"val/acc": 0.4})
    ]  # fmt: skip
    assert [p.train for p in run.points] == [{}, {"kl": 1.0}, {"kl": 2.0}]
    # the step without a time as the others
    assert run.device_hours == pytest.approx([0.0, 2 * 4 / 3600, 2 * 6 / 3600])
    assert sorted(result.skipped) == [
        f"{job}, line 2: reward (column val/acc) is nan",
        f"{job}, line 2: step_seconds (column timing_s/step) is nan",
        f"{job}, line 3: metric:ood (column val/ood) is nan, and at step 3",
        f"{job}, line 3: train:kl (column actor/kl) is nan",
    ]


def test_a_trainers_log_without_any_finite_reward_is_refused(logged):
    steps = [f"val/acc:nan - actor/kl:{i}" for i in range(3)]
    with refused():
        logged("verl_console", console(*steps), "n=2,B_p=2,reward=val/acc")


def test_a_validation_metric_with_a_nan_is_still_one_of_two(logged):
    rows = [
        {"step": i, "reward": 0.1 * i, "val/acc": float("nan") if i == 2 else 0.15 * i}
        for i in range(1, 4)
    ]
    with refused(where="log.jsonl"):
        logged("jsonl", rows, "n=2,B_p=2")


def test_a_module_of_ones_own_is_a_format(tmp_path, monkeypatch, logged):
    (tmp_path / "my_format.py").write_text(
        "from isojax.core.tabular import DataRow\nfrom isojax.runs.importers import importer\nfrom "
        "isojax.runs.logs.log_table import LogTable\n@importer(fields={'reward': ('r',), 'n': "
        "('n',), 'B_p': ('b',), 'step': ('s',)})\ndef read(path):\n    rows = [dict(zip('rnbs', "
        "map(float, line.split()))) for line in path.read_text().splitlines()]\n    return "
        "[LogTable(str(path), tuple(DataRow(str(path), f'line {i}', row) for i, row in "
        "enumerate(rows, 1)))]\n"
    )
    (tmp_path / "my_fork").mkdir()
    (tmp_path / "my_format.py").rename(tmp_path / "my_fork" / "my_format.py")
    monkeypatch.syspath_prepend(tmp_path)
    (run,) = logged("my_fork.my_format", {"a.txt": ".5 4 8 1\n.6 4 8 2\n"}).runs
    assert run.cell == Cell(8, 4, 0) and curve(run) == [(1, 32, 0.5), (2, 64, 0.6)]


@pytest.mark.parametrize(
    "traits",
    [
        "",
        "(fields={})",
    ],
)
def test_a_format_without_fields_or_runs_is_refused(tmp_path, monkeypatch, logged, traits):
    name = f"unfit{len(traits) > 0:d}"
    decorated = (
        f"from isojax.runs.importers import importer\n@importer{traits}\ndef read(path):\n    "
        "return []\n"
    )
    (tmp_path / f"{name}.py").write_text(decorated)
    monkeypatch.chdir(tmp_path)
    with refused():
        logged(name, {"a.txt": "x"})


def test_what_is_asked_stands_instead_of_what_is_known(logged):
    rows = [{"step": 1, "reward": 0.5, "val": 0.25, "B_p": 7, "n": 2}]
    (run,) = logged("jsonl", rows, "B=8,avg@4=val").runs
    assert run.cell == Cell(4, 2, 0)
    assert run.points[0].metrics == {"avg@4": 0.25} and run.points[0].samples == 4
    (run,) = logged("jsonl", rows, "metric:hard=val").runs
    assert run.cell == Cell(7, 2, 0) and list(run.points[0].metrics.items()) == [
        ("reward", 0.5),
        ("hard", 0.25),
    ]


def test_time_grows_with_runs_and_not_with_their_square(logged):
    def log_of(num_runs: int) -> str:
        rows = [f"r{i},{step},{i / 1e4},4,2\n" for i in range(num_runs) for step in (0, 1)]
        return "run,step,reward,n,B_p\n" + "".join(rows)

    assert_linear(lambda num_runs: logged("csv", log_of(num_runs)), 1000)


def test_more_runs_than_a_sweep_has(logged, monkeypatch):
    text = "run,step,reward,n,B_p\n" + "".join(
        f"r{i},{step},{i / 1e4},4,2\n" for i in range(2000) for step in (0, 1)
    )
    assert len(logged("csv", text).runs) == 2000
    monkeypatch.setattr(run_records, "MAX_CELLS", 1000)
    with refused():
        logged("csv", text)


def test_counts_with_decimals_that_are_no_thousands(logged):
    """As pandas writes a column of floats."""
    for text in (
        "step,reward\n0.0,0.1\n40.0,0.2\n50.00,0.3\n",
        "step,reward\n0.000,0.1\n40.000,0.2\n50.000,0.3\n",
    ):
        (run,) = logged("csv", text, "n=2,B_p=2").runs
        assert [p.M for p in run.points] == [0, 40, 50]
    with refused(where="--map B_p=2.000"):
        logged("csv", text, "n=2,B_p=2.000")
