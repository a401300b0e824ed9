"""How metrics add up, by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import asdict

import jax
import jax.numpy as jnp
import pytest

from isojax.rl.metric import Metric, mean, merge, over_updates, total, values


def test_merge_by_hand() -> None:
    """Means by their weights: (.5 * 1 + .2 * 3) / 4; totals added; of maxima the larger; a name of
    one side stays."""
    one = {
        "kl": mean(0.5, 1.0),
        "tokens": total(3.0),
        "gap": Metric(0.1, None, "max"),
        "crash": total(1.0),
    }
    other = {"kl": mean(0.2, 3.0), "tokens": total(4.0), "gap": Metric(0.4, None, "max")}
    for both in (merge(one, other), merge(other, one)):
        assert values(both) == pytest.approx({"kl": 0.275, "tokens": 7.0, "gap": 0.4, "crash": 1.0})


def test_an_update_counts_by_the_tokens_it_trained_on() -> None:
    """Entropies 2 and 1, of updates that trained on 1/4 and 3/4 of their tokens: (2 + 3) / 4. The
    loss, a total over an update, counts once for each; an update that trained on nothing has no
    part in the entropy."""

    def update(entropy: float, loss: float, fraction: float) -> dict[str, Metric]:
        of_one = {
            "entropy": Metric(10 * entropy, 10.0, "mean"),
            "loss": total(loss),
            "gap": Metric(loss, None, "max"),
        }
        return over_updates(of_one, fraction)

    sums = merge(update(2.0, 0.5, 0.25), update(1.0, 0.1, 0.75))
    assert values(sums) == pytest.approx({"entropy": 1.25, "loss": 0.3, "gap": 0.5})
    nothing = update(0.0, 0.0, 0.0)
    assert set(values(nothing)) == {"loss", "gap"}
    assert values(merge(sums, nothing)) == pytest.approx({"entropy": 1.25, "loss": 0.2, "gap": 0.5})


def test_metrics_are_pytrees_and_plain_data() -> None:
    """As programs return them, and as checkpoints store them."""
    metrics = {"kl": mean(jnp.float32(0.5)), "tokens": total(jnp.float32(3))}
    doubled = jax.jit(lambda x: merge(x, x))(metrics)
    assert values(doubled) == {"kl": 0.5, "tokens": 6.0}
    host = jax.tree.map(float, doubled)
    assert {name: Metric(**asdict(metric)) for name, metric in host.items()} == host


@pytest.mark.slow
def test_every_process_traces_the_same_program() -> None:
    """Whatever order its sets have, which differs from one interpreter to the next."""
    program = (
        "import jax\nfrom isojax.rl.metric import mean, merge\ndef total(x): return [m.sum for m "
        "in merge(*({f'metric_{i}': mean(x * i + j) for i in range(9)} for j in "
        "range(2))).values()]\nprint(jax.make_jaxpr(total)(1.0))"
    )
    texts = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert texts[0] == texts[1] and texts[0].count("add") >= 18
