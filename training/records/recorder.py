"""Record where the time of each step goes: rows are gathered on the hot path, and written by a thread."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from .exporter import Exporter
from .record_file import RecordFile
from .record_format import END, STEP, Launch, Row, stride

__all__ = ["Recorder", "Sink", "open_recorder"]

log = logging.getLogger(__name__)

_FLUSH_SECONDS = 1.0

# Of a step: number, epoch, steps that it stands for, Unix times of its begin, its batch and its return, seconds of the
# loop before it, and the stamps of the compiled step, float64 [2], which stay on the device until they are written.
_Step = tuple[int, int, int, float, float, float, float, Any]


class Sink(Protocol):
    """Where rows go, such as a file."""

    def append(self, rows: Sequence[Row]) -> None:
        """Take rows; also called without any."""

    def report(self, entry: Mapping[str, Any]) -> None:
        """Take an entry of the log."""

    def close(self) -> None:
        """Take no more."""


class Recorder:
    """Gathers the rows of one rank, and gives them to sinks each second.

    A sink that fails is left out from then on, with a warning: training continues.

    Args:
        sinks: where rows go.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = list(sinks)
        self._steps: deque[_Step] = deque()  # both may be appended to while the thread takes from them
        self._activities: deque[Row] = deque()
        self._done = 0
        self._last_end = time.time()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write_until_closed, name="ringfeed-records", daemon=True)
        self._thread.start()

    def add_step(self, step: int, epoch: int, asked: float, got: float, returned: float, stamps: Any) -> None:
        """Record a step.

        Args:
            step, epoch: numbers of the step and its epoch, from 0.
            asked, got, returned: Unix times at which the loop asked for the batch and got it, and the step returned.
            stamps: float64 [2], Unix times at which this rank's gradients were ready, and were reduced.
        """
        steps = stride(step, self._done)
        self._done += 1
        if steps:
            self._steps.append((step, epoch, steps, asked, got, returned, asked - self._last_end, stamps))
        self._last_end = returned

    @contextmanager
    def activity(self, name: str, step: int, epoch: int) -> Iterator[None]:
        """Record the time of a block that belongs to no step, such as an evaluation."""
        started = time.time()
        yield
        self._last_end = time.time()
        self._activities.append(
            Row(name, step, epoch, 1, started, 0.0, 0.0, 0.0, 0.0, host_seconds=self._last_end - started)
        )

    def report(self, entry: Mapping[str, Any]) -> None:
        """Give an entry of the log to the sinks."""
        self._to_sinks(lambda sink: sink.report(entry))

    def close(self, step: int, epoch: int) -> None:
        """Write what is left, and that the process ended by itself after so many steps."""
        self._activities.append(Row(END, step, epoch, 1, time.time(), 0.0, 0.0, 0.0, 0.0, 0.0))
        self._closing.set()
        self._thread.join()

    def _write_until_closed(self) -> None:
        while not self._closing.wait(_FLUSH_SECONDS):
            self._flush()
        self._flush()
        self._to_sinks(lambda sink: sink.close())

    def _flush(self) -> None:
        rows = [_row(self._steps.popleft()) for _ in range(len(self._steps))]
        rows += [self._activities.popleft() for _ in range(len(self._activities))]
        rows.sort(key=lambda row: row.started)
        self._to_sinks(lambda sink: sink.append(rows))

    def _to_sinks(self, act: Callable[[Sink], None]) -> None:
        for sink in list(self._sinks):
            try:
                act(sink)
            except Exception as error:
                self._sinks.remove(sink)
                log.warning("no more records of this run are written: %s", error)


def open_recorder(
    folder: str | None, port: int | None, *, rank: int, ranks: int, first_step: int, batch_size: int, total_steps: int
) -> Recorder | None:
    """Start to record a rank; return None if there is neither a folder for records nor a port for metrics.

    Args:
        folder: folder of the records of all ranks.
        port: port of rank 0's metrics.
        rank, ranks, first_step, batch_size, total_steps: see `Launch`.

    Raises:
        ConfigError, TrainingError, OSError: the records cannot be written, or the metrics not be served.
    """
    launch = Launch(
        rank=rank, ranks=ranks, host=socket.gethostname(), first_step=first_step, batch_size=batch_size,
        total_steps=total_steps,
    )  # fmt: skip
    sinks: list[Sink] = []
    if folder is not None:
        sinks.append(RecordFile(folder, launch))
    if port is not None:
        sinks.append(Exporter(port, launch))
    return Recorder(sinks) if sinks else None


def _row(step: _Step) -> Row:
    number, epoch, steps, asked, got, returned, host_seconds, stamps = step
    ready, reduced = stamps.numpy().tolist()
    return Row(
        STEP, number, epoch, steps, asked, got - asked, ready - got, reduced - ready, returned - reduced, host_seconds
    )
