"""A server of S3's protocol, for the tests: moto's server, whose uploads of arrays can be held.

`python -m tests.e2e.bucket_server FOLDER` writes its port to FOLDER/port. While FOLDER/hold is
there, it answers no upload of a checkpoint's arrays: the first of them makes FOLDER/holding."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

ARRAY = re.compile(r"/checkpoint/\d+/state/")


def held(app: Callable[..., Iterable[bytes]], folder: Path) -> Callable[..., Iterable[bytes]]:
    """The server, which waits with uploads while the file is there."""

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        is_upload = environ["REQUEST_METHOD"] == "PUT" and ARRAY.search(environ["PATH_INFO"])
        while is_upload and (folder / "hold").exists():
            (folder / "holding").touch()
            time.sleep(0.01)
        return app(environ, start_response)

    return answer


def main() -> None:
    folder = Path(sys.argv[1])
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = held(DomainDispatcherApplication(create_backend_app), folder)
    server = make_server("127.0.0.1", 0, app, threaded=True)
    (folder / "port.new").write_text(f"{server.server_port}")
    (folder / "port.new").rename(folder / "port")
    server.serve_forever()


if __name__ == "__main__":
    main()
