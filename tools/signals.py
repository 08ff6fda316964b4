"""Termination signals: SIGTERM and a closed terminal end a program as Ctrl-C does, with exit statuses of their own."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType
from typing import Any, NoReturn

__all__ = ["Terminated", "deferred_signals", "raise_on_termination"]


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM."""

    status = 143


class _HungUp(Terminated):
    """The terminal of the process was closed."""

    status = 129


_TERMINATIONS = {signal.SIGTERM: Terminated, signal.SIGHUP: _HungUp}


@contextmanager
def raise_on_termination() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM and SIGHUP in the body, so that a build cleans up as after Ctrl-C.

    A signal that the process was started to ignore, as `nohup` does with SIGHUP, stays ignored.
    """

    def stop(signum: int, frame: FrameType | None) -> NoReturn:
        raise _TERMINATIONS[signal.Signals(signum)]

    if current_thread() is not main_thread():  # the only one that may set handlers
        yield
        return
    handled = [number for number in _TERMINATIONS if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, stop) for number in handled}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def deferred_signals() -> Iterator[Callable[[], None]]:
    """Defer Ctrl-C, SIGTERM and SIGHUP until the yielded function is called, or the body ends.

    An exception raised inside TensorFlow may be lost in one of its callbacks, or end the process with a trace or
    without a word. A second signal is not deferred.
    """
    received: list[int] = []
    handlers: dict[signal.Signals, Any] = {}
    if current_thread() is main_thread():
        current = {number: signal.getsignal(number) for number in (signal.SIGINT, *_TERMINATIONS)}
        handlers = {number: handler for number, handler in current.items() if callable(handler)}

    def note(signum: int, frame: FrameType | None) -> None:
        received.append(signum)
        if len(received) > 1:
            deliver()

    def deliver() -> None:
        if received:
            handlers[signal.Signals(received[0])](received[0], None)

    for number in handlers:
        signal.signal(number, note)
    try:
        yield deliver
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        deliver()
