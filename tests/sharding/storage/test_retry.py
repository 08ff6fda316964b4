"""When and for how long operations are retried, which errors are transient, and how errors are explained."""

import asyncio
import errno
import http.client
import logging
import os
import random
import resource
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import botocore.exceptions
import fsspec.exceptions
import pyarrow as pa
import pytest
import urllib3.exceptions
from hypothesis import given
from hypothesis import strategies as st
from s3fs.errors import translate_boto_error

from ringfeed.sharding.storage.client_errors import (
    HTTPError,
    IncompleteError,
    RetriesExhaustedError,
    error_code,
    is_busy,
    is_transient,
    retry_after_seconds,
)
from ringfeed.sharding.storage.error_messages import explain
from ringfeed.sharding.storage.retry import RetryPolicy, retry


class Time:
    """A clock that only sleeping moves, and the pauses that were slept."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def failing(times: int, error: Exception, time: Time, seconds: float = 0) -> Callable[[], str]:
    """An operation that fails so many times, each taking so long, and then returns 'done'."""
    left = [times]

    def operation() -> str:
        time.now += seconds
        if left[0]:
            left[0] -= 1
            raise error
        return "done"

    return operation


def refused(status: int, code: str, region: str = "") -> botocore.exceptions.ClientError:
    about = {"HTTPStatusCode": status, "HTTPHeaders": {"x-amz-bucket-region": region} if region else {}}
    return botocore.exceptions.ClientError(
        {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": about}, "PutObject"
    )


RETRY_AFTER_S3 = translate_boto_error(
    botocore.exceptions.ClientError(
        {
            "Error": {"Code": "SlowDown", "Message": "no"},
            "ResponseMetadata": {"HTTPStatusCode": 503, "HTTPHeaders": {"retry-after": "7"}},
        },
        "PutObject",
    )
)


def responded(status: int) -> Exception:
    """An error as of requests, httpx and the Hugging Face Hub, which keeps the response."""
    error = OSError(f"{status} Client Error")
    error.response = SimpleNamespace(status_code=status, headers={"Retry-After": "7"})  # type: ignore[attr-defined]
    return error


class TestRetry:
    def test_an_operation_is_repeated_until_it_succeeds(self) -> None:
        time = Time()
        policy = RetryPolicy(attempts=4, base_seconds=1, cap_seconds=3, budget_seconds=100)
        operation = failing(3, ConnectionResetError(), time)
        assert retry(operation, policy, sleep=time.sleep, clock=time.clock, draw=lambda: 0.5) == "done"
        assert time.pauses == [0.5, 1.0, 1.5]

    def test_the_log_says_what_failed_and_why(self, caplog: pytest.LogCaptureFixture) -> None:
        time, policy = Time(), RetryPolicy(attempts=2)
        about = lambda: "cannot read https://x/a"  # noqa: E731
        with caplog.at_level(logging.INFO):
            retry(failing(1, TimeoutError(), time), policy, about=about, sleep=time.sleep, draw=lambda: 0)
            retry(failing(1, OSError(errno.EPIPE, "pipe"), time), policy, sleep=time.sleep, draw=lambda: 0)
        again = "; trying again in 0.0 s (attempt 1 of 2 failed)"
        assert caplog.messages == [
            f"cannot read https://x/a: TimeoutError{again}",
            f"BrokenPipeError: [Errno 32] pipe{again}",
        ]

    def test_a_program_s_seeded_random_numbers_are_not_drawn(self) -> None:
        time, before = Time(), random.getstate()
        operation = failing(2, ConnectionResetError(), time)
        assert retry(operation, RetryPolicy(), sleep=time.sleep, clock=time.clock) == "done"
        assert random.getstate() == before

    def test_the_last_error_is_the_cause(self) -> None:
        time, error = Time(), ConnectionResetError()
        policy = RetryPolicy(attempts=3, base_seconds=1, budget_seconds=100)
        with pytest.raises(RetriesExhaustedError, match=r"3 attempts in 2 s failed") as caught:
            retry(failing(3, error, time), policy, sleep=time.sleep, clock=time.clock, draw=lambda: 0.5)
        assert caught.value.__cause__ is error
        assert (caught.value.attempts, caught.value.seconds) == (3, 1.5)

    def test_a_permanent_error_is_raised_at_once(self) -> None:
        time, error = Time(), OSError(errno.ENOSPC, "full")
        with pytest.raises(OSError, match="full") as caught:
            retry(failing(1, error, time), RetryPolicy(), sleep=time.sleep, clock=time.clock)
        assert caught.value is error
        assert time.pauses == []

    def test_without_retries_an_error_stays_unchanged(self) -> None:
        with pytest.raises(ConnectionResetError):
            retry(failing(1, ConnectionResetError(), Time()), RetryPolicy(attempts=1))

    def test_an_operation_that_exhausted_its_retries_is_not_repeated(self) -> None:
        time = Time()
        inner = lambda: retry(failing(99, TimeoutError(), time), RetryPolicy(attempts=2), sleep=time.sleep)  # noqa: E731
        with pytest.raises(RetriesExhaustedError):
            retry(inner, RetryPolicy(attempts=5), sleep=time.sleep)
        assert len(time.pauses) == 1

    def test_refusals_of_a_busy_store_have_their_own_bounds(self) -> None:
        """They do not count among the attempts, nor do other failures among theirs."""
        time, busy, left = Time(), HTTPError(429, "Too Many Requests", {}), [*"bbbtbbtbb"]
        policy = RetryPolicy(attempts=3, base_seconds=0.1, busy_attempts=8, budget_seconds=0.15, busy_seconds=9)

        def operation() -> str:
            if left:
                raise busy if left.pop(0) == "b" else TimeoutError
            return "done"

        assert retry(operation, policy, sleep=time.sleep, clock=time.clock, draw=lambda: 0.01) == "done"
        with pytest.raises(RetriesExhaustedError, match=r"^8 attempts in 0 s failed$"):
            retry(failing(99, busy, time), policy, sleep=time.sleep, clock=time.clock, draw=lambda: 0)

    @pytest.mark.parametrize(
        "error", [HTTPError(429, "", {"Retry-After": "7"}), RETRY_AFTER_S3, responded(429)], ids=["http", "s3", "hub"]
    )
    def test_a_store_is_left_alone_for_as_long_as_it_asks(self, error: Exception) -> None:
        time, policy = Time(), RetryPolicy(base_seconds=1, busy_seconds=20)
        assert retry(failing(1, error, time), policy, sleep=time.sleep, clock=time.clock, draw=lambda: 0.5) == "done"
        assert time.pauses == [7.5]
        with pytest.raises(RetriesExhaustedError, match=r"^3 attempts in .* the store asks to wait for 7 s$"):
            retry(failing(99, error, time), policy, sleep=time.sleep, clock=time.clock)

    def test_a_pause_beyond_the_budget_is_not_made(self) -> None:
        time, error = Time(), HTTPError(503, "", {"Retry-After": "3600"})
        with pytest.raises(RetriesExhaustedError, match=r"^1 attempt in .* the store asks to wait for 3,600 s"):
            retry(failing(1, error, time), RetryPolicy(), sleep=time.sleep, clock=time.clock)
        assert time.pauses == []

    @given(
        attempts=st.integers(1, 40),
        base=st.floats(0, 100),
        cap=st.floats(0, 100),
        budget=st.floats(0, 1000),
        seconds=st.floats(0, 100),
        draw=st.floats(0, 1, exclude_max=True),
    )
    def test_no_attempt_begins_beyond_the_budget(
        self, attempts: int, base: float, cap: float, budget: float, seconds: float, draw: float
    ) -> None:
        time = Time()
        policy = RetryPolicy(attempts=attempts, base_seconds=base, cap_seconds=cap, budget_seconds=budget)
        with pytest.raises((RetriesExhaustedError, TimeoutError)):
            retry(
                failing(99, TimeoutError(), time, seconds),
                policy,
                sleep=time.sleep,
                clock=time.clock,
                draw=lambda: draw,
            )
        assert len(time.pauses) < attempts
        assert time.now - seconds <= budget or not time.pauses
        assert all(pause <= min(cap, base * 2**number) for number, pause in enumerate(time.pauses))

    @pytest.mark.parametrize(
        ("field", "value"), [("attempts", 0), ("base_seconds", -1.0), ("cap_seconds", float("nan"))]
    )
    def test_an_invalid_policy_is_refused(self, field: str, value: float) -> None:
        with pytest.raises(ValueError, match=field):
            RetryPolicy(**{field: value})  # type: ignore[arg-type]


TRANSIENT = [
    botocore.exceptions.EndpointConnectionError(
        endpoint_url="http://x", error=socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    ),
    botocore.exceptions.SSLError(endpoint_url="https://x", error="[SSL: UNEXPECTED_EOF_WHILE_READING] EOF"),
    ConnectionResetError(errno.ECONNRESET, "reset"),
    BrokenPipeError(errno.EPIPE, "pipe"),
    TimeoutError(errno.ETIMEDOUT, "timed out"),
    asyncio.TimeoutError(),
    fsspec.exceptions.FSTimeoutError(),
    OSError(errno.EHOSTUNREACH, "no route"),
    OSError("Connection refused (os error 111)"),
    RuntimeError('DataTransferError("All DataNodes failed: [...]")'),
    RuntimeError('RPCError("org.apache.hadoop.ipc.StandbyException", "...")'),
    botocore.exceptions.EndpointConnectionError(endpoint_url="http://x"),
    botocore.exceptions.ReadTimeoutError(endpoint_url="http://x"),
    botocore.exceptions.ConnectTimeoutError(endpoint_url="http://x"),
    botocore.exceptions.ConnectionClosedError(endpoint_url="http://x"),
    botocore.exceptions.ResponseStreamingError(error="cut"),
    botocore.exceptions.FlexibleChecksumError(error_msg="Expected checksum x did not match calculated checksum: y"),
    botocore.exceptions.IncompleteReadError(actual_bytes=1, expected_bytes=2),
    aiohttp.ClientPayloadError("cut"),
    aiohttp.ServerDisconnectedError(),
    urllib3.exceptions.ProtocolError("cut"),
    http.client.IncompleteRead(b""),
    IncompleteError("1 byte of 2"),
    botocore.exceptions.EndpointConnectionError(endpoint_url="https://x/CERTIFICATES/y"),
    *(translate_boto_error(refused(status, "Whatever")) for status in (429, 500, 502, 503, 504)),
    translate_boto_error(refused(503, "SlowDown")),
    translate_boto_error(refused(400, "RequestTimeout")),
    translate_boto_error(refused(400, "XAmzContentSHA256Mismatch")),
    translate_boto_error(refused(409, "ConditionalRequestConflict")),
]
UNKNOWN_HOST = botocore.exceptions.EndpointConnectionError(
    endpoint_url="http://x", error=socket.gaierror(socket.EAI_NONAME, "Name or service not known")
)
NO_TLS = botocore.exceptions.SSLError(
    endpoint_url="https://x", error="[SSL: WRONG_VERSION_NUMBER] wrong version number"
)
UNTRUSTED = botocore.exceptions.SSLError(
    endpoint_url="https://x",
    error="[SSLCertVerificationError: (1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed "
    "certificate (_ssl.c:1006)')]",
)
CIRCLES = botocore.exceptions.HTTPClientError(error=type("TooManyRedirects", (Exception,), {})())
NO_HTTP = botocore.exceptions.HTTPClientError(
    error=type("ClientResponseError", (Exception,), {})("400, message='Bad status line:\\n'")
)
PERMANENT = [
    UNKNOWN_HOST,
    socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
    NO_TLS,
    UNTRUSTED,
    CIRCLES,
    RecursionError("maximum recursion depth exceeded"),
    FileNotFoundError(errno.ENOENT, "none"),
    PermissionError(errno.EACCES, "denied"),
    OSError(errno.ENOSPC, "full"),
    OSError(errno.EDQUOT, "quota"),
    OSError(errno.EROFS, "read-only"),
    ImportError("no client"),
    ValueError("bad path"),
    botocore.exceptions.NoCredentialsError(),
    botocore.exceptions.SSLError(endpoint_url="https://x", error="[SSL: CERTIFICATE_VERIFY_FAILED] expired"),
    RuntimeError('RPCError("org.apache.hadoop.security.AccessControlException", "Permission denied")'),
    RuntimeError('RPCError("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", "...")'),
    RetriesExhaustedError(3, 1.0),
    *(translate_boto_error(refused(403, code)) for code in ("AccessDenied", "ExpiredToken", "SignatureDoesNotMatch")),
    translate_boto_error(refused(404, "NoSuchBucket")),
    translate_boto_error(refused(412, "PreconditionFailed")),
    translate_boto_error(refused(400, "InvalidRequest")),
]


@pytest.mark.parametrize("error", TRANSIENT, ids=repr)
def test_transient_errors_are_recognized(error: Exception) -> None:
    assert is_transient(error)


@pytest.mark.parametrize(
    ("error", "busy"),
    [
        (translate_boto_error(refused(503, "SlowDown")), True),
        (translate_boto_error(refused(503, "")), True),
        (translate_boto_error(refused(400, "Throttling")), True),
        (HTTPError(429, "Too Many Requests", {}), True),
        (responded(429), True),
        (responded(404), False),
        (translate_boto_error(refused(500, "InternalError")), False),
        (translate_boto_error(refused(403, "AccessDenied")), False),
        (ConnectionResetError(), False),
    ],
    ids=repr,
)
def test_a_busy_store_is_told_from_a_broken_one(error: Exception, busy: bool) -> None:
    assert is_busy(error) == busy
    assert is_transient(error) or not busy


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "0"}, 0),
        ({"Retry-After": " 12 "}, 12),
        ({"Retry-After": "Wed, 25 Nov 2026 12:00:30 GMT", "Date": "Wed, 25 Nov 2026 12:00:00 GMT"}, 30),
        ({"Retry-After": "Wed, 25 Nov 2015 12:00:00 GMT"}, 0),  # has passed
        *(({"Retry-After": value}, 0) for value in ("soon", "-1", "nan", "1e9", "Wed, 99 Nov 2026 12:00:00 GMT", "")),
    ],
)
def test_the_pause_that_a_reply_asks_for(headers: dict[str, str], seconds: float) -> None:
    error = OSError("wrapped")
    error.__cause__ = HTTPError(429, "", headers)
    assert retry_after_seconds(error) == seconds


@pytest.mark.parametrize("error", PERMANENT, ids=repr)
def test_permanent_errors_are_recognized(error: Exception) -> None:
    assert not is_transient(error)


def test_the_status_that_aiohttp_gives_a_truncated_body_is_ignored() -> None:
    cut = aiohttp.ClientPayloadError("cut")
    cut.__cause__ = aiohttp.http_exceptions.ContentLengthError("received 1 of 2 bytes")
    assert cut.__cause__.code == 400
    assert is_transient(cut)


def test_the_cause_decides_and_the_context_does_not() -> None:
    wrapped, unrelated = OSError("wrapped"), ValueError("mine")
    wrapped.__cause__ = unrelated.__context__ = ConnectionResetError()
    assert is_transient(wrapped)
    assert not is_transient(unrelated)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), "out of memory; this process may have 300 MiB: raise the limit (ulimit -v), or use less"),
        (
            pa.ArrowMemoryError("malloc"),
            "out of memory; this process may have 300 MiB: raise the limit (ulimit -v), or",
        ),
        (
            OSError(errno.ENOMEM, "mmap"),
            "out of memory; this process may have 300 MiB: raise the limit (ulimit -v), or",
        ),
        (OSError(errno.EMFILE, "x"), "too many open files: this process may have 314572800; raise the limit"),
        (OSError(errno.ENFILE, "x"), "this machine has too many open files; end other programs, or raise its limit"),
        (
            OSError(errno.ENOSPC, "x"),
            "the file system has free space, but no inodes, so it takes no more files; remove",
        ),
    ],
)
def test_limits_of_the_process_and_of_inodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, expected: str
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (300 << 20, 300 << 20))
    found = os.statvfs(tmp_path)
    full = SimpleNamespace(f_files=max(found.f_files, 1), f_favail=0, f_bavail=max(found.f_bavail, 1))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    text = explain(error, "file", writing=True, place=tmp_path / "not" / "yet")
    assert text.startswith(expected)


@pytest.mark.parametrize(
    ("error", "protocol", "expected"),
    [
        (OSError(errno.ENOSPC, "x"), "file", "the disk is full; free space or choose another folder"),
        (OSError(errno.EDQUOT, "x"), "file", "the disk quota is used up; free space or choose another folder"),
        (OSError(errno.EROFS, "x"), "file", "the file system is read-only; choose another folder"),
        (PermissionError(), "hdfs", "permission denied; check the folder's owner and mode, and HADOOP_USER_NAME"),
        (
            botocore.exceptions.NoCredentialsError(),
            "s3",
            "permission denied: no credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
            "AWS_PROFILE, or FSSPEC_S3_ANON=true for a public bucket",
        ),
        (
            translate_boto_error(refused(403, "ExpiredToken")),
            "s3",
            "the credentials have expired (ExpiredToken); renew them and start the same command again: it goes on ",
        ),
        (
            translate_boto_error(refused(403, "RequestTimeTooSkewed")),
            "s3",
            "the clock of this machine is wrong; set it",
        ),
        (RuntimeError("DSQuotaExceededException"), "hdfs", "the quota of the folder is used up"),
        (UNKNOWN_HOST, "s3", "the host name is unknown here; check the endpoint (AWS_ENDPOINT_URL)"),
        (
            NO_TLS,
            "s3",
            "the server speaks no TLS there, or another version; check the endpoint (AWS_ENDPOINT_URL), its",
        ),
        (UNTRUSTED, "s3", "the server's certificate is not trusted (self-signed certificate); if it is right, name a"),
        (CIRCLES, "https", "the server redirects in circles, as some do to ask for a login; check the URL"),
        (NO_HTTP, "s3", "the server speaks no HTTP there; check the endpoint (AWS_ENDPOINT_URL), its scheme and its"),
        (asyncio.TimeoutError(), "s3", "no answer came in time (TimeoutError)"),
        (
            translate_boto_error(refused(400, "400")),
            "s3",
            "the store refuses the request and does not say why (400 Bad Request); the credentials may have expired: "
            "renew them; or the region may be wrong (AWS_DEFAULT_REGION)",
        ),
        (translate_boto_error(refused(403, "")), "s3", "permission denied; check AWS_ACCESS_KEY_ID, "),
        (
            translate_boto_error(refused(404, "")),
            "s3",
            "the server answers 404, and not as S3 does; check the endpoint",
        ),
        (translate_boto_error(refused(405, "MethodNotAllowed")), "s3", "the server takes no such requests (MethodNot"),
        (
            translate_boto_error(refused(301, "PermanentRedirect", "eu-west-1")),
            "s3",
            "the bucket is in another region, eu-west-1, or at another endpoint (PermanentRedirect); set AWS_DEFAULT",
        ),
    ],
    ids=str,
)
def test_each_error_names_its_remedy(error: Exception, protocol: str, expected: str) -> None:
    assert explain(error, protocol, writing=True).startswith(expected)


def test_the_s3_code_of_a_translated_error_is_found() -> None:
    assert error_code(translate_boto_error(refused(403, "ExpiredToken"))) == "ExpiredToken"
    assert error_code(ValueError()) == ""
