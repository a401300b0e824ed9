"""How long the runs of a fit would take on another number of devices than they were trained on. A
run's clock (scaling/run_clock.py) gives the seconds that C rollouts take."""

from dataclasses import replace

from isojax.scaling.result import FitResult


def measured_devices(fit: FitResult) -> list[int]:
    """The numbers of devices on which the runs with a clock were trained."""
    return sorted({int(row.clock.devices) for row in fit.runs if row.clock is not None})


def on_devices(fit: FitResult, devices: int) -> FitResult:
    """The fit, with clocks as if its runs had been trained on so many devices, such as 8.

    The device hours stay the same: twice the devices take half the time. With more devices than a
    batch keeps busy a run takes longer than that. A run without a clock stays as it is."""
    rows = []
    for row in fit.runs:
        if row.clock is None:
            rows.append(row)
            continue

        # The three terms of a clock are seconds: at the start, per rollout, and of evaluations.
        ratio = row.clock.devices / devices
        clock = replace(
            row.clock,
            startup=row.clock.startup * ratio,
            per_rollout=row.clock.per_rollout * ratio,
            per_efold=row.clock.per_efold * ratio,
            devices=row.clock.devices / ratio,  # `devices`, as the clock's kind of number
        )
        rows.append(row.model_copy(update={"clock": clock}))
    return fit.model_copy(update={"runs": tuple(rows)})
