"""The configs for the TPUs that people can get: each fits the chips that its first lines name, by
the planner and by the TPU's compiler, which agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.tpu_configs import (
    FOLDER,
    PlanCommand,
    all_commands,
    compile_plan,
    plan,
    planned_bytes,
    read_commands,
)
from isojax.core.config import load_config
from tests.libtpu import needs_libtpu

GSM8K = load_config("gsm8k")
CONFIGS = sorted(FOLDER.glob("*.yaml"))
COMMANDS = list(all_commands())
FIRST_COMMANDS = [commands[0] for commands in map(read_commands, CONFIGS)]
of_each_config = pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)


def test_the_first_lines_of_a_config_have_its_commands(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(
        "# For one chip.\n"
        "#     isojax launch tpu/small\n"
        "#     isojax launch tpu/small models/x sweep.n=[4] --dry-run --topology v5e:1x1\n"
        "name: small # isojax launch tpu/other --dry-run --topology v5e:1x1\n"
    )
    assert read_commands(path) == [PlanCommand(("tpu/small", "models/x", "sweep.n=[4]"), "v5e:1x1")]


@of_each_config
def test_a_config_is_a_sweep_over_gsm8k_that_is_called_as_its_file(path: Path) -> None:
    config = load_config(str(path))
    assert config.name == f"tpu-{path.stem}"
    assert (config.cell.model.lora is not None) == path.stem.endswith("-lora")
    assert config.cell.prompt == GSM8K.cell.prompt
    assert config.cell.verifier == GSM8K.cell.verifier
    assert config.cell.sampling == GSM8K.cell.sampling
    assert config.cell.data.held_out == GSM8K.cell.data.held_out
    assert len(config.sweep.n) >= 4

    # The grid of evaluations leaves nothing of the budget.
    last_target = config.cell.eval.evaluation_targets(config.sweep.budget)[-1]
    assert last_target > 0.999 * config.sweep.budget


@of_each_config
def test_its_commands_plan_it_with_its_models_shape(path: Path) -> None:
    """For two kinds of chips at least; a preset goes over nothing but the model's shape."""
    alone = load_config(str(path))
    commands = read_commands(path)
    kinds = {command.topology.partition(":")[0] for command in commands}
    assert len(kinds) >= 2
    for command in commands:
        assert command.words[0] == f"tpu/{path.stem}"
        config = command.load()
        assert config.cell.model.vocab is not None
        assert (config.cell.model.path, config.cell.model.lora) == (
            alone.cell.model.path,
            alone.cell.model.lora,
        )
        assert config.sweep == alone.sweep


@pytest.mark.slow
@pytest.mark.parametrize("command", FIRST_COMMANDS, ids=lambda command: command.title)
def test_it_fits_by_the_planner(command: PlanCommand) -> None:
    planned = plan(command)
    assert planned.budget.fits(planned.sweep)


@pytest.mark.nightly
@needs_libtpu
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.title)
def test_it_fits_by_the_compiler_as_planned(command: PlanCommand) -> None:
    planned = plan(command)
    figures = compile_plan(planned)
    for name, by_plan in planned_bytes(planned.memory).items():
        by_compiler = figures.needed[name]
        assert by_compiler <= planned.budget.device_memory, name
        assert by_plan == pytest.approx(by_compiler, rel=0.15), name
