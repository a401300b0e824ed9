"""What the tests of launch/ share: the checkers of each kind of file, and the reading of the
commands in them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sysconfig
from contextlib import chdir
from math import prod
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import ray
import typer
import yaml
from ray._private.accelerators import TPUAcceleratorManager
from ray.autoscaler._private.util import prepare_config, validate_config

from isojax import __version__
from isojax.cli.app import COMMANDS
from isojax.cli.options import read_config
from isojax.core.config import Config
from isojax.launch.tpu_hosts import num_hosts

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "launch"
WHEEL = f"dist/isojax-{__version__}-py3-none-any.whl"
KUBERNETES = "1.31"  # the oldest that GKE offers
GKE_ACCELERATOR = "cloud.google.com/gke-tpu-accelerator"
GKE_TPUS = {"tpu-v5-lite-podslice": "v5e", "tpu-v6e-slice": "v6e"}  # and our names
# Of the TPU API's Node and Compute Engine's Instance, the fields that a node type may set; Ray's
# own schema leaves them open.
TPU_NODE = {
    "acceleratorType",
    "acceleratorConfig",
    "runtimeVersion",
    "schedulingConfig",
    "networkConfig",
    "metadata",
    "labels",
    "tags",
}
INSTANCE = {
    "machineType",
    "disks",
    "guestAccelerators",
    "metadata",
    "scheduling",
    "networkInterfaces",
    "serviceAccounts",
    "labels",
    "tags",
}


def check_shell(text: str) -> None:
    """ValueError with shellcheck's words."""
    shellcheck = Path(sysconfig.get_path("scripts")) / "shellcheck"
    done = subprocess.run(
        [shellcheck, "-"], input=text, capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        raise ValueError(done.stdout + done.stderr)


def check_dockerfile(text: str) -> None:
    """ValueError where it does not begin with an image of the Ray that is tested here, or copies no
    wheel."""
    (base,) = re.findall(r"^FROM (.*)$", text, re.M)
    if base != f"rayproject/ray:{ray.__version__}-py312":
        raise ValueError(f"{base} is not an image of Ray {ray.__version__}")
    copied = re.findall(r"^COPY (.*) \S+$", text, re.M)
    if copied != [WHEEL]:
        raise ValueError(f"copies {copied}, where `make dist` builds {WHEEL}")


def check_ray_cluster(text: str) -> None:
    """ValueError or ValidationError where `ray up` would refuse it, or a slice is not what its type
    says."""
    if f"ray[default]=={ray.__version__}" not in text:
        raise ValueError(f"not the version of Ray that is tested here, {ray.__version__}")
    config = prepare_config(yaml.safe_load(text))
    validate_config(config)
    if WHEEL not in config["file_mounts"].values():
        raise ValueError(f"mounts {config['file_mounts']}, where `make dist` builds {WHEEL}")
    for name, kind in config["available_node_types"].items():
        node = kind["node_config"]
        if "machineType" not in node and "acceleratorConfig" not in node:
            raise ValueError(f"{name}: neither machineType nor acceleratorConfig")
        if unknown := set(node) - (INSTANCE if "machineType" in node else TPU_NODE):
            raise ValueError(f"{name}: unknown fields {unknown}")
        if "acceleratorConfig" in node:
            topology = node["acceleratorConfig"]["topology"]
            if not TPUAcceleratorManager.is_valid_tpu_accelerator_topology("v5litepod", topology):
                raise ValueError(f"{name}: no such topology: {topology}")
            if prod(map(int, topology.split("x"))) != kind["resources"]["TPU"]:
                raise ValueError(f"{name}: {kind['resources']} is not what {topology} has")


def check_kubernetes(text: str) -> None:
    """ValidationError where Kubernetes or KubeRay would refuse a field, ValueError where a slice
    does not add up or a volume is missing.
    """
    for document in yaml.safe_load_all(text):
        if document["apiVersion"] != "ray.io/v1":
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
            continue
        jsonschema.validate(
            document, yaml.safe_load((ROOT / "tests/launch/kuberay_rayjob.yaml").read_text())
        )
        cluster = document["spec"]["rayClusterSpec"]
        if cluster["rayVersion"] != ray.__version__:
            raise ValueError(
                f"rayVersion {cluster['rayVersion']} is not the {ray.__version__} of "
                "launch/Dockerfile"
            )
        for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
            template = {
                "apiVersion": "v1",
                "kind": "PodTemplate",
                "metadata": {"name": "of-a-group"},
                "template": group["template"],
            }
            kubernetes_validate.validate(template, KUBERNETES, strict=True)
            _check_group(group, group["template"]["spec"])


def _check_group(group: dict[str, Any], pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    if missing := {mount["name"] for mount in container["volumeMounts"]} - {
        volume["name"] for volume in pod["volumes"]
    }:
        raise ValueError(f"no such volumes: {missing}")
    chips = int(container["resources"]["limits"].get("google.com/tpu", 0))
    if not chips:
        return
    selector = pod["nodeSelector"]
    topology = selector["cloud.google.com/gke-tpu-topology"]
    hosts = group["numOfHosts"]
    expected_hosts = num_hosts(f"{GKE_TPUS[selector[GKE_ACCELERATOR]]}:{topology}")
    if hosts != expected_hosts or prod(map(int, topology.split("x"))) != hosts * chips:
        raise ValueError(f"{hosts} hosts of {chips} chips are no slice of {topology}")


def commands(text: str) -> list[list[str]]:
    """The isojax commands that stand in a text, in or out of quotes."""
    lines = re.findall(r"\bisojax (?:launch|pack|status) [^'`#\n]*", text)
    return [shlex.split(re.sub(r" {2,}.*", "", line)) for line in lines]


def check_command(words: list[str]) -> Config | None:
    """The config that `isojax launch ...` runs, or `isojax pack ...` packs; a usage error or an
    InputError where isojax would refuse the words."""
    assert words[0] == "isojax"
    (command,) = (command for command in COMMANDS if command.name == words[1])
    known: Any = typer.main.get_command(command.load())
    inputs = known.make_context("isojax", words[2:]).params
    if words[1] not in ("launch", "pack"):
        return None
    with chdir("."):  # a pack is read in its own folder
        return read_config(inputs["words"], inputs["mesh"], None, inputs.get("ray"))
