"""What bash is offered for the last of some words, in a process in which some modules cannot be
imported: from standard input, [modules, [words, ...]]; to it, what is offered for each."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Sequence


def complete(words: Sequence[str]) -> list[str]:
    from isojax.cli import app

    os.environ |= {
        "_ISOJAX_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(["isojax", *words]),
        "COMP_CWORD": str(len(words)),
    }
    sys.argv = ["isojax"]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        app.main()
    return out.getvalue().split()


def main() -> None:
    absent, requests = json.load(sys.stdin)
    sys.modules |= dict.fromkeys(absent)
    offered = [complete(words) for words in requests]
    json.dump(offered, sys.stdout)


if __name__ == "__main__":
    main()
