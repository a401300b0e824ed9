"""What the parts of a sweep's TPU programs take, from their compiler's cycles.

That is an estimate of the compiler, and no measurement. The cycles are those that libtpu writes
into a program (launch/hlo_cycles.py), with the kernels priced by kernel_prices.py. It prices no
collectives: the bytes that devices exchange are in no cycle.
"""

from collections.abc import Mapping

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

    programs: the optimized HLO by name, "train" alone or "decode" and "learn"
    (`build_abstract_programs`). kind: jax's name for the chip, such as "TPU v5 lite".
    """
    clock = CLOCKS.get(kind)
    if clock is None:
        return None

    _, rates = find_chip(kind)
    positions = Positions(cell.sampling.prompt_length, cell.sampling.response_length)
    kernel_cycles = make_kernel_cycles(positions, kind, rates, clock)
    sampler = read_loops(programs.get("decode") or programs["train"], kernel_cycles)
    update = read_loops(programs.get("learn") or programs["train"], kernel_cycles)

    # The sampler looks at its queue once in so many tokens.
    chunk = _parent(sampler, program_scopes.DECODE_TOKENS)
    tokens = min(CHUNK_TOKENS, cell.sampling.response_length)
    token_cycles = _one(sampler, program_scopes.DECODE_TOKENS).cycles
    chunk_cycles = chunk.cycles_without(SAMPLING_SCOPES)

    # A block's microbatches have a loop for each width; the slowest is that of full length. With a
    # critic there are several such loops of blocks, each with its microbatches.
    gradient_blocks = update.find(program_scopes.GRADIENT_BLOCKS)
    microbatch_cycles = [
        max(loop.cycles for loop in block.find(program_scopes.MICROBATCHES))
        for block in gradient_blocks
    ]
    block_cycles = [
        block.cycles_without((program_scopes.MICROBATCHES,)) for block in gradient_blocks
    ]
    whole_update = _parent(update, program_scopes.GRADIENT_BLOCKS)
    end_cycles = whole_update.cycles_without((program_scopes.GRADIENT_BLOCKS, *SAMPLING_SCOPES))

    return ProgramTimes(
        decode_step=(token_cycles + chunk_cycles / tokens) / clock,
        prefill_block=_one(sampler, program_scopes.PREFILL_BLOCKS).cycles / clock,
        gradient_block=sum(block_cycles) / clock,
        microbatch=sum(microbatch_cycles) / clock,
        update_end=end_cycles / clock,
    )


def _one(program: Loop, scope: str) -> Loop:
    """The loop of this scope, the slowest where XLA has made several of it."""
    return max(program.find(scope), key=lambda loop: loop.cycles)


def _parent(program: Loop, scope: str) -> Loop:
    """The computation that the loops of a scope are in, such as a chunk of the sampler."""
    return next(
        parent for parent in program.walk() if any(loop.in_scope((scope,)) for loop in parent.loops)
    )
