"""Every link between the project's pages leads somewhere, and every benchmark is explained."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from isojax import __version__

ROOT = Path(__file__).parents[1]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "benchmarks" / "README.md",
]


def heading_anchors(page: Path) -> set[str]:
    """The anchors that a page's headings have: lower case, without punctuation, spaces as
    hyphens."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in heading_anchors(linked), (
            f"{page.name}: no heading for {target}"
        )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_that_a_page_names_exist(page: Path) -> None:
    for name in re.findall(r"`(isojax/[\w/]+\.py)`", page.read_text()):
        assert (ROOT / name).is_file(), f"{page.name} names {name}"


def test_every_benchmark_is_explained() -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text()
    helpers = {
        "ablation_arms",
        "ablation_figures",
        "chaos_watch",
        "fit_quality_world",
        "foreign_forms",
        "foreign_tables",
        "fuzz_corpus",
        "fuzz_inputs",
        "fuzz_spoil",
    }
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - helpers
    assert {name for name in scripts if f"`{name}.py`" not in text} == set()


def test_one_version_and_name_everywhere() -> None:
    """pyproject.toml takes the version from isojax/__init__.py."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["cff-version"], citation["version"]) == ("1.2.0", __version__)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"] and "version" not in project["project"]
    assert project["tool"]["hatch"]["version"]["path"] == "isojax/__init__.py"
    assert (citation["title"], citation["license"]) == (
        project["project"]["name"],
        project["project"]["license"],
    )
    assert re.findall(r"^## (\S+?),", (ROOT / "CHANGELOG.md").read_text(), re.M)[0] == __version__
    for path in (*PAGES, *(ROOT / "launch").iterdir()):
        named = re.findall(r"isojax(?:\[[\w,]*\])?(?:==|-|:)(\d+\.\d+\.\d+)", path.read_text())
        assert set(named) <= {__version__}, path


def test_a_rollout_passes_at_most_30_files_and_each_has_the_functions_that_the_table_names() -> (
    None
):
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| \d+ \| \[`([\w/]+\.py)`\]\(.*?\) \| (.*?): ", text, re.M)
    assert 20 < len(rows) == len({path for path, _ in rows}) <= 30
    for path, functions in rows:
        code = (ROOT / "isojax" / path).read_text()
        for name in re.findall(r"`([\w.]+)`", functions):
            assert re.search(rf"(def|class) {name.rpartition('.')[2]}\b", code), (
                f"{path} has no {name}"
            )
