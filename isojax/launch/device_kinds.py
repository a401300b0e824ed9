"""What kinds of devices have, as a plan needs it: memory, and the rates that their makers publish."""

from isojax.core.errors import InputError
from isojax.launch.time_estimate import DeviceRates

GIB = 2**30  # bytes
# Of those rates that an update reaches: by XLA's cost model for v5e, decoding 42% of the memory's, the gradient 31% of
# the products'.
PUBLISHED_EFFICIENCY = 0.35


def published_rates(tflops: float, memory: float, links: float) -> DeviceRates:
    """Of bfloat16 TFLOP/s, and GB/s of memory and of the links along an axis of a mesh, both directions together."""
    return DeviceRates(1e12 * tflops, 1e12 * tflops, 1e9 * memory, 1e9 * links, PUBLISHED_EFFICIENCY, "published")


# GiB that libtpu's compiler has for a program, and rates; a device of the topologies of v4 and TPU7x is half a chip.
CHIPS = {
    "TPU v4": (15.25, published_rates(138, 614, 90)),
    "TPU v5 lite": (15.75, published_rates(197, 819, 90)),
    "TPU v5": (95.74, published_rates(459, 2765, 180)),
    "TPU v6 lite": (31.25, published_rates(918, 1640, 180)),
    "TPU7x": (94.75, published_rates(1153, 3690, 180)),
}
# By which sizes that fit are compared before anything is measured: those of v5e, of an H100 and of a core of a CPU.
TYPICAL_RATES = {
    "tpu": CHIPS["TPU v5 lite"][1],
    "gpu": published_rates(989, 3350, 450),
    "cpu": published_rates(0.08, 10, 10),
}


def find_chip(kind: str) -> tuple[float, DeviceRates]:
    """Its GiB and rates; InputError where the kind is not known here."""
    if kind not in CHIPS:
        raise InputError(f"nothing is known of the memory of a {kind}; known are {', '.join(CHIPS)}.")
    return CHIPS[kind]
