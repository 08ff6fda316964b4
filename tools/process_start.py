"""How both commands start: with usable standard streams. Imports only cheap modules, as `signals.py` does.

Tested in tests/tools/shard_dataset/test_errors.py.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from io import TextIOWrapper
from types import TracebackType
from typing import IO, Any, NoReturn, cast

_LEAST_BYTES = 256 << 20  # with less, imports end in lines of Arrow's allocator, or Python tries for ever
_NO_MEMORY = ("failed to map segment", "cannot allocate memory")  # of the loader of shared libraries


def prepare_streams() -> None:
    """Prepare standard streams: open closed ones on /dev/null, escape odd file names, keep secrets out of tracebacks.

    Otherwise the next file to be opened would take a closed stream's descriptor and receive what others print.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.excepthook = _print_traceback
    threading.excepthook = _print_thread_traceback


def _print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a traceback without the secrets in the URLs of its errors."""
    from traceback import format_exception

    from ringfeed.sharding.url_secrets import without_secrets

    sys.stderr.write(without_secrets("".join(format_exception(kind, error, trace))))


def _print_thread_traceback(raised: threading.ExceptHookArgs) -> None:
    """Print the traceback of a thread, but for one that met a limit: the main thread reports that in one line."""
    from ringfeed.sharding.storage.error_messages import limit_problem

    if raised.exc_value is None or not limit_problem(raised.exc_value):
        threading.__excepthook__(raised)


def redirect_to_null(stream: IO[str]) -> None:
    """Discard what is written to a stream from now on, and what it still buffers."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


class _GuardedOutput:
    """Standard output that goes to /dev/null once its reader, such as `head`, has left: the work continues.

    Any other failure to write is a StorageError.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self.reader_left = False

    def write(self, text: str) -> int:
        with self._guard():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._guard():
            self._stream.flush()

    @contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            redirect_to_null(self._stream)
            self.reader_left = True
        except OSError as error:
            from ringfeed.sharding.errors import StorageError

            redirect_to_null(self._stream)
            raise StorageError(f"cannot write to standard output: {error.strerror or error}") from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def guarded_stdout() -> Iterator[None]:
    """Guard standard output in the body: see `_GuardedOutput`."""
    output = _GuardedOutput(sys.stdout)
    with redirect_stdout(cast(IO[str], output)):
        try:
            yield
        finally:
            with suppress(OSError):  # a flush in the body has reported it already
                output.flush()


def reader_left() -> bool:
    """Whether the reader of standard output is known to have left."""
    return isinstance(sys.stdout, _GuardedOutput) and sys.stdout.reader_left


@contextmanager
def exit_without_memory(program: str) -> Iterator[None]:
    """End the process with one line if there is no memory for the modules that the body imports.

    Args:
        program: name of the command, which begins the line.
    """
    if 0 <= resource.getrlimit(resource.RLIMIT_AS)[0] < _LEAST_BYTES:
        _end_without_memory(program)
    try:
        yield
    except (MemoryError, ImportError) as error:
        if not isinstance(error, MemoryError) and not any(mark in str(error).lower() for mark in _NO_MEMORY):
            raise
        _end_without_memory(program)


def _end_without_memory(program: str) -> NoReturn:
    message = "out of memory as it starts; raise the limit (ulimit -v), or end other programs"
    event = f'{{"event": "error", "message": "{message}", "status": 1}}'
    os.write(2, f"{event if '--json' in sys.argv else f'{program}: error: {message}'}\n".encode())
    os._exit(1)
