"""Work that begins once others are done, in a thread that waits for none of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

from ..sharding.errors import RingfeedError
from .threads import Threads

__all__ = ["open_after"]

S = TypeVar("S")
T = TypeVar("T")


def open_after(parts: Sequence[Future[S]], work: Callable[[Sequence[Future[S]]], T], threads: Threads) -> Future[T]:
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
