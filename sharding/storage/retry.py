"""Retries of store operations: how often and how long; `client_errors.py` says which errors are worth one."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from traceback import clear_frames
from typing import TypeVar

from ringfeed.sharding.messages import brief
from ringfeed.sharding.url_secrets import without_secrets

from .client_errors import RetriesExhaustedError, cause_chain, is_busy, is_transient, retry_after_seconds

T = TypeVar("T")

_logger = logging.getLogger(__name__)
_draw = random.SystemRandom().random  # leaves a program's seeded random numbers alone

_QUIET_ATTEMPTS = 2  # S3 asks for a retry now and then even when all is well
_QUIET_REFUSALS = 6  # of a busy store: a request meets more once in 730 times if a third is refused


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How to retry transient errors: exponential backoff with full jitter, within bounds.

    By default a store that fails every request immediately is given up after 11 s on average, and one that answers
    nothing after a minute plus the attempt under way.

    A store that says that it is busy (429, 503, SlowDown) works, and has its own limits: with a third of all requests
    refused, 8 attempts would fail one request of 6,561, and so most builds; 40 fail one of 10^19, and an operation of
    three requests, all of which must succeed, one of a million. They take 3 minutes on average.
    """

    attempts: int = 8  # most attempts, including the first; 1 means no retry
    base_seconds: float = 0.2  # longest pause after the first attempt; it doubles with each further one
    # Upper bound on any pause, but for what a store asks for by ``Retry-After``, which is added
    cap_seconds: float = 10.0
    budget_seconds: float = 60.0  # longest time between the starts of the first and the last attempt
    busy_attempts: int = 40  # most attempts at a store that is busy; they do not count among `attempts`
    busy_seconds: float = 300.0  # longest time for them, and so the longest ``Retry-After`` that is honoured

    def __post_init__(self) -> None:
        for name in ("attempts", "busy_attempts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("base_seconds", "cap_seconds", "budget_seconds", "busy_seconds"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")

    def pause_seconds(self, attempt: int, draw: float) -> float:
        """Return the pause after a failed attempt.

        >>> policy = RetryPolicy(base_seconds=0.2, cap_seconds=1)
        >>> [policy.pause_seconds(attempt, 0.5) for attempt in (1, 2, 3, 4, 2000)]
        [0.1, 0.2, 0.4, 0.5, 0.5]
        """
        return draw * min(self.cap_seconds, self.base_seconds * 2.0 ** min(attempt - 1, 60))


def retry(
    operation: Callable[[], T],
    policy: RetryPolicy,
    *,
    transient: Callable[[Exception], bool] | None = None,
    about: Callable[[], str] | None = None,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    draw: Callable[[], float] = _draw,
) -> T:
    """Return the operation's result; repeat it, within the policy, while its errors are transient.

    Args:
        transient: whether an error is transient; `is_transient` by default.
        about: returns a description of the failure for the log.

    Raises:
        RetriesExhaustedError: all attempts failed.
        Exception: an error that is not transient, or any error if the policy allows one attempt.
    """
    start = clock()
    attempt, failures, seconds = 0, [0, 0], [0.0, 0.0]  # the lists: of other failures, and of those of a busy store
    while True:
        attempt, began = attempt + 1, clock()
        try:
            return operation()
        except Exception as error:
            _release_frames(error)
            retried = isinstance(error.__context__, RetriesExhaustedError)  # by an operation within
            if policy.attempts == 1 or retried or not (transient or is_transient)(error):
                raise
            busy, retry_after = is_busy(error), retry_after_seconds(error)
            most, budget = policy.attempts, policy.budget_seconds
            if busy:
                most, budget = policy.busy_attempts, policy.busy_seconds
            pause = retry_after + policy.pause_seconds(attempt, draw())
            failures[busy] += 1
            seconds[busy] += clock() - began + pause
            if failures[busy] == most or seconds[busy] > budget:
                raise RetriesExhaustedError(attempt, clock() - start, retry_after) from error
            _logger.log(
                logging.INFO if failures[busy] <= (_QUIET_REFUSALS if busy else _QUIET_ATTEMPTS) else logging.WARNING,
                "%s; trying again in %.1f s (attempt %d of %d failed)",
                without_secrets(": ".join(filter(None, (about and about(), type(error).__name__, brief(error))))),
                pause,
                failures[busy],
                most,
            )
        sleep(pause)


def _release_frames(error: Exception) -> None:
    """Release the local variables of the failed calls.

    fsspec's frames refer to the errors that they raise, so their callers' objects are freed only by the garbage
    collector. If that ran in fsspec's own thread, it would deadlock on h5py objects: h5py holds a lock while it reads
    through that thread.
    """
    for link in cause_chain(error):
        clear_frames(link.__traceback__)
