"""What the local runner refuses before any work, and what it takes a folder for. Nothing here
starts jax."""

from __future__ import annotations

from pathlib import Path

import pytest

from isojax.core.config import Config, DataConfig, PrecisionConfig, SweepConfig, save_config
from isojax.distributed.mesh_spec import MeshShape
from isojax.launch.device_budget import DeviceBudget
from isojax.launch.display import Rent, print_plan
from isojax.launch.forecast import Forecast, TimePart
from isojax.launch.local.sweep_checks import check_batch, check_data, check_precision
from isojax.launch.memory_model import SamplingPlan
from isojax.launch.planner import plan_cells, resolve_sweep_sizes
from isojax.launch.resume import config_for_folder, print_remaining
from isojax.launch.time_estimate import GIB
from isojax.models.describe_sizes import describe_sizes
from isojax.runs.storage import exclusive_lock
from tests.refusals import refused

CONFIG = Config(name="here", sweep=SweepConfig(B_p=(8,), n=(4,)))


def test_a_folder_is_held_by_one_process_at_a_time(tmp_path: Path) -> None:
    with (
        exclusive_lock(tmp_path / "run"),
        refused(where="run"),
        exclusive_lock(tmp_path / "run"),
    ):
        pass
    with exclusive_lock(tmp_path / "run"):
        pass


@pytest.mark.parametrize(
    ("strategy", "times"),
    [
        ("grid", ["training 100 s", "evaluations 50 s", "the sweep 2.5 min", "from a probe"]),
        ("spend", ["time: 20 s at most, with the slowest n, from a probe"]),
        ("adaptive", ["the sweep 2.5 min", "sweep.strategy=adaptive spends less"]),
    ],
)
def test_the_time_of_a_plan_says_what_it_is_of(
    strategy: str, times: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = resolve_sweep_sizes(CONFIG.sweep, 1, CONFIG.cell).model_copy(
        update={"strategy": strategy}
    )
    config, cells = CONFIG.model_copy(update={"sweep": sweep}), plan_cells(sweep)
    budget = DeviceBudget(
        CONFIG.cell,
        [(8, 4)],
        MeshShape(),
        describe_sizes(CONFIG.cell.model, 1000),
        SamplingPlan(),
        "cpu",
        GIB,
    )
    parts = [TimePart("training", 100.0), TimePart("evaluations", 50.0)]
    forecast = Forecast({(8, 4): 50.0}, {cell.kind: 20.0 for cell in cells}, parts, "a probe")
    print_plan(config, cells, "runs/here", "1 run at once", budget, forecast)
    printed = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert all(time in printed for time in times)


def test_a_plan_has_the_price_of_each_part(capsys: pytest.CaptureFixture[str]) -> None:
    """16 chips for half an hour, and for an hour and a half in all, at 2.5 each."""
    sweep = resolve_sweep_sizes(CONFIG.sweep, 1, CONFIG.cell)
    config, cells = CONFIG.model_copy(update={"sweep": sweep}), plan_cells(sweep)
    policy = describe_sizes(CONFIG.cell.model, 1000)
    budget = DeviceBudget(CONFIG.cell, [(8, 4)], MeshShape(), policy, SamplingPlan(), "tpu", GIB)
    parts = [TimePart("labels", 1800.0, "10 rollouts"), TimePart("training", 3600.0)]
    forecast = Forecast({(8, 4): 50.0}, {cell.kind: 20.0 for cell in cells}, parts, "a probe")
    rent = Rent(16, "chip", price=2.5)
    print_plan(config, cells, "runs/here", "1 run at once", budget, forecast, rent)
    printed = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "labels 10 rollouts 30 min 8 20.00" in printed
    assert "the sweep 90 min 24 60.00" in printed


def test_a_folder_that_cannot_be_looked_into_is_refused(tmp_path: Path) -> None:
    with refused(found="File name too long"):
        config_for_folder(CONFIG, tmp_path / ("x" * 300), False)


@pytest.mark.parametrize(
    "data",
    [
        DataConfig(difficulty=(0.6, 0.1)),
        DataConfig(candidates=500, validation=300),
    ],
)
def test_a_split_that_cannot_be_is_refused(data: DataConfig) -> None:
    with refused(where="cell.data"):
        check_data(data)


def test_what_a_cpu_cannot_compile_is_refused() -> None:
    """A sum of bfloat16 over devices, by which XLA:CPU aborts."""
    low, split = PrecisionConfig(compute="bfloat16"), MeshShape(sequence=2)
    for precision, shape, backend in (
        (PrecisionConfig(compute="float32"), split, "cpu"),
        (low, MeshShape(tensor=2), "cpu"),
        (low, split, "tpu"),
    ):
        check_precision(precision, shape, backend)
    with refused(where="cell.precision.compute=bfloat16 on a mesh with sequence=2"):
        check_precision(low, split, "cpu")
    with refused(where="cell.precision.compute=bfloat16 on a mesh with fsdp=2"):
        check_precision(low, MeshShape(fsdp=2, tensor=2), "cpu")


def test_a_batch_takes_each_problem_once() -> None:
    check_batch([(8, 2), (16, 2)], 16)
    with refused(where="sweep.B_p"):
        check_batch([(8, 2), (16, 2)], 15)
    with refused(where="sweep.B_p"):
        check_batch([(8, 2)], 120 - 300)


def test_an_empty_folder_and_what_a_kill_left_are_a_fresh_start(tmp_path: Path) -> None:
    for left in ((), (".config.yaml.123",), ("base",)):
        folder = tmp_path / "-".join(left or ("empty",))
        folder.mkdir()
        for name in left:
            (folder / name).touch()
        assert config_for_folder(CONFIG, folder, resume=False) == CONFIG


def test_a_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with refused():
        config_for_folder(CONFIG, tmp_path / "file", resume=False)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    for resume in (True, False):
        with refused(where="other"):
            config_for_folder(CONFIG, tmp_path / "other", resume=resume)


def test_a_place_where_no_folder_can_be_made_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a dry run too, which looks at the folder by the same function, as if it went on."""
    (tmp_path / "file").touch()
    with refused():
        config_for_folder(CONFIG, tmp_path / "file" / "run", resume=False)
    # whoever runs the tests may write anywhere
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    with refused():
        config_for_folder(CONFIG, tmp_path / "new" / "run", resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_dry_run_says_that_the_folder_is_taken_and_what_remains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_remaining(CONFIG, tmp_path / "here", resume=False)
    assert capsys.readouterr().err == ""  # nothing has begun
    save_config(CONFIG, tmp_path / "here" / "config.yaml")
    remains = "what remains of here: 194,624 of 194,624 rollouts; 0 of 1 runs are done\n"
    for resume, start in (
        (False, f"{tmp_path / 'here'} holds a run already, which goes on by --resume alone; "),
        (True, ""),
    ):
        print_remaining(CONFIG, tmp_path / "here", resume=resume)
        assert capsys.readouterr().err == start + remains


@pytest.mark.parametrize("strategy", ["grid", "adaptive", "spend"])
def test_a_refusal_says_the_command_that_goes_on(strategy: str, tmp_path: Path) -> None:
    config = CONFIG.with_settings(
        name="run", sweep={"strategy": strategy, "budget": 5000}, run={"dir": str(tmp_path)}
    )
    save_config(config, tmp_path / "run" / "config.yaml")
    with refused(where="sweep.budget"):
        config_for_folder(
            config.with_settings(sweep={"budget": 4000}), tmp_path / "run", resume=True
        )


def test_a_refusal_names_a_command_that_finds_the_folder_or_none(tmp_path: Path) -> None:
    """As `isojax status` does: where runs/ was moved its new place, and none for a folder that has
    another name."""
    config = CONFIG.with_settings(name="run", sweep={"budget": 5000})
    less = config.with_settings(sweep={"budget": 4000})
    save_config(config, tmp_path / "run" / "config.yaml")
    with refused(where="sweep.budget"):
        config_for_folder(less, tmp_path / "run", resume=True)
    (tmp_path / "run").rename(tmp_path / "other")
    with refused(where="sweep.budget"):
        config_for_folder(less, tmp_path / "other", resume=True)


def test_static_sizes_are_kept_and_another_mesh_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = CONFIG.model_copy(update={"sweep": resolve_sweep_sizes(CONFIG.sweep, 1, CONFIG.cell)})
    first = first.with_settings(run={"dir": str(tmp_path)})
    save_config(first, tmp_path / CONFIG.name / "config.yaml")
    grown = CONFIG.model_copy(update={"sweep": SweepConfig(B_p=(2, 8), n=(2, 4))})
    again = config_for_folder(grown, tmp_path / CONFIG.name, resume=True)
    assert (again.sweep.decode_slots, again.sweep.microbatch, again.sweep.prefill_batch) == (
        32,
        32,
        8,
    )
    assert capsys.readouterr().err == ""
    elsewhere = grown.model_copy(update={"run": grown.run.model_copy(update={"mesh": "data=2"})})
    config_for_folder(elsewhere, tmp_path / CONFIG.name, resume=True)
    assert "equal to rounding only" in capsys.readouterr().err
    with refused(where="sweep.B_p"):
        config_for_folder(
            CONFIG.model_copy(update={"sweep": SweepConfig(B_p=(16,), n=(4,))}),
            tmp_path / CONFIG.name,
            resume=True,
        )
