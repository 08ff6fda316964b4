"""A folder served over HTTP, by a server that can send parts of files, or one that cannot."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

__all__ = ["served"]


@contextmanager
def served(folder: Path, *, ranges: bool) -> Iterator[str]:
    """The URL of a folder, while it is served."""
    handler = partial(_Ranged if ranges else _Plain, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


class _Plain(SimpleHTTPRequestHandler):
    """Sends whole files, whatever is asked for."""

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class _Ranged(_Plain):
    def do_GET(self) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if asked is None or not path.is_file():
            super().do_GET()
            return
        data = path.read_bytes()
        start, stop = int(asked[1]), min(int(asked[2] or len(data)) + 1, len(data))
        self.send_response(HTTPStatus.PARTIAL_CONTENT)
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        self.wfile.write(data[start:stop])

    def end_headers(self) -> None:
        self.send_header("Accept-Ranges", "bytes")
        super().end_headers()
