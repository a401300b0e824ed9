"""`isojax fit --validate`: the fit's trials on runs it has not seen, as validation.json and as a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from isojax.cli_fit import FitOptions, default_metric, file_name, is_sweep, progress, warn
from isojax.cli_words import plain
from isojax.files import write_text

TRIALS = {"compute": "the top of compute", "largest_n": "the largest n", "seed": "one run a cell"}


def make_validation(paths: Sequence[Path], metric: str | None, compute: str, options: FitOptions) -> dict[str, Any]:
    """Validate the runs; a single sweep's folder gets its validation.json, named like its fit where another metric or compute was asked.

    The trials take the options of the fit that they judge, but no more replicates than `REPLICATES`, for there are three of them."""
    from isojax.records import read_runs
    from isojax.scaling.health import healthy
    from isojax.scaling.validate import REPLICATES, validate

    runs = read_runs(paths, warn)
    runs = runs if options.include_flagged else healthy(runs)
    with progress("validation") as advance:
        asked = metric or default_metric(runs)
        replicates = min(options.replicates, REPLICATES)
        document = plain(validate(runs, asked, compute, options.mode, replicates, options.seed, options.run_sd, advance))
    if len(paths) == 1 and is_sweep(paths[0]):
        file = paths[0] / file_name("validation", metric, compute, options.mode, options.include_flagged)
        write_text(file, json.dumps(document, indent=1, allow_nan=False) + "\n")
    return document


def print_validation(console: Console, document: Mapping[str, Any]) -> None:
    """The trials' figures beside each other, then each in words."""
    table = Table(title=f"validation: what the fit makes of runs it has not seen ({document['mode']} mode)", title_justify="left")
    for column in ("hidden", "points", "error", "|error|", "inside", "n chosen", "n best", "regret"):
        table.add_column(column, justify="left" if column == "hidden" else "right")
    for name, title in TRIALS.items():
        r = document[name]
        if not r["possible"]:
            table.add_row(title, *["-"] * 7)
            continue
        inside = "-" if r["inside"] is None else f"{r['inside']:.0%}"
        # Nothing predicts an n that was not run: its errors are what it adds, which the words below say.
        errors = ("-", "-") if name == "largest_n" else (f"{r['mean_error']:+.4f}", f"{r['mean_absolute_error']:.4f}")
        chosen = ("-", "-", "-") if r["n_chosen"] is None else (str(r["n_chosen"]), str(r["n_best"]), f"{r['regret']:.4f}")
        table.add_row(title, str(r["measurements"]), *errors, inside, *chosen)
    console.print(table)
    console.print("error: predicted less measured, mean over the points; |error|: of its absolute value", highlight=False)
    console.print("inside: of the 90% interval for one new run on the same validation problems; 90% is to be expected", highlight=False)
    for name, title in TRIALS.items():
        r = document[name]
        said = r["says"] if r["possible"] else f"not possible: {r['why']}"
        console.print(f"[bold]{title}[/bold]: {escape(said)}", highlight=False)
