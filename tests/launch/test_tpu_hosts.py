"""The hosts of a TPU slice: as Google's tables have them, and as Ray and libtpu count them."""

from __future__ import annotations

from math import prod

import pytest
from ray._private.accelerators.tpu import get_chips_per_host

from isojax.launch.tpu_hosts import num_hosts, slice_shape

# Of the pages on v4, v5e, v5p and v6e of https://cloud.google.com/tpu/docs.
HOSTS = {
    "v4:2x2x1": 1,
    "v4:2x2x2": 2,
    "v4:4x4x4": 16,
    "v5e:1x1": 1,
    "v5e:2x2": 1,
    "v5e:2x4": 1,
    "v5e:4x4": 4,
    "v5e:4x8": 8,
    "v5p:2x2x1": 1,
    "v5p:2x2x2": 2,
    "v5p:2x2x4": 4,
    "v6e:1x1": 1,
    "v6e:2x4": 1,
    "v6e:4x4": 4,
    "v6e:4x8": 8,
    "v6e:16x16": 64,
}


@pytest.mark.parametrize("topology", HOSTS)
def test_hosts_of_a_slice(topology: str) -> None:
    assert num_hosts(topology) == HOSTS[topology]


@pytest.mark.parametrize("topology", HOSTS)
def test_ray_counts_as_many(topology: str) -> None:
    """A run under Ray has a process for each of these hosts."""
    kind, _, shape = topology.partition(":")
    chips = prod(slice_shape(topology) or ())
    version = kind.replace("v5e", "v5litepod")
    assert chips / get_chips_per_host(shape, version) == HOSTS[topology]


@pytest.mark.parametrize("text", ["v5e", "v5e:16", "v5e:1xx", "4x4", ""])
def test_what_is_no_slice(text: str) -> None:
    assert slice_shape(text) is None
    with pytest.raises(ValueError, match="no slice"):
        num_hosts(text)
