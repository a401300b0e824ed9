"""completions_server.py as a process of its own, which a test makes faulty, ends and starts
again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from tests.compiler import QUICK, flags
from tests.e2e.command_line import REPOSITORY

FLAGS = flags(QUICK, devices=1)


class OwnServer:
    """Serves the model of a config."""

    def __init__(self, config: Path) -> None:
        self.config, self.url = config, ""
        self.start()

    def start(self) -> None:
        """Again with the same URL."""
        port = str(urlsplit(self.url).port or 0)
        command = [sys.executable, "-m", "tests.e2e.completions_server", str(self.config), port]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "XLA_FLAGS": FLAGS}
        self.process = subprocess.Popen(
            command, cwd=self.config.parent, env=environment, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    def set_fault(self, kind: str, after: int = 0) -> None:
        """From so many requests for responses on."""
        data = json.dumps({"kind": kind, "after": after}).encode()
        with urlopen(Request(f"{self.url}/fault", data), timeout=60) as answer:
            assert answer.status == 200

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def __enter__(self) -> OwnServer:
        return self

    def __exit__(self, *_: Any) -> None:
        self.kill()
