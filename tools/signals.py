"""How a program ends that is told to, by SIGTERM or by its terminal: as on Ctrl-C, with an exit status of its own."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType
from typing import Any, NoReturn

__all__ = ["Terminated", "endings_held", "tidy_when_told_to_end"]


class Terminated(KeyboardInterrupt):
    """The process was told to end."""

    status = 143


class _HungUp(Terminated):
    """The terminal of the process was closed."""

    status = 129


_ENDINGS = {signal.SIGTERM: Terminated, signal.SIGHUP: _HungUp}


@contextmanager
def tidy_when_told_to_end() -> Iterator[None]:
    """Let a build that is told to stop clean up as one that is interrupted does.

    What was started to ignore a signal, as by `nohup`, goes on.
    """

    def stop(signum: int, frame: FrameType | None) -> NoReturn:
        raise _ENDINGS[signal.Signals(signum)]

    if current_thread() is not main_thread():  # the only one that may set handlers
        yield
        return
    heard = [number for number in _ENDINGS if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, stop) for number in heard}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def endings_held() -> Iterator[Callable[[], None]]:
    """Hold back Ctrl-C, and what else tells a program to end, until what is yielded is called, or the body ends.

    What is raised in the midst of TensorFlow may be lost in a callback of its, or end the process with a trace or
    without a word. A second signal is not held back.
    """
    came: list[int] = []
    handlers: dict[signal.Signals, Any] = {}
    if current_thread() is main_thread():
        known = {number: signal.getsignal(number) for number in (signal.SIGINT, *_ENDINGS)}
        handlers = {number: handler for number, handler in known.items() if callable(handler)}

    def note(signum: int, frame: FrameType | None) -> None:
        came.append(signum)
        if len(came) > 1:
            hear()

    def hear() -> None:
        if came:
            handlers[signal.Signals(came[0])](came[0], None)

    for number in handlers:
        signal.signal(number, note)
    try:
        yield hear
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        hear()
