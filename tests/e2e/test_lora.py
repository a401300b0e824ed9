"""LoRA from end to end: a sweep of a language model; its adapters, alone and merged; other
recipes and meshes."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from tests.e2e.command_line import Isojax, Nursery
from tests.e2e.test_text import FLAGS, SOURCE, prepare

pytestmark = [pytest.mark.slow, pytest.mark.seconds(20)]

WORDS = (
    "train",
    "sums.yaml",
    "cell.model.lora={rank: 3, alpha: 6, targets: [query, out, down]}",
    "sweep.n=[4]",
)
CELL = "4x4-s0"
ON_DEVICE = (
    "sweep.seeds=1",
    "sweep.n=[4]",
    "sweep.B_p=[8]",
    "sweep.budget=200",
    "cell.model.lora={rank: 2}",
)
ON_DEVICE_CELL = "8x4-s0"


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> Isojax:
    """Where a sweep has run without a break; to be read only."""
    location = prepare(Isojax(tmp_path_factory.mktemp("lora") / "work", nursery))
    location.swept(*WORDS, XLA_FLAGS=FLAGS)
    return location


def test_the_sampler_has_the_policy_that_is_trained(unbroken: Isojax) -> None:
    updates = [row["train"] for row in unbroken.rows(CELL, "sums") if row["M"]]
    assert len(updates) > 4 and all(
        train["sampler_logp_gap"] < 1e-4 and train["grad_norm"] > 0 for train in updates
    )
    assert updates[-1]["kl"] > 0  # from the base policy, which has no adapters


def test_adapters_are_exported_alone_and_merged(isojax: Isojax, unbroken: Isojax) -> None:
    prepare(isojax)
    cell = str(unbroken.run("sums") / "cells" / CELL)
    isojax.quick_ok("model", "export", cell, "adapter", "--adapter", "--base", "lm")
    isojax.quick_ok("model", "export", cell, "merged", "--base", "lm")
    settings = json.loads((isojax.folder / "adapter" / "adapter_config.json").read_text())
    assert (settings["peft_type"], settings["r"], settings["lora_alpha"]) == ("LORA", 3, 6)
    assert settings["target_modules"] == ["q_proj", "o_proj", "down_proj"]
    assert settings["base_model_name_or_path"] == SOURCE["repository"]
    adapter = load_file(isojax.folder / "adapter" / "adapter_model.safetensors")
    before, after = (
        load_file(isojax.folder / name / "model.safetensors") for name in ("lm", "merged")
    )
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert len(adapter) == 2 * len(changed) == 2 * 2 * 3  # layers, targets
    for name in changed:
        a, b = (
            adapter[f"base_model.model.{name.removesuffix('.weight')}.lora_{part}.weight"]
            for part in "AB"
        )
        np.testing.assert_allclose(after[name], before[name] + 2 * b @ a, atol=1e-6)


@pytest.mark.parametrize("how", [(), ("--adapter",)])
def test_adapters_are_exported_with_their_own_base_model_alone(
    isojax: Isojax, unbroken: Isojax, how: tuple[str, ...]
) -> None:
    weights = prepare(isojax).folder / "lm" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    cell = str(unbroken.run("sums") / "cells" / CELL)
    isojax.refused(
        "model",
        "export",
        cell,
        "out",
        "--base",
        "lm",
        *how,
        saying=["lm is not the checkpoint", "--base"],
    )


def test_a_run_without_adapters_has_none_to_export(isojax: Isojax, unbroken: Isojax) -> None:
    shutil.copytree(unbroken.run("sums"), prepare(isojax).run("sums"))
    path = isojax.run("sums") / "config.yaml"
    config = yaml.safe_load(path.read_text())
    config["cell"]["model"]["lora"] = None
    path.write_text(yaml.safe_dump(config))
    cell = isojax.run("sums") / "cells" / CELL
    isojax.refused(
        "model",
        "export",
        str(cell),
        "adapter",
        "--adapter",
        saying=["--adapter", "cell.model.lora"],
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> Isojax:
    """Where a task verified on device has run; to be read only."""
    location = Isojax(tmp_path_factory.mktemp("plain") / "work", nursery)
    location.swept("isojax.train", "tiny.yaml", *ON_DEVICE)
    return location


@pytest.mark.parametrize(
    "words", [("cell.rl.max_staleness=0",), ("recipes/ppo", "run.mesh=fsdp=2,tensor=2")]
)
def test_other_sources_meshes_and_critics(
    isojax: Isojax, plain: Isojax, words: tuple[str, ...]
) -> None:
    """The policy begins as the base policy; asynchronous rollouts leave the same numbers. A critic
    is trained whole."""
    isojax.swept("isojax.train", "tiny.yaml", *words, *ON_DEVICE)
    rows, others = (location.rows(ON_DEVICE_CELL) for location in (isojax, plain))
    assert len(rows) == len(others) > 3 and rows[0] == others[0]
    assert all(row["train"]["grad_norm"] > 0 for row in rows[1:])
    if "max_staleness" in words[0]:
        assert [row["counts"] for row in rows] == [row["counts"] for row in others]
