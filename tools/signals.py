"""Signals that end a program: Ctrl-C, SIGTERM and a closed terminal, each with an exit status of its own.

`raise_on_termination` and `deferred_signals` make them exceptions, so that a build cleans up. `ending_on_signals` is
for programs that have nothing to clean up, or run code that loses exceptions. Imports only cheap modules, so that a
signal while the others are imported also prints one line.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from threading import Lock, Thread, Timer, current_thread, main_thread
from time import monotonic
from types import FrameType
from typing import Any, NoReturn

INTERRUPTED = 130  # exit status
_STATUSES = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: 143, signal.SIGHUP: 129}
_STOPPED = 0  # the number of no signal
_GRACE_SECONDS = 2.0
_AGAIN_SECONDS = 0.01
_SHOW_CURSOR = b"\x1b[?25h\n"  # a progress bar hides it, and is left without a newline


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM."""

    status = 143


class _HungUp(Terminated):
    """The terminal of the process was closed."""

    status = 129


_TERMINATIONS = {signal.SIGTERM: Terminated, signal.SIGHUP: _HungUp}
_SIGNALS: dict[type[BaseException], signal.Signals] = {
    KeyboardInterrupt: signal.SIGINT, Terminated: signal.SIGTERM, _HungUp: signal.SIGHUP,
}  # fmt: skip


@contextmanager
def raise_on_termination() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM and SIGHUP in the body, so that a build cleans up as after Ctrl-C.

    A signal that the process was started to ignore, as `nohup` does with SIGHUP, stays ignored. Python drops an
    exception of a callback, such as those with which it imports modules: a signal that is lost so is sent again.
    """

    def stop(signum: int, frame: FrameType | None) -> NoReturn:
        raise _TERMINATIONS[signal.Signals(signum)]

    if current_thread() is not main_thread():  # the only one that may set handlers
        yield
        return
    handled = [number for number in _TERMINATIONS if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, stop) for number in handled}
    report = sys.unraisablehook

    def send_again(lost: sys.UnraisableHookArgs) -> None:
        number = _SIGNALS.get(lost.exc_type)
        if number is None:
            report(lost)
        else:  # not at once: the handler would raise in this hook
            Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), number)).start()

    sys.unraisablehook = send_again
    try:
        yield
    finally:
        sys.unraisablehook = report
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


class SignalWatch:
    """What `ending_on_signals` yields: watches for signals in a thread of its own, and ends the process.

    An exception of a signal handler is lost where C++ code calls Python: while TensorFlow is imported, which then fails
    with an error of its own, or in the callback that JAX runs at each garbage collection. A handler runs only once the
    main thread executes Python again. So handlers do nothing here: Python's C code writes each signal to a pipe.

    Args:
        program: name of the command, which begins the line to print at the end.
        events: whether to print an event for machines instead.

    Attributes:
        is_silent: whether to print nothing, because another rank does.
        is_terminating: whether SIGTERM has come and was deferred.
        advice: what the user can do after a signal, printed with it.
    """

    def __init__(self, program: str, *, events: bool) -> None:
        self._program, self._events = program, events
        self.is_silent = self.is_terminating = False
        self.advice = ""
        self._deferral: float | None = None
        self._stderr = os.dup(2)  # while TensorFlow is imported, that of the process is held back
        self._received: int | None = None
        self._checked = False
        self._last = Lock()
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._thread = Thread(target=self._watch, name="ringfeed-signals", daemon=True)

    def check(self) -> None:
        """Raise an exception if a signal has come; from the first call on, a signal leaves two seconds to the next one.

        Raises:
            KeyboardInterrupt: a signal has come.
        """
        self._checked = True
        if self._received is not None and not self.is_terminating:
            raise KeyboardInterrupt

    def defer_termination(self, seconds: float) -> None:
        """From now on let SIGTERM set `is_terminating`, and end the process only if it still runs after `seconds`.

        Ctrl-C then ends it at once. Further SIGTERMs and SIGHUPs do not: a launcher passes on the SIGTERM that a
        scheduler sends to every process of a job, and a machine that shuts down closes the terminals, too.
        """
        self._deferral = seconds

    def start(self) -> None:
        """Start watching; signals that came before are in the pipe.

        Raises:
            RuntimeError: no thread can be started.
        """
        self._before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._previous = {number: signal.getsignal(number) for number in _STATUSES}
        for number, handler in self._previous.items():
            if handler is not signal.SIG_IGN:  # as nohup sets for SIGHUP
                signal.signal(number, lambda *_: None)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; if a signal has come that was not deferred, end the process."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._before)
        if self._thread.ident is not None:
            os.write(self._writer, bytes([_STOPPED]))
            self._thread.join()
        for descriptor in (self._stderr, self._reader, self._writer):
            os.close(descriptor)

    def end_if_asked(self) -> None:
        """End the process if a signal has come that was not deferred."""
        if self._received is not None and not self.is_terminating:
            self._end(self._received)

    def _watch(self) -> None:
        number = self._next_signal(inf) or _STOPPED
        if number == signal.SIGTERM and self._deferral is not None:
            self.is_terminating = True  # before it counts as received
            self._received = number
            until = monotonic() + self._deferral
            while (another := self._next_signal(until)) in _TERMINATIONS:  # asks for what is being done
                pass
            number = signal.SIGTERM if another is None else another
        elif number != _STOPPED:
            self._received = number
            if self._checked:
                self._next_signal(monotonic() + _GRACE_SECONDS)
        if number != _STOPPED:
            self._end(number)

    def _next_signal(self, until: float) -> int | None:
        """Return the number of the next signal to act on, or `_STOPPED`; None if none has come by a time."""
        while select.select([self._reader], [], [], None if until == inf else max(0.0, until - monotonic()))[0]:
            number = os.read(self._reader, 1)[0]
            if number == _STOPPED or number in _STATUSES:  # others are of handlers of somebody else's
                return number
        return None

    def _end(self, number: int) -> NoReturn:
        self._last.acquire()  # never released: the other thread may be here, too
        status = _STATUSES[signal.Signals(number)]
        event = json.dumps({"event": "interrupted", "message": self.advice, "status": status})
        text = "; ".join(filter(None, [f"{self._program}: interrupted", self.advice]))
        line = event if self._events else text
        if not self.is_silent:
            with suppress(OSError):  # the terminal is closed
                os.write(self._stderr, _SHOW_CURSOR * os.isatty(self._stderr) + f"{line}\n".encode())
        os._exit(status)


@contextmanager
def ending_on_signals(program: str) -> Iterator[SignalWatch | None]:
    """End the process with one line on Ctrl-C, SIGTERM or SIGHUP in the body, whatever it does then.

    For bodies that import modules, or that keep what they write whole even if they are killed.

    Args:
        program: name of the command, which begins the line.

    Yields:
        The watch; None where another handler for Ctrl-C is set, which stays, or where no thread can be started.
    """
    # A shell script starts what it puts in the background with SIGINT ignored.
    usual = signal.getsignal(signal.SIGINT) in (signal.default_int_handler, signal.SIG_IGN)
    if current_thread() is not main_thread() or not usual:  # only the main thread may set handlers
        yield None
        return
    watch = SignalWatch(program, events="--json" in sys.argv)
    try:
        watch.start()
    except RuntimeError:  # a limit of the process
        watch.stop()
        yield None
        return
    try:
        yield watch
    except BaseException:
        watch.end_if_asked()
        raise
    finally:
        watch.stop()


def ignore_signals() -> None:
    """Ignore signals from now on: the outcome has been printed, and they must not change the exit status."""
    for number in _STATUSES:
        signal.signal(number, signal.SIG_IGN)
