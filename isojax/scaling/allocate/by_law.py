"""The paper's allocation (IsoCompute Playbook, arXiv:2603.12151, section 4.3): n from n*(C), the smallest stable B_p,
the rest to M = floor(C / (n B_p)).

With one of them fixed: a fixed B_p has its own n*(C); a fixed B = B_p n follows n*(C) with B_p = B // n; a fixed M
takes the measured (B_p, n) with B_p n M <= C whose curve promises most at B_p n M, or, where none fits, n from n*(C)
and B_p = floor(C / (n M)).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from isojax.core.nouns import Allocation
from isojax.scaling.allocate.constraints import (
    AllocationRequest,
    allocate_updates,
    check_B_max,
    check_fixed,
    floor_power_of_two,
    smallest_stable_B_p,
    unstable_reasons,
)
from isojax.scaling.allocate.curve_ensemble import CurveEnsemble
from isojax.scaling.law.n_star_law import Law, log2_n_star
from isojax.scaling.result import FitResult, FrontierFit


@dataclass(frozen=True)
class _MeasuredLaw:
    """A law and the range of C of the frontier it was fitted to."""

    law: Law
    C_low: float
    C_high: float


@dataclass(frozen=True)
class _LawInputs:
    """The joint law, those of each B_p, and the n that were measured, rising."""

    joint: _MeasuredLaw
    by_B_p: Mapping[int, _MeasuredLaw]
    measured_n: tuple[int, ...]
    unstable_by_B_p: Mapping[int, str | None]
    ensemble: CurveEnsemble


def _measured_law(frontier_fit: FrontierFit) -> _MeasuredLaw:
    frontier = frontier_fit.frontier
    return _MeasuredLaw(frontier_fit.n_star.law, frontier[0].C, frontier[-1].C)


def _choose_n(
    inputs: _LawInputs, measured_law: _MeasuredLaw, request: AllocationRequest, n_max: int | None, n_max_reason: str
) -> int:
    """n*(C) as a power of two, within the measured n inside the measured range of C; then at most `at_most`, because of
    `why`.
    """
    log2_n = float(log2_n_star(measured_law.law, request.C))
    n = 1 << max(0, round(log2_n))
    request.add_reasons(f"n*({request.C:.6g}) = {2**log2_n:.3g}, as a power of two {n}")
    if measured_law.C_low * (1 - 1e-9) <= request.C <= measured_law.C_high * (1 + 1e-9):
        clipped = min(max(n, inputs.measured_n[0]), inputs.measured_n[-1])
        if clipped != n:
            request.add_reasons(f"n = {clipped}: only {inputs.measured_n[0]} to {inputs.measured_n[-1]} were measured")
        n = clipped
    else:
        n_saturation = 2 ** (measured_law.law.b + measured_law.law.L)
        measured_range = f"({measured_law.C_low:.6g} to {measured_law.C_high:.6g})"
        request.add_reasons(
            f"C lies outside the frontier {measured_range}: n is the law's word alone, which saturates at "
            f"{n_saturation:.3g}"
        )
        if not inputs.measured_n[0] <= n <= inputs.measured_n[-1]:
            request.add_reasons(f"n = {n} was never measured ({inputs.measured_n[0]} to {inputs.measured_n[-1]} were)")
    if n_max is not None and n > n_max:
        n = floor_power_of_two(n_max)
        request.add_reasons(f"n = {n}: {n_max_reason}")
    return n


def _allocate_with_B_p(
    inputs: _LawInputs, measured_law: _MeasuredLaw, request: AllocationRequest, B_p: int
) -> Allocation:
    check_B_max(request, B_p)
    n_max = None if request.B_max is None else request.B_max // B_p
    n = _choose_n(inputs, measured_law, request, n_max, f"B_max = {request.B_max} allows no more at B_p = {B_p}")
    allocation = allocate_updates(B_p, n, request.C)
    request.add_reasons(f"M = floor(C / (n B_p)) = {allocation.M}")
    return allocation


def _allocate_free(inputs: _LawInputs, request: AllocationRequest) -> Allocation:
    B_p, unstable_text = smallest_stable_B_p(inputs.unstable_by_B_p)
    request.add_reasons(f"B_p = {B_p}: the smallest stable one measured{unstable_text}")
    return _allocate_with_B_p(inputs, inputs.joint, request, B_p)


def _allocate_fixed_B_p(inputs: _LawInputs, request: AllocationRequest, B_p: int) -> Allocation:
    request.add_reasons(f"B_p = {B_p}: given")
    measured_law = inputs.by_B_p.get(B_p)
    if measured_law is None:
        B_ps_with_law = ", ".join(map(str, sorted(inputs.by_B_p)))
        request.add_reasons(
            f"B_p = {B_p} has no law of its own (there is one for {B_ps_with_law}): the joint n*(C) is used"
        )
    unstable_reason = inputs.unstable_by_B_p.get(B_p)
    if unstable_reason is not None:
        request.add_reasons(f"B_p = {B_p} was unstable: {unstable_reason}")
    return _allocate_with_B_p(inputs, measured_law or inputs.joint, request, B_p)


def _allocate_fixed_B(inputs: _LawInputs, request: AllocationRequest, B: int) -> Allocation:
    n = _choose_n(inputs, inputs.joint, request, B, f"B = {B} holds no more")
    allocation = allocate_updates(B // n, n, request.C)
    request.add_reasons(
        f"B = {B}: given, so B_p = B // n = {allocation.B_p} and M = floor(C / (n B_p)) = {allocation.M}"
    )
    return allocation


def _allocate_fixed_M(inputs: _LawInputs, request: AllocationRequest, M: int) -> Allocation:
    B = int(request.C // M) if request.B_max is None else min(int(request.C // M), request.B_max)
    ensemble = inputs.ensemble
    fitting_cells = [
        i
        for i in range(len(ensemble.n))
        if ensemble.B[i] <= B and inputs.unstable_by_B_p.get(int(ensemble.B_p[i])) is None
    ]
    if fitting_cells:
        rewards = ensemble.expected_at_cell_budgets((ensemble.B * M).astype(np.float64))
        best_cell = max(fitting_cells, key=lambda i: (rewards[i], -ensemble.n[i], -ensemble.B_p[i]))
        allocation = Allocation(int(ensemble.B_p[best_cell]), int(ensemble.n[best_cell]), M)
        cells_text = f"M = {M}: given; of {len(fitting_cells)} stable cells with B_p n <= {B}"
        request.add_reasons(f"{cells_text}, {allocation.B_p}x{allocation.n} promises most at C = {allocation.C}")
        return allocation
    n = _choose_n(inputs, inputs.joint, request, B, f"B_p n M <= C and B_max leave B = {B}")
    request.add_reasons(
        f"M = {M}: given; no stable measured cell has B_p n <= {B}, so n is n*(C) and B_p = floor({B} / n) = {B // n}"
    )
    return Allocation(B // n, n, M)


def allocate(fit: FitResult, ensemble: CurveEnsemble, request: AllocationRequest) -> Allocation:
    """The paper's allocation for a request.

    Raises:
        InputError: no stable B_p, or limits that leave no allocation.
    """
    check_fixed(request)
    inputs = _LawInputs(
        joint=_measured_law(fit.joint),
        by_B_p={part.B_p: _measured_law(part) for part in fit.by_B_p if part.B_p is not None},
        measured_n=tuple(sorted({run.n for run in fit.runs})),
        unstable_by_B_p=unstable_reasons(fit),
        ensemble=ensemble,
    )
    if "M" in request.fix:
        return _allocate_fixed_M(inputs, request, request.fix["M"])
    if "B" in request.fix:
        return _allocate_fixed_B(inputs, request, request.fix["B"])
    if "B_p" in request.fix:
        return _allocate_fixed_B_p(inputs, request, request.fix["B_p"])
    return _allocate_free(inputs, request)
