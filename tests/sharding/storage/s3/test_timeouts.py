"""Every request ends, even to S3 servers that answer partly or wrongly."""

from __future__ import annotations

import hashlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from ringfeed.sharding import StorageError
from ringfeed.sharding.storage.retry import RetryPolicy
from ringfeed.sharding.storage.storage import Storage
from ringfeed.sharding.storage.timings import StoreTimings

ONCE = RetryPolicy(attempts=1)
GOES_ON_SECONDS = 240
SOON_SECONDS = 60  # a machine may stand still for some


@contextmanager
def answered(
    answer: Callable[[socket.socket, str, int], None], timings: StoreTimings | None = None
) -> Iterator[Storage]:
    """A folder of an S3 server that answers each connection by a function of it, the request's head and its length."""

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                if not (piece := connection.recv(1)):
                    return
                head += piece
            length = re.search(rb"\r\ncontent-length: *(\d+)", head.lower())
            answer(connection, head.decode(), int(length[1]) if length else 0)

    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    threading.Thread(target=serve, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        yield Storage(
            "s3://bucket/folder", {"endpoint_url": endpoint, "key": "k", "secret": "s"}, ONCE, timings or StoreTimings()
        )
        server.shutdown(socket.SHUT_RDWR)


def test_bodies_are_sent_without_waiting_for_permission() -> None:
    asked = []

    def answer(connection: socket.socket, head: str, length: int) -> None:
        asked.append(head)
        connection.settimeout(30)
        body = b""
        while len(body) < length:
            if not (piece := connection.recv(length)):
                return
            body += piece
        etag = hashlib.md5(body, usedforsecurity=False).hexdigest()
        reply = f'HTTP/1.1 200 OK\r\nETag: "{etag}"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n'
        connection.sendall(reply.encode())

    with answered(answer) as storage:
        storage.write("a", b"12")
    assert [head.split(" ")[0] for head in asked] == ["PUT"]


def trickle(connection: socket.socket, head: str, length: int) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    go_on(connection, b" ")


def drip_head(connection: socket.socket, head: str, length: int) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    go_on(connection, b"X-A: b\r\n")


def go_on(connection: socket.socket, piece: bytes) -> None:
    """Until the client leaves."""
    for _ in range(20 * GOES_ON_SECONDS):
        connection.sendall(piece)
        time.sleep(0.05)


def take_nothing(connection: socket.socket, head: str, length: int) -> None:
    time.sleep(GOES_ON_SECONDS)


@pytest.mark.parametrize(
    ("answer", "ask"),
    [
        (trickle, lambda storage: storage.list()),
        (trickle, lambda storage: storage.read("a")),
        (trickle, lambda storage: storage.map("a")),
        (trickle, lambda storage: storage.read_range("a", 0, 1000)),
        (drip_head, lambda storage: storage.read("a")),
        (drip_head, lambda storage: storage.map("a")),
        (take_nothing, lambda storage: storage.write("a", bytes(32 << 20))),
    ],
)
def test_endless_replies_time_out(
    answer: Callable[[socket.socket, str, int], None], ask: Callable[[Storage], object]
) -> None:
    asked: list[float] = []

    def noted(connection: socket.socket, head: str, length: int) -> None:
        asked.append(time.monotonic())  # to make a client takes a second, and longer where others are at work
        answer(connection, head, length)

    with answered(noted, StoreTimings(request_seconds=0.3, request_bytes_per_second=1 << 30)) as storage:
        begun = time.monotonic()
        # The client itself gives a body up that is not taken, after 15 s and in other words.
        said = "no answer came in time" if answer is take_nothing else "(no answer came in time|Read timeout)"
        with pytest.raises(StorageError, match=rf"s3://bucket/folder.*: .*{said}"):
            ask(storage)
        since = asked[0] if asked else begun  # who gives up may do so before the server has read its head
        assert time.monotonic() - since < SOON_SECONDS


@pytest.mark.parametrize("ask", [Storage.list, Storage.check_writable, lambda storage: storage.read("a")])
def test_a_web_page_is_not_taken_for_a_reply(ask: Callable[[Storage], object]) -> None:
    def answer(connection: socket.socket, head: str, length: int) -> None:
        page = b"<!DOCTYPE html><html><body>Console</body></html>"
        connection.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(page) + page
        )

    with answered(answer) as storage, pytest.raises(StorageError, match=r"no S3 store: it sends a web page; check the"):
        ask(storage)


def test_a_destination_on_a_server_that_accepts_everything_is_refused() -> None:
    def answer(connection: socket.socket, head: str, length: int) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    with (
        answered(answer) as storage,
        pytest.raises(StorageError, match=r"no S3 store: it sends no listing of the bucket"),
    ):
        storage.check_writable()


def test_redirects_that_name_no_region_are_reported() -> None:
    def answer(connection: socket.socket, head: str, length: int) -> None:
        connection.sendall(b"HTTP/1.1 301 Moved Permanently\r\nContent-Length: 0\r\n\r\n")

    with answered(answer) as storage, pytest.raises(StorageError, match=r"redirects without naming a place; check"):
        storage.read("a")
