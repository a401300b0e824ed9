"""The planner's bytes: parts by hand, whole programs against XLA's memory analysis, and the sizes
chosen by them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from isojax.core.config import CellConfig, SamplingConfig, SweepConfig, load_config
from isojax.distributed.mesh_spec import MeshShape, parse_mesh
from isojax.distributed.sharding import make_mesh
from isojax.launch.device_budget import (
    MEMORY_UTILIZATION,
    DeviceBudget,
    autosize_sweep,
    fit_to_memory,
    host_memory,
    suggest_fit,
)
from isojax.launch.local.compile_for_topology import (
    AbstractTask,
    build_abstract_programs,
)
from isojax.launch.memory_model import MemoryEstimate, SamplingPlan, plan_sampling
from isojax.launch.planner import plan_cells, resolve_sweep_sizes
from isojax.launch.time_estimate import CHIPS
from isojax.models.describe_sizes import describe_sizes
from isojax.tasks.task import build_task
from tests.launch.twelve_layers import (
    CELL,
    LAYER_NUMBERS,
    LOCAL,
    MODEL,
    NUMBERS,
    SWEEP,
    TABLE_NUMBERS,
    make_budget,
)
from tests.refusals import refused

CRITIC = "cell.rl.critic={}"


def estimate(
    cell: CellConfig = CELL,
    sweep: SweepConfig = SWEEP,
    mesh: MeshShape | None = None,
    plan: SamplingPlan = LOCAL,
    backend: str = "cpu",
) -> MemoryEstimate:
    return make_budget(cell, mesh, plan, backend).estimate(sweep)


def budget(memory: int, mesh: MeshShape | None = None, cell: CellConfig = CELL) -> DeviceBudget:
    return make_budget(cell, mesh, memory=memory)


def test_what_a_run_holds_by_hand() -> None:
    """Float32 parameters and two moments; keys and values of 16 slots of 19 positions and of the
    table's 12 prompts of 11.
    """
    parts = estimate().breakdown
    assert parts["parameters"] == 4 * NUMBERS and parts["optimizer"] == 8 * NUMBERS
    assert parts["KV"] == 2 * 12 * 2 * 16 * 4 * (16 * 19 + 12 * 11)
    # and so many of padding; tokens, log-probabilities and mask of 8 positions, and 9 bytes more
    rows = 8 * 4 + 16
    assert parts["rollouts"] == rows * (8 * 9 + 9)
    assert parts["reference"] == parts["critic"] == 0


def test_moments_on_the_host_leave_the_device_while_it_samples() -> None:
    """Two of each parameter, and the update takes what it took; where the device does both at once,
    a refusal."""
    parked = SWEEP.model_copy(update={"moments_on_host": True})
    on_device, on_host = (estimate(sweep=sweep, backend="gpu") for sweep in (SWEEP, parked))
    assert estimate() == estimate(sweep=parked)  # a CPU's devices have the host's memory
    assert on_device.sampling_peak - on_host.sampling_peak == 2 * 4 * NUMBERS
    assert (
        on_device.update_peak == on_host.update_peak
        and on_device.program_bytes == on_host.program_bytes
    )
    asynchronous = CELL.model_copy(update={"rl": CELL.rl.model_copy(update={"max_staleness": 2})})
    with refused():
        autosize_sweep(parked, budget(10**9, cell=asynchronous), is_new_run=True)
    with refused():
        autosize_sweep(
            parked, replace(budget(10**9), sampling=SamplingPlan(on_device=True)), is_new_run=True
        )


def test_an_asynchronous_sampler_holds_the_batches_under_way() -> None:
    """k + 1 of them, at every peak."""
    one, three = (
        estimate(CELL.model_copy(update={"rl": CELL.rl.model_copy(update={"max_staleness": k})}))
        for k in (0, 2)
    )
    batches = 2 * one.breakdown["rollouts"]
    assert three.update_peak - one.update_peak == three.weights_peak - one.weights_peak == batches
    assert three.sampling_peak - one.sampling_peak == batches


def one_evaluated(**settings: Any) -> CellConfig:
    """An evaluation of one rollout takes less than training; `settings`: of cell.rl."""
    changed = {
        "rl": CELL.rl.model_copy(update=settings),
        "data": CELL.data.model_copy(update={"validation": 1}),
        "eval": CELL.eval.model_copy(update={"samples": 1}),
    }
    return CELL.model_copy(update=changed)


def test_a_batch_waits_while_others_are_sampled_for_the_same_update() -> None:
    """Its rollouts, and its 12 prompts of 11 tokens with two numbers each: at the peak of sampling,
    and at no other."""
    plain = estimate(one_evaluated())
    dynamic = estimate(one_evaluated(dynamic_sampling=4))
    waiting = plain.breakdown["rollouts"] + 4 * 12 * (11 + 2)
    assert dynamic.breakdown["rollouts"] == plain.breakdown["rollouts"] + waiting
    assert dynamic.sampling_peak == plain.sampling_peak + waiting
    assert dynamic.update_peak == plain.update_peak
    assert dynamic.program_bytes == plain.program_bytes
    assert estimate(one_evaluated(dynamic_sampling=1)) == plain

    # A task that is verified on device then has no program that samples and updates at once.
    on_device = SamplingPlan(on_device=True)
    assert list(estimate(plan=on_device).program_bytes) == ["train"]
    assert list(estimate(one_evaluated(dynamic_sampling=4), plan=on_device).program_bytes) == [
        "learn"
    ]


def test_where_a_server_samples_no_device_has_a_sampler() -> None:
    """Evaluations still need one, unless a server has them too."""
    local = estimate(one_evaluated())
    assert list(local.program_bytes) == ["weights", "decode", "learn"]

    by_server = SamplingPlan(by_server=True, leaves_the_program=True)
    training = estimate(one_evaluated(), plan=by_server)
    assert list(training.program_bytes) == ["learn"]
    assert training.sampling_peak < local.sampling_peak
    assert training.update_peak == local.update_peak
    assert training.weights_peak == local.weights_peak  # of evaluations

    of_evaluations = SamplingPlan(evaluations_by_server=True)
    evaluations = estimate(plan=of_evaluations)
    assert evaluations.program_bytes == estimate().program_bytes
    assert evaluations.sampling_peak < estimate().sampling_peak

    both = estimate(one_evaluated(), plan=replace(by_server, evaluations_by_server=True))
    assert both.weights_peak == both.breakdown["KV"] == both.breakdown["sampling weights"] == 0
    # What is left are the rollouts, and their prompts.
    held = both.breakdown["parameters"] + both.breakdown["optimizer"]
    assert both.sampling_peak == held + both.breakdown["rollouts"] + 4 * 12 * (11 + 2)


def test_the_settings_of_a_run_say_who_samples() -> None:
    def plan(*words: str) -> SamplingPlan:
        return plan_sampling(load_config(["quickstart"], words).run, on_device=False)

    assert plan() == SamplingPlan()
    assert plan("run.on_update=save_rollouts") == SamplingPlan(leaves_the_program=True)
    assert plan("run.eval_server=http://host") == SamplingPlan(evaluations_by_server=True)
    by_server = ("run.rollouts=server", "run.server.url=http://host")
    assert plan(*by_server) == SamplingPlan(by_server=True, leaves_the_program=True)
    # of a user's engine nobody knows where it samples
    assert plan("run.rollouts=my_engine") == SamplingPlan(leaves_the_program=True)


def test_what_layers_keep_by_hand() -> None:
    """Of 12 layers: for 8 x 7 response positions that see 11 + 7, x and the output projection (2 x
    64), queries and two parts' mixed values (3 x 64), keys and values (2 x 32), gate and up (2 x
    128), and scores of 4 heads; for 4 x 11 prompt positions, one part less. And 1000 logits of 8 x
    8 response positions, four times. With remat, x alone."""
    responses = 56 * (2 * 64 + 3 * 64 + 2 * 32 + 2 * 128) + 4 * 56 * 18
    prompts = 44 * (2 * 64 + 2 * 64 + 2 * 32 + 2 * 128) + 4 * 44 * 11
    logits = 64 * 1000 * 4
    assert estimate().breakdown["activations"] == 4 * (12 * (responses + prompts) + logits)
    remat = SWEEP.model_copy(update={"remat": "layer"})
    assert estimate(sweep=remat).breakdown["activations"] == 4 * (12 * (56 + 44) * 64 + logits)


def test_a_tpu_holds_the_samplers_weights_once_while_they_are_made() -> None:
    """In bfloat16, beside the half of the policy that fsdp leaves it, in float32 and cast, and a
    layer that is on its way. Where nothing is gathered, beside all that is cast."""

    def weights(mesh: MeshShape) -> int:
        return estimate(mesh=mesh, backend="tpu").program_bytes["weights"]

    half = NUMBERS // 2
    assert weights(MeshShape(fsdp=2)) == (4 + 2) * half + 2 * NUMBERS + 2 * LAYER_NUMBERS
    assert weights(MeshShape()) == 4 * NUMBERS + 2 * 2 * NUMBERS


def test_a_mesh_splits_what_the_table_says() -> None:
    """fsdp splits parameters and moments, tensor heads, MLP and vocabulary; norms alone stay whole
    over tensor."""
    assert estimate(mesh=MeshShape(fsdp=2)).breakdown["parameters"] == 2 * NUMBERS
    norms = 12 * 128 + 64
    split = estimate(mesh=MeshShape(tensor=2)).breakdown
    assert split["parameters"] == 4 * (norms + (NUMBERS - norms) // 2)
    assert split["KV"] == estimate().breakdown["KV"] // 2
    # sequence the positions of prompts: 11, 12 where 2 or 4 share them, 6 or 3 each; of slots and
    # table, besides the 8 of responses
    assert estimate(mesh=MeshShape(sequence=2)).breakdown["KV"] == 2 * 12 * 2 * 16 * 4 * (
        16 * (6 + 8) + 12 * 6
    )
    assert estimate(mesh=MeshShape(sequence=4)).breakdown["KV"] == 2 * 12 * 2 * 16 * 4 * (
        16 * (3 + 8) + 12 * 3
    )
    full = CELL.model_copy(update={"model": MODEL.model_copy(update={"kv_heads": 1})})
    assert (
        estimate(full, mesh=MeshShape(tensor=2)).breakdown["KV"] == estimate(full).breakdown["KV"]
    )  # one head is not split


def test_a_recipe_adds_what_it_holds() -> None:
    kl, critic = (
        CELL.model_copy(update={"rl": load_config(["quickstart"], [word]).cell.rl})
        for word in ("cell.rl.kl=0.1", CRITIC)
    )
    assert estimate(kl).breakdown["reference"] == 4 * NUMBERS
    # of a tied model there is no unembedding to leave out
    assert estimate(critic).breakdown["critic"] == 12 * NUMBERS
    # a checkpoint holds all of it, whatever the mesh
    split = budget(0, MeshShape(fsdp=2, tensor=2))
    assert split.checkpoint_bytes(SWEEP) == 12 * NUMBERS
    assert replace(split, cell=critic).checkpoint_bytes(SWEEP) == 24 * NUMBERS
    remat = SWEEP.model_copy(update={"remat": "layer"})
    assert estimate(sweep=remat).update_peak < estimate().update_peak


SMOL = (
    "cell.model.path=null",
    "cell.model.layers=6",
    "sweep.decode_slots=16",
    "sweep.microbatch=4",
    "cell.sampling.response_length=16",
)
WIDE = (
    "cell.model.layers=2",
    "cell.model.width=320",
    "cell.model.mlp=768",
    "cell.sampling.prompt_length=30",
)
OTHER_LAYERS = (
    *(
        "cell.task=jsonl:none",
        "cell.model.vocab=1000",
        "cell.model.layers=4",
        "cell.model.width=256",
    ),
    *(
        "cell.model.heads=4",
        "cell.model.kv_heads=2",
        "cell.model.head_dim=64",
        "cell.model.mlp=512",
    ),
    *("cell.sampling.prompt_length=64", "cell.sampling.response_length=64"),
    *("sweep.decode_slots=32", "sweep.microbatch=16"),
)
SLIDING = ("cell.model.family=qwen2", "cell.model.options={window: 32, sliding_layers: [0, 1]}")
EXPERTS = (
    "cell.model.layers=6",
    "cell.model.family=qwen3_moe",
    "cell.model.options={experts: 8, top_k: 2, expert_mlp: 128}",
)
CASES = {
    "tiny, tensor=2": ("tensor=2", ("quickstart",), ()),
    "two layers, prompts and responses in one pass": (
        "auto",
        ("quickstart",),
        ("sweep.B_p=[16]", "sweep.n=[8]", *WIDE),
    ),
    "SmolLM2-135M": ("auto", ("smollm2_cpu", "models/smollm2-135m"), SMOL),
    "layers that slide": ("auto", ("quickstart",), (*OTHER_LAYERS, *SLIDING)),
    "experts, tensor=2": ("tensor=2", ("quickstart",), (*OTHER_LAYERS, *EXPERTS)),
    "SmolLM2-135M, int8 for rollouts": (
        "auto",
        ("smollm2_cpu", "models/smollm2-135m"),
        (*SMOL, "cell.precision.rollout_weights=int8"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_within_15_percent_of_xla(case: str) -> None:
    """Arguments, outputs and temporaries of every program that trains; benchmarks/memory.py has
    many more cases."""
    mesh, names, words = CASES[case]
    for name, (planned, program) in compared(mesh, names, words).items():
        assert planned == pytest.approx(xla_bytes(*program), rel=0.15), f"{case}: {name}"


def xla_bytes(function: Any, arguments: tuple[Any, ...]) -> int:
    """Of arguments, outputs that are not updated in place, and temporaries; compiled in half of the
    usual time."""
    options = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    used = function.lower(*arguments).compile(options).memory_analysis()
    outputs = used.output_size_in_bytes - used.alias_size_in_bytes
    return used.argument_size_in_bytes + outputs + used.temp_size_in_bytes


def compared(
    mesh: str, names: tuple[str, ...], words: tuple[str, ...]
) -> dict[str, tuple[int, Any]]:
    """The planner's bytes, and the program, by its name."""
    config = load_config(names, words)
    cell = config.cell.model_copy(update={"precision": config.cell.precision.for_platform("cpu")})
    task = AbstractTask(cell.model.vocab) if cell.model.vocab else build_task(cell)
    shape = parse_mesh(mesh, 8)
    sweep = resolve_sweep_sizes(config.sweep, shape.shards, cell)
    pairs = sorted({(c.B_p, c.n) for c in plan_cells(config.sweep)})
    planned = (
        DeviceBudget(
            cell,
            pairs,
            shape,
            describe_sizes(cell.model, task.vocab),
            SamplingPlan(task.on_device),
            "cpu",
            0,
        )
        .estimate(sweep)
        .program_bytes
    )
    result = build_abstract_programs(cell, sweep, pairs, make_mesh(shape, jax.devices()), task)
    assert result.keys() == planned.keys()
    return {name: (planned[name], program) for name, program in result.items()}


REQUESTED = SweepConfig(B_p=(8,), n=(4,))


def chosen(requested: SweepConfig, device_budget: DeviceBudget) -> SweepConfig:
    sweep = fit_to_memory(requested, device_budget)
    assert sweep is not None
    return sweep


def test_sizes_for_speed_stay_where_they_fit() -> None:
    """R = ceil(8 x 4), and m as many: 8 prompts of 4, and 512 positions would hold 64."""
    sweep = chosen(REQUESTED, budget(10**12))
    assert (sweep.decode_slots, sweep.microbatch, sweep.prefill_batch, sweep.remat) == (
        32,
        32,
        8,
        "none",
    )


def test_what_does_not_fit_is_cut_until_it_does() -> None:
    """Four fifths of the room for the first choice: a smaller microbatch, and one step before it
    did not fit; no layer is computed twice, which would take longer."""
    first = budget(10**12).estimate(chosen(REQUESTED, budget(10**12)))
    tight = budget(int(0.8 * first.peak / MEMORY_UTILIZATION))
    sweep = chosen(REQUESTED, tight)
    assert first.update_peak > first.sampling_peak and (sweep.decode_slots, sweep.microbatch) == (
        32,
        16,
    )
    assert (
        tight.estimate(sweep).peak
        <= tight.usable_memory
        < tight.estimate(sweep.model_copy(update={"microbatch": 32})).peak
    )


def test_slots_are_cut_to_whole_prefix_groups() -> None:
    """55 x 4 = 220 slots in prefix groups of 4; a prompt of 400 makes the cache what takes most;
    half is 110, of which 27 groups take 108."""
    long = CELL.model_copy(
        update={"sampling": SamplingConfig(prompt_length=400, response_length=2)}
    )
    sweep = SWEEP.model_copy(
        update={
            "decode_slots": None,
            "slots_per_prefix": 4,
            "B_p": (55,),
            "microbatch": 1,
            "prefill_batch": 1,
        }
    )
    roomy = DeviceBudget(
        long,
        [(55, 4)],
        MeshShape(),
        describe_sizes(long.model, 1000),
        SamplingPlan(),
        "cpu",
        10**12,
    )
    first = roomy.estimate(chosen(sweep, roomy))
    assert chosen(sweep, roomy).decode_slots == 220
    tight = replace(roomy, device_memory=int(0.99 * first.sampling_peak / MEMORY_UTILIZATION))
    assert chosen(sweep, tight).decode_slots == 108


def test_sizes_that_are_set_stay_and_are_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    tight = budget(estimate().peak)  # of which 85% may be filled
    assert autosize_sweep(SWEEP, tight, is_new_run=True) == SWEEP
    warning = capsys.readouterr().err
    assert (
        "sweep.decode_slots=16 sweep.microbatch=8" in warning and "are estimated to take" in warning
    )
    assert "It would fit with sweep.decode_slots=" in warning
    autosize_sweep(SWEEP, budget(10**12), is_new_run=True)
    assert not capsys.readouterr().err
    # a resumed run keeps what was chosen
    assert autosize_sweep(SWEEP, tight, is_new_run=False) == SWEEP


def test_where_nothing_fits_it_says_what_would_help() -> None:
    """On a CPU, whose devices share one memory, more memory; elsewhere the mesh with the fewest
    devices that fits, and the settings that stand in its way."""
    least = budget(0).estimate(budget(0).smallest_sizes(REQUESTED)).peak
    tight = budget(int(0.7 * least / MEMORY_UTILIZATION))
    assert fit_to_memory(REQUESTED, tight) is None
    with refused():
        autosize_sweep(REQUESTED, tight, is_new_run=True)
    with refused():
        autosize_sweep(REQUESTED, replace(tight, backend="gpu"), is_new_run=True)
    large_set = REQUESTED.model_copy(update={"microbatch": 64, "remat": "none"})
    suggestion = suggest_fit(large_set, replace(tight, backend="gpu"), [("the 2 there are", 2)])
    assert re.search(r"--mesh \w+=2 sweep.microbatch=\d+ on the 2 there are", suggestion)


PRESETS = ("qwen2.5-7b-instruct", "llama-3.1-8b-instruct", "qwen3-4b-instruct")


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_presets_fit_sixteen_chips_of_v5e(preset: str) -> None:
    """What configs/gsm8k.yaml leaves null is chosen: layers of the larger two are computed again,
    and the smallest cell fills 64 slots, of which the caches of two models leave room for 128."""
    v5e = v5e_budget(preset, MeshShape(fsdp=4, tensor=4))
    sweep = chosen(load_config(["gsm8k"], []).sweep, v5e)
    assert sweep.remat == ("none" if preset == "qwen3-4b-instruct" else "layer")
    assert v5e.estimate(sweep).peak <= v5e.usable_memory
    assert sweep.decode_slots == (64 if preset == "llama-3.1-8b-instruct" else 128)
    assert sweep.microbatch is not None and sweep.microbatch > 1


def v5e_budget(preset: str, mesh: MeshShape) -> DeviceBudget:
    config = load_config(["gsm8k", f"models/{preset}"], [])
    cell = config.cell.model_copy(update={"precision": config.cell.precision.for_platform("tpu")})
    pairs = sorted({(c.B_p, c.n) for c in plan_cells(config.sweep)})
    memory = int(2**30 * CHIPS["TPU v5 lite"][0])
    return DeviceBudget(
        cell, pairs, mesh, describe_sizes(cell.model), SamplingPlan(), "tpu", memory
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "places", "suggested"),
    [
        # fewer chips than there are
        (MeshShape(tensor=4), [("v5e:4x4", 16)], "--mesh fsdp=4,tensor=4 on v5e:4x4"),
        (MeshShape(fsdp=16), [("v5e:4x4", 16)], "--mesh fsdp=4,tensor=4 on v5e:4x4"),
        (
            MeshShape(tensor=4),
            [("v5e:2x2", 4), ("v5e:2x4", 8), ("v5e:4x4", 16)],
            "fsdp=4,tensor=4 on v5e:4x4",
        ),
        (MeshShape(tensor=4), [("v5e:2x2", 4)], "lower cell.sampling.response_length"),
    ],
)
def test_a_refusal_names_the_nearest_mesh(
    mesh: MeshShape, places: list[tuple[str, int]], suggested: str
) -> None:
    requested, v5e = load_config(["gsm8k"], []).sweep, v5e_budget(PRESETS[0], mesh)
    assert fit_to_memory(requested, v5e) is None
    assert suggested in suggest_fit(requested, v5e, places)


def test_settings_that_stand_in_the_way_are_named() -> None:
    v5e = v5e_budget(PRESETS[0], MeshShape(fsdp=4, tensor=4))
    requested = load_config(["gsm8k"], ["sweep.microbatch=64"]).sweep
    assert fit_to_memory(requested, v5e) is None
    suggestion = suggest_fit(requested, v5e, [])
    assert re.search(r"It would fit with .*sweep.microbatch=32 .*sweep.remat=layer", suggestion)


def test_the_memory_of_a_machine_is_its_cgroups_where_that_is_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr("isojax.launch.device_budget.CGROUP_LIMIT_FILES", (limit,))
    full = host_memory()
    limit.write_text("max\n")
    assert host_memory() == full > 2**20
    limit.write_text(f"{2**20}\n")
    assert host_memory() == 2**20


def test_a_gpus_kernel_holds_a_mask_for_scores_and_its_sampler_one_copy_of_the_layers() -> None:
    """In bfloat16, where cuDNN attends and prompts are prefilled by the sampler's own layers."""

    def on(backend: str, compute: str, attention: str | None = None) -> MemoryEstimate:
        cell = CELL.model_copy(
            update={"precision": CELL.precision.model_copy(update={"compute": compute})}
        )
        sweep = SWEEP.model_copy(update={"forward_attention": attention})
        return estimate(cell, sweep, backend=backend)

    assert on("gpu", "bfloat16").update_peak < on("gpu", "bfloat16", "plain").update_peak
    with_mask, without = (
        make_budget(backend="gpu")
        .sizes(SWEEP.model_copy(update={"forward_attention": kind}))
        .layers[0]
        .backward(7, 11, 2)
        for kind in ("cudnn", "pallas")
    )
    assert with_mask - without == 5 * 7 * 11
    assert on("gpu", "float32").update_peak == on("gpu", "float32", "plain").update_peak
    in_bfloat16, on_a_tpu, in_float32 = (
        on(*of).breakdown["sampling weights"]
        for of in (("gpu", "bfloat16"), ("tpu", "bfloat16"), ("gpu", "float32"))
    )
    assert in_bfloat16 == on_a_tpu == 2 * NUMBERS
    assert in_float32 == 4 * (
        12 * LAYER_NUMBERS + TABLE_NUMBERS
    )  # the stacked ones are the policy's own
