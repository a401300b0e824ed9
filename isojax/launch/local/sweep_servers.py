"""Which servers sample a sweep, as its plan says and its folder records: another kind of server, or
another model, does not go on with its runs."""

import json
from pathlib import Path

from isojax.core.atomic_files import write_text
from isojax.core.config import Config
from isojax.core.config.sweep import LOCAL_ROLLOUTS
from isojax.core.errors import InputError
from isojax.core.table_files import read_json_object
from isojax.rl.servers.policy_server import PolicyServer
from isojax.train.label_settings import describe_engine
from isojax.train.programs import SweepPrograms

# in a sweep's folder: {"rollouts": {"server": "vllm", "model": NAME}, ...}
SERVERS_FILE = "servers.json"


def servers_by_use(config: Config, programs: SweepPrograms) -> dict[str, PolicyServer]:
    """The servers that sample, by "rollouts" and "evaluations"; {} where isojax samples both."""
    run = config.run
    urls = {
        "rollouts": run.server.url if run.rollouts != LOCAL_ROLLOUTS else None,
        "evaluations": run.eval_server,
    }
    return {use: programs.policy_servers[url] for use, url in urls.items() if url is not None}


def describe_samplers(config: Config, programs: SweepPrograms) -> list[str]:
    """Lines of a plan that say which servers sample; none where isojax alone samples."""
    servers = servers_by_use(config, programs)
    lines = [
        f"{use}: sampled by {describe_engine(one.description)} at {one.url}"
        for use, one in servers.items()
    ]
    if servers and "evaluations" not in servers:
        lines.append("evaluations: sampled by isojax's own sampler (run.eval_server)")
    for server in dict.fromkeys(servers.values()):
        requests = ", ".join(f"POST {path}" for path in server.requests)
        lines.append(
            f"each policy: written to {server.weights.folder} in {server.weights.dtype}, loaded by "
            f"{requests}"
        )
    return lines


def check_servers(config: Config, programs: SweepPrograms, folder: Path) -> None:
    """InputError where the runs in the folder were sampled by another kind of server or model.

    Without SERVERS_FILE, or an entry in it, nothing is compared. An entry is a server's
    `description` when the runs began, such as "rollouts": {"server": "vllm", "model": NAME}; one of
    SGLang has no model.
    """
    path = folder / SERVERS_FILE
    stored = read_json_object(path) if path.is_file() else {}
    for use, server in servers_by_use(config, programs).items():
        before, now = stored.get(use), server.description
        # Only today's keys are compared: one that the record alone has refuses nothing. One that
        # the record lacks does: a key added to `description` would refuse all earlier runs.
        if before is None or now == {key: before.get(key) for key in now}:
            continue
        engines = f"{describe_engine(before)} (now {describe_engine(now)})"
        raise InputError(
            where=folder,
            found=f"its {use} were sampled by {engines}",
            fix="Start that server again, or choose another name=NAME for a new run.",
        )


def record_servers(config: Config, programs: SweepPrograms, folder: Path) -> None:
    """Write SERVERS_FILE where servers sample and the folder has none yet."""
    path, servers = folder / SERVERS_FILE, servers_by_use(config, programs)
    if servers and not path.exists():
        described = {use: server.description for use, server in servers.items()}
        write_text(path, json.dumps(described, indent=1) + "\n")
