"""Every YAML that isojax brings is a config, and its sweep has a plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from isojax.core.config import load_config
from isojax.launch.planner import plan_cells, resolve_sweep_sizes
from isojax.rl.recipe_checks import check_algorithm

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = sorted(CONFIGS.rglob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(CONFIGS).as_posix())
def test_it_parses_and_plans(path: Path) -> None:
    config = load_config(str(path))
    cells = plan_cells(resolve_sweep_sizes(config.sweep, 1, config.cell))
    assert cells
    assert len(config.cell.eval.evaluation_targets(config.sweep.budget)) > 3


@pytest.mark.parametrize(
    "preset", sorted((CONFIGS / "models").glob("*.yaml")), ids=lambda p: p.stem
)
def test_a_preset_goes_over_gsm8k(preset: Path) -> None:
    below, above = load_config(str(CONFIGS / "gsm8k.yaml")), load_config(str(preset))
    both = load_config([str(CONFIGS / "gsm8k.yaml"), str(preset)], ["cell.model.path=models/mine"])
    assert both.cell.model == above.cell.model.model_copy(update={"path": "models/mine"})
    assert both.cell.prompt == below.cell.prompt.model_copy(
        update={"format": above.cell.prompt.format}
    )
    assert (both.name, both.sweep, both.cell.data, both.cell.rl) == (
        "gsm8k",
        below.sweep,
        below.cell.data,
        below.cell.rl,
    )
    assert above.cell.model.model_fields_set >= {
        "family",
        "layers",
        "width",
        "heads",
        "kv_heads",
        "head_dim",
        "mlp",
        "vocab",
        "tied",
    }


@pytest.mark.parametrize(
    "preset", sorted((CONFIGS / "recipes").glob("*.yaml")), ids=lambda p: p.stem
)
def test_a_recipe_goes_over_the_quickstart(preset: Path) -> None:
    """It says nothing but the recipe, all that distinguishes recipes, and contradicts neither
    itself nor the grid; its name is its file's."""
    below = load_config(str(CONFIGS / "quickstart.yaml"))
    above = load_config(str(preset))
    assert (
        above.model_fields_set == {"cell", "name"}
        and above.name == preset.stem
        and above.cell.model_fields_set == {"rl"}
    )
    assert {
        "loss",
        "kl",
        "entropy",
    } <= above.cell.rl.model_fields_set and "learning_rate" not in above.cell.rl.model_fields_set
    both = load_config([str(CONFIGS / "quickstart.yaml"), f"recipes/{preset.stem}"])
    specific = {key: getattr(above.cell.rl, key) for key in above.cell.rl.model_fields_set}
    assert both == below.model_copy(
        update={
            "cell": below.cell.model_copy(update={"rl": below.cell.rl.model_copy(update=specific)})
        }
    )
    check_algorithm(both.cell.rl, plan_cells(both.sweep))


def test_there_is_a_quickstart() -> None:
    assert CONFIGS / "quickstart.yaml" in FILES


def test_no_config_has_another_ending() -> None:
    assert not list(CONFIGS.rglob("*.yml"))
