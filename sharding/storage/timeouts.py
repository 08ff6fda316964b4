"""Gives up a blocking call of a client that has no timeout, by waiting for it in another thread.

Tested in tests/sharding/storage/test_http.py and tests/sharding/storage/s3/test_timeouts.py.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class NoAnswerError(RuntimeError):
    """A call did not return in time. Not an OSError, because fsspec ignores those when it lists a folder."""


def call_within(seconds: float, function: Callable[..., T], *arguments: Any) -> T:
    """Call a function and give it up after some seconds; its thread stays behind and does not delay the exit.

    Raises:
        NoAnswerError: it did not return in time.

    >>> call_within(1, divmod, 7, 2)
    (3, 1)
    """
    if sys.is_finalizing():  # files left open are closed as the interpreter ends, when no thread starts any more
        return function(*arguments)
    results: queue.SimpleQueue[tuple[T, None] | tuple[None, BaseException]] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put((function(*arguments), None))
        except BaseException as error:
            results.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        result, error = results.get(timeout=seconds)
    except queue.Empty:
        raise NoAnswerError(f"no answer within {seconds:g} s") from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # the two come together
