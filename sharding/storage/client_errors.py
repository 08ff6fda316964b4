"""What the errors of the stores' clients mean: which are transient, and which ask for patience.

They are recognized by name and number, so that no client is imported here.
Tested in tests/sharding/storage/test_retry.py.
"""

from __future__ import annotations

import errno
import re
import socket
import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

_STATUSES = {408, 425, 429, 500, 502, 503, 504}
_BUSY_STATUSES = {429, 503}
_BUSY_CODES = {  # of S3 and of stores like it
    "BandwidthLimitExceeded",
    "RequestLimitExceeded",
    "RequestThrottled",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
}
_CODES = {  # of S3: transient, although the status blames the request
    *_BUSY_CODES,
    "BadDigest",
    "ConditionalRequestConflict",
    "IncompleteBody",
    "InternalError",
    "OperationAborted",
    "RequestTimeout",
    "XAmzContentSHA256Mismatch",
}
_ERRNOS = {
    errno.EAGAIN,
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETRESET,
    errno.ENETUNREACH,
    errno.EPIPE,
    errno.ESTALE,  # NFS, after another file took the handle: opening by name again helps
    errno.ETIMEDOUT,
}
_NAMES = {
    # botocore's bases of network errors, and its errors for truncated replies
    "ConnectionError",
    "HTTPClientError",
    "FlexibleChecksumError",  # the CRC that S3 sends with an object
    "IncompleteReadError",
    "ResponseParserError",
    "ResponseStreamingError",
    # aiohttp, for errors in the middle of a body, which botocore does not translate
    "ClientConnectionError",
    "ClientPayloadError",
    # urllib3 and http.client
    "IncompleteRead",
    "ProtocolError",
    "RemoteDisconnected",
    # asyncio's, which is the builtin one since Python 3.11
    "TimeoutError",
}
_TLS = re.compile(  # of OpenSSL, for a mismatch that only a change of settings resolves
    r"\[SSL: (?:CERTIFICATE_VERIFY_FAILED|WRONG_VERSION_NUMBER|UNSUPPORTED_PROTOCOL|UNKNOWN_PROTOCOL|HTTP_REQUEST|"
    r"\w+_ALERT_(?:PROTOCOL_VERSION|HANDSHAKE_FAILURE|UNKNOWN_CA|CERTIFICATE_REQUIRED))\]"
)
_HDFS = re.compile(
    "All DataNodes failed|All nodes failed|Failed to complete file in time|Block writer is closed|could only be "
    "replicated to 0 nodes|SafeModeException|StandbyException|RetriableException|NotReplicatedYetException|no answer "
    "within"
)


class IncompleteError(OSError):
    """Not all bytes were transferred, or not the right ones."""


class HTTPError(OSError):
    """A refusal by a server, with its status and the headers of its reply."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str]) -> None:
        super().__init__(f"{status} {reason}")
        self.status = status
        self.headers = headers


class RetriesExhaustedError(Exception):
    """All attempts failed; the error of the last one is the cause.

    Attributes:
        attempts: number of attempts.
        seconds: duration of all attempts and pauses.
        asked_seconds: pause that the store asked for last.
    """

    def __init__(self, attempts: int, seconds: float, asked_seconds: float = 0) -> None:
        request = f", and the store asks to wait for {asked_seconds:,.0f} s" if asked_seconds else ""
        super().__init__(f"{attempts} attempt{'s' * (attempts != 1)} in {seconds:.0f} s failed{request}")
        self.attempts = attempts
        self.seconds = seconds
        self.asked_seconds = asked_seconds


def is_transient(error: BaseException) -> bool:
    """Whether an error is transient, so that a retry may succeed.

    >>> is_transient(ConnectionResetError(104, "Connection reset by peer"))
    True
    >>> is_transient(OSError("Connection refused (os error 111)"))  # as hdfs-native puts it
    True
    >>> is_transient(OSError(28, "No space left on device"))
    False
    """
    if is_tls_failure(error) or is_unknown_host(error) or is_redirect_loop(error):
        return False
    for link in cause_chain(error):
        if isinstance(link, (RetriesExhaustedError, FileNotFoundError, FileExistsError, PermissionError)):
            return False
        if _is_network_error(link):
            return True  # before its cause, which may look like a reply: aiohttp gives truncated bodies the status 400
        status = _status(link)
        if status is not None:
            return status in _STATUSES or error_code(link) in _CODES
    return False


def is_busy(error: BaseException) -> bool:
    """Whether a store refused a request because it has too many, and asks for patience.

    >>> is_busy(HTTPError(429, "Too Many Requests", {})), is_busy(HTTPError(500, "Internal Server Error", {}))
    (True, False)
    """
    return any(_status(link) in _BUSY_STATUSES for link in cause_chain(error)) or error_code(error) in _BUSY_CODES


def retry_after_seconds(error: BaseException) -> float:
    """The pause that a refusal asks for by its header ``Retry-After``, as seconds or as a date; 0 without one.

    A date is relative to the server's own clock, if its reply tells that.

    >>> retry_after_seconds(HTTPError(429, "", {"Retry-After": "120"})), retry_after_seconds(HTTPError(429, "", {}))
    (120.0, 0.0)
    >>> date = "Wed, 25 Nov 2026 12:00:00 GMT"
    >>> retry_after_seconds(HTTPError(503, "", {"Retry-After": "Wed, 25 Nov 2026 12:00:30 GMT", "Date": date}))
    30.0
    """
    for link in cause_chain(error):
        headers = {str(name).lower(): str(value) for name, value in _headers(link).items()}
        if text := headers.get("retry-after", "").strip():
            if text.isdecimal():
                return float(text)
            now = _timestamp(headers.get("date", ""))
            return max(0.0, (_timestamp(text) or 0.0) - (time.time() if now is None else now))
    return 0.0


def _headers(error: BaseException) -> Mapping[str, Any]:
    """The headers of the reply in an error of botocore, aiohttp, or a client with a response; empty if it has none."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        headers = response.get("ResponseMetadata", {}).get("HTTPHeaders")
    else:
        headers = getattr(error, "headers", None) or getattr(response, "headers", None)
    return headers if isinstance(headers, Mapping) else {}


def _timestamp(date: str) -> float | None:
    """Seconds since 1970 of a date of HTTP; None if it is not one."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None


def error_code(error: BaseException) -> str:
    """The S3 code of an error, such as ``ExpiredToken``; empty if it has none."""
    return str(s3_response(error).get("Error", {}).get("Code", ""))


def s3_response(error: BaseException) -> dict[str, Any]:
    """The parsed reply that botocore keeps with an error; empty if there is none."""
    responses = (getattr(link, "response", None) for link in cause_chain(error))
    return next((response for response in responses if isinstance(response, dict)), {})


def error_number(error: BaseException) -> int | None:
    """The `errno` of an error, from its attribute or its text; None if it has none.

    >>> error_number(OSError("Connection refused (os error 111)"))
    111
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    match = re.search(r"\(os error (\d+)\)", str(error))
    return int(match.group(1)) if match else None


def _is_network_error(error: BaseException) -> bool:
    if isinstance(error, (IncompleteError, ConnectionError, TimeoutError)) or error_number(error) in _ERRNOS:
        return True
    if any(kind.__name__ in _NAMES for kind in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and _HDFS.search(str(error)) is not None


def is_tls_failure(error: BaseException) -> bool:
    """Whether TLS fails for good: the server speaks none or another version, or its certificate is not trusted."""
    return any(_TLS.search(str(link)) for link in cause_chain(error))


def is_unknown_host(error: BaseException) -> bool:
    """Whether the host name does not exist; a name server that does not answer says nothing about that.

    >>> [is_unknown_host(socket.gaierror(number, "?")) for number in (socket.EAI_NONAME, socket.EAI_AGAIN)]
    [True, False]
    """
    unknown = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}
    return any(
        (isinstance(link, socket.gaierror) and link.errno in unknown)
        or "failed to lookup address information: Name or service not known" in str(link)  # as hdfs-native puts it
        for link in cause_chain(error)
    )


def is_redirect_loop(error: BaseException) -> bool:
    """Whether a server redirects without end, as aiohttp reports it."""
    return any(type(link).__name__ == "TooManyRedirects" for link in cause_chain(error))


def cause_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, as far as the client names them; `__context__` is ignored."""
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:  # a client may raise an error from itself
        seen.add(id(link))
        yield link
        arguments = getattr(link, "kwargs", None)  # in botocore's errors
        inner = arguments.get("error") if isinstance(arguments, dict) else None
        link = link.__cause__ or (inner if isinstance(inner, BaseException) else None)


def _status(error: BaseException) -> int | None:
    """The HTTP status in an error of botocore, aiohttp, gcsfs, or a client with a response; None if it has none."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status if isinstance(status, int) else None
    numbers = (getattr(owner, name, None) for owner in (error, response) for name in ("status_code", "status", "code"))
    return next((number for number in numbers if isinstance(number, int) and 100 <= number < 600), None)
