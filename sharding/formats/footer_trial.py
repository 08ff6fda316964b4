"""Tries Parquet footers in another process, as pyarrow 26.0.1 aborts if the metadata of their columns are damaged.

Starting that process takes as long as trying a thousand footers, so it waits some seconds for the next one.
Tested in tests/sharding/formats/test_parquet.py.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
from contextlib import suppress

_PROGRAM = """
import select, sys
del sys.path[0]  # the current folder
import pyarrow.parquet
while select.select([0], [], [], 10)[0] and (size := sys.stdin.buffer.read(8)):
    file = sys.stdin.buffer.read(int.from_bytes(size, "little"))
    metadata = pyarrow.parquet.read_metadata(pyarrow.BufferReader(file))
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        list(map(group.column, range(group.num_columns)))
    sys.stdout.buffer.write(b".")
    sys.stdout.buffer.flush()
"""


class _Trial:
    """The process, if it runs; one thread at a time uses it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def passes(self, file: bytes) -> bool:
        """Whether the columns' metadata can be read. A refusal counts if a new process repeats it."""
        with self._lock:
            return self._answers(file) or self._answers(file)

    def _answers(self, file: bytes) -> bool:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        answer = b""
        try:
            with suppress(BrokenPipeError):  # it waited long enough
                self._process.stdin.write(len(file).to_bytes(8, "little") + file)
                self._process.stdin.flush()
                answer = self._process.stdout.read(1)
        finally:
            if not answer:
                self.end()
        return answer != b""

    def end(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with suppress(BrokenPipeError):
                process.communicate()


_trial = _Trial()
atexit.register(_trial.end)
os.register_at_fork(after_in_child=_trial.__init__)  # type: ignore[misc]  # a fork starts a process of its own


def has_readable_columns(file: bytes) -> bool:
    """Whether the metadata of all columns can be read from a Parquet file, or from its footer alone."""
    return _trial.passes(file)
