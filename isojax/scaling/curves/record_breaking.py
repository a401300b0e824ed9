"""Record-breaking points of one run (IsoCompute Playbook, arXiv:2603.12151, section 4, Fig. 5; bin .005: appendix A,
Fig. 15).

A record is a point whose discretised reward floor(R / width) is in a higher bin than all points before it. Records are
maxima of the noise too, so they overshoot the mean; a flag of the fit says by how much.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isojax.core.errors import InputError

BIN_WIDTH = 0.005
# A reward on a bin's edge belongs to the upper bin however it was rounded: 0.3 / 0.005 has to give 60.
_EDGE_TOLERANCE = 1e-9


def record_breaking_indices(rewards: ArrayLike, bin_width: float = BIN_WIDTH) -> NDArray[np.intp]:
    """Indices of the record-breaking points; the first point is one.

    Args:
        rewards: float[points], by rising compute, of one run.
        bin_width: width of a bin, in units of the reward.

    Returns:
        int[records], rising.

    Raises:
        InputError: a bin width that is not in (0, 1].
    """
    if not 0 < bin_width <= 1:
        raise InputError(f"bin width {bin_width}; expected a number in (0, 1], for example {BIN_WIDTH}.")
    bins = np.floor(np.asarray(rewards, dtype=np.float64) / bin_width + _EDGE_TOLERANCE)
    best_bin_so_far = np.maximum.accumulate(bins)
    return np.flatnonzero(np.concatenate([np.ones(min(1, len(bins)), dtype=bool), bins[1:] > best_bin_so_far[:-1]]))
