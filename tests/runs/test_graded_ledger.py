"""Sums of rewards in a ledger: floats stay floats, integers integers, and sums beyond the samples
are refused."""

from pathlib import Path

import pytest

from isojax.core.nouns import Cell, EvalPoint
from isojax.runs.ledger import Ledger, read_run
from tests.refusals import refused


@pytest.mark.parametrize("sums", [(1.0, 2.0), (0.3, 2.0), (0.0, 0.0), (1, 2)])
def test_sums_are_read_as_they_were_written(tmp_path: Path, sums: tuple[float, ...]) -> None:
    ledger = Ledger(tmp_path, Cell(4, 2, 0), "x")
    metrics = {"avg@2": sum(sums) / 4}
    ledger.append(
        EvalPoint(0, 0, 0, 0, metrics, sums, 2, {}, {"hard": sums}), seconds=1.0, devices=1
    )
    (point,) = read_run(tmp_path).points
    assert point.counts == sums == point.extra["hard"] and point.graded is isinstance(
        sums[0], float
    )
    assert list(map(type, point.counts)) == list(map(type, sums))


def test_a_sum_beyond_the_samples_is_refused(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, Cell(4, 2, 0), "x")
    ledger.append(EvalPoint(0, 0, 0, 0, {"avg@2": 0.75}, (1.0, 2.001), 2), seconds=1.0, devices=1)
    with refused():
        read_run(tmp_path)
