"""Addresses where there is no cluster; no Ray is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from isojax.cli.commands.launch_command import launch
from isojax.core.config import Config
from isojax.launch.ray import ray_driver
from isojax.launch.ray.ray_driver import connect_ray
from tests.refusals import refused


@pytest.mark.parametrize(
    ("address", "saying"),
    [
        ("a..b:6379", "no Ray cluster at a..b:6379"),  # no name that could be looked up
        ("127.0.0.1:9", "no Ray cluster at 127.0.0.1:9"),
        ("127.0.0.1:²", "given '127.0.0.1:²'; expected local, auto, or HOST:PORT"),
        (":6379", "given ':6379'; expected"),
        ("http://head:8265", "given 'http://head:8265'; expected"),
    ],
)
def test_no_cluster(address: str, saying: str) -> None:
    with refused(where="--ray") as refusal, connect_ray(address):
        pass
    assert saying in str(refusal.value)


def test_ray_cannot_start_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is where Ray keeps its sessions."""
    import ray

    (tmp_path / "file").touch()
    monkeypatch.setenv("RAY_AUTH_MODE", "token")  # as they were, afterwards
    monkeypatch.setenv("RAY_AUTH_TOKEN", "x" * 64)
    monkeypatch.setattr(ray, "init", lambda **_: (tmp_path / "file" / "ray").mkdir())
    with refused(where="--ray local"), connect_ray("local"):
        pass


def test_a_process_that_trains_and_samples_is_refused_before_ray_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_driver, "connect_ray", lambda _: pytest.fail("no cluster is asked"))
    config = Config().with_settings(
        cell={"rl": {"max_staleness": 1}}, run={"sampler_mesh": "data=1"}
    )
    with refused(where="--ray with run.sampler_mesh = data=1"):
        ray_driver.launch(config, resume=False, dry_run=True)


def test_a_missing_file_is_refused_before_a_cluster_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes to the nodes is looked for here; of this machine alone nothing is sent."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ray_driver, "connect_ray", lambda _: pytest.fail("a cluster is asked"))
    config = Config().with_settings(
        cell={"task": "jsonl:gone.jsonl"}, run={"ray": "10.0.0.7:6379", "dir": str(tmp_path)}
    )
    with refused(where="cell.task", found="gone.jsonl"):
        ray_driver.launch(config, resume=False, dry_run=True)
    with pytest.raises(pytest.fail.Exception, match="a cluster is asked"):
        ray_driver.launch(config.with_settings(run={"ray": "local"}), resume=False, dry_run=True)


def test_a_dry_run_names_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("isojax.launch.ray.ray_driver.launch", lambda *_: tmp_path)
    launch(["quickstart", "cell.rl.loss=cispo"], ray="local", dry_run=True)
    assert "recipe: loss cispo, advantage group, aggregation token" in capsys.readouterr().err
