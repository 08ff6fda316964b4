"""Reads by obstore: the same bytes, credentials and errors as by s3fs, which takes over where obstore fails."""

import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ringfeed.sharding import StorageError
from ringfeed.sharding.storage.retry import RetryPolicy
from ringfeed.sharding.storage.storage import Storage
from tests.servers.proxy import Fault, Proxy, proxied
from tests.servers.seaweedfs import S3Server

pytest.importorskip("obstore")

DATA = bytes(range(256)) * 4096 * 2
QUICK = RetryPolicy(attempts=4, base_seconds=0.02, cap_seconds=0.1)


@pytest.fixture
def url(s3_bucket: str, s3_env: dict[str, str]) -> str:
    """A folder with one object `a`."""
    url = f"s3://{s3_bucket}/{uuid.uuid4().hex}"
    Storage(url).write("a", DATA)
    return url


@pytest.fixture
def no_s3fs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads by s3fs fails."""
    import s3fs

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("read by s3fs")

    monkeypatch.setattr(s3fs.S3FileSystem, "cat_file", refuse)


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[Proxy]:
    with proxied(s3_server.endpoint_url) as running:
        yield running


@pytest.mark.usefixtures("no_s3fs")
class TestCredentials:
    def test_from_the_environment(self, url: str) -> None:
        assert Storage(url).map("a").to_pybytes() == DATA

    def test_for_a_range_of_an_object(self, url: str) -> None:
        for start, end in ((0, 1), (1000, 70_000), (len(DATA) - 5, len(DATA))):
            assert Storage(url).read_range("a", start, end) == DATA[start:end]

    def test_from_options(self, url: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in s3_server.env:
            monkeypatch.delenv(name)
        assert Storage(url, s3_server.storage_options).map("a").to_pybytes() == DATA
        options = {**s3_server.storage_options, "requester_pays": True}
        assert Storage(url, options).map("a").to_pybytes() == DATA

    def test_from_a_profile(self, url: str, s3_profile: str) -> None:
        assert Storage(url, {"profile": s3_profile}).map("a").to_pybytes() == DATA


def test_errors_are_those_of_s3fs(url: str, s3_server: S3Server) -> None:
    with pytest.raises(FileNotFoundError, match=f"there is no file {url}/b"):
        Storage(url).map("b")
    with pytest.raises(StorageError, match="permission denied; check AWS_ACCESS_KEY_ID"):
        Storage(url, s3_server.as_stranger().storage_options).map("a")


@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind="reply", method="GET", path="/a"),
        Fault(kind="reset download", method="GET", path="/a", at_bytes=100_000),
        Fault(kind="cut download", method="GET", path="/a", at_bytes=1_000_000, times=3),
        Fault(kind="reset download", method="GET", path="/a", at_bytes=100_000, times=5),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.times}",
)
def test_an_interrupted_read_is_repeated_by_s3fs(url: str, s3_server: S3Server, proxy: Proxy, fault: Fault) -> None:
    storage = Storage(url, replace(s3_server, endpoint_url=proxy.url).storage_options, QUICK)
    proxy.begin(fault)
    assert storage.map("a").to_pybytes() == DATA
    assert proxy.happened[fault] == fault.times
    assert storage.map("a").to_pybytes() == DATA


def test_unknown_options_are_left_to_s3fs(url: str, s3_server: S3Server) -> None:
    for option in ({"version_aware": True}, {"config_kwargs": {"s3": {"addressing_style": "path"}}}):
        storage = Storage(url, {**s3_server.storage_options, **option})
        assert storage.map("a").to_pybytes() == DATA
        fs, _ = storage.filesystem()
        assert [store for store, _ in fs.__dict__["_ringfeed_obstore"].values()] == [None]


def test_a_forked_process_can_read(url: str) -> None:
    script = (
        "import os, sys; from ringfeed.sharding.storage.storage import Storage\n"
        "size = Storage(sys.argv[1]).map('a').size\n"
        "if not (child := os.fork()): os._exit(Storage(sys.argv[1]).map('a').size != size)\n"
        "print(size, os.waitpid(child, 0)[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", script, url], capture_output=True, text=True, timeout=280)
    assert done.stdout == f"{len(DATA)} 0\n", done.stderr
