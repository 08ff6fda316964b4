"""Background threads that end when there is nothing left to do.

Those of `concurrent.futures` take nothing on once the main thread has ended, where another one may still read, or wait
for what they were to bring; and all of them share a lock, so that an iterator which the garbage collector closes at the
wrong moment would wait for ever.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

from ...sharding.errors import RingfeedError

__all__ = ["Threads", "in_loader_thread", "run_after", "start_thread"]

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


def in_loader_thread() -> bool:
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


S = TypeVar("S")
T = TypeVar("T")


def run_after(parts: Sequence[Future[S]], work: Callable[[Sequence[Future[S]]], T], threads: Threads) -> Future[T]:
    """The result of `work` on parts, begun when all of them are done, whether they failed or not.

    So few threads are not held up by what comes last, where something else is ready sooner. The parts are
    let go of when the work is done, but for those that its result holds.
    """
    result: Future[T] = Future()
    opening = _Opening(list(parts), work, threads, result)
    for part in parts:
        part.add_done_callback(opening.part_done)
    return result


class _Opening(Generic[S, T]):
    def __init__(
        self,
        parts: list[Future[S]],
        work: Callable[[Sequence[Future[S]]], T],
        threads: Threads,
        result: Future[T],
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
        except RuntimeError:  # it was told to end: nobody waits any more
            self._result.cancel()
            self._let_go()
        except RingfeedError as error:
            self._result.set_exception(error)
            self._let_go()

    def _run(self) -> None:
        assert self._work is not None
        assert self._result is not None
        try:
            self._result.set_result(self._work(self._parts))
        except BaseException as error:
            self._result.set_exception(error)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        """Parts hold this by their callbacks, and must not be held by it for ever, nor by the result through it."""
        self._result = None
        self._parts = []
        self._work = None
