"""The difficulty histogram: every problem in one bar, counted by hand; the picture, its file
formats, the same bits."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from isojax.report.command_figures.difficulty_histogram import (
    DifficultyLabel,
    count_bars,
    draw_difficulty,
)

PAPER = {
    "very_easy": (0.6, 0.9),
    "easy": (0.3, 0.6),
    "hard": (0.0, 0.0625),
    "extremely_hard": (0.0, 0.0),
}
# 3 Extremely Hard, 2 + 4 Hard in the bar at 0 (2 of 128 is nearest to it), 5 Hard at 1/16, 6 in no
# split at 4/16, 7 Easy at 8/16, 1 Very Easy at 10/16, 2 in no split at 1.
LABELS = (
    [DifficultyLabel(0, 128, "extremely_hard")] * 3
    + [DifficultyLabel(0, 16, "hard")] * 2
    + [DifficultyLabel(2, 128, "hard")] * 4
    + [DifficultyLabel(1, 16, "hard")] * 5
    + [DifficultyLabel(4, 16, "unused")] * 6
    + [DifficultyLabel(8, 16, "easy")] * 7
    + [DifficultyLabel(10, 16, "very_easy")]
    + [DifficultyLabel(16, 16, "unused")] * 2
)


def test_the_bars_are_counted_and_drawn(tmp_path: Path) -> None:
    assert count_bars(LABELS, (*PAPER, "unused")) == (
        {
            "extremely_hard": {0: 3},
            "hard": {0: 6, 1: 5},
            "easy": {8: 7},
            "very_easy": {10: 1},
            "unused": {4: 6, 16: 2},
        },
        16,
    )
    png, pdf = draw_difficulty(LABELS, PAPER, tmp_path / "new" / "figures")
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
    assert [path.read_bytes() for path in draw_difficulty(LABELS, PAPER, tmp_path)] != first


@pytest.mark.parametrize(("k", "steps"), [(4, 4), (37, 32), (128, 32)])
def test_many_attempts_are_cut_into_steps_that_hold_equally_many_values(k: int, steps: int) -> None:
    """Each of 1..k-1 right once: bars inside hold k / steps of them where steps divides k."""
    counts, bin_count = count_bars([DifficultyLabel(s, k, "most") for s in range(k + 1)], ["most"])
    assert (
        bin_count == steps
        and set(counts["most"]) == set(range(steps + 1))
        and counts["most"].total() == k + 1
    )
    if k % steps == 0:
        assert {counts["most"][i] for i in range(1, steps)} == {k // steps}
