"""A process that computes starts once more before it imports anything large; others do not."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from isojax.cli import start


@pytest.mark.parametrize(
    ("words", "computes"),
    [
        (("launch",), True),
        (("launch", "guess", "sweep.n=[4]", "--resume"), True),
        (("lr-search", "guess"), True),
        (("launch", "--dry-run"), False),
        (("launch", "gsm8k", "--dry-run", "--topology", "v5e:2x4"), False),
        (("train", "--help"), False),
        (("status",), False),
        (("no-such-command",), False),
        (("../cli/commands/launch",), False),
        ((), False),
    ],
)
def test_which_commands_ask_for_large_pages(
    words: tuple[str, ...], computes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(sys, "argv", ["isojax", *words])
    monkeypatch.setattr(start, "use_huge_pages", lambda: calls.append("large pages"))
    app = SimpleNamespace(main=lambda: calls.append("main"))
    monkeypatch.setattr(start, "_import_app", lambda: app)
    start.main()
    assert calls == ["large pages"] * computes + ["main"]


def test_what_is_imported_twice_is_small() -> None:
    program = (
        "import sys, isojax.cli.start; "
        "print([m for m in ('typer', 'pydantic', 'numpy', 'jax', 'yaml') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


def test_a_plan_loads_neither_pallas_nor_what_reads_responses() -> None:
    """Half a second of imports, of the two that the first figures of a plan may take."""
    program = (
        "import sys, isojax.launch.local.topology_plan; "
        "print([m for m in ('jax.experimental.pallas', 'isojax.tasks.task', "
        "'isojax.tasks.answers', 'transformers', 'orbax', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "[]\n"
