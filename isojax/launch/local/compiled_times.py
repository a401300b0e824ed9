"""What the parts of a sweep's TPU programs take, from their compiler's cycles.

That is an estimate of the compiler, and no measurement. The cycles are those that libtpu writes
into a program (launch/hlo_cycles.py), with the kernels priced by kernel_prices.py. It prices no
collectives: the bytes that devices exchange are in no cycle.
"""

from collections.abc import Mapping
from dataclasses import fields

from isojax.core import program_scopes
from isojax.core.config import CellConfig
from isojax.core.shapes import CHUNK_TOKENS
from isojax.launch.hlo_cycles import Loop, read_loops
from isojax.launch.local.kernel_prices import Positions, make_kernel_cycles
from isojax.launch.time_estimate import ProgramTimes, find_chip

# By jax's name for a device, in Hz: the clock at which its matrix units reach the published rate.
CLOCKS = {
    "TPU v4": 1.05e9,
    "TPU v5 lite": 1.5e9,
    "TPU v5": 1.75e9,
    "TPU v6 lite": 1.75e9,
}
SAMPLING_SCOPES = (
    program_scopes.SAMPLE_CHUNKS,
    program_scopes.PREFILL_BLOCKS,
    program_scopes.DECODE_TOKENS,
)


def compiled_times(programs: Mapping[str, str], cell: CellConfig, kind: str) -> ProgramTimes | None:
    """The times of a sweep's programs; None for a kind of chip whose clock is not known.

    None also where a program, or one of its loops, is missing: XLA leaves none of a single token.
    programs: the optimized HLO by name, "train" alone or "decode" and "learn"
    (`build_abstract_programs`). kind: jax's name for the chip, such as "TPU v5 lite".
    """
    parts = dict[str, float]()
    for hlo in programs.values():
        parts |= compiled_parts(hlo, cell, kind)
    is_complete = parts.keys() == {field.name for field in fields(ProgramTimes)}
    return ProgramTimes(**parts) if is_complete else None


def compiled_parts(hlo: str, cell: CellConfig, kind: str) -> dict[str, float]:
    """Seconds of those parts of ProgramTimes, by name, that a program has.

    hlo: of a program that samples, or that computes an update, or both. Arguments and what is not
    known as of `compiled_times`.
    """
    clock = CLOCKS.get(kind)
    if clock is None:
        return {}
    _, rates = find_chip(kind)
    positions = Positions(cell.sampling.prompt_length, cell.sampling.response_length)
    program = read_loops(hlo, make_kernel_cycles(positions, kind, rates, clock))

    cycles = dict[str, float]()
    if program.find(program_scopes.DECODE_TOKENS):
        # The sampler looks at its queue once in so many tokens.
        chunk = _parent(program, program_scopes.DECODE_TOKENS)
        tokens = min(CHUNK_TOKENS, cell.sampling.response_length)
        token_cycles = _slowest(program, program_scopes.DECODE_TOKENS).cycles
        cycles["decode_step"] = token_cycles + chunk.cycles_without(SAMPLING_SCOPES) / tokens
    if program.find(program_scopes.PREFILL_BLOCKS):
        cycles["prefill_block"] = _slowest(program, program_scopes.PREFILL_BLOCKS).cycles

    # With a critic there are several loops over blocks, each with its microbatches.
    blocks = program.find(program_scopes.GRADIENT_BLOCKS)
    if blocks and program.find(program_scopes.MICROBATCHES):
        without_blocks = (program_scopes.GRADIENT_BLOCKS, *SAMPLING_SCOPES)
        whole_update = _parent(program, program_scopes.GRADIENT_BLOCKS)
        cycles["update_end"] = whole_update.cycles_without(without_blocks)
        cycles["gradient_block"] = sum(
            block.cycles_without((program_scopes.MICROBATCHES,)) for block in blocks
        )
        # A block's microbatches have a loop for each width; the slowest is that of full length.
        cycles["microbatch"] = sum(
            _slowest(block, program_scopes.MICROBATCHES).cycles for block in blocks
        )
    return {part: of_part / clock for part, of_part in cycles.items()}


def _slowest(program: Loop, scope: str) -> Loop:
    """The loop of this scope; of several, the one whose iteration takes the most cycles."""
    return max(program.find(scope), key=lambda loop: loop.cycles)


def _parent(program: Loop, scope: str) -> Loop:
    """The computation that the loops of a scope are in, such as a chunk of the sampler."""
    return next(
        parent for parent in program.walk() if any(loop.in_scope((scope,)) for loop in parent.loops)
    )
