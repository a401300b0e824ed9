"""The package's structure: imports between its folders point one way, no two modules or classes
share a name, and functions take few parameters.

A folder below isojax/ is a room. A room imports those that it rests on (ROOMS) and itself.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "isojax"

# Room -> the rooms that it rests on; it may import these and whatever they rest on.
ROOMS: dict[str, tuple[str, ...]] = {
    "core": (),
    "runs": ("core",),
    "scaling": ("runs",),
    "report": ("scaling",),
    "distributed": ("core",),
    "models": ("distributed",),
    "tasks": ("distributed",),
    "sampling": ("models", "tasks"),
    "rl": ("sampling",),
    "train": ("rl",),
    "launch": ("runs", "scaling", "report", "train"),
    "cli": ("launch",),
}
# Inside scaling/, from the bottom up: a module imports its own layer and those before it. A folder
# stands for its modules.
SCALING_LAYERS: tuple[tuple[str, ...], ...] = (
    ("run_clock", "update_counts", "result"),  # data types
    ("intervals", "reward_metric", "evaluation_noise", "tracks", "mixed_settings"),
    ("evaluation_size", "learning"),  # what evaluations show before any curve
    ("curves",),
    ("law",),
    ("allocate",),
    ("checks",),
    ("run_forecast",),
    ("one_cell",),
    ("comparison", "comparison_wording", "fit"),
    ("adaptive", "compare_sweeps", "curve_from_file", "run_watch", "spending", "validate"),
)
# These load no jax, at import or later; launch/ does in one folder and one module, cli/ through
# importlib.
ROOMS_WITHOUT_JAX = ("core", "runs", "scaling", "report", "launch", "cli")
MODULES_WITH_JAX = ("launch.local", "launch.ray.ray_worker", "launch.ray.sampler_process")
JAX_LIBRARIES = {"jax", "jaxlib", "flax", "optax", "orbax", "jaxtyping", "transformers", "libtpu"}

# A module here is one of several implementations of the same thing, and may be named like one in
# another such folder.
PLUGIN_FOLDERS = {
    "losses",
    "advantages",
    "aggregations",
    "kl_estimators",
    "families",
    "kernels",
    "sources",
    "device",
    "verifiers",
    "importers",
    "loggers",
    "exporters",
    "commands",
    "figures",
    "strategies",
}
MAX_PARAMETERS = 8


# A module's name in a string; `from isojax.x import y`, as in a program for `python -c`.
NAME_IN_STRING = re.compile(r"\bisojax((?:\.\w+)+)")
IMPORT_IN_STRING = re.compile(r"\bfrom isojax((?:\.\w+)*) import (\w+)")


class Import(NamedTuple):
    """An import statement's module, and where it is written."""

    name: str
    inside_function: bool
    line: int
    attribute: str = ""  # what is imported from the module
    in_string: bool = False  # hidden from a reader, as the name that importlib imports


def modules() -> dict[str, Path]:
    """Every module but __main__ by its name below isojax; the package itself is ""."""
    paths = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


MODULES = modules()


def room(module: str) -> str:
    return module.partition(".")[0]


@cache
def rests_on(name: str) -> set[str]:
    """The room and all that it rests on."""
    return {name}.union(*(rests_on(lower) for lower in ROOMS[name]))


@cache
def syntax_tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path) -> Iterator[Import]:
    """All imports of a file, those for type checkers included."""

    def visit(node: ast.AST, inside: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from (Import(alias.name, inside, child.lineno) for alias in child.names)
            if isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}: write the import in full"
                # `from isojax.rl import gradient` may name a module or something in one
                for alias in child.names:
                    full = f"{child.module}.{alias.name}"
                    is_module = full.removeprefix("isojax.") in MODULES
                    if is_module:
                        yield Import(full, inside, child.lineno)
                    else:
                        yield Import(str(child.module), inside, child.lineno, alias.name)
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from visit(child, inside or is_function)

    return visit(syntax_tree(path), False)


def imports_in_strings(path: Path) -> Iterator[Import]:
    """isojax's modules that a file names in strings: for importlib, for `python -m`, in programs
    for `python -c`. Docstrings name them for readers alone."""

    def visit(node: ast.AST, inside: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            is_docstring = isinstance(node, ast.Expr) and isinstance(child, ast.Constant)
            if (
                isinstance(child, ast.Constant)
                and isinstance(child.value, str)
                and not is_docstring
            ):
                for name in modules_named_in(child.value):
                    yield Import(f"isojax.{name}", inside, child.lineno, in_string=True)
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from visit(child, inside or is_function)

    return visit(syntax_tree(path), False)


def modules_named_in(text: str) -> list[str]:
    """By their names below isojax. Of isojax.a.b.c that is isojax.a.b where c is something in
    it."""
    dotted_names = [match[1] for match in NAME_IN_STRING.finditer(text)]
    dotted_names += [f"{match[1]}.{match[2]}" for match in IMPORT_IN_STRING.finditer(text)]

    found: dict[str, None] = {}
    for dotted_name in dotted_names:
        name = dotted_name.removeprefix(".")
        while name and name not in MODULES:
            name = name.rpartition(".")[0]
        if name:
            found[name] = None
    return [name for name in found if not any(other.startswith(f"{name}.") for other in found)]


def own_imports(module: str) -> Iterator[tuple[str, Import]]:
    """The imports of isojax's own modules, by their names below isojax; those in strings too."""
    path = MODULES[module]
    for imported in (*imports(path), *imports_in_strings(path)):
        if imported.name.partition(".")[0] == "isojax":
            yield imported.name.removeprefix("isojax").removeprefix("."), imported


def loads_jax(module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in MODULES_WITH_JAX)


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in MODULES.values():
        for node in ast.walk(syntax_tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.relative_to(PACKAGE)}:{node.name}", node


def duplicates(names: list[str]) -> set[str]:
    return {name for name, count in Counter(names).items() if count > 1}


@pytest.mark.parametrize("of_room", ROOMS)
def test_imports_point_one_way(of_room: str) -> None:
    for module in MODULES:
        if module and not module.endswith("__main__") and room(module) == of_room:
            check_imports(module)


def test_every_module_is_in_a_room() -> None:
    for module in MODULES:
        assert not module or room(module) in ROOMS, (
            f"isojax/{module}: give its room a place in ROOMS"
        )


def check_imports(module: str) -> None:
    assert room(module) in ROOMS, f"isojax/{module}: give its room a place in ROOMS"
    for name, imported in own_imports(module):
        where = f"{module}, line {imported.line}"
        assert not name.endswith("__main__"), f"{where}: nobody imports {name}"
        if not name:  # the API of notebooks, which imports the rooms; its version alone is for all
            assert imported.attribute == "__version__", (
                f"{where}: import from the room that defines it"
            )
            continue
        assert room(name) in rests_on(room(module)), (
            f"{where}: {room(module)} does not rest on {room(name)}"
        )
        # By a string, the command line loads jax only for the commands that need it.
        is_late = imported.inside_function and not imported.in_string
        crosses_rooms = is_late and room(name) != room(module)
        assert not crosses_rooms, f"{where}: import {name} at the top of the file"


def scaling_layer(module: str) -> int:
    name = module.split(".")[1]
    (layer,) = [i for i, names in enumerate(SCALING_LAYERS) if name in names]
    return layer


def test_no_import_in_scaling_points_up() -> None:
    """result <- curves <- law <- allocate and checks, which do not import each other."""
    imports_in_scaling = [
        (module, name, imported)
        for module in MODULES
        if module.startswith("scaling.")
        for name, imported in own_imports(module)
        if name.startswith("scaling.")
    ]
    for module, name, imported in imports_in_scaling:
        where = f"{module}, line {imported.line}"
        assert scaling_layer(name) <= scaling_layer(module), f"{where}: {name} rests on it"
        if module.startswith("scaling.checks"):
            assert not name.startswith("scaling.allocate"), f"{where}: neither rests on the other"


def test_modules_that_importlib_imports_are_there() -> None:
    for module, path in MODULES.items():
        for name in re.findall(r'import_module\(\s*"isojax\.([\w.]+)"', path.read_text()):
            assert name in MODULES, f"{module} imports {name}"


@pytest.mark.parametrize("module", [m for m in MODULES if m.endswith("__main__")])
def test_what_python_m_runs_hands_over_to_the_command_line(module: str) -> None:
    assert {room(name) for name, _ in own_imports(module)} == {"cli"}


def test_rooms_without_jax_import_none() -> None:
    for module in MODULES:
        if room(module) not in ROOMS_WITHOUT_JAX or loads_jax(module):
            continue
        for imported in imports(MODULES[module]):
            assert imported.name.partition(".")[0] not in JAX_LIBRARIES, (
                f"{module}, line {imported.line}: {imported.name}"
            )


def test_one_module_imports_what_jax_keeps_private() -> None:
    """The coordination service has no public name; everything else that isojax takes has one."""
    users = {
        module
        for module, path in MODULES.items()
        for imported in imports(path)
        if imported.name.startswith("jax._src")
    }
    assert users == {"distributed.coordination"}


def test_rooms_without_jax_load_none() -> None:
    """Through whatever they import."""
    names = [f"isojax.{m}" for m in MODULES if room(m) in ROOMS_WITHOUT_JAX and not loads_jax(m)]
    optional = {"isojax.runs.loggers.wandb", "isojax.launch.__main__"}
    program = (
        f"import importlib, sys\nfor name in {sorted(set(names) - optional)!r}: "
        "importlib.import_module(name)\n"
    )
    program += f"print(sorted({JAX_LIBRARIES!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stdout + done.stderr


def test_no_module_imports_itself_through_others() -> None:
    """At the top of files, in functions or by strings."""
    graph: dict[str, set[str]] = {}
    for module in MODULES:
        names = {name for name, _ in own_imports(module)}
        # A package's own name stands for its __init__. A module may start itself (`python -m`).
        graph[module] = {name for name in names if name in MODULES and name} - {module}
    done: set[str] = set()

    def visit(module: str, chain: tuple[str, ...]) -> None:
        assert module not in chain, (
            f"a circle of imports: {' -> '.join([*chain[chain.index(module) :], module])}"
        )
        if module not in done:
            for name in sorted(graph[module]):
                visit(name, (*chain, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_no_two_modules_have_one_name() -> None:
    names = [
        path.stem
        for path in MODULES.values()
        if path.stem not in ("__init__", "__main__")
        and not PLUGIN_FOLDERS & set(path.relative_to(PACKAGE).parts)
    ]
    assert not duplicates(names)


def test_no_two_classes_have_one_name() -> None:
    names = [
        node.name
        for path in MODULES.values()
        for node in ast.walk(syntax_tree(path))
        if isinstance(node, ast.ClassDef)
    ]
    assert not duplicates(names)


def test_functions_have_few_parameters() -> None:
    """Outside kernels; a command's parameters are its options."""

    def count(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
        names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        return len([name for name in names if name not in ("self", "cls")])

    many = {
        name
        for name, node in functions()
        if "kernels/" not in name and "cli/commands/" not in name and count(node) > MAX_PARAMETERS
    }
    assert not many


def test_the_test_itself_sees_a_wrong_import(tmp_path: Path) -> None:
    path = tmp_path / "imports.py"
    path.write_text("import jax.numpy as jnp\ndef f():\n    from isojax.rl import gradient\n")
    assert list(imports(path)) == [
        Import("jax.numpy", False, 1),
        Import("isojax.rl.gradient", True, 3),
    ]
    path = tmp_path / "strings.py"
    path.write_text(
        '"""As isojax.cli.app does."""\nimport_module("isojax.rl.gradient")\nPROGRAM = "from '
        'isojax.rl.gradient import x; from isojax.rl import losses; import isojax.y"\nNAMES = '
        '{"fit": "isojax.scaling.fit:fit"}\n'
    )
    assert [imported.name for imported in imports_in_strings(path)] == [
        "isojax.rl.gradient",
        "isojax.rl.gradient",
        "isojax.rl.losses",
        "isojax.scaling.fit",
    ]
    assert rests_on("train") == {
        "train",
        "rl",
        "sampling",
        "models",
        "tasks",
        "distributed",
        "core",
    }
    assert "rl" not in rests_on("report") and "runs" not in rests_on("train")
