"""A server on loopback that serves weights as a model hub does, and as plain files."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlparse

COMMIT = "c" * 40


@dataclass
class WeightServer:
    """What it serves, and what it was asked for.

    Attributes:
        address: Without a slash at its end.
        files: Content by path.
        promised: SHA-256 that the hub gives where it is not the content's.
        asked: Methods and paths of the requests.
    """

    address: str
    files: dict[str, bytes] = field(default_factory=dict)
    promised: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)


@contextmanager
def weight_server() -> Iterator[WeightServer]:
    """Serve until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(with_content=True)

        def do_HEAD(self) -> None:
            self._answer(with_content=False)

        def _answer(self, *, with_content: bool) -> None:
            path = urlparse(self.path).path
            served.asked.append(f"{self.command} {path}")
            content = served.files.get(path)
            self.send_response(404 if content is None else 200)
            if content is None:
                self.send_header("X-Error-Code", "EntryNotFound")
            else:
                digest = hashlib.sha256(content).hexdigest()
                self.send_header("ETag", f'"{served.promised.get(path, digest)}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            if with_content and content is not None:
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served = WeightServer(f"http://127.0.0.1:{server.server_port}")
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
