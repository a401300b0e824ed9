"""Mode "paper": the published workflow, biases included (IsoCompute Playbook, arXiv:2603.12151, section 4 and appendix A): record-breaking
points of each run, one monotone sigmoid for each (B_p, n). The frontier, its running average and the sigmoid of log2 n* follow in fit.py.
"""

from __future__ import annotations

from isojax.scaling.curves import Curve, fit_curve
from isojax.scaling.estimate import Estimate, Options
from isojax.scaling.fit_inputs import base_reward
from isojax.scaling.segments import Cells


def estimate(cells: Cells, metric: str, options: Options) -> Estimate:
    """A curve for each cell that has enough records; no intervals."""
    del metric
    base = base_reward([t for seeds in cells.values() for t in seeds])
    made = {key: fit_curve(seeds, base, options.bin_width) for key, seeds in cells.items()}
    curves = [c for c in made.values() if isinstance(c, Curve)]
    return Estimate(curves, [(B_p, n, c) for (B_p, n), c in made.items() if isinstance(c, str)])
