"""How a program begins: Ctrl-C while its modules are imported, which takes half a second, is one line too.

Imports nothing that takes time itself.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from threading import current_thread, main_thread
from types import FrameType

__all__ = ["INTERRUPTED", "interrupts_told", "settle_streams"]

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
