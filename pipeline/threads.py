"""Background threads that end when there is nothing left to do.

Those of `concurrent.futures` take nothing on once the main thread has ended, where another one may still read, or wait
for what they were to bring; and all of them share a lock, so that an iterator which the garbage collector closes at the
wrong moment would wait for ever.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from ..sharding.errors import RingfeedError

__all__ = ["Threads", "in_own_thread", "start_thread"]

_PREFIX = "ringfeed-"


def start_thread(function: Callable[[], None], name: str, *, daemon: bool = False) -> threading.Thread:
    """A thread that runs a function, and is called so.

    Args:
        function: to run.
        name: of the thread, without `ringfeed`.
        daemon: whether the program may end before it does.

    Raises:
        RingfeedError: the system starts none.
    """
    thread = threading.Thread(target=function, name=_PREFIX + name, daemon=daemon)
    try:
        thread.start()
    except RuntimeError as error:
        raise RingfeedError(
            f"the loader cannot start a thread: {error}; raise the limit (`ulimit -u`, or that of the container), or "
            "run fewer processes"
        ) from error
    return thread


def in_own_thread() -> bool:
    """Whether this is one of the loader's threads, which others of them may wait for."""
    return threading.current_thread().name.startswith(_PREFIX)


class Threads:
    """Runs functions, which raise nothing, in the order in which they are given.

    Args:
        most: threads at a time.
        name: of each, without `ringfeed`.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._waiting: deque[Callable[[], None]] = deque()
        self._running = 0
        self._closed = False
        self._lock = threading.RLock()  # see `FetchPool`
        self._starting = threading.RLock()  # nobody hands over to a thread of which it is not known whether it starts

    def submit(self, function: Callable[[], None]) -> None:
        """Begin as soon as a thread is free.

        Raises:
            RuntimeError: it was closed.
            RingfeedError: the system starts no thread, and none runs that would come to it.
        """
        if self._closed:  # not even waiting, for a thread may come here while it starts, closing what nobody needs
            raise RuntimeError("closed")
        with self._starting:
            with self._lock:
                if self._closed:
                    raise RuntimeError("closed")
                self._waiting.append(function)
                if self._running == self._most:
                    return
                self._running += 1
            try:
                start_thread(self._work, self._name)
            except RingfeedError:
                with self._lock:
                    self._running -= 1
                    if self._running or not self._waiting:
                        return
                    self._waiting.clear()
                raise

    def close(self) -> None:
        """Begin nothing more."""
        with self._lock:
            self._closed = True
            self._waiting.clear()

    def _work(self) -> None:
        while (function := self._next()) is not None:
            function()
            del function

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._running -= 1
            return None
