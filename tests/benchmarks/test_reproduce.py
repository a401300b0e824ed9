"""The study of docs/reproduction.md: every config is planned, and published lines are those of the
committed runs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.distributed.mesh_spec import MeshShape
from isojax.runs.study import load_study

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
OVER_A_MODEL = ("gsm8k", "smollm2_cpu", "calculator_cpu")
PRESETS = sorted((CONFIGS / "models").glob("*.yaml"))


@pytest.fixture(scope="module", autouse=True)
def benchmarks() -> Iterator[None]:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield
    sys.path.remove(str(ROOT / "benchmarks"))


@pytest.fixture
def reproduce() -> ModuleType:
    return importlib.import_module("reproduce")


@pytest.fixture
def study_tables() -> ModuleType:
    return importlib.import_module("study_tables")


@pytest.fixture
def config_plans() -> ModuleType:
    return importlib.import_module("config_plans")


def stacks() -> list[list[str]]:
    """Every YAML that isojax brings, with what it is meant to go over."""
    alone = [*CONFIGS.glob("*.yaml"), *(CONFIGS / "small").glob("*.yaml")]
    return [
        *([str(path)] for path in sorted(alone) if path.stem not in OVER_A_MODEL),
        *([name, "models/smollm2-135m"] for name in OVER_A_MODEL),
        *(
            ["quickstart", f"recipes/{path.stem}"]
            for path in sorted((CONFIGS / "recipes").glob("*.yaml"))
        ),
        *(["gsm8k", f"models/{path.stem}"] for path in PRESETS),
    ]


@pytest.mark.parametrize(
    "configs", stacks(), ids=lambda configs: "+".join(Path(name).stem for name in configs)
)
def test_every_config_has_a_plan_on_a_named_slice(
    config_plans: ModuleType, configs: list[str]
) -> None:
    """On v5e:4x4, and the largest model on v5p:2x2x2."""
    slice_of = (
        "TPU v5 lite",
        MeshShape(fsdp=4, tensor=4) if configs[0] == "gsm8k" else MeshShape(),
        16,
        15.75,
    )
    if configs[-1] == "models/qwen3-30b-a3b":
        slice_of = ("TPU v5", MeshShape(fsdp=2, expert=4), 8, 95.74)
    chip, mesh, chips, gib = slice_of

    plan = config_plans.plan(configs, chip, mesh, chips)
    assert plan.runs and 0 < plan.memory.peak < gib * 2**30 and plan.forecast.sweep_seconds > 0


@pytest.mark.slow
def test_the_papers_configs_have_a_plan_on_a_pod(
    reproduce: ModuleType, study_tables: ModuleType, config_plans: ModuleType
) -> None:
    rows = config_plans.plan_rows()
    assert len(rows) == len(list((CONFIGS / "paper").glob("*.yaml")))
    assert (
        study_tables.markdown_table(["config", "runs", "GiB per chip", "days"], rows)
        in reproduce.PAGES[0].read_text()
    )


@pytest.mark.slow
def test_the_table_of_long_responses_is_todays(
    study_tables: ModuleType, config_plans: ModuleType
) -> None:
    page = (CONFIGS.parent / "docs" / "performance.md").read_text()
    assert study_tables.markdown_table(config_plans.LONG_COLUMNS, config_plans.long_rows()) in page


def test_a_published_line_is_that_of_the_committed_runs(
    reproduce: ModuleType, study_tables: ModuleType
) -> None:
    study = load_study()
    assert set(study) == {*reproduce.LAUNCHED, "small_smollm2"}
    fit = study_tables.fit_runs(study["small_weak_base"], study_tables.FitKey("weak_base"))
    row = study_tables.growth("12", "A weaker base policy: n\\* grows with C", fit)
    assert f"| {' | '.join(row)} |" in reproduce.PAGES[0].read_text()


def test_runs_are_read_as_they_were_written(reproduce: ModuleType, tmp_path: Path) -> None:
    point = EvalPoint(
        8, 1, 8, 20, {"avg@4": 0.5, "any/avg@4": 0.25}, (2, 2), 4, {"entropy": 0.5}, {"any": (1, 1)}
    )
    base = replace(point, target=0, M=0, rollouts=0, tokens=0, train={})
    runs = [RunRecord(Cell(4, 2, seed), (base, point), cell_hash="x") for seed in (0, 1)]
    other = RunRecord(Cell(4, 2, 0), (replace(base, extra={}),), cell_hash="y")
    sweeps = {"a": runs, "b": [other]}
    rows = [
        reproduce.study_row(name, run, p)
        for name, sweep in sweeps.items()
        for run in sweep
        for p in run.points
    ]
    names = list(dict.fromkeys(name for row in rows for name in row))
    pq.write_table(
        pa.table({name: [row.get(name) for row in rows] for name in names}), tmp_path / "s.parquet"
    )
    read = load_study(tmp_path / "s.parquet")
    assert {
        name: [replace(run, source="") for run in sweep] for name, sweep in read.items()
    } == sweeps
