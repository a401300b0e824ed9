"""Logs whose folders or names say train, val, loss or a benchmark are not taken for seeds of one
(B_p, n)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboardX import SummaryWriter

from isojax.core.nouns import Cell
from isojax.runs.logs.import_logs import read_logs
from isojax.runs.logs.log_table import read_settings
from isojax.runs.logs.measured_words import other_settings, other_words, words_of_source
from isojax.runs.logs.source_words import SourceChoice
from tests.refusals import refused

MAPS = {"n": "n{}", "B_p": "8", "reward": "acc"}


def write_logs(folder: Path, *names: str) -> Path:
    """Logs of steps 0, 10, 20; that of the i-th name has rewards of .1 + i / 100 on."""
    for i, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [f"{step},{0.1 + i / 100 + step / 100}\n" for step in (0, 10, 20)]
        path.write_text("step,acc\n" + "".join(rows))
    return folder


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("logs/n8/train/log.csv", {"train"}),
        ("runs/n8_val.csv", {"val"}),
        ("acc_train/events", {"acc", "train"}),
        ("n8val.csv", {"val"}),
        ("accVal", {"acc", "val"}),
        ("N8-EVAL", {"eval"}),
        ("val2.csv", {"val"}),
        ("n8_pass@1.csv", {"pass1"}),
        ("n8_pass_at_4.csv", {"pass4"}),
        ("val-core_gsm8k_acc_mean@4", {"val", "gsm8k", "acc", "mean4"}),
        ("aime_2024", {"aime2024"}),
        ("n8-MATH-500", {"math500"}),
        ("n8/math_level1.jsonl", {"level1"}),
        ("n8-Level_5", {"level5"}),
        ("n8_easy.csv", {"easy"}),
        ("hardware/levels/n8_loglevel2_part1.csv", set()),
        # Longer words, names of models, and ids that hold such letters.
        ("Qwen2.5-Math-7B_n16_trainer_state.json", set()),
        ("constrained-evaluator-valence", set()),
        ("wandb/offline-run-20261123_212753-k1lv9em4/run-k1lv9em4.wandb", set()),
        ("seed0/run1-s1/replica-a/latest", set()),
    ],
)
def test_words_that_say_what_was_measured(text, words):
    assert words_of_source(text) == words


@pytest.mark.parametrize(
    ("names", "options"),
    [
        (
            ("n8/train/log.csv", "n8/validation/log.csv"),
            ("--leave-out train", "--leave-out validation"),
        ),
        (("n8_train.csv", "n8_val.csv"), ("--leave-out train", "--leave-out val")),
        (("acc_train/n8.csv", "acc_val/n8.csv"), ("--leave-out train", "--leave-out val")),
        (("n8/log.csv", "n8/eval/log.csv"), ("--only eval", "--leave-out eval")),
        (("n8-val.csv", "n8-test.csv"), ("--leave-out test", "--leave-out val")),
        (("n8_loss.csv", "n8_acc.csv"), ("--leave-out loss", "--leave-out acc")),
        (("n8_pass@1.csv", "n8_pass@4.csv"), ("--leave-out pass4", "--leave-out pass1")),
        (("n8/aime24.csv", "n8/math500.csv"), ("--leave-out math500", "--leave-out aime24")),
        (
            ("n8/math_level1.csv", "n8/math_level5.csv"),
            ("--leave-out level5", "--leave-out level1"),
        ),
        (("n8-easy.csv", "n8-hard.csv"), ("--leave-out hard", "--leave-out easy")),
        (("n8Train.csv", "n8Eval.csv"), ("--leave-out train", "--leave-out eval")),
        # two n, not of one metric
        (("n4_train.csv", "n8_val.csv"), ("--leave-out train", "--leave-out val")),
    ],
)
def test_sources_of_one_setting_that_differ_in_such_a_word_are_refused(tmp_path, names, options):
    """Both sources are named; each option that the message shows takes one of them, and says what
    it leaves out."""
    folder = write_logs(tmp_path / "logs", *names)
    with refused() as refusal:
        read_logs([folder], None, MAPS)
    message = str(refusal.value)
    assert all(str(folder / name) in message for name in names)
    taken = set()
    for option in options:
        assert option in message
        kind, word = option.split()
        choice = SourceChoice(only=(word,)) if kind == "--only" else SourceChoice(leave_out=(word,))
        result = read_logs([folder], None, MAPS, choice=choice)
        (run,) = result.runs
        taken.add(run.source.removesuffix(", line 2"))
        assert "1 log or run is left out" in str(result.notes)
    assert taken == {str(folder / name) for name in names}


@pytest.mark.parametrize(
    "names",
    [
        ("n8/seed0/log.csv", "n8/seed1/log.csv"),
        ("n8-run1.csv", "n8-run2.csv"),
        ("n8-s1.csv", "n8-s2.csv"),
        ("n8-replica-a.csv", "n8-replica-b.csv"),
        ("eval/n8-s0.csv", "eval/n8-s1.csv"),
        ("val1/n8.csv", "val2/n8.csv"),
        ("n8-trainer.csv", "n8-constrained.csv"),
        ("n8-part1.csv", "n8-part2.csv"),
        ("level5/n8-s0.csv", "level5/n8-s1.csv"),
    ],
)
def test_seeds_still_join(tmp_path, names):
    folder = write_logs(tmp_path / "logs", *names)
    assert [run.cell for run in read_logs([folder], None, MAPS).runs] == [
        Cell(8, 8, 0),
        Cell(8, 8, 1),
    ]


def test_one_kind_for_each_n_is_read(tmp_path):
    """All of validation; and an n whose only log says nothing beside one that does."""
    folder = write_logs(tmp_path / "logs", "n4_val.csv", "n8_validation.csv", "n16.csv")
    assert [run.cell.n for run in read_logs([folder], None, MAPS).runs] == [4, 8, 16]


def test_words_in_the_names_of_runs_count_too(logged):
    text = "run,step,acc\n" + "".join(
        f"n8-{kind},{i},{0.1 + i / 10}\n" for kind in ("train", "val") for i in range(3)
    )
    with refused(where="B_p = 8, n = 8"):
        logged("csv", text, "n=n{},B_p=8,reward=acc")
    chart = "Step,n8-train - acc,n8-val - acc\n0,.1,.1\n1,.2,.3\n"
    with refused(where="B_p = 8, n = 8"):
        logged("csv", chart, "n=n{},B_p=8")


def test_event_folders_of_train_and_validation_with_one_tag(tmp_path):
    """As Keras writes them; and add_scalars, which makes folders acc_train and acc_val."""
    for name, start in (("train", 0.2), ("validation", 0.1)):
        with SummaryWriter(str(tmp_path / "n8" / name)) as writer:
            for step in range(3):
                writer.add_scalar("epoch_acc", start + step / 10, step)
    maps = {"n": "n{}", "B_p": "8", "reward": "epoch_acc"}
    with refused(where="B_p = 8, n = 8"):
        read_logs([tmp_path], "tensorboard", maps)
    (run,) = read_logs(
        [tmp_path], "tensorboard", maps, choice=SourceChoice(only=("validation",))
    ).runs
    assert [p.metrics["epoch_acc"] for p in run.points] == pytest.approx([0.1, 0.2, 0.3])


def test_the_names_of_hosts_are_no_words(tmp_path):
    for i, host in enumerate(("dev-1", "gpu3")):
        with SummaryWriter(str(tmp_path / "n8" / f"Nov27_10-00-00_{host}")) as writer:
            for step in range(3):
                writer.add_scalar("val/acc", 0.1 + (step + i) / 10, step)
    runs = read_logs([tmp_path], "tensorboard", {"n": "8", "B_p": "8", "reward": "val/acc"}).runs
    assert [run.cell.seed for run in runs] == [0, 1]


def test_parts_of_a_resumed_run_that_differ_in_such_a_word_are_refused(tmp_path):
    folder = write_logs(tmp_path / "logs", "n8_train.csv")
    (folder / "n8_val.csv").write_text("step,acc\n30,.5\n40,.6\n")
    with refused(where="B_p = 8, n = 8"):
        read_logs([folder], None, MAPS | {"seed": "0"}, resumed=True)


def test_a_table_that_numbers_the_seeds_is_believed(tmp_path):
    folder = write_logs(tmp_path / "logs", "n8-test.csv", "n8-final.csv")
    (tmp_path / "table.csv").write_text("run,seed\nn8-test,0\nn8-final,1\n")
    settings = read_settings(tmp_path / "table.csv")
    assert [run.cell.seed for run in read_logs([folder], None, MAPS, settings).runs] == [0, 1]


def test_a_choice_that_takes_nothing_is_refused(tmp_path):
    folder = write_logs(tmp_path / "logs", "n8_train.csv", "n8_val.csv")
    with refused(where="--only and --leave-out"):
        read_logs([folder], None, MAPS, choice=SourceChoice(only=("test",)))


def test_a_log_that_is_not_taken_need_not_be_usable(tmp_path):
    folder = write_logs(tmp_path / "logs", "n8_val.csv")
    (folder / "n8_train.csv").write_text("step,loss\n0,2.5\n")
    paths = [folder / "n8_train.csv", folder / "n8_val.csv"]
    with refused(where="n8_train.csv"):
        read_logs(paths, None, MAPS)
    assert len(read_logs(paths, None, MAPS, choice=SourceChoice(only=("val",))).runs) == 1
    assert (
        len(read_logs(paths, None, MAPS, choice=SourceChoice(leave_out=("*train.csv",))).runs) == 1
    )


def test_what_is_named_as_training_is_no_validation_metric_unasked(tmp_path, logged):
    """Neither a column, nor the only metric of a file; a run that is named so is noted."""
    with refused(where="log.csv"):
        logged("csv", "step,acc_train,acc_val\n0,.1,.2\n1,.3,.4\n", "n=8,B_p=8")
    with refused(where="log.csv"):
        logged("csv", "step,metric,value\n0,acc_train,.2\n1,acc_train,.3\n", "n=8,B_p=8")
    folder = write_logs(tmp_path / "logs", "n8_train.csv", "n16_train.csv")
    assert "named as of training: " in str(read_logs([folder], None, MAPS).notes)


def test_other_words_in_which_names_differ_are_noted(tmp_path):
    assert other_words(["n8-easy-seed0", "n8-hard-run1"]) == ["easy", "hard"]
    assert other_words(["0.6b", "14b"]) == ["0.6b", "14b"]
    folder = write_logs(tmp_path / "logs", "n8-cosine.csv", "n8-linear.csv")
    assert "names of these differ in cosine, linear" in str(read_logs([folder], None, MAPS).notes)


@pytest.mark.parametrize(
    ("names", "settings"),
    [
        (("n8_lr1e-5.jsonl", "n8_lr1e-6.jsonl"), {"lr": ["1e-5", "1e-6"]}),
        (("n8_temp0.6.jsonl", "n8_temp1.0.jsonl"), {"temp": ["0.6", "1.0"]}),
        (("n8-T0.6-kl=0.001", "n8-T1-kl=0.01"), {"T": ["0.6", "1"], "kl": ["0.001", "0.01"]}),
        (("ctx_8k/n8.csv", "ctx_16k/n8.csv"), {"ctx": ["16k", "8k"]}),
        (("n8_zeta0.9", "n8_zeta0.95"), {"zeta": ["0.9", "0.95"]}),
        # Seeds, versions, ids, dates and addresses.
        (("n8_lr1e-5_seed0.csv", "n8_lr1e-5_seed1.csv"), {}),
        (("n8-run1.csv", "n8-run2.csv"), {}),
        (("n8-s1.5", "n8-s2.5"), {}),
        (("n8-replica-1", "n8-replica-2"), {}),
        (("n8-3f2a1e-4567-ab1e-4567", "n8-3f2a1e-4567-ab2e-4567"), {}),
        (("run-20261123_212753-k1lv9em4", "run-20261124_212753-k2lv9em5"), {}),
        (("n8-host10.0.0.1-x2026.11.27", "n8-host10.0.0.2-x2026.11.28"), {}),
    ],
)
def test_settings_in_which_names_differ(names, settings):
    assert other_settings(names) == settings


def test_settings_in_which_names_differ_are_noted(tmp_path):
    folder = write_logs(tmp_path / "logs", "n8_lr1e-5.csv", "n8_lr1e-6.csv")
    result = read_logs([folder], None, MAPS)
    assert "the names of these differ in lr (1e-5, 1e-6), so are they no seeds" in str(result.notes)
    seeds = write_logs(tmp_path / "seeds", "n8_lr1e-5_seed3.csv", "n8_lr1e-5_seed4.csv")
    assert "the names of these differ" not in str(read_logs([seeds], None, MAPS).notes)
