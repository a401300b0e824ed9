"""Configs: reading with overrides, what is refused and how, the hash, saving, and what a resumed
sweep may change."""

from __future__ import annotations

from pathlib import Path

import pytest

from isojax.core.config import (
    Config,
    PrecisionConfig,
    config_hash,
    load_config,
    save_config,
)
from isojax.core.config.data import RewardConfig, VerifierConfig, score_weights
from isojax.core.config.load import find_config
from isojax.launch.resume import check_resume
from tests.refusals import refused


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, text: str, name: str = "my.yaml") -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def refusal_text(name: str, *overrides: str) -> str:
    with refused() as e:
        load_config(name, overrides)
    return str(e.value)


def test_a_path_then_local_configs_then_the_packaged_ones(folder: Path) -> None:
    packaged = find_config("quickstart")
    assert packaged.name == "quickstart.yaml" and packaged.is_absolute()
    local = write(folder, "name: mine", "configs/quickstart.yaml")
    assert find_config("quickstart").samefile(local)
    assert find_config("quickstart.yaml").samefile(local)
    write(folder, "name: deep", "configs/recipes/easy.yaml")
    assert load_config("recipes/easy").name == "deep"
    named = write(folder, "name: here")
    assert load_config(named).name == "here"


def test_an_unknown_config_names_the_nearest(folder: Path) -> None:
    assert "Did you mean 'quickstart'" in refusal_text("quikstart")


def test_overrides_replace_yaml_and_yaml_replaces_defaults(folder: Path) -> None:
    path = write(folder, "sweep: {n: [2, 4], budget: 5000}\ncell: {rl: {kl: 0}}\n")
    config = load_config(
        path,
        [
            "sweep.n=[8, 16]",
            "cell.rl.learning_rate=2e-3",
            "run.mesh=data=2,tensor=1",
            "sweep.decode_slots=null",
        ],
    )
    assert config.sweep.n == (8, 16)
    assert config.sweep.budget == 5000
    assert config.sweep.B_p == Config().sweep.B_p
    assert config.cell.rl.kl == 0.0 and isinstance(config.cell.rl.kl, float)
    assert config.cell.rl.learning_rate == 2e-3
    assert config.run.mesh == "data=2,tensor=1"
    assert config.sweep.decode_slots is None


def test_a_later_config_replaces_an_earlier_one(folder: Path) -> None:
    """Sections key by key; lists, and maps of the user's own names, as a whole."""
    a = write(
        folder,
        (
            "name: a\nsweep: {n: [2, 4], budget: 5000}\ncell: {data: {mixture: {hard: 1.0, easy: "
            "1.0}}, rl: {kl: 0.1}}"
        ),
        "a.yaml",
    )
    b = write(
        folder,
        "sweep: {n: [8]}\ncell: {data: {mixture: {very_easy: 1.0}, size: 50}, rl: {entropy: 0.2}}",
        "b.yaml",
    )
    both = load_config([a, b], ["sweep.budget=6000"])
    assert (both.name, both.sweep.n, both.sweep.budget) == ("a", (8,), 6000)
    assert (both.cell.rl.kl, both.cell.rl.entropy) == (0.1, 0.2)
    assert both.cell.data.mixture == {"very_easy": 1.0} and both.cell.data.size == 50
    assert load_config([b, a]).cell.data.mixture == {"hard": 1.0, "easy": 1.0}
    assert load_config([b, a]).sweep.n == (2, 4) and load_config([a, b, a]).sweep.n == (2, 4)
    assert load_config([a]) == load_config(a)


def test_an_override_replaces_a_map_or_reaches_into_it(folder: Path) -> None:
    path = write(
        folder,
        (
            "cell: {eval: {extra: {aime: 'jsonl:aime.jsonl'}}, data: {mixture: {hard: 1.0, easy: "
            "1.0}}}"
        ),
    )
    assert load_config(path, ["cell.data.mixture={hard: 0.25}"]).cell.data.mixture == {"hard": 0.25}
    assert load_config(path, ["cell.data.mixture.easy=0.5"]).cell.data.mixture == {
        "hard": 1.0,
        "easy": 0.5,
    }
    assert load_config(path, ["cell.data.mixture=null"]).cell.data.mixture is None
    assert load_config(path, ["cell.eval.extra.amc=jsonl:amc.jsonl"]).cell.eval.extra == {
        "aime": "jsonl:aime.jsonl",
        "amc": "jsonl:amc.jsonl",
    }


def test_of_several_configs_the_one_at_fault_is_named(folder: Path) -> None:
    good = write(folder, "sweep: {budget: 5000}", "good.yaml")
    bad = write(folder, "sweep: {budget: lots}", "bad.yaml")
    with refused(where="bad.yaml: sweep.budget"):
        load_config([bad, good, bad])
    # what another value replaces is never read as one
    assert load_config([bad, good]).sweep.budget == 5000
    with refused(where="unknown.yaml"):
        load_config([good, write(folder, "sweep: {budgte: 1}", "unknown.yaml")])
    with refused(where="broken.yaml, line 1"):
        load_config([good, write(folder, "sweep: {budget: [", "broken.yaml")])
    with refused(where="config"):
        load_config([good, "none"])
    with refused(where="override 'sweep.budget=x': sweep.budget"):
        load_config([good], ["sweep.budget=x"])


def test_an_empty_file_is_the_defaults_and_gives_its_name(folder: Path) -> None:
    (folder / ".my sums.yaml").write_text("# nothing\n")
    assert load_config(str(folder / ".my sums.yaml")) == Config(name="my-sums")
    assert load_config([str(folder / ".my sums.yaml")], ["name=mine"]).name == "mine"


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("sweep.budgte", "sweep.budget"),
        ("budget", "sweep.budget"),
        ("cell.rl.klx", "cell.rl.kl"),
        ("swep.seed", "sweep.seed"),
        ("cell.rl.lr", "cell.rl.learning_rate"),
        ("lr", "cell.rl.learning_rate"),
        ("cell.base.lr", "cell.base.learning_rate"),
        ("cell.rl.learn_rate", "cell.rl.learning_rate"),
        ("cell.sampling.temp", "cell.sampling.temperature"),
        ("cell.max_completion_length", "cell.sampling.response_length"),
        ("num_generations", "sweep.n"),
        ("cell.rl.train_batch_size", "sweep.B_p"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(folder: Path, key: str, nearest: str) -> None:
    empty = write(folder, "")
    with refused(where="override", found=repr(key), fix=repr(nearest)):
        load_config(empty, [f"{key}=1"])
    parts = key.split(".")
    nested = "".join("  " * i + f"{part}:\n" for i, part in enumerate(parts))[:-1] + " 1\n"
    with refused(where="my.yaml", fix=repr(nearest)):
        load_config(write(folder, nested))


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("sweep.budget=lots", ["sweep.budget", "'lots'", "integer"]),
        ("sweep.budget=1e6", ["sweep.budget", "1000000.0", "integer", "Write 1000000"]),
        ("sweep.budget=true", ["sweep.budget", "True", "integer"]),
        ("sweep.budget=0", ["sweep.budget", "given 0", "greater than 0"]),
        ("sweep.n=4", ["sweep.n", "given 4", "list", "[4]"]),
        ("sweep.n=[2,x]", ["sweep.n.1", "'x'", "integer"]),
        ("sweep.remat=skip", ["sweep.remat", "'skip'", "'none' or 'layer'"]),
        ("cell.rl.kl='0.1'", ["cell.rl.kl", "'0.1'", "number"]),
        ("cell.rl.kl=.nan", ["cell.rl.kl", "nan", "finite"]),
        (
            "cell.reward.weights={a: 1e308, b: 1e308}",
            ["cell.reward.weights", "weights from 0 to 1,000,000,000"],
        ),
        ("cell.reward.weights={a: .nan}", ["cell.reward.weights.a", "nan", "finite"]),
        ("cell.data.difficulty=[0.1, 1e999]", ["cell.data.difficulty", "inf", "finite"]),
        (
            "cell.prompt.template={prompt} =",
            ["cell.prompt.template={prompt} =", "not YAML", """'cell.prompt.template="..."'"""],
        ),
        (
            "cell.prompt.template={prompt}",
            ["cell.prompt.template", "string", """cell.prompt.template='"..."'"""],
        ),
        ("cell.data.difficulty=[0,1,2]", ["cell.data.difficulty", "at most 2"]),
        ("name=7", ["name", "given 7", "string"]),
        ("name=../up", ["name", "../up", "pattern"]),
        ("sweep=3", ["sweep", "given 3", "section"]),
        ("sweep.n=[2", ["sweep.n=[2", "YAML"]),
        ("run.dir=${nowhere}", ["nowhere"]),
        ("sweep.seed", ["'sweep.seed'", "key=value"]),
        ("=3", ["'=3'", "key=value"]),
    ],
)
def test_a_wrong_override_names_key_value_and_expectation(
    folder: Path, override: str, parts: list[str]
) -> None:
    message = refusal_text(write(folder, ""), override)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_a_wrong_type_in_yaml_names_the_file(folder: Path) -> None:
    with refused(where="my.yaml: sweep.budget", found="lots", expected="integer"):
        load_config(write(folder, "sweep: {budget: lots}"), ["sweep.seed=1"])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("name: a\nsweep: {n: [2,\nrun: 1\n", 3),
        ("name: a\nname: b\n", 2),
        ("sweep:\n  n: 1\n bad: 2\n", 3),
    ],
)
def test_broken_yaml_is_named_with_file_and_line(folder: Path, text: str, line: int) -> None:
    message = refusal_text(write(folder, text))
    assert "my.yaml, line " in message and "not YAML" in message
    assert abs(int(message.split("line ")[1].split(":")[0]) - line) <= 1


def test_what_is_no_config_at_all_is_refused(folder: Path) -> None:
    assert "given a list" in refusal_text(write(folder, "- a\n- b\n"))
    (folder / "bytes.yaml").write_bytes(b"name: \xff\n")
    assert "bytes.yaml" in refusal_text("bytes.yaml")


def test_the_hash_follows_the_cell_alone() -> None:
    a = load_config("quickstart")
    assert len(config_hash(a.cell)) == 12 and int(config_hash(a.cell), 16) >= 0
    assert config_hash(a.cell) == config_hash(
        load_config("quickstart", ["sweep.seed=9", "run.dir=x", "name=y"]).cell
    )
    assert config_hash(a.cell) != config_hash(load_config("quickstart", ["cell.rl.kl=0.21"]).cell)
    assert config_hash(Config().cell) == config_hash(read_int_as_float().cell)


def read_int_as_float() -> Config:
    """0 for 0.0 is the same config, and so the same hash."""
    return Config.model_validate_json('{"cell": {"rl": {"kl": 0, "max_grad_norm": 1}}}')


def test_a_saved_config_reads_back_equal(tmp_path: Path) -> None:
    config = load_config(
        "quickstart",
        ["name='1e5'", "run.mesh=data=2", "cell.rl.learning_rate=1e-5", "sweep.decode_slots=16"],
    )
    save_config(config, tmp_path / "deep" / "config.yaml")
    assert load_config(str(tmp_path / "deep" / "config.yaml")) == config
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["config.yaml"]
    save_config(Config(), tmp_path / "deep" / "config.yaml")
    assert load_config(str(tmp_path / "deep" / "config.yaml")) == Config()


OLD = Config.model_validate_json(
    '{"sweep": {"B_p": [16], "n": [2, 4], "seeds": 2, "budget": 5000, "decode_slots": 32, "B_max": '
    "64}}"
)


def changed(**sweep: object) -> Config:
    return OLD.model_copy(update={"sweep": OLD.sweep.model_copy(update=sweep)})


@pytest.mark.parametrize(
    "new",
    [
        OLD,
        changed(B_p=(8, 16), n=(4, 2, 8), seeds=3, budget=6000),
        changed(decode_slots=None, microbatch=8, B_max=4096),
        OLD.model_copy(
            update={"run": OLD.run.model_copy(update={"mesh": "data=8", "dir": "elsewhere"})}
        ),
    ],
)
def test_a_sweep_may_grow(new: Config) -> None:
    check_resume(OLD, new)


@pytest.mark.parametrize(
    ("sweep", "parts"),
    [
        ({"n": (4, 8)}, ["sweep.n", "[2, 4]", "[4, 8]"]),
        ({"B_p": (32,)}, ["sweep.B_p", "[16]", "[32]"]),
        ({"seeds": 1}, ["sweep.seeds", "2", "1"]),
        ({"seed": 1}, ["sweep.seed", "0", "1"]),
        ({"budget": 4999}, ["sweep.budget", "5000", "4999"]),
        ({"decode_slots": 16}, ["sweep.decode_slots", "32", "16"]),
    ],
)
def test_a_sweep_may_not_change_what_has_run(sweep: dict[str, object], parts: list[str]) -> None:
    with refused(where="sweep") as e:
        check_resume(OLD, changed(**sweep))
    for part in parts:
        assert part in str(e.value)


def test_a_lower_B_max_is_free_while_no_cell_is_lost() -> None:
    higher = changed(B_max=100)  # 16 x 4 = 64 is the largest cell
    lower = higher.model_copy(update={"sweep": higher.sweep.model_copy(update={"B_max": 64})})
    check_resume(higher, lower)
    with refused(where="sweep.B_max"):
        check_resume(changed(B_p=(8, 16)), changed(B_p=(8, 16), B_max=63))


def test_a_changed_cell_or_name_is_refused() -> None:
    new = Config.model_validate(
        {**dict(OLD), "cell": Config.model_validate_json('{"cell": {"rl": {"kl": 0.5}}}').cell}
    )
    with refused(where="cell.rl.kl"):
        check_resume(OLD, new)
    with refused(where="name"):
        check_resume(OLD, OLD.model_copy(update={"name": "other"}))


def test_extra_sets_are_named_so_that_their_metrics_are_not_others(folder: Path) -> None:
    """hard/avg@4 is a metric of the set `hard`; train/..., verl/... and a/b/... mean something
    else."""
    assert load_config(
        "quickstart", ["cell.eval.extra.aime-24=jsonl:aime.jsonl"]
    ).cell.eval.extra == {"aime-24": "jsonl:aime.jsonl"}
    for name in ("train", "verl", "panel", "a/b", "x@4", "''"):
        output = refusal_text("quickstart", f"cell.eval.extra={{{name}: solvers}}")
        assert "cell.eval.extra: given" in output and "expected names of letters" in output, output
        assert output.endswith(
            "other than train, verl, panel. Rename the set {!r}.".format(name.strip("'"))
        ), output


def test_a_panel_is_another_cell() -> None:
    assert config_hash(load_config("quickstart", ["cell.eval.panel=0"]).cell) != config_hash(
        load_config("quickstart", ["cell.eval.panel=9"]).cell
    )
    assert "greater than or equal to 0" in refusal_text("quickstart", "cell.eval.panel=-1")


def test_the_graded_rewards_of_the_docs(tmp_path: Path) -> None:
    text = (
        (Path(__file__).parents[2] / "docs" / "problems.md")
        .read_text()
        .partition("## Graded rewards")[2]
    )
    (tmp_path / "graded.yaml").write_text(text.partition("```yaml\n")[2].partition("```")[0])
    cell = load_config(str(tmp_path / "graded.yaml")).cell
    assert score_weights(cell.verifier, cell.reward) == {"accuracy": 1.0, "format": 0.2}
    alike = cell.reward.model_copy(update={"weights": None})
    assert score_weights(cell.verifier, alike) == {"accuracy": 1.0, "format": 1.0}
    assert score_weights(VerifierConfig(), alike) == {"score": 1.0}
    assert score_weights(VerifierConfig(), RewardConfig()) == {}


def test_rewards_that_are_binary_leave_the_hash_as_it_was() -> None:
    binary = load_config("quickstart", ["cell.reward.kind=binary", "cell.reward.weights=null"])
    assert config_hash(binary.cell) == config_hash(load_config("quickstart").cell) == "e9901dc084af"
    assert config_hash(binary.cell) != config_hash(
        load_config("quickstart", ["cell.reward.kind=graded"]).cell
    )


def test_the_hash_is_of_what_differs_from_the_defaults() -> None:
    """A default that is written out is no other cell; whatever differs is one, in any section and
    depth."""
    assert config_hash(Config().cell) == config_hash(load_config("quickstart", ALL_DEFAULTS).cell)
    hashes = {
        config_hash(load_config("quickstart", [*ALL_DEFAULTS, change]).cell) for change in CHANGES
    }
    assert len(hashes - {config_hash(Config().cell)}) == len(CHANGES)


ALL_DEFAULTS = [
    "cell.task=solvers",
    "cell.base.steps=1500",
    "cell.data.candidates=6000",
    "cell.data.validation=300",
    "cell.rl.kl=0",
    "cell.rl.entropy=0",
    "cell.eval.panel=0",
    "cell.eval.ratio=1.3",
]
CHANGES = [
    "cell.task=solvers:AB",
    "cell.precision.compute=float32",
    "cell.rl.clip=0.2",
    "cell.rl.critic={}",
    "cell.rl.critic={warmup: 3}",
    "cell.data.mixture={hard: 1.0}",
    "cell.eval.extra={ood: solvers}",
    "cell.sampling.interrupt={after: 2}",
    "cell.model.rope_scaling={}",
]


def test_an_interruption_is_another_cell() -> None:
    plain = load_config("quickstart", ["cell.sampling.interrupt=null"]).cell
    assert config_hash(plain) == config_hash(load_config("quickstart").cell)
    cell = load_config("quickstart", ["cell.sampling.interrupt={after: 9}"]).cell
    assert cell.sampling.interrupt is not None and cell.sampling.interrupt.unless == "</think>"
    assert config_hash(cell) != config_hash(plain)
    assert "at least 1 character" in refusal_text(
        "quickstart", "cell.sampling.interrupt={after: 9, text: ''}"
    )


def test_precision_is_decided_by_the_backend() -> None:
    """float32 on a CPU, bfloat16 on accelerators, the cache as what is computed; what is set
    stays."""
    assert PrecisionConfig().for_platform("cpu") == PrecisionConfig(
        compute="float32", cache="float32"
    )
    assert PrecisionConfig().for_platform("tpu") == PrecisionConfig(
        compute="bfloat16", cache="bfloat16"
    )
    assert PrecisionConfig(cache="int8").for_platform("gpu") == PrecisionConfig(
        compute="bfloat16", cache="int8"
    )
    assert PrecisionConfig(compute="float32").for_platform("gpu") == PrecisionConfig(
        compute="float32", cache="float32"
    )


def test_a_folder_below_the_home_folder_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell leaves the ~ of an override, and YAML does too."""
    monkeypatch.setenv("HOME", "/home/ada")
    config = load_config("quickstart", ["run.dir=~/runs", "cell.model.path=~/models/lm"])
    assert (config.run.dir, config.cell.model.path) == ("/home/ada/runs", "/home/ada/models/lm")
    assert load_config("quickstart", ["run.dir=gs://bucket/~/runs"]).run.dir == "gs://bucket/~/runs"


def test_null_leaves_a_setting_that_is_proposed_unset(tmp_path: Path) -> None:
    """What a text task must set, and what `launch` proposes values for: a null asks for the
    proposal again."""
    (tmp_path / "mine.yaml").write_text(
        "cell:\n  sampling: {prompt_length: 32, response_length: null}\n  rl: {learning_rate: "
        "1.0e-5}\n"
    )
    words = ["cell.sampling.prompt_length=null", "cell.rl.learning_rate=null"]

    as_written = load_config(str(tmp_path / "mine.yaml")).cell
    config = load_config(str(tmp_path / "mine.yaml"), words).cell

    assert as_written.sampling.model_fields_set == {"prompt_length"}
    assert (
        config.sampling.model_fields_set == set()
        and "learning_rate" not in config.rl.model_fields_set
    )
    with refused(where="override 'cell.sampling.temperature=null"):
        load_config(str(tmp_path / "mine.yaml"), ["cell.sampling.temperature=null"])
