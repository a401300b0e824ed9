"""Exported configs say the recommended allocation in each trainer's own terms; check_with_peers.py
asks the trainers themselves.
"""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from isojax.core.config import load_config
from isojax.core.nouns import Allocation
from isojax.report.exporters import exporter
from isojax.scaling.allocate.recommend import recommend
from isojax.scaling.allocate.recommendation import GrowingRun
from tests.refusals import refused
from tests.scaling.documents import document

FIT = document()
CHOSEN = recommend(FIT, 1e5)  # 16x16, M = 390


def rendered(name, chosen=CHOSEN, saved=None):
    return exporter.load(name)(chosen, saved)


def growing_of(name):
    render_growing = exporter.load(name).traits.render_growing
    assert render_growing is not None
    return render_growing


def test_verl_counts_batches_in_prompts():
    result = yaml.safe_load(rendered("verl"))
    assert result.pop("defaults") == ["ppo_trainer", "_self_"]
    assert result == {
        "data": {"train_batch_size": 16},
        "algorithm": {"adv_estimator": "grpo"},
        "actor_rollout_ref": {
            "rollout": {"n": 16},
            "actor": {"ppo_mini_batch_size": 16, "ppo_epochs": 1},
        },
        "trainer": {"total_training_steps": 390, "total_epochs": 390},
    }


def test_trl_counts_batches_in_completions():
    result = yaml.safe_load(rendered("trl"))
    assert result == {
        "num_generations": 16,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 32,
        "generation_batch_size": 256,
        "num_iterations": 1,
        "max_steps": 390,
    }
    # n = 16 leaves B_p = 3, B = 48
    odd = yaml.safe_load(rendered("trl", recommend(FIT, 1e5, fix={"B": 52})))
    assert (odd["per_device_train_batch_size"], odd["gradient_accumulation_steps"]) == (8, 6)


def test_trl_refuses_a_single_rollout():
    with refused():
        rendered("trl", recommend(document({(16, 1): (0.6, 1.0, 2e3)}), 1e5))


def test_openrlhf_counts_rollouts_in_prompts_and_training_in_completions():
    lines = [line for line in rendered("openrlhf").splitlines() if not line.startswith("#")]
    assert lines == [
        "--rollout.batch_size 16",
        "--rollout.n_samples_per_prompt 16",
        "--train.batch_size 256",
        "--train.max_epochs 1",
        "--train.num_episodes 1",
        "--data.max_samples 6240",
        "--algo.advantage.estimator group_norm",
    ]
    with refused():
        rendered("openrlhf", recommend(document({(16, 1): (0.6, 1.0, 2e3)}), 1e5))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "tunix",
            {
                "batch_size": 16,
                "num_batches": 390,
                "grpo_config": {"num_generations": 16, "num_iterations": 1},
            },
        ),
        (
            "maxtext",
            {
                "base_config": "rl.yml",
                "batch_size": 16,
                "num_batches": 390,
                "num_epoch": 1,
                "train_fraction": 1.0,
                "rl": {"num_generations": 16, "num_iterations": 1},
            },
        ),
        (
            "nemo_rl",
            {
                "defaults": "grpo_math_1B.yaml",
                "grpo": {
                    "num_prompts_per_step": 16,
                    "num_generations_per_prompt": 16,
                    "max_num_steps": 390,
                    "max_num_epochs": 390,
                },
                "policy": {"train_global_batch_size": 256},
            },
        ),
    ],
)
def test_trainers_that_count_batches_in_prompts(name, expected):
    assert yaml.safe_load(rendered(name)) == expected


@pytest.mark.parametrize("name", ["openrlhf", "tunix", "maxtext"])
def test_a_small_dataset_needs_several_epochs(name):
    """These trainers end after one pass, before M updates."""
    assert "# With a dataset of D < B_p M = 6240 prompts, " in rendered(name)


def test_isojax_needs_the_sweeps_config():
    with refused():
        rendered("isojax")
    sweep = load_config("quickstart", [])
    result = yaml.safe_load(rendered("isojax", saved=sweep))
    assert (result["sweep"]["B_p"], result["sweep"]["n"], result["sweep"]["budget"]) == (
        [16],
        [16],
        99840,
    )


@pytest.mark.parametrize("name", ["verl", "trl", "openrlhf", "tunix", "maxtext", "nemo_rl"])
def test_comments_hold_the_promise_the_reasons_and_the_learning_rate(name):
    text = rendered(name)
    head = [line for line in text.splitlines() if line.startswith("#")]
    assert (
        text.startswith("\n".join(head))
        and "B_p = 16" in head[0]
        and "Expected avg@4: 0.66" in head[1]
    )
    assert any("16x16 has the highest predicted reward" in line for line in head) and any(
        "if your runs scaled it with sqrt(B)" in line for line in head
    )
    known = rendered(name, saved=load_config("quickstart", []))
    assert "0.001 * sqrt(B / 1024), gives 0.0005 at B = 256" in known
    assert "The rate is constant after 10 updates of warm-up." in known  # some trainers decay it


@pytest.mark.parametrize(
    ("scaling", "text"),
    [
        ("constant", "Learning rate: 0.001, the sweep's for every B; here B = 256."),
        (
            "linear",
            "Learning rate: the sweep's rule, 0.001 * (B / 1024), gives 0.00025 at B = 256.",
        ),
        (
            "sqrt",
            "Learning rate: the sweep's rule, 0.001 * sqrt(B / 1024), gives 0.0005 at B = 256.",
        ),
    ],
)
def test_the_learning_rate_follows_the_sweeps_rule(scaling, text):
    saved = load_config("quickstart", [f"cell.rl.lr_scaling={scaling}"])
    assert f"# {text} The key is " in rendered("verl", saved=saved)


def test_text_from_a_log_stays_in_its_comment():
    reasons = (*CHOSEN.reasons, "B_p=4 is unstable: fell\ntrainer: {total_epochs: 1}")
    text = rendered("verl", replace(CHOSEN, reasons=reasons))
    assert yaml.safe_load(text)["trainer"]["total_epochs"] == 390


SERIES = replace(
    CHOSEN,
    growing=GrowingRun("16x4, 16x8 from 1000, 16x16 from 20000", 0.7, 0.02, (0.0, 0.04), 0.9),
)


def test_a_schedule_is_a_series_of_runs_of_verl():
    """16 updates of 64 rollouts pass 1000; 149 of 128, 20000; the rest of 99,840 are 311 of 256."""
    texts = growing_of("verl")(SERIES, None, "best")
    runs = [yaml.safe_load(text) for text in texts]
    assert [run["actor_rollout_ref"]["rollout"]["n"] for run in runs] == [4, 8, 16]
    ends = [16, 16 + 149, 16 + 149 + 311]
    assert [run["trainer"]["total_training_steps"] for run in runs] == ends
    assert (
        [run["trainer"]["save_freq"] for run in runs]
        == ends
        == [run["trainer"]["total_epochs"] for run in runs]
    )
    assert {
        (run["trainer"]["resume_mode"], run["trainer"]["default_local_dir"]) for run in runs
    } == {("auto", "checkpoints/best")}
    assert "# Run 2 of 3, from C = 1024 on" in texts[1] and "expected to end at 0.700" in texts[1]


def test_a_schedule_is_a_series_of_runs_of_trl():
    texts = growing_of("trl")(SERIES, None, "best")
    runs = [yaml.safe_load(text) for text in texts]
    assert [
        (run["num_generations"], run["generation_batch_size"], run["max_steps"]) for run in runs
    ] == [
        (4, 64, 16),
        (8, 128, 149),
        (16, 256, 311),
    ]
    assert [run["output_dir"] for run in runs] == ["best-1", "best-2", "best-3"]
    assert [run.get("model_name_or_path") for run in runs] == [None, "best-1", "best-2"]
    assert "--model_name_or_path" in texts[0] and "--model_name_or_path" not in texts[1]


@pytest.mark.parametrize("name", ["verl", "trl"])
def test_a_stage_without_an_update_is_no_run(name):
    """99,840 rollouts end before the first update of n = 64; TRL would take max_steps = 0 for whole
    epochs."""
    growing = replace(SERIES.growing, schedule="16x4, 16x8 from 1000, 16x64 from 99000")
    texts = growing_of(name)(replace(SERIES, growing=growing), None, "best")
    assert len(texts) == 2 and "# Run 2 of 2, from C = 1024 on" in texts[1]


def test_isojaxs_config_of_an_adaptive_sweep_is_of_one_run_to_its_end():
    sweep = load_config("quickstart", ["sweep.strategy=adaptive", "sweep.total_rollouts=50000"])
    (growing,) = growing_of("isojax")(SERIES, sweep, "best")
    for text in (rendered("isojax", saved=sweep), growing):
        result = yaml.safe_load(text)["sweep"]
        assert (result["strategy"], result["total_rollouts"], result["budget"]) == (
            "grid",
            None,
            99840,
        )


@pytest.mark.parametrize("name", ["isojax", "verl", "trl"])
def test_no_schedule_where_none_is_expected_to_gain(name):
    with refused():
        growing_of(name)(replace(CHOSEN, growing=None), load_config("quickstart", []), "best")


def test_a_fork_adds_a_framework(tmp_path, monkeypatch):
    (tmp_path / "my_trainer_fork.py").write_text(
        "from isojax.report.exporters import exporter\n"
        "@exporter(how_to_run='x {file}')\n"
        "def render(chosen, saved):\n    return f'n: {chosen.allocation.n}'\n"
    )
    (tmp_path / "my_fork_of_isojax").mkdir()
    (tmp_path / "my_trainer_fork.py").rename(tmp_path / "my_fork_of_isojax" / "trainer.py")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ISOJAX_PLUGIN_FOLDERS", "")  # other tests of this process set it
    assert rendered("my_fork_of_isojax.trainer") == "n: 16"
    sys.modules.pop("my_fork_of_isojax.trainer")
    with refused(where="@exporter"):
        exporter(lambda chosen, saved: "n: 16")
    with refused(where="exporters plug-in 'nemo'"):
        rendered("nemo")


def test_the_exporter_of_the_page(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
    code = re.search(r"```python\n# (my_trainer.py)\n(.*?)```", page, re.S)
    assert code is not None
    (tmp_path / code[1]).write_text(code[2])
    monkeypatch.chdir(tmp_path)
    text = rendered("my_trainer")
    assert text.startswith("# expected ")
    assert yaml.safe_load(text) == {
        "prompts_per_batch": 16,
        "rollouts_per_prompt": 16,
        "updates": 390,
    }


# 195 updates of two batches of 16 x 16 are the 99,840 rollouts of 390 updates of one batch.
TWO_BATCHES = replace(CHOSEN, allocation=Allocation(16, 16, 195, batches=2.0))
DYNAMIC = load_config("quickstart", ["cell.rl.dynamic_sampling=6", "cell.rl.max_staleness=null"])


def test_verl_replaces_groups_too():
    for saved in (DYNAMIC, None):  # a log says by its C alone that groups were replaced
        text = rendered("verl", TWO_BATCHES, saved)
        result = yaml.safe_load(text)
        assert result["data"] == {"train_batch_size": 16, "gen_batch_size": 16}
        assert result["algorithm"] == {
            "adv_estimator": "grpo",
            "filter_groups": {"enable": True, "metric": "acc", "max_num_gen_batches": 0},
        }
        # A pass over a dataset of one batch is half an update on average: 390 passes, and as many
        # again.
        assert result["trainer"] == {"total_training_steps": 195, "total_epochs": 780}
        assert (
            "M = 195 updates of 2.00 batches on average; C = 99840 rollouts."
            in text.splitlines()[0]
        )


def test_nemo_rl_replaces_groups_too():
    result = yaml.safe_load(rendered("nemo_rl", TWO_BATCHES, DYNAMIC))
    assert result["grpo"] == {
        "num_prompts_per_step": 16,
        "num_generations_per_prompt": 16,
        "max_num_steps": 195,
        "max_num_epochs": 780,
        "use_dynamic_sampling": True,
        "batch_multiplier": 1,
        "dynamic_sampling_max_gen_batches": 12,  # twice the recipe's limit, where NeMo-RL gives up
    }
    logged = yaml.safe_load(rendered("nemo_rl", TWO_BATCHES))
    assert logged["grpo"]["dynamic_sampling_max_gen_batches"] == 10


def test_openrlhf_replaces_groups_too():
    """It counts the prompts that it samples: 99,840 rollouts are 6,240 of them."""
    text = rendered("openrlhf", TWO_BATCHES, DYNAMIC)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert "--data.max_samples 6240" in lines and lines[-1] == "--algo.dynamic_filtering_enable"
    assert "# With a dataset of D < C / n = 6240 prompts, train.num_episodes is 6240 / D." in text


@pytest.mark.parametrize(
    ("name", "trainer", "M_key"),
    [
        ("trl", "TRL", "max_steps"),
        ("tunix", "Tunix", "num_batches"),
        ("maxtext", "MaxText", "num_batches"),
    ],
)
def test_trainers_without_dynamic_sampling_say_so(name, trainer, M_key):
    """They spend the same rollouts on updates of one batch."""
    text = rendered(name, TWO_BATCHES, DYNAMIC)
    assert yaml.safe_load(text)[M_key] == 390
    assert f"# {trainer} has no dynamic sampling: groups of equal rewards stay" in text
    assert "these 99840 rollouts are M = 390 updates" in text
    assert rendered(name, TWO_BATCHES).count("has no dynamic sampling") == 1
    assert "dynamic sampling" not in rendered(name)


def test_isojaxs_config_keeps_its_dynamic_sampling():
    result = yaml.safe_load(rendered("isojax", TWO_BATCHES, DYNAMIC))
    assert result["cell"]["rl"]["dynamic_sampling"] == 6
    assert (result["sweep"]["budget"], result["name"]) == (99840, "quickstart-16x16-C99840")


def test_the_stages_of_a_schedule_have_their_own_batches():
    """Of 1,000, 19,000 and 79,840 rollouts at 64, 128 and 256 a batch, updates take 1, 2 and 4
    batches."""
    growing = replace(SERIES.growing, batches=(1.0, 2.0, 4.0))
    series = replace(TWO_BATCHES, growing=growing)
    M = [1000 // 64, 19_000 // 256, 79_840 // 1024]
    verl_runs = [yaml.safe_load(text) for text in growing_of("verl")(series, DYNAMIC, "best")]
    assert [run["trainer"]["total_training_steps"] for run in verl_runs] == [
        M[0],
        sum(M[:2]),
        sum(M),
    ]
    trl_runs = [yaml.safe_load(text) for text in growing_of("trl")(series, DYNAMIC, "best")]
    # TRL spends each stage's rollouts on updates of one batch.
    assert [run["max_steps"] for run in trl_runs] == [M[0], 2 * M[1], 4 * M[2]]
    short = replace(
        series, growing=replace(growing, schedule="16x4, 16x8 from 1000, 16x16 from 99000")
    )
    # 840 rollouts are less than an update of four batches
    assert len(growing_of("verl")(short, DYNAMIC, "best")) == 2
