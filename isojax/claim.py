"""One writer at a time for a folder at a URL: the object `.lock` there says who it is, and is renewed as long as that one lives."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Any, NoReturn
from uuid import uuid4

from isojax.remote import Remote
from isojax.types import InputError, RunFailed

LOCK = ".lock"
RENEWED, STALE = 10.0, 60.0  # seconds between two signs of life; without one, until another process may take the place


class Claim:
    """The right to write. A context; entering it may wait until a process that was killed counts as dead.

    Raises:
        InputError: the place cannot be written, or another process writes there.
    """

    def __init__(self, remote: Remote):
        self._remote, self._over, self._taken_by, self._signed = remote, threading.Event(), "", 0.0
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self._own = {"host": _machine(), "pid": os.getpid(), "token": uuid4().hex}

    def __enter__(self) -> Claim:
        self._wait()
        self._remote.first(self._sign)
        self._remote.first(self._look)
        if self._taken_by:
            self._refuse(self._taken_by)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(RENEWED)
        with suppress(Exception):  # it grows stale by itself
            if not self._taken_by:
                self._remote.remove(LOCK)

    def check(self) -> None:
        """Raises RunFailed where another process has taken the place; one that was frozen looks before it goes on to write."""
        if time.time() - self._signed > STALE:
            self._look()
        if self._taken_by:
            raise RunFailed(
                f"{self._remote.url} was taken over by {self._taken_by}, for this process gave no sign of life for {STALE:.0f} seconds; "
                "this one ends."
            )

    def _wait(self) -> None:
        """Until nobody writes; a holder that shows a sign of life is not waited for."""
        seen = first = self._remote.first(self._read)
        if first is None or _has_ended(first):
            return
        if time.time() - first["time"] < STALE:
            print(f"waiting for a sign of life of {_who(first)}, which has written to {self._remote.url}", file=sys.stderr)
        while seen is not None and time.time() - seen["time"] < STALE:
            if (seen["token"], seen["time"]) != (first["token"], first["time"]):
                self._refuse(_who(seen))
            time.sleep(1)
            seen = self._remote.first(self._read)

    def _refuse(self, other: str) -> NoReturn:
        raise InputError(
            f"{self._remote.url} is being written by {other}; expected one writer at a time. Wait for it, stop it, or choose another "
            "name=NAME."
        )

    def _read(self) -> dict[str, Any] | None:
        data = self._remote.read(LOCK)
        return None if data is None else json.loads(data)

    def _sign(self) -> None:
        now = time.time()
        self._remote.write(LOCK, json.dumps(self._own | {"time": now}).encode())
        self._signed = now

    def _look(self) -> None:
        if (now := self._read()) is not None and now["token"] != self._own["token"]:
            self._taken_by = _who(now)

    def _renew(self) -> None:
        while not self._taken_by and not self._over.wait(RENEWED):
            with suppress(Exception):  # the next time may do; what the run itself writes tells of storage that is gone
                self._look()
                if not self._taken_by:
                    self._sign()


def _machine() -> str:
    """This machine; a container is one of its own."""
    with suppress(OSError):
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()


def _who(lock: dict[str, Any]) -> str:
    return f"process {lock['pid']} on {lock['host'].partition(' ')[0]}"


def _has_ended(lock: dict[str, Any]) -> bool:
    """Whether the holder was a process of this machine that is no more."""
    if lock["host"] != _machine():
        return False
    try:
        os.kill(lock["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False
