"""Imports point one way, as DESIGN's layout says, and the commands for a laptop load no jax."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "isojax"

# Each line may import the lines above it and its own; a module is placed by its longest name found here.
SHARED = [
    ("types",),
    ("files", "registry", "estimators", "huge_pages", "machine", "section", "stopping", "geometry", "meshes"),
    ("remote",),
    ("claim",),
    ("storage",),
    ("config_rl",),
    ("config", "records"),
    ("loggers",),
    ("launch.sizes", "launch.memory"),
    ("launch.planner",),
]
CLI = (
    "cli_difficulty",
    "cli_records",
    "cli_curve",
    "cli_recommend",
    "cli_validate",
    "cli_compare",
    "cli_model",
)
CLI += ("cli_lr_anchor", "cli_status")
HOST = [
    *SHARED,
    ("scaling",),
    ("logs", "export"),
    ("report",),
    ("launch",),
    ("cli_words", "cli_drawing", "cli_config"),
    ("cli_fit",),
    CLI,
    ("cli",),
]
DEVICE = [
    *SHARED,
    ("sharding", "hosts", "probe"),
    ("models", "tasks"),
    ("sampling",),
    ("rl",),
    ("evaluate", "checkpoint"),
]
DEVICE += [("labels", "problems", "compiled"), ("base", "policy"), ("told",), ("train",)]
# The places where the laptop's side reaches the devices' side, and only inside functions.
BRIDGES = (
    "launch.local",
    "launch.site",
    "launch.member",
    "launch.gang",
    "launch.workers",
    "launch.topology",
    "launch.forecast",
    "launch.difficulty",
    "cli",
    "cli_model",
)
ENTRY_POINTS = {"launch.__main__": "cli", "train": "cli"}  # `python -m` hands over to the command line
ACCELERATED = {"jax", "jaxlib", "flax", "optax", "orbax", "jaxtyping", "transformers", "libtpu"}

Import = tuple[str, bool]  # (module, whether it is inside a function)


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path) -> list[Import]:
    found: list[Import] = []

    def visit(node: ast.AST, inside: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                continue
            if isinstance(child, ast.Import):
                found.extend((alias.name, inside) for alias in child.names)
            if isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}: write the import in full"
                for alias in child.names:  # `from isojax.rl import step` may name a module or something in one
                    full = f"{child.module}.{alias.name}"
                    found.append((full if full.removeprefix("isojax.") in MODULES else str(child.module), inside))
            visit(child, inside or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))

    visit(ast.parse(path.read_text()), False)
    return found


def place(module: str, chain: list[tuple[str, ...]]) -> int | None:
    """The line of `chain` that holds a module, by its longest prefix."""
    names = {name: i for i, line in enumerate(chain) for name in line}
    parts = module.split(".")
    prefixes = (".".join(parts[:i]) for i in range(len(parts), 0, -1))
    return next((names[p] for p in prefixes if p in names), None)


MODULES = modules()


@pytest.mark.parametrize("module", [m for m in MODULES if m])
def test_imports_point_one_way(module: str) -> None:
    on_host, on_device = place(module, HOST), place(module, DEVICE)
    assert on_host is not None or on_device is not None, (
        f"isojax/{module}: give it a place in this test and in DESIGN's layout"
    )
    for name, inside in imports(MODULES[module]):
        if not name.startswith("isojax."):
            continue
        other = name.removeprefix("isojax.")
        lines = [(place(module, chain), place(other, chain)) for chain in (HOST, DEVICE)]
        allowed = any(
            a is not None and b is not None and (b < a or (b == a and same_part(module, other))) for a, b in lines
        )
        crossing = module in BRIDGES and inside and place(other, DEVICE) is not None
        entry = ENTRY_POINTS.get(module) == other
        assert allowed or crossing or entry, f"{module} imports {other}, which the design's arrows do not allow"


def same_part(a: str, b: str) -> bool:
    return a.split(".")[0] == b.split(".")[0]


@pytest.mark.parametrize("module", [m for m in MODULES if m and place(m, HOST) is not None])
def test_the_laptops_side_never_imports_an_accelerators_library(module: str) -> None:
    for name, inside in imports(MODULES[module]):
        if name.partition(".")[0] in ACCELERATED:
            assert module in ("launch.site", "launch.gang", "launch.topology", "launch.forecast") and inside, (
                f"{module} imports {name}"
            )


def test_the_test_itself_sees_a_wrong_arrow(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text("import jax.numpy as jnp\ndef f():\n    from isojax.rl import step\n")
    found = imports(path)
    assert ("jax.numpy", False) in found
    assert found[1][0].startswith("isojax.rl") and found[1][1] is True
    assert place("launch.planner", HOST) == 9 and place("launch.ray", HOST) == 13
    assert place("rl.losses.grpo", DEVICE) == place("rl", DEVICE)
    assert place("rl", HOST) is None


def test_no_jax_is_loaded_by_what_a_laptop_runs() -> None:
    program = (
        "import sys, isojax.cli.app, isojax.scaling.fit, isojax.scaling.allocate.recommend, isojax.report.write, isojax.runs.ledger, isojax.core.config, "
        "isojax.launch.planner, isojax.launch.__main__\n"
        f"print(sorted({ACCELERATED!r} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
