"""How a program begins: with streams that may be closed, or whose readers may leave, and with Ctrl-C heard at once.

Imports nothing that takes time itself: Ctrl-C while other modules are imported, which takes half a second, is one line
too.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from io import TextIOWrapper
from threading import current_thread, main_thread
from types import FrameType
from typing import IO, Any, cast

__all__ = ["INTERRUPTED", "interrupts_told", "lead_nowhere", "output_settled", "settle_streams", "unread"]

INTERRUPTED = 130  # exit status


def settle_streams() -> None:
    """Let streams that were closed lead nowhere, and text be printed that an encoding lacks, as file names may be.

    Else the next file that is opened would take the place of a closed stream, and be what others print to.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def lead_nowhere(stream: IO[str]) -> None:
    """Lose what is written to a stream from now on, and what it has yet to pass on."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class _Output:
    """Standard output, which leads nowhere once its reader has seen enough, as `head` has: the work goes on.

    That it takes nothing for another reason is a StorageError.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self.unread = False

    def write(self, text: str) -> int:
        with self._settled():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._settled():
            self._stream.flush()

    @contextmanager
    def _settled(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            lead_nowhere(self._stream)
            self.unread = True
        except OSError as error:
            from ..sharding.errors import StorageError

            lead_nowhere(self._stream)
            raise StorageError(f"cannot write to standard output: {error.strerror or error}") from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def output_settled() -> Iterator[None]:
    """Settle for the body what becomes of standard output, see `_Output`."""
    output = _Output(sys.stdout)
    with redirect_stdout(cast(IO[str], output)):
        try:
            yield
        finally:
            with suppress(OSError):  # what was there to be said was said by a flush in the body
                output.flush()


def unread() -> bool:
    """Whether the reader of standard output is known to have left."""
    return isinstance(sys.stdout, _Output) and sys.stdout.unread


@contextmanager
def interrupts_told(program: str) -> Iterator[None]:
    """End the process at once, with one line, on Ctrl-C in the body.

    For bodies that import: there is nothing to tidy up, and an exception in the middle of an import may become another
    one, or be lost.
    """

    def end(signum: int, frame: FrameType | None) -> None:
        event = f'{{"event": "interrupted", "message": "", "status": {INTERRUPTED}}}'
        line = event if program == "shard-dataset" and "--json" in sys.argv else f"{program}: interrupted"
        os.write(2, f"{line}\n".encode())
        os._exit(INTERRUPTED)

    if current_thread() is not main_thread() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # only that thread may set handlers; and who has one, or ignores Ctrl-C, keeps to it
        return
    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
