"""The package as its users get it: sdist and wheel hold what they need, and the wheel works where
there is no checkout.

The wheel is built from the sdist and installed into a folder, which stands before the tests' own
isojax on Python's path. Commands run in an empty folder."""

from __future__ import annotations

import email
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from isojax import __version__
from isojax.core.yaml_files import flatten
from tests.e2e.command_line import REPOSITORY, TINY

pytestmark = [pytest.mark.slow, pytest.mark.seconds(30)]

NAME = f"isojax-{__version__}"
INFO = f"{NAME}.dist-info"
# what the wheel has of these
SHARED = ("configs/*.yaml", "configs/*/*.yaml", "launch/*", "docs/**/*.md", "docs/*.svg")
SOURCES = ("isojax", "configs", "launch", "docs", "tests", "benchmarks", ".ci")
PAGES = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "CITATION.cff",
    "LICENSE",
    "Makefile",
    "pyproject.toml",
)


def run(*words: str | Path, **options: object) -> str:
    """What a process prints on standard output; it ends well."""
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=240, check=False, **options
    )  # type: ignore[call-overload]
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def files(*patterns: str) -> Iterator[str]:
    """The checkout's files, by their paths in it."""
    for path in (path for pattern in patterns for path in REPOSITORY.glob(pattern)):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(REPOSITORY).as_posix()


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the sdist and of the wheel that is built from it, as `make dist` does with
    tools of its own."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, REPOSITORY)
    assert sorted(path.name for path in folder.iterdir()) == [
        f"{NAME}-py3-none-any.whl",
        f"{NAME}.tar.gz",
    ]
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(dist / f"{NAME}-py3-none-any.whl")


class Installed:
    """The wheel in a folder, and an empty folder in which its commands run."""

    def __init__(self, folder: Path, wheel: str) -> None:
        self.folder, self.work = folder / "site", folder / "work"
        self.work.mkdir()
        pip = (
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        )
        run(*pip, "--no-index", "--target", self.folder, wheel)
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(self.folder),
            "COLUMNS": "200",
            "NO_COLOR": "1",
        }

    def python(self, *words: str | Path) -> str:
        return run(sys.executable, *words, cwd=self.work, env=self.environment)

    def __call__(self, *words: str) -> str:
        """What a command prints, by the script that pip has made for it."""
        return self.python(self.folder / "bin/isojax", *words)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, wheel: zipfile.ZipFile) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"), str(wheel.filename))


def test_the_wheel_has_the_checkouts_files(wheel: zipfile.ZipFile) -> None:
    expected = {name: f"isojax/share/{name}" for name in files(*SHARED)} | {
        n: n for n in files("isojax/**/*.py")
    }
    assert len(expected) > 300 and "configs/models/smollm2-135m.yaml" in expected
    for name, packaged in expected.items():
        assert wheel.read(packaged) == (REPOSITORY / name).read_bytes(), name
    rest = set(wheel.namelist()) - set(expected.values())
    info = {
        f"{INFO}/{name}"
        for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    }
    assert {name for name in rest if not name.startswith("isojax/report/page/")} == info | {
        "isojax/py.typed",
        "isojax/runs/study.parquet",
    }


def test_the_sdist_has_what_builds_and_tests_it(dist: Path) -> None:
    with tarfile.open(dist / f"{NAME}.tar.gz") as archive:
        packaged = {name.removeprefix(f"{NAME}/") for name in archive.getnames()}
    assert (
        set(files(*(f"{folder}/**/*" for folder in SOURCES), *PAGES, "hatch_build.py")) <= packaged
    )


def test_the_description_has_no_link_that_leads_nowhere_elsewhere(wheel: zipfile.ZipFile) -> None:
    metadata = email.message_from_bytes(wheel.read(f"{INFO}/METADATA"))
    text = metadata.get_payload()
    assert isinstance(text, str) and metadata["Description-Content-Type"] == "text/markdown"
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert links and all(link.startswith("https://") for link in links)
    assert (
        "make quickstart" in text
        and "docs/laws.md describes the fitted model" in text
        and "![" not in text
    )
    assert (metadata["Version"], metadata["License-Expression"]) == (__version__, "Apache-2.0")


def test_configs_templates_and_pages_are_found_without_a_checkout(installed: Installed) -> None:
    program = (
        "import json, isojax\nfrom isojax.core.config.load import SHARE, config_names, "
        "load_config\nprint(json.dumps([isojax.__file__, str(SHARE), [n for n in config_names() if "
        "load_config(n)]]))"
    )
    module, share, names = json.loads(installed.python("-c", program))
    assert module == str(installed.folder / "isojax/__init__.py")  # not the one that tests use
    assert share == str(installed.folder / "isojax/share")
    assert names == sorted(
        name.removeprefix("configs/").removesuffix(".yaml") for name in files(*SHARED[:2])
    )
    assert (Path(share) / "docs/clusters.md").is_file() and share in installed("--help").split()
    assert installed("--version") == f"{__version__}\n"
    assert len(installed("template").splitlines()) == 5
    assert installed("template", "tpu_pod.sh") == "launch/tpu_pod.sh\n"
    script = installed.work / "launch/tpu_pod.sh"
    assert script.read_bytes() == (REPOSITORY / "launch/tpu_pod.sh").read_bytes() and os.access(
        script, os.X_OK
    )


def test_a_sweep_runs_and_is_fitted_without_a_checkout(installed: Installed) -> None:
    tiny = [
        f"{key}={json.dumps(value)}"
        for key, value in flatten(yaml.safe_load(TINY))
        if key != "name"
    ]
    small = (
        *tiny,
        "cell.base.steps=20",
        "cell.data.candidates=300",
        "sweep.budget=700",
        "sweep.seeds=1",
    )
    installed("launch", "quickstart", "recipes/cispo", *small, "--dry-run")
    assert not (installed.work / "runs").exists()
    installed("launch", "quickstart", *small)
    run_folder = installed.work / "runs/quickstart"
    assert (run_folder / "report.html").is_file() and len(
        list(run_folder.glob("cells/*/records.jsonl"))
    ) == 2
    assert json.loads(installed("fit", "runs/quickstart", "--json"))["curves"]


@pytest.mark.nightly
def test_the_kernels_are_checked_without_a_checkout(installed: Installed) -> None:
    """TPU kernels interpreted on this CPU, in three minutes of its time."""
    before = os.times()
    text = installed("accelerator")
    after = os.times()
    assert after.children_user - before.children_user < 180
    folder = installed.work / "runs/accelerator"
    assert (folder / "accelerator.txt").read_text() in text
    document = json.loads((folder / "accelerator.json").read_text())
    compared = {x["kernel"] for x in document["kernels"] if x["error"] is not None}
    assert compared == {"splash", "flash_decode", "tpu_experts", "tpu_grouped"}
    assert [program["name"] for program in document["programs"]] == ["sampling", "update"]
