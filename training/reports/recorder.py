"""Records where the time of each step goes: rows are gathered on the hot path, and a thread appends them to a file."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from ringfeed.pipeline import StageStats
from ringfeed.training.records.record_format import (
    END,
    EPOCH,
    SCHEMA,
    STAGE_SCHEMA,
    STEP,
    Launch,
    Row,
    StageRow,
    file_name,
    first_step_of,
    stride,
)

from . import events
from .events import RowsRecorded, RunEnded
from .prometheus import Prometheus
from .reports import Reports
from .tracker import Tracker


class RecordFile(Tracker):
    """Appends the rows of one rank to its files in the folder of all ranks' records, which it makes.

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
        self._stages_path = Path(folder, file_name(launch.rank, launch.first_step, of_stages=True))
        self._launch = launch
        self._writers = {self._path: self._open(self._path, SCHEMA)}

    def _open(self, path: Path, schema: pa.Schema) -> Any:
        schema = schema.with_metadata(self._launch.metadata())
        return pa.ipc.new_stream(str(path), schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))

    def rows(self, event: RowsRecorded) -> None:
        """Append rows; without any, renew the file's time, which shows that the process lives."""
        if event.stages:
            self._append(self._stages_path, STAGE_SCHEMA, event.stages)
        if event.rows:
            self._append(self._path, SCHEMA, event.rows)
        else:
            os.utime(self._path)

    def _append(self, path: Path, schema: pa.Schema, rows: Sequence[Row | StageRow]) -> None:
        if path not in self._writers:
            self._writers[path] = self._open(path, schema)
        values = zip(*rows, strict=True)
        columns = [pa.array(column, kind) for column, kind in zip(values, schema.types, strict=True)]
        self._writers[path].write_batch(pa.record_batch(columns, schema=schema))

    def close(self, event: RunEnded) -> None:
        for writer in self._writers.values():
            writer.close()


class _StageWatch:
    """Looks at the counters of a loader now and then, and says what each stage did since the look before.

    A look takes 20 us. Each time that there have been `_LOOKS`, the pause between two of them is doubled, so that a
    file grows with the logarithm of a run's length.
    """

    def __init__(self) -> None:
        self._stats: Callable[[], Mapping[str, Any]] | None = None
        self._before: dict[tuple[str, str], StageStats] = {}
        self._since, self._pause, self._looks = time.monotonic(), _LOOK_SECONDS, 0

    def follow(self, stats: Callable[[], Mapping[str, Any]]) -> None:
        """Look at these counters from now on."""
        if stats != self._stats:
            self._stats, self._before, self._since = stats, dict(_by_stage(stats())), time.monotonic()

    def look(self, unix: float, *, is_last: bool) -> list[StageRow]:
        """Return rows of the stages that did something, if it is time to look; `unix`: see `_row`."""
        now, stats = time.monotonic(), self._stats
        if stats is None or (now - self._since < self._pause and not is_last):
            return []
        rows = []
        counted = dict(_by_stage(stats()))
        for (dataset, stage), after in counted.items():
            before = self._before.get((dataset, stage), StageStats())
            done = {name: getattr(after, name) - getattr(before, name) for name in _COUNTED}
            if any(done.values()):
                started, seconds = unix + self._since, now - self._since
                rows.append(StageRow(dataset, stage, started, seconds, **done, queue_depth=after.queue_depth))
        self._before, self._since, self._looks = counted, now, self._looks + 1
        if self._looks % _LOOKS == 0:
            self._pause *= 2
        return rows


def _by_stage(stats: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], StageStats]]:
    """The counters of a loader or a mixture, by dataset and stage."""
    for name, each in stats.items():
        if isinstance(each, StageStats):
            yield ("", name), each
        else:
            yield from (((name, stage), counted) for stage, counted in each.items())


_COUNTED = ("items", "bytes", "busy_seconds", "cpu_seconds", "wait_seconds")
_LOOKS = 256
_FLUSH_SECONDS, _LOOK_SECONDS = 1.0, 0.1


class Recorder(Tracker):
    """Gathers the rows of one rank, and reports them each second to a file in a folder, to Prometheus, or both."""

    label = "output.records"

    def __init__(self, folder: str | None, port: int | None) -> None:
        self._folder, self._port = folder, port
        self._steps = deque[tuple[events.StepDone, int, float]]()
        self._activities = deque[Row]()  # both may grow while the thread takes from them
        self._done = self._next_step = 0
        self._watch, self._watch_lock = _StageWatch(), threading.Lock()
        self._reports = Reports([])
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write_until_closed, name="ringfeed-records", daemon=True)

    def begin(self, event: events.RunBegan) -> None:
        """Open the file and the port, unless there is no step left."""
        self._last_end = time.monotonic()
        self._unix = time.time() - self._last_end  # wall time at monotonic 0; taken once, so that rows stay in order
        self._next_step = event.first_step
        if event.first_step >= event.total_steps:
            return
        launch = Launch(
            rank=event.rank, ranks=event.ranks, host=socket.gethostname(), first_step=event.first_step,
            batch_size=event.batch_size, total_steps=event.total_steps,
        )  # fmt: skip
        files: list[Tracker] = [] if self._folder is None else [RecordFile(self._folder, launch)]
        self._reports = Reports(files if self._port is None else [*files, Prometheus(self._port, launch)])
        self._thread.start()

    def begin_epoch(self, event: events.EpochBegan) -> None:
        now = self._unix + time.monotonic()
        self._activities.append(Row(EPOCH, self._next_step, event.epoch, 1, now, 0.0, 0.0, 0.0, 0.0, 0.0))
        if event.stats is not None and self._folder is not None:
            with self._watch_lock:
                self._watch.follow(event.stats)

    def step(self, event: events.StepDone) -> None:
        assert event.times is not None
        steps = stride(event.step - 1, self._done)
        self._done += 1
        self._next_step = event.step
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
        stages, flushed, is_last = list[StageRow](), time.monotonic(), False
        while not is_last:
            is_last = self._closing.wait(_LOOK_SECONDS)
            with self._watch_lock:
                stages += self._watch.look(self._unix, is_last=is_last)
            if is_last or time.monotonic() - flushed >= _FLUSH_SECONDS:
                self._flush(stages)
                stages, flushed = [], time.monotonic()

    def _flush(self, stages: Sequence[StageRow]) -> None:
        rows = [_row(self._unix, *self._steps.popleft()) for _ in range(len(self._steps))]
        rows += [self._activities.popleft() for _ in range(len(self._activities))]
        self._reports.emit(events.RowsRecorded(sorted(rows, key=lambda row: row.started), stages))


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
