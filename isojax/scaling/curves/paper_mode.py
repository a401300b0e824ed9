"""Mode "paper": the published workflow, biases included (IsoCompute Playbook, arXiv:2603.12151, section 4 and appendix
A): record-breaking points of each run, one monotone sigmoid for each (B_p, n). The frontier, its running average and
the sigmoid of log2 n* follow in scaling/fit.py.
"""

from __future__ import annotations

from isojax.scaling.curves.hill import FittedCurve, fit_curve
from isojax.scaling.estimate import EstimationOptions, SweepEstimate
from isojax.scaling.fit_inputs import base_reward
from isojax.scaling.frontier.frontier_evidence import TracksByCell


def estimate(cells: TracksByCell, metric: str, options: EstimationOptions) -> SweepEstimate:
    """A curve for each cell that has enough records; no intervals."""
    del metric
    R0 = base_reward([t for seeds in cells.values() for t in seeds])
    curve_or_reason = {key: fit_curve(seeds, R0, options.bin_width) for key, seeds in cells.items()}
    curves = [c for c in curve_or_reason.values() if isinstance(c, FittedCurve)]
    return SweepEstimate(curves, [(B_p, n, c) for (B_p, n), c in curve_or_reason.items() if isinstance(c, str)])
