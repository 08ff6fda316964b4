"""How a program begins: with streams that may be closed, or whose readers may leave, and with Ctrl-C heard at once.

Imports nothing that takes time itself: Ctrl-C while other modules are imported, which takes half a second, is one line
too.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from io import TextIOWrapper
from threading import current_thread, main_thread
from types import FrameType
from typing import IO, Any, cast

__all__ = [
    "INTERRUPTED", "SMALL_BYTES", "begin_workers", "end_workers", "interrupts_told", "lead_nowhere", "output_settled",
    "settle_streams", "unread",
]  # fmt: skip

INTERRUPTED = 130  # exit status
SMALL_BYTES = 8 << 20  # of a source that is written before another process has imported what it needs

_WRITES = re.compile("(build|append|reshard) ")
_ALONE = re.compile(" (-h|--help|--workers[ =]1|--(engine|source|map)[ =].*)( |$)")  # workers, if any, begin otherwise


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


def begin_workers(argv: Sequence[str]) -> None:
    """Have the process begin that the workers of `shard-dataset` are forked from: it imports while this one does.

    That is what `sharding.execute.begin_processes` does, which it takes half a second to import: of 4 M rows that two
    workers write in 3.3 s, 0.3 s. It is a guess, by the words of the command line; who needs no workers after all has
    begun it for nothing, and where it cannot begin, `begin_processes` will say so.
    """
    line = " ".join(argv)
    small = any(os.path.isfile(word) and os.path.getsize(word) < SMALL_BYTES for word in argv)
    if sys.platform != "linux" or os.cpu_count() == 1 or small or not _WRITES.match(line) or _ALONE.search(line):
        return
    from multiprocessing import forkserver, resource_tracker

    forkserver.set_forkserver_preload(["ringfeed.sharding", "pandas", *(["s3fs"] if "s3:" in line else [])])
    for begin in (resource_tracker.ensure_running, forkserver.ensure_running):  # the former unblocks what is blocked
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})  # those of a terminal's job
        with suppress(OSError):
            begin()
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def end_workers() -> None:
    """End that process, which else keeps this one's streams open until it has imported everything."""
    server = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    if pid := getattr(server, "_forkserver_pid", None):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


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
        end_workers()
        os._exit(INTERRUPTED)

    if current_thread() is not main_thread() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # only that thread may set handlers; and who has one, or ignores Ctrl-C, keeps to it
        return
    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
