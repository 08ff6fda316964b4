"""Background threads that end when there is no work left.

Executors of `concurrent.futures` accept no work once the main thread has ended, although another thread may still be
reading. And they share one lock, so that an iterator closed by the garbage collector at the wrong moment would wait for
ever.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

from ringfeed.sharding.errors import RingfeedError

_PREFIX = "ringfeed-"


def start_thread(function: Callable[[], None], name: str, *, daemon: bool = False) -> threading.Thread:
    """Start a thread.

    Args:
        name: name of the thread, without the prefix ``ringfeed-``.
        daemon: whether the program may exit while the thread runs.

    Raises:
        RingfeedError: the system cannot start a thread.
    """
    thread = threading.Thread(target=function, name=_PREFIX + name, daemon=daemon)
    try:
        thread.start()
    except RuntimeError as error:
        raise RingfeedError(
            f"the loader cannot start a thread: {error}; raise the limit (`ulimit -u`, or the container's), or "
            "run fewer processes"
        ) from error
    return thread


def in_loader_thread() -> bool:
    """Return whether the current thread is one of the loader's, which its other threads may wait for."""
    return threading.current_thread().name.startswith(_PREFIX)


class Threads:
    """Runs functions in background threads, in the order submitted. The functions must not raise.

    Args:
        most: highest number of threads.
        name: name of the threads, without the prefix ``ringfeed-``.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._waiting: deque[Callable[[], None]] = deque()
        self._running = 0
        self._closed = False
        self._lock = threading.RLock()  # see `FetchPool`
        self._starting = (
            threading.RLock()
        )  # held until it is known whether a new thread starts, so that no work waits for one that did not

    def submit(self, function: Callable[[], None]) -> None:
        """Run a function as soon as a thread is free.

        Raises:
            RuntimeError: the threads were closed.
            RingfeedError: the system cannot start a thread, and none is running.
        """
        if self._closed:  # before taking a lock: garbage collection may lead here while this thread starts another
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
        """Drop the functions that have not begun."""
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


S = TypeVar("S")
T = TypeVar("T")


def run_after(parts: Sequence[Future[S]], work: Callable[[Sequence[Future[S]]], T], threads: Threads) -> Future[T]:
    """Submit work on parts once all of them are done, successfully or not, and return the future of its result.

    So a few threads suffice: none waits for a late part while other work is ready. The parts are released when the work
    is done, except those that the result holds.
    """
    result: Future[T] = Future()
    pending = _PendingWork(list(parts), work, threads, result)
    for part in parts:
        part.add_done_callback(pending.part_done)
    return result


class _PendingWork(Generic[S, T]):
    def __init__(
        self, parts: list[Future[S]], work: Callable[[Sequence[Future[S]]], T], threads: Threads, result: Future[T]
    ) -> None:
        self._result: Future[T] | None = result
        self._parts = parts
        self._work: Callable[[Sequence[Future[S]]], T] | None = work
        self._threads = threads
        self._missing = len(parts)
        self._lock = threading.Lock()

    def part_done(self, _: Future[S]) -> None:
        with self._lock:
            self._missing -= 1
            if self._missing:
                return
        assert self._result is not None
        try:
            self._threads.submit(self._run)
        except RuntimeError:  # closed: nobody waits for the result
            self._result.cancel()
            self._release()
        except RingfeedError as error:
            self._result.set_exception(error)
            self._release()

    def _run(self) -> None:
        assert self._work is not None
        assert self._result is not None
        try:
            self._result.set_result(self._work(self._parts))
        except BaseException as error:
            self._result.set_exception(error)
        finally:
            self._release()

    def _release(self) -> None:
        """Break the cycle: the parts refer to this object by their callbacks, and it to them and to the result."""
        self._result = None
        self._parts = []
        self._work = None
