"""What a real run holds on its device while a program runs is what the planner says that it
holds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from isojax.core.config import load_config
from isojax.distributed.sharding import Program
from isojax.launch.local.local_runner import launch
from isojax.launch.local.setup import SweepSetup
from isojax.launch.sampling_memory import sampling_work_bytes
from isojax.rl.optimizer import HOST_MEMORY
from tests.e2e.tiny_lm import CHAT_CONFIG, make_model

pytestmark = pytest.mark.seconds(30)

# rotary tables, keys and counters, which the planner leaves out, and padding, which it counts
MAX_DIFFERENCE = 0.05


def held_bytes(on_host: bool) -> int:
    """Of all arrays of this process in the memory of its devices, or of the host; each buffer
    once."""
    there = [x for x in jax.live_arrays() if (x.sharding.memory_kind == HOST_MEMORY) == on_host]
    on_one = [x for x in there if x.nbytes and len(x.sharding.device_set) == 1]
    arrays = [x for x in on_one if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)]
    return sum({x.unsafe_buffer_pointer(): x.nbytes for x in arrays}.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        # a critic and a reference
        ("recipes/ppo", ["cell.rl.kl=0.1", "sweep.moments_on_host=true"]),
        # matrices of two precisions, frozen and trained
        ("recipes/grpo", ["cell.model.lora.rank=4", "cell.precision.compute=bfloat16"]),
    ],
)
def test_what_a_run_holds_while_a_program_runs(
    recipe: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_model(tmp_path / "lm")
    problems = [{"prompt": str(i), "answer": str(i)} for i in range(80)]
    Path("problems.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    Path("text.yaml").write_text(json.dumps(CHAT_CONFIG))
    config = load_config(
        ["text.yaml", recipe],
        [*words, "cell.sampling.response_length=32", "run.compilation_cache=false"],
    )
    # of other tests, kept until the end
    others = jax.live_arrays()
    before = held_bytes(on_host=False)
    prepare, call = SweepSetup.prepare, Program.__call__
    setups = list[Any]()
    names = dict[int, str]()
    held = dict[str, int]()
    on_host = dict[str, int]()

    def prepare_and_remember(self: SweepSetup, *arguments: Any) -> Any:
        programs: Any = self.programs[0]
        rollouts = programs.rollout_programs
        grader = programs.evaluator.graded_sampler.engine
        names.update(
            {
                id(rollouts.graded_sampler.engine.stream.advance_chunk): "decode",
                id(rollouts.update): "learn",
            }
        )
        names[id(grader.stream.advance_chunk)] = "evaluate"
        setups.append(self)
        return prepare(self, *arguments)

    def measure_and_call(self: Program, *arguments: Any) -> Any:
        if name := names.get(id(self)):
            # the last counts
            held[name], on_host[name] = held_bytes(on_host=False) - before, held_bytes(on_host=True)
        return call(self, *arguments)

    monkeypatch.setattr(SweepSetup, "prepare", prepare_and_remember)
    monkeypatch.setattr(Program, "__call__", measure_and_call)
    launch(config, resume=False, dry_run=False)
    del others
    (setup,) = setups
    budget, sweep = setup.device_budget, setup.config.sweep
    if sweep.moments_on_host:  # which leave the memory of devices that have their own
        budget = replace(budget, backend="gpu")
    sizes, memory = budget.sizes(sweep), budget.estimate(sweep)
    resident = (
        3 * (sizes.weights.trained_bytes + sizes.critic_bytes)
        + sizes.weights.frozen_bytes
        + sizes.reference_bytes
    )
    # not known to a plan
    problem_table = 4 * (len(problems) - 8) * (config.cell.sampling.prompt_length + 2)
    held = {name: size - problem_table for name, size in held.items()}
    sampling = max(held["decode"], held["evaluate"])
    assert sampling == pytest.approx(
        memory.sampling_peak - sampling_work_bytes(sizes), rel=MAX_DIFFERENCE
    )
    assert resident <= held["learn"] <= (1 + MAX_DIFFERENCE) * (resident + sizes.rollout_bytes)
    parked_bytes = (
        2 * sizes.weights.trained_bytes + 3 * sizes.critic_bytes if sweep.moments_on_host else 0
    )
    assert on_host["decode"] == pytest.approx(parked_bytes, rel=0.01)
