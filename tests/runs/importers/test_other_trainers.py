"""Logs of trainers that isojax has no importer for, by way of CSV and JSON lines: which column
counts the steps, which rows are evaluations, and what a refusal proposes."""

from __future__ import annotations

import pytest

from isojax.core.nouns import Cell
from isojax.runs.logs.import_logs import read_logs
from tests.refusals import refused

SETTINGS = "n=8,B_p=4"


def curve(run):
    return [(p.M, p.rollouts, *p.metrics.values()) for p in run.points]


# W&B's _step counts calls of its log; a trainer may count steps for each kind of row, or rollouts
# as global_step.
OPENRLHF = (
    "_step,train/global_step,eval/global_step,acc\n0,1,,\n1,2,,\n2,,2,0.5\n3,3,,\n4,4,,\n5,,4,0.6\n"
)
SLIME = "_step,eval/step,rollout/step,acc\n0,,1,\n1,,1,\n2,2,,0.5\n3,,3,\n9,4,,0.6\n"
OPEN_INSTRUCT = "_step,global_step,training_step,acc\n0,32,1,\n1,64,2,0.5\n2,96,3,\n3,128,4,0.6\n"


@pytest.mark.parametrize(
    "text", [OPENRLHF, SLIME, OPEN_INSTRUCT], ids=["OpenRLHF", "slime", "open-instruct"]
)
def test_steps_are_of_the_column_that_evaluations_have(logged, text):
    (run,) = logged("csv", text, "reward=acc", SETTINGS).runs
    assert run.cell == Cell(4, 8, 0) and curve(run) == [(2, 64, 0.5), (4, 128, 0.6)]


def test_rows_of_other_values_are_no_evaluations(logged):
    """W&B's run.history() has training rows; an empty cell alone in its row is still one to be
    filled in."""
    text = "step,acc,loss\n0,0.5,\n1,,0.3\n2,0.6,0.2\n3,,0.1\n"
    result = logged("csv", text, "reward=acc", SETTINGS)
    assert curve(result.runs[0]) == [(0, 0, 0.5), (2, 64, 0.6)]
    (note,) = result.notes  # the last of them is no training row too
    assert "2 rows without acc, which hold other values, are left out" in note
    with refused(where="log.csv, line 3: reward (column acc)"):
        logged("csv", "step,acc\n0,0.5\n1,\n2,0.6\n", "reward=acc", SETTINGS)


def test_batches_of_unknown_size_are_asked_for(logged):
    rows = [
        {"step": i, "data": {"val-core/x/acc/mean@4": 0.1 * i, "train/num_gen_batches": 2}}
        for i in (1, 2)
    ]
    with refused(where="log.verl"):
        logged("verl", rows, SETTINGS)
    (run,) = logged("verl", rows, SETTINGS, "sampled_B_p=6").runs
    assert [p.rollouts for p in run.points] == [2 * 6 * 8, 4 * 6 * 8]
    (run,) = logged("verl", rows, SETTINGS.replace("B_p", "sampled_B_p"), "B=32").runs
    assert run.cell == Cell(4, 8, 0) and run.points[-1].rollouts == 4 * 4 * 8


def test_problems_that_a_step_replaced_count(logged):
    """verl 0.9's filter_groups: a step of 4 problems x 8 logs those that it replaced, and those
    that it did not need, where there were any. A step that is not in the log has the others'
    mean."""
    replaced, surplus = (
        f"training/filter_groups/{name}"
        for name in ("evicted_samples", "discarded_surplus_samples")
    )
    dropped = {1: {replaced: 3, surplus: 2}, 2: {}, 3: {replaced: 1}, 5: {surplus: 2}}
    rows = [
        {"step": step, "data": {"val-core/x/acc/mean@4": 0.1 * step, **tags}}
        for step, tags in {0: {}, **dropped}.items()
    ]
    (run,) = logged("verl", rows, SETTINGS).runs
    # 5, 0 and 1 problems; step 4, which is missing, as 8 problems of 4 steps; then 2.
    assert [p.rollouts for p in run.points] == [
        0,
        (4 + 5) * 8,
        (8 + 5) * 8,
        (12 + 6) * 8,
        (20 + 6 + 2 + 2) * 8,
    ]
    assert [p.M for p in run.points] == [0, 1, 2, 3, 5]


def test_the_reward_that_is_proposed_may_be_one(logged):
    """No column of the steps, deviations, lengths or the training reward, and none without
    numbers."""
    columns = [
        "eval/epoch",
        "eval/reward_std",
        "eval/response_length",
        "rewards/accuracy/mean",
        "eval_interval",
    ]
    rows = [
        {"step": i, **dict.fromkeys(columns, 0.5), "eval_name": "math", "eval/pass1": 0.5}
        for i in range(3)
    ]
    with refused(where="log.jsonl"):
        logged("jsonl", rows, SETTINGS)
    with refused(where="log.jsonl"):
        logged(
            "jsonl",
            [{name: value for name, value in row.items() if name != "eval/pass1"} for row in rows],
            SETTINGS,
        )


def test_the_reward_that_is_proposed_is_of_validation_and_may_be_a_rate(logged):
    rows = [
        {"step": i, "reward": {"accuracy": 0.5}, "val": {"score": 0.5 + i, "success_rate": 0.5}}
        for i in range(3)
    ]
    with refused(where="log.jsonl"):
        logged("jsonl", rows, SETTINGS)
    for name in ("val/success_rate", "sampled_pass_at_1", "pass@1"):
        rows = [
            {"step": i, name: 0.5, "val/truncation_rate": 0.5, "reward/accuracy": 0.5}
            for i in range(3)
        ]
        with refused(where="log.jsonl"):
            logged("jsonl", rows, SETTINGS)


def test_steps_of_all_as_ms_swift_writes_them(logged):
    rows = [
        {"eval_reward": i / 10, "global_step/max_steps": f"{10 * i}/30", "memory(GiB)": 3.5}
        for i in range(4)
    ]
    trained = [
        {"reward": 0.5, "reward_std": 0.1, "global_step/max_steps": f"{5 * i}/30"}
        for i in range(1, 7)
    ]
    end = {"best_metric": 0.3, "global_step": 30, "log_history": [{"eval_reward": 0.1, "step": 10}]}
    (run,) = logged("jsonl", [*trained[:1], *rows, end], "reward=eval_reward", SETTINGS).runs
    assert curve(run) == [(0, 0, 0.0), (10, 320, 0.1), (20, 640, 0.2), (30, 960, 0.3)]
    with refused(where="log.jsonl, line 1: step (column global_step/max_steps)"):
        logged("jsonl", [{"acc": 0.5, "global_step/max_steps": "x/30"}], "reward=acc", SETTINGS)


def test_an_empty_log_is_said_to_be_empty(tmp_path):
    (tmp_path / "run.log").write_text("")
    with refused(where="run.log"):
        read_logs([tmp_path / "run.log"], None, {})


def test_a_console_is_no_csv(tmp_path):
    (tmp_path / "run.log").write_text(
        "INFO step 1, loss 0.5, reward 0.25\nINFO saved\nINFO step 2, loss 0.4\n"
    )
    with refused():
        read_logs([tmp_path / "run.log"], None, {})


def test_two_printed_dicts_are_no_csv_and_rows_of_numbers_are(tmp_path):
    file = tmp_path / "run.log"
    file.write_text(
        "perf 0: {'rollout/time': 3.5, 'rollout/len': 2}\n"
        "step 0: {'train/loss': 0.5, 'train/kl': 1}\n"
    )
    with refused():
        read_logs([tmp_path], None, {})
    file.write_text('step;reward\n"0";"0.1"\n"1";"0.2"\n')
    assert read_logs([file], None, {"n": "8", "B_p": "4"}).runs[0].points[1].rollouts == 32


def test_a_run_that_begins_late_may_be_a_resumed_one(logged):
    part = "step,acc\n{},0.5\n{},0.6\n"
    result = logged(
        "csv", {"a.csv": part.format(0, 5), "b.csv": part.format(5, 10)}, "reward=acc", SETTINGS
    )
    hint = "where one goes on with another, add --resumed, without one name --map seed=0"
    assert any(hint in note for note in result.notes)
    result = logged(
        "csv", {"a.csv": part.format(0, 5), "b.csv": part.format(0, 6)}, "reward=acc", SETTINGS
    )
    assert not any("--resumed" in note for note in result.notes)


def test_a_training_reward_beside_a_validation_metric_is_not_taken_for_it(logged):
    text = "step,reward,val_acc\n0,0.9,0.1\n10,0.9,0.2\n"
    with refused(where="log.csv"):
        logged("csv", text, SETTINGS)
    rows = [{"step": 0, "reward": 0.9, "eval_reward": 0.1, "eval_runtime": 3.0}]
    with refused(where="log.jsonl"):
        logged("jsonl", rows, SETTINGS)
    (run,) = logged("csv", text, "reward=val_acc", SETTINGS).runs
    assert curve(run) == [(0, 0, 0.1), (10, 320, 0.2)]
    (run,) = logged("csv", text, "metric:other=val_acc", SETTINGS).runs
    assert run.points[0].metrics == {"reward": 0.9, "other": 0.1}
    for name in ("train/reward", "rollout/raw_reward", "ppo_actor/task_reward/avg"):
        with refused(where="log.csv"):
            logged("csv", f"Step,run - {name}\n0,0.5\n1,0.5\n", SETTINGS)
    for name in ("val/pass_rate", "eval/minerva", "eval/numina_acc", "eval/challenge"):
        assert logged("csv", f"Step,run - {name}\n0,0.5\n1,0.5\n", SETTINGS).runs
    # of TRL, by pandas
    history = "step,loss,grad_norm,reward,reward_std\n1,0.1,0.2,0.5,0.1\n2,0.1,0.2,0.6,0.1\n"
    with refused(where="log.csv"):
        logged("csv", history, SETTINGS)
    assert curve(logged("csv", history, SETTINGS, "reward=reward").runs[0]) == [
        (1, 32, 0.5),
        (2, 64, 0.6),
    ]
    notebook = (
        "Step\tTraining Loss\treward\treward_std\tkl\n1\t0.1\t0.5\t0.1\t0\n2\t0.1\t0.6\t0.1\t0\n"
    )
    with refused(where="log.csv"):
        logged("csv", notebook, SETTINGS)
    others = (
        "value_mean,train_acc,eval_dataset,test_problems,eval_batch,eval_runtime,eval_num,"
        "eval/minerva"
    )
    text = (
        f"step,reward,{others}\n0,0.9,0.5,0.5,math,500,64,1.5,0.5,0.1\n"
        "10,0.9,0.5,0.5,math,500,64,1.5,0.5,0.2\n"
    )
    with refused(where="log.csv"):
        logged("csv", text, SETTINGS)


@pytest.mark.parametrize("sign", ["loss", "grad_norm"])
def test_a_reward_in_rows_of_training_is_no_validation_metric(logged, sign):
    text = "step,{},reward\n1,{},0.5\n2,{},0.6\n"
    with refused(where="log.csv"):
        logged("csv", text.format(sign, 0.1, 0.2), SETTINGS)
    # in other rows: evaluations alone have a reward
    assert logged("csv", text.format(sign, "", ""), SETTINGS).runs
    assert logged("csv", text.format("train_reward," + sign, "0.3,0.1", "0.3,0.2"), SETTINGS).runs


NO_REWARDS = (
    "kl",
    "eval/loss",
    "reward_std",
    "val/length_frac",
    "completions/clipped_ratio",
    "val/reward/std@4",
)


@pytest.mark.parametrize(
    "name", [*NO_REWARDS, "eval/truncated_ratio", "val/entropy", "eval/learning_rate"]
)
def test_the_only_metric_of_a_file_may_be_no_reward(logged, name):
    """A chart of W&B, and the long form."""
    for text in (
        f"Step,run - {name}\n0,0.5\n1,0.6\n",
        f"step,metric,value\n0,{name},0.5\n1,{name},0.6\n",
    ):
        with refused(where="log.csv"):
            logged("csv", text, SETTINGS)
        assert logged("csv", text, SETTINGS, f"reward={name}").runs


REWARDS = (
    "val/win_rate",
    "solve_rate",
    "success_rate",
    "objective/scores",
    "acc/maj@4/mean",
    "eval/sentiment_reward",
)
MORE_REWARDS = ("val/generation/acc", "val/super_gpqa/acc", "val/exact_match_rate")


@pytest.mark.parametrize("name", [*REWARDS, *MORE_REWARDS])
def test_the_only_metric_of_a_file_may_have_any_name_of_a_reward(logged, name):
    assert logged("csv", f"Step,run - {name}\n0,0.5\n1,0.6\n", SETTINGS).runs


def test_mapped_metrics_whose_rows_have_other_steps_are_named(logged):
    """OpenRLHF counts the steps of evaluations in a column of their own: without them training rows
    have no place."""
    header = "_step,train/global_step,eval/global_step,acc,length\n"
    trained = "{0},{0},,,9\n"
    evaluated = "{0},,{0},0.{0},\n"
    text = header + "".join(row.format(i) for i in (2, 4) for row in (trained, evaluated))
    maps = "reward=acc,response_length=length,n=8,B_p=4"
    result = logged("csv", text, maps)
    expected = (
        "2 rows with length have no eval/global_step and are left out; to use them: --map "
        "step=train/global_step"
    )
    assert result.notes[0].endswith(expected) and not result.runs[0].points[0].train
    result = logged("csv", text, maps + ",step=train/global_step")
    assert [(p.M, p.tokens) for p in result.runs[0].points] == [
        (2, 2 * 32 * 9),
        (4, 4 * 32 * 9),
    ] and not result.notes


def test_calls_of_a_logger_are_no_updates_where_it_logs_them_too(logged):
    """W&B's _step counts every call of wandb.log; a loop of one's own logs evaluations in calls of
    their own."""
    text = "_step,train/global_step,val/acc\n0,,0.1\n1,5,\n2,10,\n3,,0.2\n4,15,\n5,,0.3\n"
    with refused(where="log.csv"):
        logged("csv", text, "reward=val/acc", SETTINGS)
    (run,) = logged("csv", text, "reward=val/acc,step=train/global_step", SETTINGS).runs
    assert curve(run) == [(0, 0, 0.1), (10, 320, 0.2), (15, 480, 0.3)]
    text = (
        "_step,eval/at,skipped_steps,train:kl,val/acc\n0,0,0,,0.1\n1,,0,0.5,\n2,,0,0.6,\n"
        "3,10,0,,0.2\n"
    )
    # training rows have no such step
    maps = ("reward=val/acc,step=eval/at,train:kl=train:kl", SETTINGS)
    assert curve(logged("csv", text, *maps).runs[0])[1] == (10, 320, 0.2)
    # a constant is no clock
    assert curve(logged("csv", text, "reward=val/acc", SETTINGS).runs[0])[1] == (3, 96, 0.2)
    # b's first step is not a's last
    text = "run,_step,at,val/acc\na,0,,0.1\na,1,10,0.2\nb,2,,0.1\nb,3,20,0.2\n"
    with refused(where="log.csv, line 2: step (column at)"):
        logged("csv", text, "reward=val/acc,step=at", SETTINGS)
    equal = "_step,training/global_step,val/acc\n0,,0.1\n10,10,0.2\n20,20,0.3\n"  # as verl logs
    assert curve(logged("csv", equal, "reward=val/acc", SETTINGS).runs[0])[1] == (10, 320, 0.2)


def test_seconds_of_a_gpu_monitor_are_no_updates(logged):
    """NeMo-RL logs ray/ray_step, seconds since the start, and counts _step itself."""
    text = "_step,ray/ray_step,loss,validation/accuracy\n0,,,0.1\n0,10,,\n1,31,0.5,\n2,60,0.4,0.2\n"
    (run,) = logged("csv", text, "reward=validation/accuracy", SETTINGS).runs
    assert [p.M for p in run.points] == [0, 2]


def test_json_lines_know_the_columns_of_csv(logged):
    """As W&B's history has them; the batches that DAPO samples are asked for."""
    rows = [
        {"_step": step, "val-core/math/acc/mean@4": 0.1 + step / 20, "x": 1} for step in (0, 2, 4)
    ]
    (run,) = logged("jsonl", rows, SETTINGS).runs
    assert [(p.M, p.metrics["avg@4"]) for p in run.points] == [
        (0, 0.1),
        (2, 0.2),
        (4, pytest.approx(0.3)),
    ]
    with refused(where="log.jsonl"):
        logged("jsonl", [row | {"train/num_gen_batches": 3} for row in rows], SETTINGS)


def test_calls_of_a_logger_are_no_updates_in_a_file_of_several_runs(logged):
    """Each run's steps begin again, and a setting that differs between runs is no clock, in
    whatever order rows are."""
    rows = [
        f"{run},{3 * at},{at},{most},{n},0.{at}"
        for at in (0, 1, 2)
        for run, most, n in (("a", 9, 8), ("b", 5, 4))
    ]
    for lines in (rows, sorted(rows)):
        text = "\n".join(["run,_step,trainer/global_step,max_steps,n,acc", *lines, ""])
        with refused(where="log.csv"):
            logged("csv", text, "reward=acc,B_p=4")
        runs = logged("csv", text, "reward=acc,B_p=4,step=trainer/global_step").runs
        assert [[p.rollouts for p in run.points] for run in runs] == [[0, 16, 32], [0, 32, 64]]
        runs = logged("csv", text.replace("trainer/global_step", "depth"), "reward=acc,B_p=4").runs
        assert [run.points[-1].M for run in runs] == [6, 6]


def test_calls_of_a_logger_are_no_updates_where_evaluations_are_calls_of_their_own(logged):
    text = (
        "_step,_runtime,n,loss,acc\n0,1,8,,0.1\n1,2,8,0.5,\n2,3,8,0.5,\n3,4,8,,0.2\n4,5,8,0.4,\n"
        "5,6,8,,0.3\n"
    )
    with refused(where="log.csv"):
        logged("csv", text, "reward=acc,B_p=4")
    assert curve(logged("csv", text, "reward=acc,B_p=4,step=_step").runs[0])[1] == (3, 96, 0.2)
    two_sets = "_step,loss,a,b\n0,0.5,,\n1,,0.1,\n2,,,0.2\n3,0.5,,\n4,,0.3,\n5,,,0.4\n6,0.5,,\n"
    for maps in (("reward=a,n=8,B_p=4",), ("reward=a,metric:b=b,n=8,B_p=4",)):
        with refused(where="log.csv"):
            logged("csv", two_sets, *maps)
    merged = text.replace("3,4,8,,0.2", "3,4,8,0.5,0.2")
    jumping = text.replace("5,6,8,,0.3", "9,6,8,,0.3")
    sporadic = "_step,n,loss,saved,acc\n0,8,0.5,,\n1,8,0.5,,0.1\n2,8,0.5,1,\n3,8,0.4,,0.2\n"
    for other in (merged, jumping, sporadic):
        # logged with step=
        assert curve(logged("csv", other, "reward=acc,B_p=4").runs[0])[1] == (3, 96, 0.2)


def test_a_chart_over_something_else_than_steps(logged):
    chart = "{},run-n8 - val/acc\n0,0.1\n640,0.2\n"
    (run,) = logged("csv", chart.format("rollouts"), SETTINGS).runs
    assert [p.rollouts for p in run.points] == [0, 640]
    (run,) = logged("csv", chart.format("trainer/iteration"), SETTINGS).runs
    assert [p.M for p in run.points] == [0, 640]
    with refused(where="log.csv"):
        logged("csv", chart.format("train/num_tokens"), SETTINGS)


def test_columns_of_open_instruct_and_comet_and_samples_that_are_no_attempts(logged):
    rows = [{"global_step": 32 * i, "training_step": i, "reward": 0.1 * i} for i in (1, 2)]
    assert [p.rollouts for p in logged("jsonl", rows, SETTINGS).runs[0].points] == [32, 64]
    comet = "metricName,metricValue,step\ntrain/reward,0.9,1\nval/acc,0.2,1\nval/acc,0.3,2\n"
    assert curve(logged("csv", comet, "reward=val/acc", SETTINGS).runs[0]) == [
        (1, 32, 0.2),
        (2, 64, 0.3),
    ]
    (run,) = logged("csv", "rollouts,reward,samples\n0,0.1,0\n64,0.3,8\n", SETTINGS).runs
    assert [p.rollouts for p in run.points] == [0, 64]


def test_a_run_of_the_base_policy_alone_is_no_seed(logged):
    """As TensorBoard's add_hparams makes one, in a folder of its own."""
    logs = {"a.csv": "step,acc\n0,0.1\n5,0.2\n", "b.csv": "step,acc\n0,0.2\n"}
    result = logged("csv", logs, "reward=acc", SETTINGS)
    assert [run.cell for run in result.runs] == [Cell(4, 8, 0)]
    assert any(
        "only evaluation is of the base policy" in x and x.endswith("b.csv, line 2")
        for x in result.notes
    )
    assert (
        len(
            logged(
                "csv",
                {"a.csv": "step,acc\n0,0.1\n", "b.csv": "step,acc\n0,0.2\n"},
                "reward=acc",
                SETTINGS,
            ).runs
        )
        == 2
    )


def test_rows_of_times_alone_are_no_evaluations(logged):
    text = "step,acc,step_seconds\n0,0.5,\n1,,2\n2,0.6,4\n3,,3\n4,0.7,3\n"
    (run,) = logged("csv", text, "reward=acc,devices=2", SETTINGS).runs
    assert curve(run) == [(0, 0, 0.5), (2, 64, 0.6), (4, 128, 0.7)]
    assert run.device_hours == pytest.approx([0, 6 * 2 / 3600, 12 * 2 / 3600])


def test_a_batch_size_that_contradicts_the_problems_is_refused(logged):
    text = "step,acc,n,B_p,B\n0,0.5,8,4,{B}\n1,0.6,8,4,{B}\n2,0.6,8,4,{B}\n"
    (run,) = logged("csv", text.format(B=32), "reward=acc").runs
    assert run.cell == Cell(4, 8, 0)
    with refused():
        logged("csv", text.format(B=64), "reward=acc")
    (run,) = logged("csv", text.format(B=64), "reward=acc,B=B").runs
    assert run.cell == Cell(8, 8, 0)


def test_a_sum_of_rewards_above_one_names_its_parts(logged):
    """As of TRL with a reward of the format."""
    names = (
        "eval_reward",
        "eval_rewards/accuracy/mean",
        "eval_rewards/accuracy/std",
        "eval_rewards/length/mean",
    )
    rows = [
        {"step": i, **dict(zip(names, (1.2, 0.3 + 0.1 * i, 0.1, 0.9), strict=True))}
        for i in range(2)
    ]
    with refused(where="log.jsonl, line 1: reward (column eval_reward)"):
        logged("jsonl", rows, SETTINGS, "reward=eval_reward")
    assert logged("jsonl", rows, SETTINGS, "reward=eval_rewards/accuracy/mean").runs


@pytest.mark.parametrize("form", ["plain", "long", "wide"])
def test_times_and_sampled_batches_of_rows_without_metrics_count(logged, form):
    """Steps take 50 s and 2 batches of 4 prompts, those with an evaluation 150 s and 1: 7 batches
    and 400 s in 4."""
    steps = [(0, 0.1, "", ""), (1, "", 2, 50), (2, 0.2, 1, 150), (3, "", 2, 50), (4, 0.3, 2, 150)]
    names = ("acc", "batches", "seconds")
    lines = ["step,acc,batches,seconds", *(",".join(map(str, row)) for row in steps)]
    if form == "wide":
        lines[0] = '"Step","a - acc","a - batches","a - seconds"'
    if form == "long":
        cells = [
            (row[0], name, x)
            for row in steps
            for name, x in zip(names, row[1:], strict=True)
            if x != ""
        ]
        lines = ["run,metric,step,value", *(f"a,{name},{step},{x}" for step, name, x in cells)]
    fields = "reward=acc,sampled_batches=batches,sampled_B_p=4,step_seconds=seconds,devices=2"
    result = logged("csv", {"a.csv": "\n".join([*lines, ""])}, fields, SETTINGS)
    (run,) = result.runs
    assert [p.rollouts for p in run.points] == [0, 3 * 32, 7 * 32]
    assert run.device_hours == pytest.approx([0, 2 * 200 / 3600, 2 * 400 / 3600])
    assert not any("left out" in note for note in result.notes)


def test_parts_of_two_names_are_joined_by_the_seed_that_is_given(logged):
    rows = ["a,0,0.1", "a,10,0.2", "a,20,0.3", "a-resumed,20,0.31", "a-resumed,30,0.4"]
    text = "\n".join(["run,step,acc", *rows, ""])
    (run,) = logged("csv", {"a.csv": text}, f"reward=acc,seed=0,{SETTINGS}", resumed=True).runs
    assert [(p.M, *p.metrics.values()) for p in run.points] == [
        (0, 0.1),
        (10, 0.2),
        (20, 0.31),
        (30, 0.4),
    ]


def test_rows_of_a_step_may_share_sums_in_a_log_that_was_resumed(logged):
    """A training row and an evaluation of one step, both with the tokens so far, are no second
    start."""
    train = [{"step": s, "tokens": 10 * s, "t": 50, "train/reward": s / 100} for s in range(1, 11)]
    both = [
        [row, {"step": row["step"], "acc": 0.2, "tokens": row["tokens"]}][
            : 1 + (row["step"] % 5 == 0)
        ]
        for row in train
    ]
    rows = [{"step": 0, "acc": 0.1, "tokens": 0}, *(row for pair in both for row in pair)]
    fields = (
        "reward=acc,step_seconds=t,devices=1,train_reward=train/reward,tokens=tokens",
        SETTINGS,
    )
    result = logged("jsonl", rows, *fields, resumed=True)
    (run,) = result.runs
    assert [3600 * hours for hours in run.device_hours] == pytest.approx([0, 250, 500])
    assert not any("resumed" in note for note in result.notes)


def test_one_metric_after_another_over_rollouts(logged):
    rows = [f"a,{name},{C},{x}" for name, x in (("acc", 0.2), ("train", 0.3)) for C in (0, 32, 64)]
    text = "\n".join(["run,metric,rollouts,value", *rows, ""])
    (run,) = logged("csv", {"a.csv": text}, "reward=acc,train_reward=train", SETTINGS).runs
    assert [(p.rollouts, *p.metrics.values()) for p in run.points] == [
        (0, 0.2),
        (32, 0.2),
        (64, 0.2),
    ]


@pytest.mark.parametrize("extra", ["seed", "run", "devices", "n"])
def test_a_row_with_a_time_alone_counts_where_it_says_its_run(logged, extra):
    """Here it does not; and a run without an evaluation is none."""
    sizes = {"n": 8, "B_p": 4, extra: 1}
    rows = [
        {"step": 1, "t": 50},
        {"step": 0, "acc": 0.1, **sizes},
        {"step": 2, "acc": 0.2, "t": 50, **sizes},
    ]
    fields = "reward=acc,step_seconds=t" + ("" if extra == "devices" else ",devices=1")
    (run,) = logged("jsonl", rows, fields).runs
    assert [p.M for p in run.points] == [0, 2]
    assert (
        "--map devices=COLUMN" in "".join(logged("jsonl", rows, "reward=acc,step_seconds=t").notes)
    ) == (extra != "devices")
    rows = [{"run": "b", "step": 1, "t": 50, **sizes}, *({"run": "a", **row} for row in rows[1:])]
    assert len(logged("jsonl", rows, fields).runs) == 1
