"""The program `shard-dataset`: starts here, imports the commands, and ends.

What it does is in `commands`, which takes half a second to import. A worker process of a build imports this module
again, and so no more than its tasks need.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from ringfeed.tools.process_start import exit_without_memory, guarded_stdout, prepare_streams
from ringfeed.tools.signals import ending_on_signals, ignore_signals


def main(argv: Sequence[str] | None = None) -> int:
    """Run `shard-dataset` and return its exit status; an expected error is one line on standard error."""
    with exit_without_memory("shard-dataset"), ending_on_signals("shard-dataset"):
        from ringfeed.sharding.common.stderr_filter import silence_pillow
        from ringfeed.sharding.storage.temporary_folder import remove_killed_folders

        from .commands import execute, parse

        silence_pillow()
        args = parse(sys.argv[1:] if argv is None else argv)
        with suppress(OSError):  # no folder for temporary files: what needs one says so
            remove_killed_folders()
    return execute(args)


def run() -> NoReturn:
    """Run `main`, and end the process without Python's own shutdown.

    A thread of Arrow that releases a Python buffer during the shutdown aborts the process (3 of 30 builds that failed
    early). All that needs tidying up is the folder of the sockets of `multiprocessing`.

    OpenBLAS, which NumPy loads and nothing here uses, starts a thread a core in every process, and these spin at first:
    20,000 images are built in 1.90 s with them, in 1.80 s without (2 cores, 2026-11-23).

    Signals are ignored once the outcome has been printed: they must not change the exit status.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    prepare_streams()
    with guarded_stdout():
        try:
            status = main()
            ignore_signals()
        except SystemExit as stop:  # from argparse: usage, help, version
            status = stop.code if isinstance(stop.code, int) else 0
    from multiprocessing import util

    util._exit_function()  # type: ignore[attr-defined]  # typeshed has no private names
    _end_fork_server()
    sys.stderr.flush()
    os._exit(status)


def _end_fork_server() -> None:
    """End the process that workers are forked from; it would hold this one's streams open until its imports end."""
    server = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    if pid := getattr(server, "_forkserver_pid", None):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


if __name__ == "__main__":
    run()
