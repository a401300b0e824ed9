"""The parts of a sweep as commands: fit, recommend, report, and the run of a recommendation."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
import yaml

pytestmark = [pytest.mark.slow, pytest.mark.seconds(30)]


def test_a_dry_run_writes_nothing(isojax: Any, tmp_path: Any) -> None:
    before, cache = isojax.snapshot(), tmp_path / "cache"
    done = isojax.ok(
        "isojax.launch", "tiny.yaml", "--dry-run", JAX_COMPILATION_CACHE_DIR=str(cache)
    )
    assert (
        isojax.snapshot() == before and not (isojax.folder / "runs").exists() and not cache.exists()
    )
    plan = " ".join(done.stderr.split())
    assert "4 runs" in plan and "the last at C = 1852" in plan
    assert "recipe: loss grpo, advantage group, aggregation token" in plan
    isojax.quick_ok("launch", "tiny.yaml", "--dry-run", "--mesh", "data=4,tensor=2")
    one = (
        "train",
        "tiny.yaml",
        "sweep.n=[2]",
        "sweep.seeds=1",
        "sweep.budget=64",
        "cell.rl.loss=dr_grpo",
        "--dry-run",
    )
    said = isojax.quick_ok(*one).stderr
    assert (
        "1 run in" in said and "recipe: loss dr_grpo, advantage mean, aggregation constant" in said
    )
    assert isojax.snapshot() == before


def test_fit_prints_one_document_which_it_also_writes(isojax: Any, whole: Any) -> None:
    shutil.copytree(
        whole.run(),
        isojax.run(),
        ignore=shutil.ignore_patterns("checkpoint", "fit.json", "figures", "report.html"),
    )
    document = json.loads(isojax.quick_ok("fit", "runs/tiny", "--json").stdout)
    assert document == json.loads((isojax.run() / "fit.json").read_text())
    assert (isojax.run() / "fit.json").read_bytes() == (whole.run() / "fit.json").read_bytes()
    by_tokens = json.loads(
        isojax.quick_ok(
            "fit",
            "runs/tiny/cells/8x2-s0",
            "runs/tiny/cells/8x4-s0",
            *("--compute", "tokens", "--replicates", "10", "--json"),
        ).stdout
    )
    assert [c["n"] for c in by_tokens["curves"]] == [2, 4]
    isojax.quick_ok("report", "runs/tiny")
    assert (isojax.run() / "report.html").exists() and list(
        (isojax.run() / "figures").glob("*.png")
    )


def test_a_recommendation_is_written_and_trained(isojax: Any, whole: Any) -> None:
    words = ("recommend", str(whole.run()), "--budget", "600", "--write", "best.yaml", "--json")
    selected = json.loads(isojax.quick_ok(*words).stdout)
    assert (
        selected["B_p"] == 8
        and selected["n"] in (2, 4)
        and selected["M"] == 600 // (8 * selected["n"])
    )
    assert selected["C"] == selected["B"] * selected["M"] <= 600 < selected["C"] + selected["B"]

    written = yaml.safe_load((isojax.folder / "best.yaml").read_text())
    assert (
        written["sweep"]["B_p"] == [8]
        and written["sweep"]["n"] == [selected["n"]]
        and written["sweep"]["budget"] == selected["C"]
    )
    isojax.refused(*words, saying=["best.yaml"])  # an existing file is kept

    isojax.quick_ok("train", "best.yaml")
    cell = f"8x{selected['n']}-s0"
    assert list(isojax.ledgers(written["name"])) == [cell]
    rows = isojax.rows(cell, written["name"])
    assert rows[-1]["rollouts"] <= selected["C"] + selected["B"]
    # the same base policy, problems and seed as the sweep's
    assert rows[0]["counts"] == whole.rows(cell)[0]["counts"]
    isojax.refused("isojax.train", "best.yaml", saying=["--resume"])


def test_train_runs_one_cell_only(isojax: Any) -> None:
    isojax.refused("train", "tiny.yaml", saying=["4 runs", "sweep.n=[2]"])
