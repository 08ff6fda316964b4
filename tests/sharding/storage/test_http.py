"""Storage on web servers: refusals differ from missing files, and replies are checked against requests."""

import pickle
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import BuildOptions, StorageError, build, verify
from ringfeed.sharding.errors import RangesError
from ringfeed.sharding.storage import http as web
from ringfeed.sharding.storage.file_contents import digest_file
from ringfeed.sharding.storage.retry import RetryPolicy
from ringfeed.sharding.storage.storage import Storage
from ringfeed.sharding.storage.timings import StoreTimings
from tests.servers.web import Behaviour, served

ONCE = RetryPolicy(attempts=1)
QUICK = RetryPolicy(attempts=4, base_seconds=0.02)
BIG = bytes(range(256)) * 4096 * 5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a").write_bytes(BIG)
    (tmp_path / "empty").write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize("status", [404, 410])
def test_a_missing_file_is_file_not_found(folder: Path, status: int) -> None:
    with served(folder, behaviour=Behaviour(refusals={"a": [status, None]})) as url:
        storage = Storage(url)
        assert not storage.exists("a")
        assert digest_file(storage, "a") is None
        for call in (storage.read, storage.map):
            with pytest.raises(FileNotFoundError):
                call("a")


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (301, "HTTPError: 301 Moved Permanently"),  # to no place
        (401, "permission denied; a signed link may have expired"),
        (403, "permission denied; a signed link may have expired"),
        (429, "HTTPError: 429 Too Many Requests"),
        (500, "HTTPError: 500 Internal Server Error"),
        (503, "HTTPError: 503 Service Unavailable"),
    ],
)
def test_the_errors_of_a_server_that_refuses(folder: Path, status: int, told: str) -> None:
    with served(folder, behaviour=Behaviour(refusals={"a": [status, None]})) as url:
        storage = Storage(url, retries=ONCE)
        for call in (storage.exists, storage.read, lambda path: digest_file(storage, path)):
            with pytest.raises(StorageError, match=told):
                call("a")


def test_a_transient_refusal_is_retried(folder: Path) -> None:
    behaviour = Behaviour()
    with served(folder, behaviour=behaviour) as url:
        storage = Storage(url, retries=QUICK)
        for call in (storage.exists, storage.read, lambda path: digest_file(storage, path)):
            behaviour.refusals["a"] = [503, 429, 500]
            assert call("a")
            assert not behaviour.refusals["a"]


def test_servers_and_links_that_allow_only_get(folder: Path) -> None:
    with served(folder, behaviour=Behaviour(heads=False)) as url:
        fs, root = Storage(url).filesystem()
        assert [fs.info(f"{root}/{path}")["size"] for path in ("a", "empty")] == [len(BIG), 0]


@pytest.mark.parametrize("what", [{}, {"most_bytes": 1000_000}, {"ranges": False}, {"sized": False, "ranges": False}])
def test_streams(folder: Path, what: dict[str, bool]) -> None:
    behaviour = Behaviour(**what, cut={"a": 2})
    with served(folder, behaviour=behaviour) as url, Storage(url, retries=QUICK).open_input("a") as file:
        start = file.read(3_000_000)
        behaviour.cut["a"] = 1
        assert start + file.read() == BIG
    with served(folder, behaviour=behaviour) as url, Storage(url).open_input("empty") as file:
        assert file.read() == b""


def test_invalid_replies_to_range_requests(folder: Path) -> None:
    with served(folder, ranges=False) as url:
        assert Storage(url).read_range("a", 0, len(BIG)) == BIG
        with pytest.raises(RangesError):
            Storage(url).read_range("a", 0, 10)
    told = "bytes from 5 on arrived where those from 10 on were requested"
    with served(folder, behaviour=Behaviour(shifted=5)) as url, pytest.raises(StorageError, match=told):
        Storage(url).read_range("a", 10, 20)


@pytest.mark.parametrize("what", [{"ranges": False}, {"sized": False, "ranges": False}, {"sized": False}], ids=repr)
def test_a_dataset_is_verified(tmp_path: Path, what: dict[str, bool]) -> None:
    pq.write_table(pa.table({"x": range(100), "label": [0, 1] * 50}), tmp_path / "source.parquet")
    options = BuildOptions(source=str(tmp_path / "source.parquet"), destination=str(tmp_path / "data"), label="label")
    build(options)
    with served(tmp_path, behaviour=Behaviour(**what)) as url:
        assert verify(f"{url}/data") == []


def test_long_bodies_are_read_and_not_decompressed() -> None:
    fs, _ = Storage("https://example.org").filesystem()
    for client in (fs, pickle.loads(pickle.dumps(fs))):
        timeout = client.client_kwargs["timeout"]
        assert timeout.total is None
        assert (timeout.sock_connect, timeout.sock_read) == (10, 30)
        assert client.client_kwargs["headers"] == {"Accept-Encoding": "identity"}


def test_options_of_the_client_are_kept(folder: Path) -> None:
    behaviour = Behaviour()
    with served(folder, behaviour=behaviour) as url:
        options = {"client_kwargs": {"headers": {"X-From": "client"}}, "headers": {"X-Also": "request"}}
        Storage(url, options).read_range("a", 5, 10)
    (asked,) = behaviour.asked
    assert {"X-From": "client", "X-Also": "request", "Range": "bytes=5-9"}.items() <= asked[2].items()


@pytest.mark.parametrize("ask", [Storage.list, lambda storage: storage.exists("a")])
def test_an_endless_header_or_page_times_out(monkeypatch: pytest.MonkeyPatch, ask: Callable[[Storage], object]) -> None:
    monkeypatch.setattr(web, "RetryPolicy", lambda: ONCE)  # of pages

    def serve(server: socket.socket) -> None:
        with suppress(OSError), server.accept()[0] as connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
            for _ in range(1200):  # a minute, if the client stays
                connection.sendall(b"X-A: b\r\n")
                time.sleep(0.05)

    brief = StoreTimings(request_seconds=0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        with pytest.raises(StorageError, match=r"no answer came in time \(\w*TimeoutError\)$"):
            ask(Storage(f"http://127.0.0.1:{server.getsockname()[1]}/d", retries=ONCE, timings=brief))
