"""A forced interruption on the command line: a language model that is interrupted, in training and
in evaluation.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.compiler import QUICK, flags
from tests.e2e.test_text import prepare

pytestmark = [pytest.mark.slow, pytest.mark.seconds(20)]

ONE = ("train", "sums.yaml", "sweep.n=[4]", "sweep.budget=40", "cell.sampling.response_length=9")


def test_long_responses_get_the_phrase_and_end(isojax: Any) -> None:
    prepare(isojax)
    isojax.swept(
        *ONE,
        "cell.sampling.interrupt={after: 2, text: ' the cat', unless: ''}",
        XLA_FLAGS=flags(QUICK, devices=1),
    )
    points = [row for row in isojax.rows("4x4-s0", "sums") if row["kind"] == "eval"]
    for share in [point["metrics"]["interrupted"] for point in points] + [
        p["train"]["interrupted"] for p in points if p["M"]
    ]:
        assert 0.5 < share <= 1  # of a random policy; the others stopped within two tokens
    shown = [
        line
        for line in (isojax.run("sums") / "cells" / "4x4-s0" / "samples.txt")
        .read_text()
        .splitlines()
        if line.startswith("    ")
    ]
    assert sum(" the cat" in line for line in shown) > len(shown) / 4

    words = (*ONE, "name=other")
    isojax.refused(
        *words,
        "cell.sampling.interrupt={after: 2, text: 'stop', unless: 'the cat sat'}",
        saying=["unless: given 'the cat sat', which is 3 tokens"],
    )
    isojax.refused(
        "launch",
        "quickstart",
        "cell.sampling.interrupt={after: 2}",
        saying=["cell.task = solvers", "writes no text"],
    )
