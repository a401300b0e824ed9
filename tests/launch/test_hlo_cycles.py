"""Cycles of a program, read from HLO whose sums are made by hand."""

from __future__ import annotations

import pytest

from isojax.core import program_scopes
from isojax.core.config import load_config
from isojax.launch.hlo_cycles import Operation, read_loops
from isojax.launch.local.compiled_times import CLOCKS, compiled_times
from isojax.launch.local.kernel_prices import Positions, kernel_cost


def fusion(name: str, cycles: int) -> str:
    config = f'{{"estimated_cycles":"{cycles}"}}'
    return f"  %{name} = f32[8,128]{{1,0}} fusion(%x), backend_config={config}"


def loop(name: str, condition: str, scope: str = "") -> str:
    """A loop with the body %NAME, traced in a scope."""
    path = f"jit(step)/{scope}/while" if scope else "jit(step)/body/while"
    return (
        f"  %{name}.op = (f32[8,128]{{1,0}}, s32[]) while(%t), condition=%{condition},"
        f' body=%{name}, metadata={{op_name="{path}"}}'
    )


# A loop of 24 iterations, and one whose condition compares two values.
CONDITIONS = [
    "%constant (p: (s32[])) -> pred[] {",
    "  %c = s32[]{:T(128)} constant(24)",
    "  ROOT %lt = pred[] compare(%i, %c), direction=LT",
    "}",
    "%values (p: (s32[])) -> pred[] {",
    "  ROOT %lt = pred[] compare(%i, %n), direction=LT",
    "}",
]


def computation(name: str, *lines: str) -> list[str]:
    return [f"%{name} (p: (s32[])) -> (s32[]) {{", *lines, "}"]


def program(computations: list[list[str]], *entry: str) -> str:
    lines = [*CONDITIONS, *(line for lines in computations for line in lines)]
    return "\n".join([*lines, "ENTRY %main (p: (s32[])) -> (s32[]) {", *entry, "}"])


SAMPLER = program(
    [
        computation("layer", fusion("a", 100), fusion("b", 20)),
        computation("token", fusion("logits", 1000), loop("layer", "constant")),
        computation("block", fusion("prompts", 7000)),
    ],
    fusion("queue", 320),
    loop("block", "values", program_scopes.PREFILL_BLOCKS),
    loop("token", "values", program_scopes.DECODE_TOKENS),
)
UPDATE = program(
    [
        computation("narrow", fusion("n", 500)),
        computation("wide", fusion("w", 900)),
        computation(
            "block",
            fusion("prompts", 4000),
            loop("wide", "values", program_scopes.MICROBATCHES),
            loop("narrow", "values", program_scopes.MICROBATCHES),
        ),
    ],
    fusion("adam", 60),
    loop("block", "values", program_scopes.GRADIENT_BLOCKS),
)


def test_loops_with_a_constant_count_as_often() -> None:
    """A token: 1,000 and 24 x 120."""
    entry = read_loops(SAMPLER)
    (token,) = entry.find(program_scopes.DECODE_TOKENS)
    assert token.trips is None and token.loops[0].trips == 24
    assert token.cycles == 1000 + 24 * 120
    scopes = (program_scopes.DECODE_TOKENS, program_scopes.PREFILL_BLOCKS)
    assert entry.cycles_without(scopes) == 320


def test_the_parts_of_a_sweeps_programs() -> None:
    """At 1.5 GHz. The queue is looked at once in 32 tokens; of microbatches the widest counts."""
    cell = load_config(["gsm8k"], []).cell
    times = compiled_times({"decode": SAMPLER, "learn": UPDATE}, cell, "TPU v5 lite")
    clock = CLOCKS["TPU v5 lite"]
    assert times is not None
    assert times.decode_step * clock == pytest.approx(3880 + 320 / 32)
    assert times.prefill_block * clock == pytest.approx(7000)
    assert times.gradient_block * clock == pytest.approx(4000)
    assert times.microbatch * clock == pytest.approx(900)
    assert times.update_end * clock == pytest.approx(60)
    assert compiled_times({"decode": SAMPLER, "learn": UPDATE}, cell, "TPU of tomorrow") is None


def kernel(name: str, operands: str, result: str = "bf16[1]{0}") -> Operation:
    """A call of a kernel, as the only operation of a program."""
    calls = []
    line = (
        f'  %{name} = {result} custom-call(%q), custom_call_target="tpu_custom_call",'
        f" operand_layout_constraints={{{operands}}}, metadata={{}}"
    )
    read_loops(program([], line), lambda operation: calls.append(operation) or 0.0)
    (operation,) = calls
    return operation


def test_the_decode_kernel_reads_the_blocks_in_use() -> None:
    """8 slots of 1,024 positions in blocks of 512; all are past 512: two blocks of keys and values
    of 2 x 64 bfloat16 each, and as many steps."""
    operation = kernel("flash_decode.3", "bf16[8,2,7,64]{3,2,1,0}, bf16[24,8,2,64,1024]{4,3,2,1,0}")
    cost = kernel_cost(operation, Positions(512, 512), "TPU v5 lite")
    assert cost.num_bytes == 8 * 1024 * 2 * 2 * 64 * 2
    assert cost.steps >= 2


@pytest.mark.parametrize("rows", [1, 8])
def test_splash_attention_multiplies_what_is_seen(rows: int) -> None:
    """256 queries see half of 256 keys, in heads that fill 128 lanes: 2 products forwards. XLA
    leaves out the axis of a single row."""
    axis = "8," if rows == 8 else ""
    tables = "s8[1,1,1]{2,1,0}, s8[1,1,1]{2,1,0}"
    operands = f"{tables}, bf16[{axis}14,256,64]{{0}}, bf16[{axis}2,256,64]{{0}}"
    operation = kernel("splash_mha_fwd.1", operands)
    cost = kernel_cost(operation, Positions(256, 512), "TPU v5 lite")
    assert cost.flops == 2 * 2 * rows * 14 * 256 * 128 * 128
    assert cost.steps == rows * 14
