"""Retries of store operations: which errors are transient, and how often and how long to retry.

Errors of the stores' clients are recognized by name and number, so that no client is imported here.
"""

from __future__ import annotations

import errno
import logging
import random
import re
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from traceback import clear_frames
from typing import Any, TypeVar

from ..messages import brief
from ..url_secrets import without_secrets

__all__ = [
    "IncompleteError", "RetriesExhaustedError", "RetryPolicy", "cause_chain", "error_code", "error_number",
    "is_redirect_loop", "is_tls_failure", "is_transient", "is_unknown_host", "retry", "s3_response",
]  # fmt: skip

T = TypeVar("T")

_logger = logging.getLogger(__name__)
_draw = random.SystemRandom().random  # leaves a program's seeded random numbers alone

_STATUSES = {408, 425, 429, 500, 502, 503, 504}
_CODES = {  # of S3: transient, although the status blames the request
    "BadDigest",
    "ConditionalRequestConflict",
    "IncompleteBody",
    "InternalError",
    "OperationAborted",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
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
_QUIET_ATTEMPTS = 2  # S3 asks for a retry now and then even when all is well


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How to retry transient errors: exponential backoff with full jitter, within bounds.

    By default a store that refuses every request immediately is given up after 11 s on average, and one that answers
    nothing after a minute plus the attempt under way.

    Attributes:
        attempts: most attempts, including the first; 1 means no retry.
        base_seconds: longest pause after the first attempt; it doubles with each further one.
        cap_seconds: upper bound on any pause.
        budget_seconds: longest time between the starts of the first and the last attempt.
    """

    attempts: int = 8
    base_seconds: float = 0.2
    cap_seconds: float = 10.0
    budget_seconds: float = 60.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts must be at least 1, got {self.attempts}")
        for name in ("base_seconds", "cap_seconds", "budget_seconds"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")

    def pause_seconds(self, attempt: int, draw: float) -> float:
        """Return the pause after a failed attempt.

        Args:
            attempt: number of the attempt, from 1 on.
            draw: random number, uniform in [0, 1).

        >>> policy = RetryPolicy(base_seconds=0.2, cap_seconds=1)
        >>> [policy.pause_seconds(attempt, 0.5) for attempt in (1, 2, 3, 4, 2000)]
        [0.1, 0.2, 0.4, 0.5, 0.5]
        """
        return draw * min(self.cap_seconds, self.base_seconds * 2.0 ** min(attempt - 1, 60))


class IncompleteError(OSError):
    """Not all bytes were transferred, or not the right ones."""


class RetriesExhaustedError(Exception):
    """All attempts failed; the error of the last one is the cause.

    Attributes:
        attempts: number of attempts.
        seconds: duration of all attempts and pauses.
    """

    def __init__(self, attempts: int, seconds: float) -> None:
        super().__init__(f"{attempts} attempts in {seconds:.0f} s failed")
        self.attempts = attempts
        self.seconds = seconds


def retry(
    operation: Callable[[], T],
    policy: RetryPolicy,
    *,
    transient: Callable[[Exception], bool] | None = None,
    about: Callable[[], str] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    draw: Callable[[], float] = _draw,
) -> T:
    """Return the operation's result; repeat it, within the policy, while its errors are transient.

    Args:
        operation: idempotent function.
        policy: how often to retry.
        transient: whether an error is transient; `is_transient` by default.
        about: returns a description of the failure for the log.
        sleep: waits some seconds.
        clock: returns the time in seconds.
        draw: returns a random number, uniform in [0, 1).

    Raises:
        RetriesExhaustedError: all attempts failed.
        Exception: an error that is not transient, or any error if the policy allows one attempt.
    """
    start = clock()
    attempt = 1
    while True:
        try:
            return operation()
        except Exception as error:
            _release_frames(error)
            retried = isinstance(error.__context__, RetriesExhaustedError)  # by an operation within
            if policy.attempts == 1 or retried or not (transient or is_transient)(error):
                raise
            seconds = clock() - start
            pause = policy.pause_seconds(attempt, draw())
            if attempt == policy.attempts or seconds + pause > policy.budget_seconds:
                raise RetriesExhaustedError(attempt, seconds) from error
            _logger.log(
                logging.INFO if attempt <= _QUIET_ATTEMPTS else logging.WARNING,
                "%s; trying again in %.1f s (attempt %d of %d failed)",
                without_secrets(": ".join(filter(None, (about and about(), type(error).__name__, brief(error))))),
                pause,
                attempt,
                policy.attempts,
            )
        sleep(pause)
        attempt += 1


def _release_frames(error: Exception) -> None:
    """Release the local variables of the failed calls.

    fsspec's frames refer to the errors that they raise, so their callers' objects are freed only by the garbage
    collector. If that ran in fsspec's own thread, it would deadlock on h5py objects: h5py holds a lock while it reads
    through that thread.
    """
    for link in cause_chain(error):
        clear_frames(link.__traceback__)


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
    """The HTTP status in an error of botocore, aiohttp, gcsfs or Azure's client; None if it has none."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status if isinstance(status, int) else None
    numbers = (getattr(error, name, None) for name in ("status_code", "status", "code"))
    return next((number for number in numbers if isinstance(number, int) and 100 <= number < 600), None)
