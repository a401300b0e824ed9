"""How long the other processes of a run go on after one of them is lost, and what they say.

    python benchmarks/peer_death.py [--by watchdog,heartbeat] [--events "killed,frozen host"]
    [--heartbeat 10]

Three processes join as those of a run do, and exchange numbers without end. Each is in a network
namespace of its own, which takes root and the program `ip`; without them, all share this machine's
network, and none can be cut off. Then one is lost:

    killed          SIGKILL
    frozen process  SIGSTOP to it alone
    frozen host     SIGSTOP to it and to its watchdog
    cut off         its network interface goes down
    watchdog killed SIGKILL to its watchdog

`--by watchdog` is isojax (isojax/launch/watchdog.py). `--by heartbeat` is jax.distributed alone,
with `heartbeat_timeout_seconds` of `--heartbeat` and the log level at which its C++ says least.

One JSON line per event: for each process that is left, the seconds until it ended, its exit code,
the lines on its standard error, and whether one of them tells the user what to do. `--load` starts
as many processes beside them which only compute; with it, `--events none` finds false alarms:
nothing happens for `--limit` seconds.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROCESSES = 3
PORT_OF_NAMESPACE = 29_517
SETTLE_SECONDS = 3.0  # between the start of work and the event: watchdogs have met by then
ADVICE = "Start all processes again with --resume"  # of the sentence that a user needs

BY_WATCHDOG, BY_HEARTBEAT = "watchdog", "heartbeat"
KILLED = "killed"
FROZEN_PROCESS = "frozen process"
FROZEN_HOST = "frozen host"
CUT_OFF = "cut off"
WATCHDOG_KILLED = "watchdog killed"
NONE = "none"
EVENTS = (KILLED, FROZEN_PROCESS, FROZEN_HOST, CUT_OFF, WATCHDOG_KILLED)

# A process of the run; its arguments: what watches, its number, HOST:PORT of process 0, the
# heartbeat's timeout.
MEMBER = f"""
import sys, time
import jax
from isojax.distributed import multiprocess

by, number, address, timeout = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])


def work():
    print("works", flush=True)
    while True:
        multiprocess.allgather(number, int)
        time.sleep(0.05)


if by == "{BY_WATCHDOG}":
    from isojax.launch.local.join_processes import join_processes
    from isojax.launch.process_group import ProcessGroup

    with join_processes(ProcessGroup(address, {PROCESSES}, number, detect_cluster=False)):
        work()

jax.distributed.initialize(address, {PROCESSES}, number, heartbeat_timeout_seconds=timeout)
work()
"""


class Hosts:
    """Where the processes run: a command to put before theirs, and the address of each."""

    def __init__(self, prefix: str = ""):
        """`prefix`: of the names of namespaces; "": the processes share this machine's network."""
        self.prefix = prefix
        self.first_address = (
            f"10.77.0.1:{PORT_OF_NAMESPACE}" if prefix else f"127.0.0.1:{free_port()}"
        )

    def command(self, process: int) -> list[str]:
        return ["ip", "netns", "exec", f"{self.prefix}{process}"] if self.prefix else []

    def cut_off(self, process: int) -> None:
        _ip("-n", f"{self.prefix}{process}", "link", "set", "eth", "down")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def hosts() -> Iterator[Hosts]:
    """A namespace for each process and one for the switch between them, as far as this machine lets
    us."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        yield Hosts()
        return

    prefix = f"peer{os.getpid()}-"
    switch = f"{prefix}switch"
    with ExitStack() as stack:

        def add_namespace(name: str) -> None:
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "del", name)

        add_namespace(switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")

        for process in range(PROCESSES):
            name = f"{prefix}{process}"
            add_namespace(name)
            _ip(
                "-n",
                switch,
                "link",
                "add",
                f"port{process}",
                "type",
                "veth",
                "peer",
                "name",
                "eth",
                "netns",
                name,
            )
            _ip("-n", switch, "link", "set", f"port{process}", "master", "bridge", "up")
            _ip("-n", name, "address", "add", f"10.77.0.{process + 1}/24", "dev", "eth")
            _ip("-n", name, "link", "set", "eth", "up")
            _ip("-n", name, "link", "set", "lo", "up")

        yield Hosts(prefix)


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def start(where: Hosts, by: str, heartbeat: int, folder: Path) -> list[subprocess.Popen[str]]:
    """All processes, at work."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "PYTHONUNBUFFERED": "1",
    }
    if by == BY_HEARTBEAT:
        environment |= {"TF_CPP_MIN_LOG_LEVEL": "3", "ABSL_MIN_LOG_LEVEL": "3"}

    members = []
    for number in range(PROCESSES):
        arguments = [by, str(number), where.first_address, str(heartbeat)]
        with (folder / f"error{number}").open("w") as error:
            members.append(
                subprocess.Popen(
                    [*where.command(number), sys.executable, "-c", MEMBER, *arguments],
                    stdout=subprocess.PIPE,
                    stderr=error,
                    env=environment,
                    text=True,
                )
            )

    for member in members:
        assert member.stdout is not None
        if member.stdout.readline() != "works\n":
            raise RuntimeError((folder / f"error{members.index(member)}").read_text())
    time.sleep(SETTLE_SECONDS)
    return members


def lose(member: subprocess.Popen[str], process: int, event: str, where: Hosts) -> list[int]:
    """Let the event come; returns the processes to continue afterwards, or to kill."""
    watchdogs = children(member.pid)
    if event == KILLED:
        member.kill()
    elif event == FROZEN_PROCESS:
        member.send_signal(signal.SIGSTOP)
    elif event == FROZEN_HOST:
        for pid in (member.pid, *watchdogs):
            os.kill(pid, signal.SIGSTOP)
    elif event == CUT_OFF:
        where.cut_off(process)
    elif event == WATCHDOG_KILLED:
        for pid in watchdogs:
            os.kill(pid, signal.SIGKILL)
    return watchdogs


def measure(event: str, lost: int, by: str, heartbeat: int, limit: float) -> dict[str, Any]:
    """One event, and what became of the processes that could go on."""
    with tempfile.TemporaryDirectory() as folder, hosts() as where:
        if event == CUT_OFF and not where.prefix:
            raise SystemExit(f"{event}: needs root and the program ip")

        members = start(where, by, heartbeat, Path(folder))
        ends: dict[int, float] = {}
        began = time.monotonic()
        stopped = lose(members[lost], lost, event, where)
        left = [
            i for i in range(PROCESSES) if i != lost or event in (CUT_OFF, WATCHDOG_KILLED, NONE)
        ]

        while len(ends) < len(left) and time.monotonic() - began < limit:
            ends |= {
                i: time.monotonic() - began
                for i in left
                if i not in ends and members[i].poll() is not None
            }
            time.sleep(0.02)

        for member in members:
            member.kill()
            member.communicate()
        time.sleep(0.2)  # for a watchdog's line

        result = {}
        for i in left:
            output = (Path(folder) / f"error{i}").read_text()
            result[i] = {
                "seconds": round(ends[i], 2) if i in ends else None,
                "code": members[i].returncode if i in ends else None,
                "lines": len(output.splitlines()),
                "advice": ADVICE in output,
                "last_line": (output.splitlines() or [""])[-1][:200],
            }
        for pid in stopped:
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGKILL)

    return {"by": by, "heartbeat": heartbeat, "event": event, "lost": lost, "left": result}


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Processes that only compute, until the context ends."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--by", default=BY_WATCHDOG, help=f"of {BY_WATCHDOG}, {BY_HEARTBEAT}, with commas between"
    )
    parser.add_argument("--events", default=",".join(EVENTS), help=f"of these, and {NONE}")
    parser.add_argument("--lost", default="0,1", help="which process is lost")
    parser.add_argument("--heartbeat", type=int, default=10, help="seconds, for --by heartbeat")
    parser.add_argument(
        "--limit", type=float, default=90.0, help="seconds after which they count as going on"
    )
    parser.add_argument("--load", type=int, default=0, help="processes that compute beside them")
    args = parser.parse_args()

    with load(args.load):
        for by in args.by.split(","):
            for event in args.events.split(","):
                if by == BY_HEARTBEAT and event == WATCHDOG_KILLED:
                    continue
                for lost in map(int, args.lost.split(",")):
                    result = measure(event, lost, by, args.heartbeat, args.limit)
                    print(json.dumps(result | {"load": args.load}), flush=True)


if __name__ == "__main__":
    main()
