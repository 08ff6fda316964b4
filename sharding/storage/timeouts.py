"""Calls that must end: a client without a timeout of its own is called in another thread, which is waited for so long.

For the HDFS client: its calls to the NameNode wait for ever where that takes the connection and answers nothing, as one
that is stopped (SIGSTOP), swaps, or stands behind a firewall that forgot the connection does. Its reads from DataNodes
have a timeout, and are left as they are.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["NoAnswerError", "bounded", "longest_seconds"]

T = TypeVar("T")
_LEAST_SECONDS, _BYTES_PER_SECOND = 300.0, 1 << 17  # many at a time share a slow link


def longest_seconds(size: int) -> float:
    """How long to wait at most for a request that moves so many bytes.

    >>> longest_seconds(1 << 20)
    308.0
    """
    return _LEAST_SECONDS + size / _BYTES_PER_SECOND


class NoAnswerError(RuntimeError):
    """A call has not returned in its time. No OSError, which fsspec passes over as it lists a folder."""


def bounded(seconds: float, function: Callable[..., T], *arguments: Any) -> T:
    """Call a function, and give it up after so many seconds; its thread is left behind, and does not hold up the exit.

    Raises:
        NoAnswerError: it has not returned.

    >>> bounded(1, divmod, 7, 2)
    (3, 1)
    """
    if sys.is_finalizing():  # files that were left open are closed as the interpreter ends: no thread starts any more
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
