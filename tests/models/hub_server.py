"""A hub on the loopback address that serves model folders the way huggingface.co does."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

COMMIT = "0" * 39 + "1"


class Hub(ThreadingHTTPServer):
    """Serves `models[hub_id] = folder`; those in `gated` are refused. `asked` lists the requests.

    With `stop_after`, longer files come to a halt after so many bytes.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models: dict[str, Path] = {}
        self.gated: set[str] = set()
        self.asked: list[str] = []
        self.stop_after: int | None = None
        self.closing = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def running_hub() -> Iterator[Hub]:
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.closing.set()
        hub.shutdown()
        hub.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = urlsplit(self.path).path
        self.server.asked.append(f"{self.command} {self.path}")
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+).*)?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        name = (api or file)[1] if api or file else ""
        folder = self.server.models.get(name)
        if folder is None:
            self._send(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        elif name in self.server.gated and file:
            self._send(401, {"error": "Access is restricted"}, {"X-Error-Code": "GatedRepo"})
        elif api and api[2] == "tree":
            self._send(
                200, [self._entry(path, "path") | {"type": "file"} for path in sorted(folder.iterdir())]
            )
        elif api:
            siblings = [self._entry(path, "rfilename") for path in sorted(folder.iterdir())]
            self._send(200, {"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings, "tags": []})
        elif file and (folder / file[3]).is_file():
            self._send_file(folder / file[3])
        else:
            self._send(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})

    def _entry(self, path: Path, key: str) -> dict[str, object]:
        return {key: path.name, "size": path.stat().st_size, "oid": _etag(path), "blobId": _etag(path)}

    def _send(self, status: int, value: object, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        for header, content in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(header, content)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _send_file(self, path: Path) -> None:
        data = path.read_bytes()
        start = 0
        if found := re.match(r"bytes=(\d+)-", self.headers.get("Range", "")):
            start = int(found[1])
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(data) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("ETag", f'"{_etag(path)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        limit = self.server.stop_after
        if self.command == "GET" and limit is not None and len(data) - start > limit:
            self.wfile.write(data[start : start + limit])
            self.server.closing.wait(600)
            self.close_connection = True
        elif self.command == "GET":
            self.wfile.write(data[start:])


def _etag(path: Path) -> str:
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
