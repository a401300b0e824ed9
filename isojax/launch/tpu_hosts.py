"""How the chips of a TPU slice are divided among its hosts.

On every generation a slice of several hosts has 4 chips on each. A slice of v5e or v6e of up to 8
chips is one host; v5p:2x2x2, also 8 chips, is two. (GKE also offers v5e:2x4 and v6e:2x4 as two
hosts, by the choice of the machine type.)
"""

import math
import re

CHIPS_OF_A_HOST = 4  # of a slice of several hosts
# Of a slice of one host, by the generations whose hosts have more.
MAX_CHIPS_OF_A_HOST = {"v5e": 8, "v6e": 8}


def slice_shape(topology: str) -> tuple[int, ...] | None:
    """The sides of a slice such as "v5e:4x4", in chips; None of another text."""
    match = re.fullmatch(r"\w+:(\d+(?:x\d+){1,2})", topology)
    return tuple(int(side) for side in match[1].split("x")) if match else None


def is_single_host(topology: str) -> bool:
    """Whether a slice such as "v5e:2x4" is one host, or a part of one.

    ValueError of a text that names no slice.
    """
    shape = slice_shape(topology)
    if shape is None:
        raise ValueError(f"{topology} is no slice such as v5e:4x4")
    kind, _, _ = topology.partition(":")
    return math.prod(shape) <= MAX_CHIPS_OF_A_HOST.get(kind, CHIPS_OF_A_HOST)


def num_hosts(topology: str) -> int:
    """How many hosts a slice such as "v5e:4x4" has. ValueError of a text that names no slice."""
    if is_single_host(topology):
        return 1
    return math.ceil(math.prod(slice_shape(topology) or ()) / CHIPS_OF_A_HOST)
