"""JSON over HTTP: a request is repeated where the server may recover, and ends in a message where
it does not."""

import json
import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from isojax.core.errors import InputError, ServerFailed

# the environment variable with the key that a server asks for, if any
KEY_VARIABLE = "ISOJAX_SERVER_KEY"
MAX_SHOWN_CHARACTERS = 300  # of a server's own message
MAX_TIMEOUTS = 2  # of one request: who is late twice is too slow
RETRIED_STATUSES = (408, 429)  # and those of 500 and more


@dataclass(frozen=True)
class ServerOptions:
    """How a server is asked."""

    url: str  # such as http://localhost:8000, with or without /v1
    timeout: float = 600.0  # seconds until a request is answered
    in_flight: int = 32  # requests at a time
    retries: int = 5  # of a request; the waits between them are 0.5 s, 1 s, 2 s, ...
    first_wait: float = 0.5  # seconds
    # For messages: the options that set `timeout` and `in_flight`, and how the work goes on.
    timeout_setting: str = "--server-timeout"
    in_flight_setting: str = "--server-requests"
    to_go_on: str = "repeat the command: what is done is kept"


class JsonClient:
    """Asks one server; threads may share it."""

    def __init__(self, options: ServerOptions) -> None:
        """Read the URL, with or without http:// and /v1; InputError where it is none."""
        self.options = options
        url = options.url if "://" in options.url else f"http://{options.url}"
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(
                where=f"the server {options.url!r}",
                found="no URL",
                expected="one such as http://localhost:8000",
            )
        try:
            self._port = parts.port  # raises where it is no number; None where there is none
        except ValueError as e:
            raise InputError(
                where=f"the server {options.url!r}",
                found=str(e),
                expected="such as http://localhost:8000",
            ) from e
        self._host = parts.hostname
        self._is_https = parts.scheme == "https"
        self._root = parts.path.rstrip("/").removesuffix("/v1")
        self._connections: set[HTTPConnection] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        self.lost_requests = 0  # to which no answer came: the server may have been restarted

    def get(self, path: str) -> Any:
        return self._ask("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The answer to a request; None where it is empty.

        Raises:
            InputError: the server refuses it, or answers with something that is no JSON.
            ServerFailed: no answer, whatever is tried.
        """
        return self._ask("POST", path, json.dumps(body).encode())

    def close(self) -> None:
        """End the requests that other threads wait for."""
        with self._lock:
            self._is_closed = True
            for connection in self._connections:
                if connection.sock is not None:
                    with suppress(OSError):  # it has ended by itself
                        connection.sock.shutdown(socket.SHUT_RDWR)

    def _ask(self, method: str, path: str, body: bytes | None) -> Any:
        """The parsed answer, after as many attempts as it takes, and as are allowed.

        method: "GET" or "POST". path: from the server's root, such as "/v1/models". body: JSON, or
        None. Raises: as `post`. A request is repeated after a timeout, a lost connection, and a
        status of RETRIED_STATUSES or from 500 on; any other status than 200 is a refusal.
        """
        options = self.options
        wait = options.first_wait
        timeouts = 0
        problem = ""
        cause: Exception | None = None
        for attempt in range(options.retries + 1):
            if self._is_closed:
                raise ServerFailed(
                    f"the server {options.url} is asked no more: another request has failed."
                )

            try:
                status, text = self._ask_once(method, path, body)
            except TimeoutError as e:
                timeouts += 1
                problem = f"no answer within {options.timeout:g} s"
                cause = e
                if timeouts == MAX_TIMEOUTS:
                    fix = f"raise {options.timeout_setting}, or lower {options.in_flight_setting}"
                    raise ServerFailed(
                        f"the server {options.url} is too slow: {problem}, {timeouts} times; {fix}."
                    ) from e
            except (OSError, HTTPException) as e:
                self.lost_requests += 1
                problem = str(e) or type(e).__name__
                cause = e
            else:
                if status == 200:
                    return self._parse(path, text)
                problem = f"{method} {path} gives status {status}: {_shorten(text)}"
                cause = None
                may_recover = status >= 500 or status in RETRIED_STATUSES
                if not may_recover:
                    raise InputError(where=f"the server {options.url}", found=f"refuses: {problem}")

            if attempt < options.retries:
                time.sleep(wait)
                wait *= 2

        raise ServerFailed(
            f"the server {options.url} does not answer ({problem}). Start it again, and "
            f"{options.to_go_on}."
        ) from cause

    def _ask_once(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        """Make one attempt, on a connection that `close` can end: (status, text), as (200, b"{}").

        Raises TimeoutError, OSError or HTTPException where no answer comes.
        """
        connection_type = HTTPSConnection if self._is_https else HTTPConnection
        connection = connection_type(self._host, self._port, timeout=self.options.timeout)
        with self._lock:
            self._connections.add(connection)
        try:
            connection.request(method, self._root + path, body, self._headers(body))
            with connection.getresponse() as response:
                return response.status, response.read()
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _headers(self, body: bytes | None) -> dict[str, str]:
        headers = {} if body is None else {"Content-Type": "application/json"}
        key = os.environ.get(KEY_VARIABLE)
        if key:
            headers["Authorization"] = f"Bearer {key}"
        return headers

    def _parse(self, path: str, text: bytes) -> Any:
        if not text.strip():
            return None
        try:
            return json.loads(text)
        except ValueError as e:
            raise InputError(
                where=f"the server {self.options.url}",
                found=f"{path} gives no JSON: {_shorten(text)}",
                fix="Is it a server of a language model?",
            ) from e


def _shorten(text: bytes) -> str:
    """A server's own message, in a line."""
    one_line = " ".join(text.decode(errors="replace").split())
    return one_line[:MAX_SHOWN_CHARACTERS].rstrip(".")
