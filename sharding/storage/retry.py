"""Whether an error of a store may pass by itself, and how often and how long to wait for that.

Knows what the clients of stores raise as it surfaces, by names and numbers: none of them is imported here.
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

__all__ = [
    "IncompleteError",
    "RetriesExhaustedError",
    "RetryPolicy",
    "cause_chain",
    "error_code",
    "error_number",
    "is_redirect_loop",
    "is_tls_failure",
    "is_transient",
    "is_unknown_host",
    "retry",
    "s3_response",
]  # fmt: skip

T = TypeVar("T")

_logger = logging.getLogger(__name__)
_draw = random.SystemRandom().random  # the numbers that a program has seeded are left to it

_STATUSES = {408, 425, 429, 500, 502, 503, 504}
_CODES = {  # of S3, where the status alone would say that the request itself is wrong
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
    errno.ESTALE,  # NFS, whose server has another file under the handle: opening by name again helps
    errno.ETIMEDOUT,
}
_NAMES = {
    # botocore's bases of errors of the network, and what it makes of a reply that ends too soon
    "ConnectionError",
    "HTTPClientError",
    "FlexibleChecksumError",  # the CRC that S3 sends with an object
    "IncompleteReadError",
    "ResponseParserError",
    "ResponseStreamingError",
    # aiohttp, for what happens in the middle of a body, which botocore does not translate
    "ClientConnectionError",
    "ClientPayloadError",
    # urllib3 and http.client
    "IncompleteRead",
    "ProtocolError",
    "RemoteDisconnected",
    # asyncio's, before Python 3.11 made it the builtin one
    "TimeoutError",
}
_TLS = re.compile(  # of OpenSSL, where both ends would have to be set up otherwise
    r"\[SSL: (?:CERTIFICATE_VERIFY_FAILED|WRONG_VERSION_NUMBER|UNSUPPORTED_PROTOCOL|UNKNOWN_PROTOCOL|HTTP_REQUEST|"
    r"\w+_ALERT_(?:PROTOCOL_VERSION|HANDSHAKE_FAILURE|UNKNOWN_CA|CERTIFICATE_REQUIRED))\]"
)
_HDFS = re.compile(
    "All DataNodes failed|All nodes failed|Failed to complete file in time|Block writer is closed|could only be "
    "replicated to 0 nodes|SafeModeException|StandbyException|RetriableException|NotReplicatedYetException|no answer "
    "within"
)
_QUIET_ATTEMPTS = 2  # S3 asks for a retry now and then in the best of times


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How to meet errors that may pass: exponential backoff with full jitter, within bounds.

    By default a store that refuses every request at once is given up after 11 s on average, and one that answers none
    after a minute and the one attempt that was under way.

    Attributes:
        attempts: at most, the first included; 1 is no retry.
        base_seconds: longest pause after the first attempt; it doubles with each further one.
        cap_seconds: longest pause at all.
        budget_seconds: from the beginning of the first attempt to that of the last, at most.
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
        """The pause after a failed attempt.

        Args:
            attempt: its number, from 1 on.
            draw: uniform in [0, 1).

        >>> policy = RetryPolicy(base_seconds=0.2, cap_seconds=1)
        >>> [policy.pause_seconds(attempt, 0.5) for attempt in (1, 2, 3, 4, 2000)]
        [0.1, 0.2, 0.4, 0.5, 0.5]
        """
        return draw * min(self.cap_seconds, self.base_seconds * 2.0 ** min(attempt - 1, 60))


class IncompleteError(OSError):
    """Fewer or other bytes were moved than there are."""


class RetriesExhaustedError(Exception):
    """The last attempt failed as those before it; its error is the cause.

    Attributes:
        attempts: that were made.
        seconds: from the first to the end of the last.
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
    """Return the operation's result; repeat it, as the policy says, while its error may pass.

    Args:
        operation: one that may be done twice.
        policy: how often.
        transient: whether an error may pass; `is_transient` by default.
        about: what cannot be done, for the log.
        sleep: waits.
        clock: seconds.
        draw: uniform in [0, 1).

    Raises:
        Exhausted: it failed for the last time.
        Exception: any error of the operation that will not pass, and, without retries, any.
    """
    start = clock()
    attempt = 1
    while True:
        try:
            return operation()
        except Exception as error:
            _release_frames(error)
            told = isinstance(
                error.__context__, RetriesExhaustedError
            )  # of an operation within, which was repeated already
            if policy.attempts == 1 or told or not (transient or is_transient)(error):
                raise
            seconds = clock() - start
            pause = policy.pause_seconds(attempt, draw())
            if attempt == policy.attempts or seconds + pause > policy.budget_seconds:
                raise RetriesExhaustedError(attempt, seconds) from error
            _logger.log(
                logging.INFO if attempt <= _QUIET_ATTEMPTS else logging.WARNING,
                "%s; trying again in %.1f s (attempt %d of %d failed)",
                ": ".join(filter(None, (about and about(), type(error).__name__, brief(error)))),
                pause,
                attempt,
                policy.attempts,
            )
        sleep(pause)
        attempt += 1


def _release_frames(error: Exception) -> None:
    """Let go of what the calls that failed held.

    fsspec's frames refer to what they raise, and so keep all objects of their callers for the garbage collector. If its
    own thread ran that, it would wait for ever to free h5py's, which is locked while it reads: through that thread.
    """
    for link in cause_chain(error):
        clear_frames(link.__traceback__)


def is_transient(error: BaseException) -> bool:
    """Whether an error may pass by itself.

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
        if _is_of_the_wire(link):
            return True  # its own cause may pose as a reply: aiohttp gives a body that ends too soon the status 400
        status = _status(link)
        if status is not None:
            return status in _STATUSES or error_code(link) in _CODES
    return False


def error_code(error: BaseException) -> str:
    """The code by which S3 names an error, such as ``ExpiredToken``; empty if it names none."""
    return str(s3_response(error).get("Error", {}).get("Code", ""))


def s3_response(error: BaseException) -> dict[str, Any]:
    """What botocore keeps of the reply that an error of S3 is about; empty if it is about none."""
    responses = (getattr(link, "response", None) for link in cause_chain(error))
    return next((response for response in responses if isinstance(response, dict)), {})


def error_number(error: BaseException) -> int | None:
    """The `errno` of an error, in whatever way it is given.

    >>> error_number(OSError("Connection refused (os error 111)"))
    111
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    match = re.search(r"\(os error (\d+)\)", str(error))
    return int(match.group(1)) if match else None


def _is_of_the_wire(error: BaseException) -> bool:
    if isinstance(error, (IncompleteError, ConnectionError, TimeoutError)) or error_number(error) in _ERRNOS:
        return True
    if any(kind.__name__ in _NAMES for kind in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and _HDFS.search(str(error)) is not None


def is_tls_failure(error: BaseException) -> bool:
    """Whether the server speaks no TLS, or another, or has a certificate that is not trusted here."""
    return any(_TLS.search(str(link)) for link in cause_chain(error))


def is_unknown_host(error: BaseException) -> bool:
    """Whether no host has the name; of a name server that does not answer nobody knows.

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
    """Whether a server sends on and on, as aiohttp tells it."""
    return any(type(link).__name__ == "TooManyRedirects" for link in cause_chain(error))


def cause_chain(error: BaseException) -> Iterator[BaseException]:
    """An error and its causes, where the client names them; of a context nobody said that it is to blame."""
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:  # a client may raise an error from itself
        seen.add(id(link))
        yield link
        arguments = getattr(link, "kwargs", None)  # of botocore's errors
        inner = arguments.get("error") if isinstance(arguments, dict) else None
        link = link.__cause__ or (inner if isinstance(inner, BaseException) else None)


def _status(error: BaseException) -> int | None:
    """The HTTP status of a reply, as botocore, aiohttp, gcsfs and Azure's client keep it."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status if isinstance(status, int) else None
    numbers = (getattr(error, name, None) for name in ("status_code", "status", "code"))
    return next((number for number in numbers if isinstance(number, int) and 100 <= number < 600), None)
