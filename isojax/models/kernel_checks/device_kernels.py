"""The kernels of each platform, each with cases that show its mistakes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from isojax.models.attention_calls import DecodeAttentionShape, SelfAttentionShape
from isojax.models.kernel_checks.attention_cases import case_of
from isojax.models.kernel_checks.expert_cases import ExpertsCase, GroupedCase
from isojax.models.kernel_checks.kernel_errors import KernelCase

# By platform, the names of the two attentions' kernels. A CPU interprets those of a TPU.
FORWARD_KERNELS = {"tpu": "pallas", "gpu": "cudnn", "cpu": "interpret"}
DECODE_KERNELS = {"tpu": "pallas", "gpu": "triton", "cpu": "interpret"}


@dataclass(frozen=True)
class CheckedKernel:
    """A kernel and a case that it is checked by."""

    kernel: str  # such as "flash_decode"
    what: str  # the case in some words
    implementation: str
    case: KernelCase


def kernels_to_check(platform: str) -> Iterator[CheckedKernel]:
    """The kernels that a platform has, at sizes of a few blocks.

    platform: "tpu" or "gpu"; on a "cpu" the kernels of a TPU are interpreted, in float32.
    """
    dtype = "float32" if platform == "cpu" else "bfloat16"
    yield from _forward_kernels(platform, dtype)
    yield from _decode_kernels(platform, dtype)
    if platform != "gpu":  # XLA multiplies experts there
        yield from _expert_kernels(platform, dtype)


def _forward_kernels(platform: str, dtype: str) -> Iterator[CheckedKernel]:
    """Rows of 130 positions, of which a block holds 128, after prompts of up to 130."""
    implementation = FORWARD_KERNELS[platform]
    kernel = "cudnn" if platform == "gpu" else "splash"
    shape = SelfAttentionShape(
        rows=3,
        positions=130,
        prefix_length=130,
        heads=2,
        kv_heads=1,
        head_dim=64,
        dtype=dtype,
    )
    yield CheckedKernel(kernel, "rows after prompts", implementation, case_of(shape))
    window = case_of(replace(shape, window=100))
    yield CheckedKernel(kernel, "a window of 100", implementation, window)


def _decode_kernels(platform: str, dtype: str) -> Iterator[CheckedKernel]:
    """Slots of three blocks of the TPU's kernel, which are 384 positions here."""
    implementation = DECODE_KERNELS[platform]
    kernel = "triton_decode" if platform == "gpu" else "flash_decode"
    shape = DecodeAttentionShape(
        rows=4,
        positions=1150,
        heads=2,
        kv_heads=1,
        head_dim=64,
        dtype=dtype,
        cache_dtype=dtype,
        unrolled=platform == "gpu",
    )
    yield CheckedKernel(kernel, "slots that are refilled", implementation, case_of(shape))
    # Interpreted, a kernel takes seconds: on a CPU, the ring is of int8 too.
    cache_dtype = "int8" if platform == "cpu" else dtype
    ring = replace(shape, head_dim=128, window=1030, cache_dtype=cache_dtype)
    yield CheckedKernel(kernel, "a ring of 1030", implementation, case_of(ring))
    if platform == "tpu":  # no kernel of a GPU reads int8
        int8 = replace(shape, cache_dtype="int8")
        yield CheckedKernel(kernel, "an int8 cache", implementation, case_of(int8))


def _expert_kernels(platform: str, dtype: str) -> Iterator[CheckedKernel]:
    """Experts of two blocks of hidden values, and groups of rows over several tiles."""
    implementation = FORWARD_KERNELS[platform]
    # Of this width a block is one tile of 128 hidden values in float32, and two in bfloat16.
    hidden = 256 if dtype == "float32" else 512
    experts = ExpertsCase(rows=4, width=2048, hidden=hidden, experts=2, top_k=1, dtype=dtype)
    yield CheckedKernel("tpu_experts", "2 experts of 4 rows", implementation, experts)
    grouped = GroupedCase(rows=192, inputs=128, outputs_per_row=128, experts=5, dtype=dtype)
    yield CheckedKernel("tpu_grouped", "5 groups of rows", implementation, grouped)
