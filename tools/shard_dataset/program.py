"""`shard-dataset`, the program: it begins here; what it does is in `commands`, which takes half a second to import.

So a process that a build starts, which imports this module again, imports no more than its tasks need.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from ..process_start import begin_workers, end_workers, interrupts_told, output_settled, settle_streams

__all__ = ["main", "run"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run `shard-dataset` and return its exit status; an error that a user can mend is one line on stderr."""
    with interrupts_told("shard-dataset"):
        if argv is None:
            begin_workers(sys.argv[1:])
        from ...sharding.common.stderr_filter import quiet_pillow
        from .commands import execute, parse

        quiet_pillow()
        args = parse(sys.argv[1:] if argv is None else argv)
    return execute(args)


def run() -> NoReturn:
    """The program: `main`, and then an end without Python's own.

    A thread of Arrow that lets go of a Python buffer while the interpreter shuts down aborts the process (3 of 30
    builds that failed early). What is left to tidy up is the folder of the sockets of `multiprocessing`.

    NumPy's OpenBLAS, which nothing here needs, starts a thread a core in every process, and these first spin for work:
    without, 20,000 images are built in 1.80 s, else in 1.90 (2 cores, 2026-11-23).

    What the command came to is told by then: a signal changes it no more.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    settle_streams()
    with output_settled():
        try:
            status = main()
            for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(ending, signal.SIG_IGN)
        except SystemExit as stop:  # of argparse: usage, help, version
            status = stop.code if isinstance(stop.code, int) else 0
    from multiprocessing import util

    util._exit_function()  # type: ignore[attr-defined]  # typeshed has no private names
    end_workers()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    run()
