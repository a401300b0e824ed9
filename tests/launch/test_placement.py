"""What a process group asks a cluster for, by hand; no Ray cluster, but Ray's own knowledge of TPU
slices."""

from __future__ import annotations

from typing import Any

import pytest

from isojax.core.config import Config
from isojax.launch.ray.placement import (
    ProcessGroupSpec,
    capacity,
    process_group_spec,
    require_capacity,
)
from tests.refusals import refused

CPUS: list[dict[str, Any]] = [
    {"Alive": True, "Resources": {"CPU": 4.0}, "Labels": {"pool": "a"}} for _ in range(2)
]
GPUS: list[dict[str, Any]] = [
    {"Alive": True, "Resources": {"CPU": 16.0, "GPU": 8.0}, "Labels": {}} for _ in range(2)
]


def hosts(
    slices: int, topology: str = "4x4", chips: int = 4, of_each: int = 4
) -> list[dict[str, Any]]:
    labels = [
        {"ray.io/tpu-slice-name": f"slice-{i}", "ray.io/tpu-topology": topology}
        for i in range(slices)
        for _ in range(of_each)
    ]
    return [
        {"Alive": True, "Resources": {"CPU": 8.0, "TPU": float(chips)}, "Labels": specific}
        for specific in labels
    ]


def config(mesh: str = "auto", **group: Any) -> Config:
    return Config.model_validate({"run": {"mesh": mesh, "process_group": group}})


def with_samplers(
    sampler_processes: int, sampler_mesh: str, mesh: str = "auto", **group: Any
) -> Config:
    run = {
        "mesh": mesh,
        "sampler_mesh": sampler_mesh,
        "sampler_processes": sampler_processes,
        "process_group": group,
    }
    return Config.model_validate({"run": run})


@pytest.mark.parametrize(
    ("requested", "nodes", "spec", "groups"),
    [
        # Four processes of a device each, two of which sample; three of two devices each, one of
        # which samples.
        (
            with_samplers(2, "data=-1", processes=4),
            CPUS,
            ProcessGroupSpec(4, {"CPU": 1.0}, {}, 1),
            2,
        ),
        (
            with_samplers(1, "data=2", "fsdp=4", processes=3),
            CPUS,
            ProcessGroupSpec(3, {"CPU": 2.0}, {}, 2),
            1,
        ),
        (
            with_samplers(1, "data=-1", "fsdp=-1", tpu="v5e:4x4"),
            hosts(1),
            ProcessGroupSpec(4, {"CPU": 1, "TPU": 4}, {}, None, ("v5litepod", "4x4")),
            1,
        ),
        (
            with_samplers(1, "data=8", processes=2, gpus=8),
            GPUS,
            ProcessGroupSpec(2, {"GPU": 8, "CPU": 1.0}, {}),
            1,
        ),
        (config(), CPUS, ProcessGroupSpec(1, {"CPU": 1.0}, {}, 1), 8),
        (config("data=2,tensor=2"), CPUS, ProcessGroupSpec(1, {"CPU": 4.0}, {}, 4), 2),
        (config("data=4", processes=2), CPUS, ProcessGroupSpec(2, {"CPU": 2.0}, {}, 2), 2),
        (config(processes=2), CPUS, ProcessGroupSpec(2, {"CPU": 1.0}, {}, 1), 4),
        (config("data=-1", processes=2, cpus=4), CPUS, ProcessGroupSpec(2, {"CPU": 4.0}, {}, 4), 1),
        (config("data=2", cpus=0.5), CPUS, ProcessGroupSpec(1, {"CPU": 0.5}, {}, 2), 16),
        (
            config(resources={"x": 1}, labels={"pool": "a"}),
            CPUS,
            ProcessGroupSpec(1, {"CPU": 1.0, "x": 1.0}, {"pool": "a"}, 1),
            0,
        ),
        (
            config(labels={"pool": "b"}),
            CPUS,
            ProcessGroupSpec(1, {"CPU": 1.0}, {"pool": "b"}, 1),
            0,
        ),
        (config(), GPUS, ProcessGroupSpec(1, {"GPU": 1.0, "CPU": 1.0}), 16),
        (config(resources={"GPU": 0.25}), GPUS, ProcessGroupSpec(1, {"GPU": 0.25, "CPU": 1.0}), 32),
        (config("fsdp=8"), GPUS, ProcessGroupSpec(1, {"GPU": 8.0, "CPU": 1.0}), 2),
        (config("fsdp=16"), GPUS, ProcessGroupSpec(2, {"GPU": 8.0, "CPU": 1.0}), 1),
        (config("fsdp=-1", processes=2), GPUS, ProcessGroupSpec(2, {"GPU": 8.0, "CPU": 1.0}), 1),
        (config("fsdp=8", gpus=4), GPUS, ProcessGroupSpec(2, {"GPU": 4.0, "CPU": 1.0}), 2),
        (config("data=2", cpus=2), GPUS, ProcessGroupSpec(1, {"CPU": 2.0}, {}, 2), 16),
        (
            config("fsdp=4,tensor=4", tpu="v5e:4x4"),
            hosts(3),
            ProcessGroupSpec(4, {"CPU": 1, "TPU": 4}, {}, None, ("v5litepod", "4x4")),
            3,
        ),
        (
            config("data=-1", tpu="v5e:4x4", slices=2),
            hosts(3),
            ProcessGroupSpec(8, {"CPU": 1, "TPU": 4}, {}, None, ("v5litepod", "4x4"), 2),
            1,
        ),
        (
            config(tpu="v5e:4x4"),
            [*hosts(1), *hosts(4, "2x2", 4, 1)],
            ProcessGroupSpec(4, {"CPU": 1, "TPU": 4}, {}, None, ("v5litepod", "4x4")),
            1,
        ),
        (
            config(tpu="v5e:4x4"),
            hosts(1)[:3],
            ProcessGroupSpec(4, {"CPU": 1, "TPU": 4}, {}, None, ("v5litepod", "4x4")),
            0,
        ),
    ],
)
def test_by_hand(
    requested: Config, nodes: list[dict[str, Any]], spec: ProcessGroupSpec, groups: int
) -> None:
    result = process_group_spec(requested, nodes)
    assert result == spec and capacity(result, nodes) == groups
    assert capacity(result, [node | {"Alive": False} for node in nodes]) == 0


@pytest.mark.parametrize(
    ("requested", "nodes", "message"),
    [
        (config("data=3", processes=2), CPUS, "cannot share alike"),
        (
            with_samplers(2, "data=3", "data=2", processes=4),
            CPUS,
            "takes 2 devices of the 2 processes that train",
        ),
        (
            with_samplers(1, "data=4", "data=8", tpu="v5e:4x4"),
            hosts(1),
            "expected as many of each process",
        ),
        (
            with_samplers(2, "data=2", processes=2),
            CPUS,
            "2 of the 2 processes of this run; expected fewer",
        ),
        (with_samplers(1, "data=1"), CPUS, "1 of the 1 processes of this run; expected fewer"),
        (config("fsdp=12", gpus=8), GPUS, "takes 12 GPUs, 2 processes of 8 have 16"),
        (config(slices=2), CPUS, "without run.process_group.tpu"),
        (config("data=8", tpu="v5e:4x4"), hosts(1), "takes 8 of the 16 chips"),
        (config(tpu="v5e:4x4", gpus=1), hosts(1), "run.process_group.tpu"),
        (config(tpu="v9:4x4"), hosts(1), "given 'v9:4x4'; expected such as v5e:4x4"),
        (config(tpu="v5e"), hosts(1), "given 'v5e'; expected such as v5e:4x4"),
        (
            config("data=16"),
            CPUS,
            "1 process with 16 CPU, and the cluster's 2 nodes have 4 CPU; 4 CPU",
        ),
        (
            config("data=16", processes=2, resources={"x": 2}),
            CPUS,
            "2 processes with 8 CPU, 2 x each",
        ),
    ],
)
def test_refused(requested: Config, nodes: list[dict[str, Any]], message: str) -> None:
    with refused() as refusal:
        require_capacity(process_group_spec(requested, nodes), nodes)
    assert message in str(refusal.value)
