"""The difficulty histogram: every problem in one split and one bar, counted by hand; the picture, its file formats, the
same bits.
"""

from __future__ import annotations

import csv
import time
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from isojax.report.figures.difficulty_histogram import draw_difficulty, split_of

PAPER = {"very_easy": (0.6, 0.9), "easy": (0.3, 0.6), "hard": (0.0, 0.0625), "extremely_hard": (0.0, 0.0)}
# 3 Extremely Hard, 2 + 4 Hard in the bar at 0 (2 of 128 is nearest to it), 5 Hard at 1/16, 6 in no split at 4/16, 7
# Easy at 8/16, 1 Very
# Easy at 10/16, 2 in no split at 1.
LABELS = (
    [(0, 128)] * 3
    + [(0, 16)] * 2
    + [(2, 128)] * 4
    + [(1, 16)] * 5
    + [(4, 16)] * 6
    + [(8, 16)] * 7
    + [(10, 16)]
    + [(16, 16)] * 2
)


def table(path: Path) -> dict[str, dict[str, int]]:
    """avg -> the counts of its bar that are not 0."""
    with path.open() as f:
        rows = list(csv.DictReader(f))
    return {row.pop("avg"): {name: int(value) for name, value in row.items() if int(value)} for row in rows}


def test_each_problem_is_in_one_split() -> None:
    """Ranges hold both ends; .6 is Easy, not Very Easy, in whatever order they are given; Extremely Hard wants 128
    attempts.
    """
    for splits in (PAPER, dict(reversed(PAPER.items()))):
        result = [
            split_of(one, splits)
            for one in [(6, 10), (7, 10), (9, 10), (3, 10), (1, 16), (0, 16), (0, 128), (0, 256), (1, 10), (10, 10)]
        ]
        assert result == [
            *("easy", "very_easy", "very_easy", "easy", "hard", "hard"),
            *("extremely_hard", "extremely_hard", "unused", "unused"),
        ]
    assert split_of((0, 16), PAPER, min_unsolved_attempts=16) == "extremely_hard"
    assert split_of((0, 128), {"easy": (0.3, 0.6)}) == "unused"


def test_the_bars_are_counted_and_drawn(tmp_path: Path) -> None:
    png, pdf, bins = draw_difficulty(LABELS, PAPER, tmp_path / "new" / "figures")
    result = table(bins)
    assert list(result) == [f"{i / 16:g}" for i in range(17)]
    assert {avg: row for avg, row in result.items() if row} == {
        "0": {"extremely_hard": 3, "hard": 6, "all": 9},
        "0.0625": {"hard": 5, "all": 5},
        "0.25": {"unused": 6, "all": 6},
        "0.5": {"easy": 7, "all": 7},
        "0.625": {"very_easy": 1, "all": 1},
        "1": {"unused": 2, "all": 2},
    }
    image = imread(png)
    assert image.shape[0] > 300 and image.shape[1] > 900
    pixels = np.round(image[..., :3] * 255).astype(int)
    inked = {
        colour: int((np.abs(pixels - rgb).max(-1) <= 1).sum())
        for colour, rgb in (("hard", (0, 114, 178)), ("easy", (213, 94, 0)))
    }
    # Bars of 11 and of 7 problems, and 2 to 3 more of the hatched 3; and a legend's patch each.
    assert 12 / 7 < inked["hard"] / inked["easy"] < 14 / 7
    text = pdf.read_bytes()
    assert text.startswith(b"%PDF-") and b"/Type3" not in text and b"CreationDate" not in text
    assert not list(tmp_path.rglob(".*"))  # no temporary file is left


def test_the_same_labels_give_the_same_bits_and_replace_what_was_there(tmp_path: Path) -> None:
    first = [path.read_bytes() for path in draw_difficulty(LABELS[:12], PAPER, tmp_path)]
    time.sleep(1.0)  # a date in seconds would differ
    assert [path.read_bytes() for path in draw_difficulty(LABELS[:12], PAPER, tmp_path)] == first
    assert [path.read_bytes() for path in draw_difficulty(LABELS, {}, tmp_path)] != first


@pytest.mark.parametrize(("k", "steps"), [(4, 4), (37, 32), (128, 32)])
def test_many_attempts_are_cut_into_steps_that_hold_equally_many_values(tmp_path: Path, k: int, steps: int) -> None:
    """Each of 1..k-1 right once: bars inside hold k / steps of them where steps divides k."""
    result = table(draw_difficulty([(s, k) for s in range(k + 1)], {"most": (0.5, 1.0)}, tmp_path)[2])
    assert len(result) == steps + 1
    assert sum(row["all"] for row in result.values()) == k + 1
    if k % steps == 0:
        assert {result[f"{i / steps:g}"]["all"] for i in range(1, steps)} == {k // steps}
