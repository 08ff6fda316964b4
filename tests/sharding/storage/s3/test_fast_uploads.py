"""Uploads by urllib3: the same objects and credentials as by s3fs, which sends the parts that urllib3 cannot."""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from ringfeed.sharding import StorageError
from ringfeed.sharding.storage.retry import RetryPolicy
from ringfeed.sharding.storage.storage import Storage
from tests.servers.proxy import Fault, Proxy, proxied
from tests.servers.seaweedfs import S3Server

DATA = bytes(range(256)) * (70 << 12)  # 70 MiB: five parts
QUICK = RetryPolicy(attempts=4, base_seconds=0.02, cap_seconds=0.1)


@pytest.fixture
def url(s3_bucket: str, s3_env: dict[str, str]) -> str:
    """A folder, in which names need to be quoted."""
    return f"s3://{s3_bucket}/{uuid.uuid4().hex}/split=a b+c%20"


@pytest.fixture
def sent_by_s3fs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the parts that s3fs sends."""
    import s3fs

    numbers: list[int] = []
    call: Callable[..., Any] = s3fs.S3FileSystem.call_s3

    def counted(fs: Any, method: str, *arguments: Any, **options: Any) -> Any:
        if method == "upload_part":
            numbers.append(options["PartNumber"])
        return call(fs, method, *arguments, **options)

    monkeypatch.setattr(s3fs.S3FileSystem, "call_s3", counted)
    return numbers


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[Proxy]:
    with proxied(s3_server.endpoint_url) as running:
        yield running


def written(storage: Storage) -> bytes:
    """What is there after `DATA` was written."""
    storage.write("x", DATA)
    return storage.map("x").to_pybytes()


def test_credentials_from_the_environment(url: str, sent_by_s3fs: list[int]) -> None:
    assert written(Storage(url)) == DATA
    assert sent_by_s3fs == []


def test_credentials_from_options(
    url: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, sent_by_s3fs: list[int]
) -> None:
    for name in s3_server.env:
        monkeypatch.delenv(name)
    for more in ({}, {"requester_pays": True}):
        assert written(Storage(url, {**s3_server.storage_options, **more})) == DATA
    assert sent_by_s3fs == []


def test_credentials_from_a_profile(url: str, s3_profile: str, sent_by_s3fs: list[int]) -> None:
    assert written(Storage(url, {"profile": s3_profile})) == DATA
    assert sent_by_s3fs == []


def test_the_failures_of_one_bucket_and_a_policy_of_one_attempt(
    url: str, s3_server: S3Server, proxy: Proxy, sent_by_s3fs: list[int]
) -> None:
    """What stands in the way of one bucket says nothing of another; and where nothing is tried again, s3fs tells."""
    options = replace(s3_server, endpoint_url=proxy.url).storage_options
    other = f"other-{uuid.uuid4().hex}"
    s3_server.make_bucket(other)
    proxy.begin(Fault(kind="reply", method="PUT", path="partNumber", times=5))
    assert written(Storage(url, options, QUICK)) == DATA
    proxy.begin()
    sent_by_s3fs.clear()
    assert written(Storage(f"s3://{other}/data", options, QUICK)) == DATA
    assert sent_by_s3fs == []
    proxy.begin(Fault(kind="reply", method="PUT", path="partNumber", times=99))
    with pytest.raises(StorageError, match="asks for fewer requests"):
        written(Storage(f"s3://{other}/data", options, RetryPolicy(attempts=1)))


def test_unknown_options_and_proxies_are_left_to_s3fs(
    url: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, sent_by_s3fs: list[int]
) -> None:
    option = {"config_kwargs": {"s3": {"addressing_style": "path"}}}
    assert written(Storage(url, {**s3_server.storage_options, **option})) == DATA
    assert sorted(sent_by_s3fs) == [1, 2, 3, 4, 5]
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert written(Storage(url, {**s3_server.storage_options, "max_concurrency": 2})) == DATA
    assert len(sent_by_s3fs) == 10


@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind="reply", method="PUT", path="partNumber"),
        Fault(kind="reset upload", method="PUT", path="partNumber", at_bytes=1_000_000),
        Fault(kind="damage upload", method="PUT", path="partNumber", at_bytes=1_000_000),
        Fault(kind="lose reply", method="PUT", path="partNumber"),
        Fault(kind="reply", method="PUT", path="partNumber", times=5),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.times}",
)
def test_an_interrupted_part_is_sent_again(
    url: str, s3_server: S3Server, proxy: Proxy, sent_by_s3fs: list[int], fault: Fault
) -> None:
    storage = Storage(url, replace(s3_server, endpoint_url=proxy.url).storage_options, QUICK)
    proxy.begin(fault)
    assert written(storage) == DATA
    assert proxy.happened[fault] == fault.times
    assert sent_by_s3fs


def test_no_checksums_are_sent_if_the_client_is_configured_so(
    url: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, proxy: Proxy, sent_by_s3fs: list[int]
) -> None:
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    storage = Storage(url, replace(s3_server, endpoint_url=proxy.url).storage_options, QUICK)
    proxy.begin(Fault(kind="damage upload", method="PUT", path="partNumber", at_bytes=1_000_000))
    assert written(storage) != DATA
    assert sent_by_s3fs == []
