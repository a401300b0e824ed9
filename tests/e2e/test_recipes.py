"""Recipes on the command line: a loss of one's own runs; nonsense is refused before any work."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.seconds(30)]

ONE = ("sweep.n=[4]", "sweep.seeds=1", "sweep.budget=300")
LOSS = '''
import jax.numpy as jnp

from isojax.rl.losses import loss


@loss(aggregation="sequence")
def my_loss(logps, old_logps, advantages, mask, clip):
    """REINFORCE, half as strong."""
    return jnp.where(mask, -0.5 * advantages * logps, 0.0), {"strength": jnp.full(mask.shape, 0.5)}
'''
LENGTHY = """
from isojax.rl.advantages import advantage


@advantage
def by_length(batch):
    return batch.rewards * batch.lengths
"""


def test_a_loss_of_ones_own(isojax: Any) -> None:
    """A module of a fork. A function of a file is planned with in docs/extending.md."""
    (isojax.folder / "my_fork" / "losses").mkdir(parents=True)
    (isojax.folder / "my_fork" / "losses" / "halved.py").write_text(LOSS)
    isojax.swept("train", "tiny.yaml", *ONE, "cell.rl.loss=my_fork.losses.halved")
    [path] = (isojax.folder / "runs" / "tiny" / "cells").glob("*/records.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    trained = [row["train"] for row in rows if row.get("M")]
    assert (
        all(row["strength"] == pytest.approx(0.5, rel=1e-5) for row in trained) and len(trained) > 2
    )
    assert all(row["grad_norm"] > 0 for row in trained)


def test_files_in_the_configs_folder_go_with_its_run(isojax: Any) -> None:
    """Named without a package, from another folder, and again when the run goes on by the config
    that it saved."""
    (project := isojax.folder / "project").mkdir()
    (isojax.folder / "tiny.yaml").rename(project / "tiny.yaml")
    (project / "halved.py").write_text(LOSS)
    (project / "lengthy.py").write_text(LENGTHY)
    words = (*ONE[:2], "cell.rl.loss=halved", "cell.rl.advantage=lengthy")
    plan = isojax.quick_ok("train", "project/tiny.yaml", *words, "--dry-run").stderr
    assert "recipe: loss halved, advantage lengthy, aggregation sequence" in plan
    isojax.swept("train", "project/tiny.yaml", *words, "sweep.budget=70")
    isojax.swept("train", "runs/tiny/config.yaml", "--resume", "sweep.budget=100")
    assert isojax.rows("8x4-s0", own_metrics=["strength"])[-1]["train"][
        "strength"
    ] == pytest.approx(0.5, rel=1e-5)
    isojax.refused(
        "train",
        "project/tiny.yaml",
        *words,
        "cell.rl.loss=quartered",
        saying=["project/quartered.py"],
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["cell.rl.loss=ppo"], ["cell.rl.critic is null", "recipes/ppo"]),
        (["cell.rl.critic={}"], ["cell.rl.advantage = group", "expected the advantage gae"]),
        (["sweep.n=[1]"], ["sweep.n holds 1", "reinforce_pp"]),
        (["sweep.n=[4]", "cell.rl.n_train=8"], ["cell.rl.n_train", "n_train <= n"]),
        (["cell.rl.kl=0", "cell.rl.zero_variance_filter=[kl]"], ["holds kl and cell.rl.kl = 0"]),
        (
            ["cell.rl.entropy=0", "cell.rl.zero_variance_filter=[policy,entropy]"],
            ["holds entropy and cell.rl.entropy = 0"],
        ),
        (
            ["cell.rl.loss=reinforce_pp", "cell.rl.zero_variance_filter=[policy]", "sweep.n=[1]"],
            ["a group of one never disagrees"],
        ),
        (["cell.rl.loss=cispoo"], ["Did you mean 'cispo'"]),
        (["cell.rl.loss=rloo", "cell.rl.clip=0.1"], ["never clips"]),
        (["cell.rl.loss=ratios"], ["'ratios': no such module"]),
        (
            ["cell.rl.loss=isojax.rl.losses.ratios"],
            [
                "losses/__init__.py has no function with the decorator @loss",
                "`my_loss = loss(ratios)`",
            ],
        ),
        (
            ["cell.rl.loss=isojax.rl.logprobs.entropy"],
            ["from isojax.rl.logprobs import entropy", "loss(entropy)"],
        ),
        (
            ["cell.rl.loss=my_module.my_los"],
            ["my_module.my_los", "no such module"],
        ),
        (
            ["cell.rl.advantage=groups"],
            ["cell.rl.advantage", "expected one of batch, gae, group", "'group'"],
        ),
        (
            ["cell.rl.aggregation=tokens"],
            ["cell.rl.aggregation", "constant, prompt, sequence, token"],
        ),
        (["cell.rl.kl_estimator=k4"], ["cell.rl.kl_estimator", "k1, k2, k3"]),
        (
            ["cell.rl.advantage=jax.numpy.exp"],
            ["with the decorator @advantage", "`from jax.numpy import exp`", "advantage(exp)"],
        ),
        (
            ["cell.rl.aggregation=jax.numpy.exp"],
            ["with the decorator @aggregation", "`from jax.numpy import exp`", "aggregation(exp)"],
        ),
        (
            ["cell.rl.kl_estimator=jax.numpy.exp"],
            [
                "with the decorator @kl_estimator",
                "`from jax.numpy import exp`",
                "kl_estimator(exp)",
            ],
        ),
        (["cell.rl.max_staleness=-1"], ["cell.rl.max_staleness"]),
    ],
)
def test_nonsense_is_refused(isojax: Any, given: list[str], said: list[str]) -> None:
    done = isojax.quick("train", "tiny.yaml", *ONE, *given)
    assert done.returncode == 2 and done.stderr.splitlines()[-1].startswith("error: "), done.stderr
    assert all(words in done.stderr for words in said), done.stderr
    assert "Traceback" not in done.stderr and not (isojax.folder / "runs").exists()
