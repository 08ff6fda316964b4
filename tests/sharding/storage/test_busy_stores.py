"""Stores that refuse a share of all requests, or ask for a pause (`Retry-After`): real servers, which do so."""

import logging
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ringfeed.sharding import StorageError
from ringfeed.sharding.sources.files.open import read_files, stat_files
from ringfeed.sharding.storage.retry import RetryPolicy
from ringfeed.sharding.storage.s3 import listing
from ringfeed.sharding.storage.storage import Storage
from tests.servers.proxy import Fault, Proxy
from tests.servers.seaweedfs import S3Server
from tests.servers.store import Store
from tests.servers.web import Behaviour, served

SOON = RetryPolicy(base_seconds=0.001, cap_seconds=0.01)
THIRD = Fault(kind="reply", share=1 / 3, times=10**9)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual number of attempts, without pauses."""
    monkeypatch.setattr(RetryPolicy, "pause_seconds", lambda *_: 0.0)


@pytest.fixture
def s3(s3_bucket: str, s3_server: S3Server, s3_env: dict[str, str]) -> Store:
    url = f"s3://{s3_bucket}/busy"
    return Store(name="s3", url=url, env=s3_env, storage_options=s3_server.storage_options)


@pytest.fixture
def storage(proxy: Proxy, s3_server: S3Server, s3: Store) -> Storage:
    """The folder, through the proxy."""
    return Storage(s3.url, replace(s3_server, endpoint_url=proxy.url).storage_options, SOON)


@pytest.mark.usefixtures("soon")
def test_many_files_of_a_web_server_that_refuses_a_third(tmp_path: Path) -> None:
    names = [f"{number:03}.bin" for number in range(100)]
    for name in names:
        (tmp_path / name).write_bytes(name.encode() * 3)
    with served(tmp_path, behaviour=Behaviour(busy=1 / 3)) as url:
        urls = [f"{url}/{name}" for name in names]
        assert stat_files(urls) == [21] * 100
        assert read_files(urls) == [name.encode() * 3 for name in names]


def test_a_bucket_that_refuses_a_third(
    proxy: Proxy, storage: Storage, s3: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing has eight pages: all of them never come in one attempt."""
    monkeypatch.setattr(listing, "_PAGE_KEYS", 5)
    proxy.begin(THIRD)
    for number in range(40):
        storage.write(f"{number:02}", b"%d" % number)
    assert storage.sizes() == {f"{number:02}": len(str(number)) for number in range(40)}
    assert [storage.map(f"{number:02}").to_pybytes() for number in range(40)] == [b"%d" % n for n in range(40)]
    storage.move("00", "60")
    assert storage.list()[-1] == "60"
    assert proxy.happened[THIRD] > 30
    fs, _ = storage.filesystem()
    assert [failures for _, failures in fs._ringfeed_obstore.values()] == [0]  # goes on with obstore


def pause_seconds(caplog: pytest.LogCaptureFixture) -> float:
    """The pauses that were announced, in all; the clock also counts how long a busy machine stands still."""
    return sum(map(float, re.findall(r"trying again in ([\d.]+) s", caplog.text)))


@pytest.mark.parametrize("operation", ["read", "write"])
def test_s3_is_left_alone_for_as_long_as_it_asks(
    proxy: Proxy, storage: Storage, s3: Store, operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ringfeed")
    s3.write_bytes("a", b"1")
    method = {"read": "GET", "write": "PUT"}[operation]
    call = {"read": lambda: storage.read("a"), "write": lambda: storage.write("a", b"1")}[operation]
    proxy.begin(Fault(kind="reply", method=method, retry_after="1"))
    started = time.monotonic()
    call()
    assert time.monotonic() - started >= 1
    assert 1 <= pause_seconds(caplog) < 3
    refusal = Fault(kind="reply", method=method, retry_after="3600", times=9)
    proxy.begin(refusal)
    with pytest.raises(
        StorageError, match=r"asks for fewer requests.*\(1 attempt in 0 s failed, and the store asks to"
    ):
        call()
    assert proxy.happened[refusal] == 1


def test_a_web_server_is_left_alone_for_as_long_as_it_asks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ringfeed")
    (tmp_path / "a").write_bytes(b"1")
    behaviour = Behaviour(refusals={"a": [429]}, retry_after="1")
    with served(tmp_path, behaviour=behaviour) as url:
        started = time.monotonic()
        assert Storage(url, retries=SOON).exists("a")
    assert time.monotonic() - started >= 1
    assert 1 <= pause_seconds(caplog) < 3
    assert [method for method, _, _ in behaviour.asked] == ["HEAD", "HEAD"]  # no GET in between
