"""`isojax fit`: reward curves, frontier and n*(C) of finished runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from isojax.cli.formatting import print_fit
from isojax.cli.lazy_commands import new_app
from isojax.cli.options import IncludeFlaggedOption, JsonOption, ModeOption
from isojax.cli.saved_fits import DEFAULT_MODE, FitOptions, make_fit
from isojax.cli.validation import make_validation, print_validation

app = new_app()

ComputeUnit = Literal["rollouts", "tokens", "device_hours"]

MetricOption = Annotated[
    str | None, typer.Option(help="Validation metric to fit, such as avg@4.", show_default="the ledger's avg@k")
]
ComputeOption = Annotated[ComputeUnit, typer.Option(help="What compute is counted in.")]
BootstrapOption = Annotated[int, typer.Option(metavar="N", min=0, help="Replicates behind the intervals; 0 for none.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Seed of the replicates.")]
RunSdOption = Annotated[
    float | None,
    typer.Option(
        metavar="SD",
        min=0.0,
        max=1.0,
        help="Standard deviation of the final reward between runs that differ in their seed alone.",
        show_default="estimated from the seeds; .01 where there is one",
    ),
]


@app.command()
def fit(
    runs: Annotated[
        list[Path], typer.Argument(help="Sweep folders, cell folders or ledgers, such as runs/quickstart.")
    ],
    metric: MetricOption = None,
    compute: ComputeOption = "rollouts",
    mode: ModeOption = DEFAULT_MODE,
    bootstrap: BootstrapOption = 500,
    seed: SeedOption = 0,
    run_sd: RunSdOption = None,
    validate: Annotated[
        bool, typer.Option("--validate", help="Hide runs from the fit, predict them, and report how well.")
    ] = False,
    include_flagged: IncludeFlaggedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Fit the reward curves, the compute-optimal frontier and n*(C) to finished runs.

    A single sweep's folder also gets the result as fit.json; with --metric, --compute or --mode as a file of its own,
    such as fit-tokens.json. --metric train/reward fits the training reward. Runs that are flagged as broken (a
    collapse, a loss that is not finite: docs/recipes.md) are left out, and named.

    \b
    [bold]Examples[/bold]
      isojax fit runs/quickstart
      isojax fit runs/quickstart --compute tokens --json | jq .n_star
      isojax fit runs/quickstart --validate    hides the top 4x of compute, the largest n, one seed; validation.json
    """
    options = FitOptions(mode, bootstrap, seed, run_sd, include_flagged)
    fit_document = make_fit(runs, metric, compute, options)
    validation = make_validation(runs, metric, compute, options) if validate else None
    if as_json:
        print(json.dumps(fit_document | ({"validation": validation} if validation else {}), indent=1, allow_nan=False))
        return
    print_fit(Console(), fit_document)
    if validation:
        print_validation(Console(), validation)
