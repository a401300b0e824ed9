"""Options that several commands share, and how every command looks."""

from typing import Annotated, Any, Literal

import typer

from isojax.runs.ledger import INCLUDE_FLAGGED

FitMode = Literal["hierarchical", "paper"]

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on standard output, and nothing else there.")
]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Go on with what is in the run's folder, or start where nothing is.")
]
ModeOption = Annotated[
    FitMode,
    typer.Option(
        help="hierarchical: all points in one model, with intervals; says when n makes no difference. "
        "paper: the published workflow, step by step."
    ),
]
IncludeFlaggedOption = Annotated[
    bool, typer.Option(INCLUDE_FLAGGED, help="Fit the runs that are flagged as broken too; else they are left out.")
]
WhereOption = Annotated[
    list[str] | None,
    typer.Option(metavar="COL=VALUE", help="Take only the rows of the file with this value; may be repeated."),
]


def new_app(**settings: Any) -> typer.Typer:
    """A typer app that looks as all of isojax's do."""
    help_names = {"help_option_names": ["-h", "--help"]}
    style: dict[str, Any] = {"rich_markup_mode": "rich", "pretty_exceptions_enable": False, "add_completion": False}
    return typer.Typer(context_settings=help_names, **style, **settings)
