"""The file of a rank: rows are appended as whole batches.

Tested in tests/training/reports/test_recorder.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa

from ringfeed.training.records.record_format import SCHEMA, Launch, file_name, first_step_of

from .events import RowsRecorded, RunEnded
from .tracker import Tracker

__all__ = ["RecordFile"]


class RecordFile(Tracker):
    """Appends the rows of one rank to its file.

    What this rank, or a rank that no longer exists, recorded of the launch's first step and later is removed: those
    steps run again.

    Args:
        folder: folder of the records of all ranks; it is made.
        launch: the rank, and its first step.

    Raises:
        OSError: the file cannot be written.
    """

    label = "output.records"

    def __init__(self, folder: str, launch: Launch) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for path in Path(folder).iterdir():
            rank, first_step = first_step_of(path.name) or (-1, -1)
            is_own = rank == launch.rank or (launch.rank == 0 and rank >= launch.ranks)
            if is_own and first_step >= launch.first_step:
                path.unlink(missing_ok=True)
        self._path = Path(folder, file_name(launch.rank, launch.first_step))
        self._schema = SCHEMA.with_metadata(launch.metadata())
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._writer = pa.ipc.new_stream(str(self._path), self._schema, options=options)  # unbuffered

    def rows(self, event: RowsRecorded) -> None:
        """Append rows; without any, renew the file's time, which shows that the process lives."""
        if not event.rows:
            os.utime(self._path)
            return
        values = zip(*event.rows, strict=True)
        columns = [pa.array(column, kind) for column, kind in zip(values, SCHEMA.types, strict=True)]
        self._writer.write_batch(pa.record_batch(columns, schema=self._schema))

    def close(self, event: RunEnded) -> None:
        """End the stream."""
        self._writer.close()
