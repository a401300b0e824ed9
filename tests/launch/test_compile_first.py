"""The compiler's figures on request, and before a cluster is asked for TPU slices."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from isojax.cli.commands.launch_command import check_compile_option, launch
from isojax.core.config import load_config
from isojax.core.errors import InputError
from isojax.launch.ray import check_on_slice as checks
from isojax.launch.ray import ray_driver
from isojax.launch.ray.placement import ProcessGroupSpec
from tests.libtpu import needs_libtpu
from tests.refusals import refused

SMALL = ["quickstart", "cell.model.layers=1", "sweep.B_p=[4]", "sweep.n=[2]", "sweep.seeds=1"]
SIZES = ["sweep.decode_slots=8", "sweep.microbatch=8", "sweep.prefill_batch=4", "sweep.remat=none"]


@pytest.mark.slow
def test_a_dry_run_shows_what_the_compiler_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Estimate and compiler are within the margin of each other; nothing is written."""
    monkeypatch.chdir(tmp_path)
    launch([*SMALL, "run.compilation_cache=false"], dry_run=True, compile_first=True)
    row = next(
        line for line in capsys.readouterr().err.splitlines() if "train" in line and "fits" in line
    )
    by_compiler, planned = (float(number) for number in re.findall(r"\d\.[\de-]+", row)[1:])
    assert planned == pytest.approx(by_compiler, rel=0.15)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_what_the_compiler_finds_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    too_little = ["run.device_memory=0.0001", "run.compilation_cache=false"]
    with refused():
        launch([*SMALL, *SIZES, *too_little], dry_run=True, compile_first=True)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["run.ray=local"],
    ],
)
def test_where_nothing_would_be_compiled_the_option_is_refused(words: list[str]) -> None:
    with refused(where="--compile"):
        check_compile_option(load_config(["quickstart"], words), dry_run=False, compile_first=True)


ON_SLICE = ["run.ray=local", "run.process_group.tpu=v5e:2x2", "run.mesh=fsdp=4"]


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The slices that are checked by a driver whose cluster has room; each check refuses."""
    names: list[str] = []

    @contextmanager
    def connect(_: str) -> Iterator[Any]:
        class Ray:
            def nodes(self) -> list[Any]:
                return []

        yield Ray()

    def refuse(config: Any) -> None:
        names.append(config.run.process_group.tpu)
        raise InputError("it does not fit")

    monkeypatch.setattr(ray_driver, "connect_ray", connect)
    monkeypatch.setattr(
        ray_driver, "process_group_spec", lambda *_: ProcessGroupSpec(1, {"TPU": 4})
    )
    monkeypatch.setattr(ray_driver, "require_capacity", lambda *_: 1)
    monkeypatch.setattr(
        ray_driver, "RayScheduler", lambda *_: pytest.fail("it is asked for a slice")
    )
    monkeypatch.setattr(ray_driver, "check_on_slice", refuse)
    return names


def test_a_new_sweep_is_compiled_before_slices_are_asked_for(
    checked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with refused():
        ray_driver.launch(load_config(["quickstart"], ON_SLICE), resume=False, dry_run=False)
    assert checked == ["v5e:2x2"]


def test_a_dry_run_compiles_for_the_slice_where_it_is_asked_to(
    checked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config(["quickstart"], ON_SLICE)
    ray_driver.launch(config, resume=False, dry_run=True)
    assert not checked
    with refused():
        ray_driver.launch(config, resume=False, dry_run=True, compile_first=True)
    assert checked == ["v5e:2x2"]


def test_without_a_compiler_it_warns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    checks.check_on_slice(load_config(["quickstart"], ON_SLICE))
    assert "nothing says whether the sweep fits v5e:2x2" in " ".join(
        capsys.readouterr().err.split()
    )


@pytest.mark.slow
@needs_libtpu
def test_a_sweep_that_cannot_fit_is_refused_by_the_child_process() -> None:
    """Qwen2.5-7B on four chips of v5e."""
    config = load_config(["gsm8k", "models/qwen2.5-7b-instruct"], ON_SLICE)
    with refused():
        checks.check_on_slice(config)


def test_what_the_compiler_here_does_not_know_is_not_compiled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Processes of two roles have programs of their own."""
    monkeypatch.setattr(checks.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(
        checks, "ProcessPoolExecutor", lambda *_: pytest.fail("a compiler is started")
    )
    samplers = {"sampler_mesh": "data=-1", "sampler_processes": 1}
    checks.check_on_slice(load_config(["quickstart"], ON_SLICE).with_settings(run=samplers))
    assert (
        "is not checked: the compiler here knows no processes that only sample"
        in capsys.readouterr().err
    )
