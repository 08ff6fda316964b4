"""Records where the time of each step goes: rows are gathered on the hot path, and a thread appends them to a file."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from pathlib import Path

import pyarrow as pa

from ringfeed.training.records.record_format import END, SCHEMA, STEP, Launch, Row, file_name, first_step_of, stride

from . import events
from .events import RowsRecorded, RunEnded
from .prometheus import Prometheus
from .reports import Reports
from .tracker import Tracker


class RecordFile(Tracker):
    """Appends the rows of one rank to its file in the folder of all ranks' records, which it makes.

    What this rank, or a rank that no longer exists, recorded of the launch's first step and later is removed: those
    steps run again.
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
        self._writer.close()


_FLUSH_SECONDS = 1.0


class Recorder(Tracker):
    """Gathers the rows of one rank, and reports them each second to a file in a folder, to Prometheus, or both."""

    label = "output.records"

    def __init__(self, folder: str | None, port: int | None) -> None:
        self._folder, self._port = folder, port
        self._steps = deque[tuple[events.StepDone, int, float]]()
        self._activities = deque[Row]()  # both may grow while the thread takes from them
        self._done = 0
        self._reports = Reports([])
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write_until_closed, name="ringfeed-records", daemon=True)

    def begin(self, event: events.RunBegan) -> None:
        """Open the file and the port, unless there is no step left."""
        self._last_end = time.monotonic()
        self._unix = time.time() - self._last_end  # wall time at monotonic 0; taken once, so that rows stay in order
        if event.first_step >= event.total_steps:
            return
        launch = Launch(
            rank=event.rank, ranks=event.ranks, host=socket.gethostname(), first_step=event.first_step,
            batch_size=event.batch_size, total_steps=event.total_steps,
        )  # fmt: skip
        files: list[Tracker] = [] if self._folder is None else [RecordFile(self._folder, launch)]
        self._reports = Reports(files if self._port is None else [*files, Prometheus(self._port, launch)])
        self._thread.start()

    def step(self, event: events.StepDone) -> None:
        assert event.times is not None
        steps = stride(event.step - 1, self._done)
        self._done += 1
        if steps:
            self._steps.append((event, steps, event.times.requested - self._last_end))
        self._last_end = event.times.synchronised

    def activity(self, event: events.ActivityDone) -> None:
        self._last_end = event.started + event.seconds
        started = self._unix + event.started
        self._activities.append(Row(event.name, event.step, event.epoch, 1, started, 0.0, 0.0, 0.0, 0.0, event.seconds))

    def steps(self, event: events.StepsLogged) -> None:
        self._reports.emit(event)

    def close(self, event: events.RunEnded) -> None:
        """Write the rows that are left, and one that says at which step and epoch the process ended by itself."""
        if not self._thread.is_alive():
            return
        now = self._unix + time.monotonic()
        self._activities.append(Row(END, event.step, event.epoch, 1, now, 0.0, 0.0, 0.0, 0.0, 0.0))
        self._closing.set()
        self._thread.join()
        self._reports.emit(event)

    def _write_until_closed(self) -> None:
        while not self._closing.wait(_FLUSH_SECONDS):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        rows = [_row(self._unix, *self._steps.popleft()) for _ in range(len(self._steps))]
        rows += [self._activities.popleft() for _ in range(len(self._activities))]
        self._reports.emit(events.RowsRecorded(sorted(rows, key=lambda row: row.started)))


def _row(unix: float, event: events.StepDone, steps: int, host_seconds: float) -> Row:
    """Return the row of a step; `unix` is the Unix time of monotonic 0."""
    times = event.times
    assert times is not None
    ready, reduced = times.stamps.numpy().tolist()
    return Row(
        activity=STEP,
        step=event.step - 1,
        epoch=event.epoch,
        steps=steps,
        started=unix + times.requested,
        input_seconds=times.received - times.requested,
        gradient_seconds=ready - times.received,
        collective_seconds=reduced - ready + times.synchronised - times.returned,
        update_seconds=times.returned - reduced,
        host_seconds=host_seconds,
    )
