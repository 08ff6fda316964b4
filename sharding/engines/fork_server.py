"""Imported by the fork server of `local_executor`: suppresses its traceback when a limit of processes is hit.

The parent reports in one line that a process could not be started.
Tested in tests/sharding/engines/test_executors.py.
"""

from __future__ import annotations

import sys
from types import TracebackType

from ringfeed.sharding.storage.error_messages import limit_problem


def _print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not limit_problem(error):
        sys.__excepthook__(kind, error, trace)


if any("multiprocessing.forkserver" in word for word in sys.orig_argv):
    sys.excepthook = _print_traceback
