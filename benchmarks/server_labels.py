"""Labels by a server of another project, killed on the way, against those of isojax's own sampler.

    python benchmarks/server_labels.py --model FOLDER --gguf FILE.gguf --server-python
    ENVIRONMENT/bin/python
        [--problems 125] [--attempts 16] [--seed 0] [--work DIR] [--port 8123] [--threads 2]

FOLDER is a language model, and FILE.gguf the same weights for llama.cpp (`isojax model export RUN
--gguf FILE.gguf`). ENVIRONMENT has llama-cpp-python with its extra `server`. Problems are sums, of
which a small model knows a part.

Labelling is killed by SIGKILL when a quarter of the problems are labelled. When half are, the
server is, and labelling must end with exit code 1 and a message; then both are started again. What
is labelled twice or not at all is counted. The last line, JSON, says how the two means differ, with
the standard error of their difference: labels of one problem are draws of one rate, p(1-p)/attempts
apart, by each sampler. The exit code is 1 where they differ by more than two of these, or a kill
did not end as it should."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 3600.0  # what takes longer hangs

CONFIG = """\
name: sums
cell:
  task: addition
  model: {{path: {model}}}
  prompt: {{format: raw, template: "2 + 3 = 5\\n4 + 1 = 5\\n{{prompt}}", stop: ["\\n"]}}
  verifier: {{use: integer}}
  data: {{attempts: {attempts}, candidates: {problems}, validation: 8, seed: {seed}}}
  sampling: {{prompt_length: 48, response_length: 6}}
"""


class Server:
    """llama-cpp-python's, as a process."""

    def __init__(self, command: Sequence[str], port: int, log: Path) -> None:
        self.command, self.port, self.log = command, port, log
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        deadline = time.monotonic() + 300
        while not self._answers():
            assert self.process.poll() is None and time.monotonic() < deadline, (
                f"no server; see {self.log}"
            )
            time.sleep(0.5)

    def _answers(self) -> bool:
        connection = HTTPConnection("localhost", self.port, timeout=5)
        try:
            connection.request("GET", "/v1/models")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Labelling:
    """`isojax difficulty`, as a process."""

    def __init__(self, work: Path, out: str, *options: str) -> None:
        code = "import sys; from isojax.cli.app import main; sys.argv[0] = 'isojax'; main()"
        command = [sys.executable, "-c", code, "difficulty", "sums.yaml", "--out", out, *options]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
        self.labels = work / out / "labels.jsonl"
        self.process = subprocess.Popen(
            command,
            cwd=work,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, problems: int) -> None:
        """Until so many problems are labelled."""
        deadline = time.monotonic() + SECONDS
        while len(read_rows(self.labels)) < problems:
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < deadline, f"{self.labels} does not grow"
            time.sleep(0.05)

    def end(self) -> tuple[int, str]:
        """The exit code, and what it said on standard error."""
        said = self.process.communicate(timeout=SECONDS)[1]
        return self.process.returncode, said


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file of labels, but its head."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[1:-1]
    return [json.loads(line) for line in lines]


def label_by_server(arguments: argparse.Namespace, work: Path) -> list[str]:
    """What did not end as it should."""
    server_command = [
        arguments.server_python, "-m", "llama_cpp.server", "--model", arguments.gguf, "--port", str(arguments.port),
        "--n_ctx", "512", "--n_threads", str(arguments.threads), "--verbose", "False",
    ]  # fmt: skip
    server = Server(server_command, arguments.port, work / "server.log")
    options = ("--server", f"http://localhost:{arguments.port}", "--server-requests", "4")
    faults: list[str] = []
    try:
        labelling = Labelling(work, "by-server", *options)
        labelling.wait_for(arguments.problems // 4)
        labelling.process.send_signal(signal.SIGKILL)
        labelling.end()
        print(f"labelling killed at {len(read_rows(labelling.labels))} problems", file=sys.stderr)

        labelling = Labelling(work, "by-server", *options)
        labelling.wait_for(arguments.problems // 2)
        server.kill()
        code, said = labelling.end()
        print(
            f"server killed at {len(read_rows(labelling.labels))} problems; {code}: {said.strip()}",
            file=sys.stderr,
        )
        if code != 1 or "does not answer" not in said:
            faults.append(f"without a server, labelling ended with {code}: {said}")

        server.start()
        code, said = Labelling(work, "by-server", *options).end()
        if code:
            faults.append(f"labelling ended with {code}: {said}")
    finally:
        server.kill()
    return faults


def compare(work: Path, attempts: int, problems: int, faults: list[str]) -> dict[str, Any]:
    by_server, own = (
        {row["id"]: row["solved"] / attempts for row in read_rows(work / out / "labels.jsonl")}
        for out in ("by-server", "own")
    )
    rows = len(read_rows(work / "by-server" / "labels.jsonl"))
    if not rows == len(by_server) == len(own) == problems or by_server.keys() != own.keys():
        faults.append(
            f"{rows} labels of {len(by_server)} problems, and {len(own)} own, expected {problems}"
        )

    rates = np.array([[by_server[i], own[i]] for i in sorted(own)])
    pooled = rates.mean(1)
    # Of one problem's label, p(1-p)/attempts, unbiased by Bessel's factor; of both samplers, twice
    # as much.
    variances = 2 * pooled * (1 - pooled) / attempts * (2 * attempts / (2 * attempts - 1))
    standard_error = float(np.sqrt(variances.sum()) / len(pooled))
    difference = float(rates[:, 0].mean() - rates[:, 1].mean())
    if abs(difference) > 2 * standard_error:
        faults.append("the means differ by more than two standard errors")
    return {
        "rollouts": attempts * len(by_server),
        "mean by server": round(float(rates[:, 0].mean()), 4),
        "mean by isojax": round(float(rates[:, 1].mean()), 4),
        "difference": round(difference, 4),
        "standard error": round(standard_error, 4),
        "faults": faults,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--gguf", required=True)
    parser.add_argument("--server-python", required=True)
    parser.add_argument("--work", type=Path, default=Path("server-labels"))
    parser.add_argument("--problems", type=int, default=125)
    parser.add_argument("--attempts", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0, help="of the problems and of the draws")
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()

    work = arguments.work.resolve()
    work.mkdir(parents=True)
    config = CONFIG.format(
        model=arguments.model.resolve(),
        attempts=arguments.attempts,
        problems=arguments.problems,
        seed=arguments.seed,
    )
    (work / "sums.yaml").write_text(config)
    start = time.monotonic()
    faults = label_by_server(arguments, work)
    seconds_by_server = time.monotonic() - start
    code, said = Labelling(work, "own").end()
    if code:
        faults.append(f"isojax's own labelling ended with {code}: {said}")

    result = compare(work, arguments.attempts, arguments.problems, faults)
    seconds = {"by server": round(seconds_by_server), "in all": round(time.monotonic() - start)}
    print(json.dumps(result | {"seconds": seconds}))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
