"""Logs of trainers that isojax has no importer for, by way of CSV and JSON lines: which column counts the steps, which
rows are evaluations, and what a refusal proposes."""

from __future__ import annotations

import pytest

from isojax.core.errors import InputError
from isojax.core.nouns import Cell
from isojax.runs.logs.import_logs import read_logs

SETTINGS = "n=8,B_p=4"


def curve(run):
    return [(p.M, p.rollouts, *p.metrics.values()) for p in run.points]


# W&B's _step counts calls of its log; a trainer may count steps for each kind of row, or rollouts as global_step.
OPENRLHF = "_step,train/global_step,eval/global_step,acc\n0,1,,\n1,2,,\n2,,2,0.5\n3,3,,\n4,4,,\n5,,4,0.6\n"
SLIME = "_step,eval/step,rollout/step,acc\n0,,1,\n1,,1,\n2,2,,0.5\n3,,3,\n9,4,,0.6\n"
OPEN_INSTRUCT = "_step,global_step,training_step,acc\n0,32,1,\n1,64,2,0.5\n2,96,3,\n3,128,4,0.6\n"


@pytest.mark.parametrize("text", [OPENRLHF, SLIME, OPEN_INSTRUCT], ids=["OpenRLHF", "slime", "open-instruct"])
def test_steps_are_of_the_column_that_evaluations_have(logged, text):
    (run,) = logged("csv", text, "reward=acc", SETTINGS).runs
    assert run.cell == Cell(4, 8, 0) and curve(run) == [(2, 64, 0.5), (4, 128, 0.6)]


def test_rows_of_other_values_are_no_evaluations(logged):
    """W&B's run.history() has training rows; an empty cell alone in its row is still one to be filled in."""
    text = "step,acc,loss\n0,0.5,\n1,,0.3\n2,0.6,0.2\n3,,0.1\n"
    result = logged("csv", text, "reward=acc", SETTINGS)
    assert curve(result.runs[0]) == [(0, 0, 0.5), (2, 64, 0.6)]
    assert any("2 rows without acc, which hold other values, are left out" in note for note in result.notes)
    with pytest.raises(InputError, match=r"line 3: reward \(column acc\) is missing or empty"):
        logged("csv", "step,acc\n0,0.5\n1,\n2,0.6\n", "reward=acc", SETTINGS)


def test_batches_of_unknown_size_are_asked_for(logged):
    rows = [{"step": i, "data": {"val-core/x/acc/mean@4": 0.1 * i, "train/num_gen_batches": 2}} for i in (1, 2)]
    with pytest.raises(InputError, match=r"no column is known to be sampled_B_p .* type --map sampled_B_p=192"):
        logged("verl", rows, SETTINGS)
    (run,) = logged("verl", rows, SETTINGS, "sampled_B_p=6").runs
    assert [p.rollouts for p in run.points] == [2 * 6 * 8, 4 * 6 * 8]
    (run,) = logged("verl", rows, SETTINGS.replace("B_p", "sampled_B_p"), "B=32").runs
    assert run.cell == Cell(4, 8, 0) and run.points[-1].rollouts == 4 * 4 * 8


def test_the_reward_that_is_proposed_may_be_one(logged):
    """No column of the steps, deviations, lengths or the training reward, and none without numbers."""
    columns = ["eval/epoch", "eval/reward_std", "eval/response_length", "rewards/accuracy/mean", "eval_interval"]
    rows = [{"step": i, **dict.fromkeys(columns, 0.5), "eval_name": "math", "eval/pass1": 0.5} for i in range(3)]
    with pytest.raises(InputError, match=r"type --map reward=eval/pass1 \(the nearest\)\."):
        logged("jsonl", rows, SETTINGS)
    with pytest.raises(InputError, match=r"no column is known to be reward .* type --map reward=COLUMN\."):
        logged(
            "jsonl", [{name: value for name, value in row.items() if name != "eval/pass1"} for row in rows], SETTINGS
        )


def test_a_console_is_no_csv(tmp_path):
    (tmp_path / "run.log").write_text("INFO step 1, loss 0.5, reward 0.25\nINFO saved\nINFO step 2, loss 0.4\n")
    with pytest.raises(InputError, match=r"format is not known .* Of a trainer other than verl, import the run in W&B"):
        read_logs([tmp_path / "run.log"], None, {})


def test_a_run_that_begins_late_may_be_a_resumed_one(logged):
    part = "step,acc\n{},0.5\n{},0.6\n"
    result = logged("csv", {"a.csv": part.format(0, 5), "b.csv": part.format(5, 10)}, "reward=acc", SETTINGS)
    assert any("add --resumed where one goes on with another" in note for note in result.notes)
    result = logged("csv", {"a.csv": part.format(0, 5), "b.csv": part.format(0, 6)}, "reward=acc", SETTINGS)
    assert not any("--resumed" in note for note in result.notes)
