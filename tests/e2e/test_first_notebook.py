"""docs/notebooks/first_tpu.ipynb: where it thinks that it runs and what it installs there, on what
the images of Colab and Kaggle ship; and all its cells, shortened here, whole in a nightly test."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.e2e import tiny_lm
from tests.e2e.command_line import Isojax

REPOSITORY = Path(__file__).resolve().parents[2]
NOTEBOOK = REPOSITORY / "docs" / "notebooks" / "first_tpu.ipynb"
IMAGES = yaml.safe_load((REPOSITORY / "tests" / "notebook_images.yaml").read_text())


def code_cells() -> list[str]:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@pytest.fixture(scope="module")
def functions() -> SimpleNamespace:
    """The functions of the notebook, with the imports of its first cell, and nothing done."""
    cells = [ast.parse(cell).body for cell in code_cells()]
    imports = [node for node in cells[0] if isinstance(node, ast.Import | ast.ImportFrom)]
    defined = [node for cell in cells for node in cell if isinstance(node, ast.FunctionDef)]
    body = [*imports, *defined]
    names: dict[str, Any] = {}
    exec(compile(ast.Module(body, type_ignores=[]), NOTEBOOK.name, "exec"), names)
    return SimpleNamespace(**names)


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image["image"])
def test_on_an_image_of_colab_and_kaggle(image: dict[str, Any], functions: SimpleNamespace) -> None:
    """It knows the service, and that none of these images has a jax that isojax is tested with."""
    assert functions.find_place(image["environment"]) == image["place"]
    assert not functions.image_serves(tuple(image["python"]), image["installed"])


def test_an_image_with_a_tested_pair_of_versions_serves(functions: SimpleNamespace) -> None:
    assert functions.image_serves((3, 11), {"jax": "0.10.2", "flax": "0.12.8"})
    assert functions.image_serves((3, 12), {"jax": "0.11.2", "flax": "0.12.12"})
    assert functions.image_serves((3, 13), {"jax": "0.11.0rc1", "flax": "0.12.13"})
    assert not functions.image_serves((3, 12), {"jax": "0.10.2", "flax": "0.12.8"})
    assert not functions.image_serves((3, 12), {"jax": "0.12.0", "flax": "0.12.12"})
    assert not functions.image_serves((3, 12), {"jax": "0.11.2"})


def test_the_versions_are_those_of_the_package(functions: SimpleNamespace) -> None:
    """The notebook repeats pyproject.toml's, which it cannot read before isojax is there."""
    text = (REPOSITORY / "pyproject.toml").read_text()
    for requirement in (
        "jax>=0.10.2,<0.11; python_version < '3.12'",
        "flax==0.12.8; python_version < '3.12'",
        "jax>=0.11,<0.12; python_version >= '3.12'",
        "flax>=0.12.12,<0.13; python_version >= '3.12'",
    ):
        assert f'"{requirement}"' in text


def test_a_machine_of_no_service(functions: SimpleNamespace) -> None:
    assert functions.find_place({"HOME": "/root"}) == "machine"


def test_what_it_installs(tmp_path: Path, functions: SimpleNamespace) -> None:
    """A wheel next to it, else the checkout that holds it, else the package."""
    notebooks = tmp_path / "docs" / "notebooks"
    notebooks.mkdir(parents=True)
    assert functions.find_isojax(notebooks) == "isojax"

    (tmp_path / "isojax").mkdir()
    (tmp_path / "isojax" / "__init__.py").touch()
    assert functions.find_isojax(notebooks) == str(tmp_path)

    wheel = notebooks / "isojax-0.1.0-py3-none-any.whl"
    wheel.touch()
    assert functions.find_isojax(notebooks) == str(wheel)


# In the place of SmolLM2 and its integers: random weights, and a coin that rewards some responses.
SHORTENED = [
    "cell.sampling.prompt_length=96",
    "cell.verifier.use=stand_in.coin",
    "cell.data.validation=8",
]


@pytest.mark.slow
@pytest.mark.seconds(60)
def test_all_cells_run_with_a_tiny_model(isojax: Isojax, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep is cut off by its time limit at once, and goes on; the rest finds its runs."""
    monkeypatch.chdir(isojax.folder)
    # IPython is a notebook's, not a test's: the pictures that a cell shows are listed instead.
    shown: list[Path] = []
    display = SimpleNamespace(Image=lambda filename: filename, display=shown.append)
    monkeypatch.setitem(sys.modules, "IPython.display", display)  # type: ignore[arg-type]

    tiny_lm.make_model(isojax.folder / "models" / "smollm2-135m")
    (isojax.folder / "stand_in").mkdir()
    (isojax.folder / "stand_in" / "coin.py").write_text(tiny_lm.COIN)
    exit_codes: dict[tuple[str, ...], int] = {}

    def run(*words: str, expected: tuple[int, ...] = (0,)) -> int:
        """The notebook's function of this name, in a fork; the device is checked elsewhere."""
        if words[0] == "accelerator":
            return 0
        done = isojax.quick(*words)
        assert done.returncode in expected, done.stdout + done.stderr
        exit_codes[words] = done.returncode
        return done.returncode

    names: dict[str, Any] = {}
    for cell in code_cells():
        exec(compile(cell, NOTEBOOK.name, "exec"), names)
        if "ACCELERATOR" in names:
            names["ACCELERATOR"] = "cpu"
        if "isojax" in names:
            names["isojax"] = run
        if "TIME_LIMIT" in names and names["TIME_LIMIT"] != "1s":
            names["SETTINGS"] += SHORTENED
            names["TIME_LIMIT"] = "1s"

    (cut_off,) = [words for words in exit_codes if "run.time_limit=1s" in words]
    assert exit_codes[cut_off] == names["STOPPED"]
    assert shown and all(picture.read_bytes().startswith(b"\x89PNG") for picture in shown)
    assert {"config.json", "model.safetensors"} <= {p.name for p in names["trained"].iterdir()}


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.seconds(900)
def test_the_whole_notebook_in_an_empty_environment(tmp_path: Path) -> None:
    """As it is, by Jupyter's own program, from a wheel, in less than ten minutes once installed."""
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(REPOSITORY)]
    subprocess.run(build, check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "jupyter")], check=True)
    python = tmp_path / "jupyter" / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "ipykernel", "nbconvert"], check=True)

    notebook = tmp_path / NOTEBOOK.name
    notebook.write_bytes(NOTEBOOK.read_bytes())
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = ["nbconvert", "--to", "notebook", "--execute", "--inplace", notebook.name]
    subprocess.run(
        [str(python), "-m", "jupyter", *words], cwd=tmp_path, env=environment, check=True
    )

    text = json.dumps(json.loads(notebook.read_text())["cells"])
    assert "run.time_limit is reached" in text
    assert '"image/png"' in text
    assert (tmp_path / "isojax-environment" / "bin" / "isojax").exists()
