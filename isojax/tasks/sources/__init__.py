"""Sources of problems in text, one file each: a function `(argument, data) -> ProblemSource` with
the decorator `@source`, where `argument` is what follows the colon of `cell.task`, and `data` is
`cell.data`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from isojax.core.argument_path import ArgumentPath
from isojax.core.config import PromptConfig
from isojax.core.plugins import PluginKind


@dataclass(frozen=True)
class SourceTraits:
    """What a task in text brings along beside its problems."""

    prompt: PromptConfig | None = None  # this and `verifier` are used where the config sets nothing
    verifier: str | None = None  # a `cell.verifier.use`
    # of a task of turns: (problem, turns) -> a text, or None where it is done
    reply: Callable[..., Any] | None = None
    # what the argument names, so that it goes to the hosts with the config (`isojax pack`)
    path: Callable[[str], ArgumentPath] | None = None


source = PluginKind("source", "tasks.sources", SourceTraits)
