"""A model hub on this machine, as huggingface_hub asks one: which commit a revision is, its tree,
and its files.

*.safetensors come by a redirect and in ranges, as large files do. Every request is remembered.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


@dataclass
class Hub:
    """Repositories by name, each with its revisions: branch or tag -> commit, commit -> folder."""

    commits: dict[str, dict[str, str]] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    cut_at: int | None = None  # a large file's connection ends after this byte
    requests: list[str] = field(default_factory=list)  # METHOD PATH RANGE
    url: str = ""

    def add(self, repository: str, folder: Path, revision: str = "main") -> str:
        commit = hashlib.sha1(f"{repository}{revision}{folder}".encode()).hexdigest()
        self.commits.setdefault(repository, {}).update({revision: commit, commit: commit})
        self.folders[commit] = folder
        return commit

    def fetched(self) -> set[str]:
        """The names of files whose bytes were asked for."""
        return {
            line.split()[1].rpartition("/")[2]
            for line in self.requests
            if re.match("GET /(?!api)", line)
        }


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path} {self.headers.get('Range', '')}".strip())
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/(.+)", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/(resolve|cdn)/([^/]+)/(.+)", path)
        match = api or file
        assert match, f"the stand-in does not know {path}"
        repository, kind, revision = match[1], match[2], match[3]
        if repository not in self.hub.commits:
            return self.reply(401, {"X-Error-Code": "RepoNotFound"})
        commit = self.hub.commits[repository].get(revision)
        if commit is None:
            return self.reply(404, {"X-Error-Code": "RevisionNotFound"})
        folder = self.hub.folders[commit]
        if kind == "revision":
            return self.reply(
                200, {}, json.dumps({"id": repository, "sha": commit, "siblings": []}).encode()
            )
        if kind == "tree":
            files = [p for p in sorted(folder.rglob("*")) if p.is_file()]
            rows = [{"type": "file", "size": p.stat().st_size, "oid": "0" * 40} for p in files]
            named = [
                row | {"path": str(p.relative_to(folder))}
                for row, p in zip(rows, files, strict=True)
            ]
            return self.reply(200, {}, json.dumps(named).encode())
        if repository in self.hub.gated:
            return self.reply(403, {"X-Error-Code": "GatedRepo"})
        self.send_file(folder / match[4], commit, cdn=kind == "cdn")

    def send_file(self, path: Path, commit: str, cdn: bool) -> None:
        data = path.read_bytes()
        etag = f'"{hashlib.sha256(data).hexdigest()}"'
        headers = {"X-Repo-Commit": commit, "ETag": etag}
        if path.suffix == ".safetensors" and not cdn:
            linked = {"X-Linked-Etag": etag, "X-Linked-Size": str(len(data))}
            return self.reply(
                302, headers | linked | {"Location": self.path.replace("/resolve/", "/cdn/")}
            )
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        if "Range" in self.headers:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self.reply(
            206 if "Range" in self.headers else 200,
            headers,
            data[start:],
            self.hub.cut_at if cdn else None,
        )

    def reply(
        self, status: int, headers: dict[str, str], body: bytes = b"", cut_at: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:cut_at])
        if cut_at is not None:
            self.close_connection = True


@contextmanager
def serve_hub() -> Iterator[Hub]:
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("HubHandler", (Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
