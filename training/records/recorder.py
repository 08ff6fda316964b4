"""Record where the time of each step goes: rows are gathered on the hot path, and written by a thread."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from .exporter import Exporter
from .record_file import RecordFile
from .record_format import END, STEP, Launch, Row, stride

__all__ = ["Recorder", "Sink", "StepTimes", "open_recorder"]

log = logging.getLogger(__name__)

_FLUSH_SECONDS = 1.0


class StepTimes(NamedTuple):
    """Times of one step, by `time.monotonic`: a host's clock may be set back meanwhile.

    Attributes:
        asked: the loop asked for the batch.
        got: it got the batch.
        returned: the compiled step returned.
        synchronised: the ranks were synchronised, where that takes more than the compiled step.
        stamps: this rank's gradients were ready, and were reduced: float64 [2], which stays on the device until it is
            written.
    """

    asked: float
    got: float
    returned: float
    synchronised: float
    stamps: Any


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
        self._steps: deque[tuple[int, int, int, StepTimes, float]] = (
            deque()
        )  # both may be appended to while the thread takes from them
        self._activities: deque[Row] = deque()
        self._done = 0
        self._last_end = time.monotonic()
        self._unix = time.time() - self._last_end  # wall time at monotonic 0; taken once, so that rows stay in order
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write_until_closed, name="ringfeed-records", daemon=True)
        self._thread.start()

    def add_step(self, step: int, epoch: int, times: StepTimes) -> None:
        """Record a step of an epoch, both counted from 0."""
        steps = stride(step, self._done)
        self._done += 1
        if steps:
            self._steps.append((step, epoch, steps, times, times.asked - self._last_end))
        self._last_end = times.synchronised

    @contextmanager
    def activity(self, name: str, step: int, epoch: int) -> Iterator[None]:
        """Record the time of a block that belongs to no step, such as an evaluation."""
        started = time.monotonic()
        yield
        self._last_end = time.monotonic()
        seconds = self._last_end - started
        self._activities.append(Row(name, step, epoch, 1, self._unix + started, 0.0, 0.0, 0.0, 0.0, seconds))

    def report(self, entry: Mapping[str, Any]) -> None:
        """Give an entry of the log to the sinks."""
        self._to_sinks(lambda sink: sink.report(entry))

    def close(self, step: int, epoch: int) -> None:
        """Write the rows that are left, and one that says at which step and epoch the process ended by itself."""
        self._activities.append(Row(END, step, epoch, 1, self._unix + time.monotonic(), 0.0, 0.0, 0.0, 0.0, 0.0))
        self._closing.set()
        self._thread.join()

    def _write_until_closed(self) -> None:
        while not self._closing.wait(_FLUSH_SECONDS):
            self._flush()
        self._flush()
        self._to_sinks(lambda sink: sink.close())

    def _flush(self) -> None:
        rows = [_row(self._unix, *self._steps.popleft()) for _ in range(len(self._steps))]
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


def _row(unix: float, number: int, epoch: int, steps: int, times: StepTimes, host_seconds: float) -> Row:
    """Return the row of a step; `unix` is the Unix time of monotonic 0."""
    ready, reduced = times.stamps.numpy().tolist()
    return Row(
        activity=STEP,
        step=number,
        epoch=epoch,
        steps=steps,
        started=unix + times.asked,
        input_seconds=times.got - times.asked,
        gradient_seconds=ready - times.got,
        collective_seconds=reduced - ready + times.synchronised - times.returned,
        update_seconds=times.returned - reduced,
        host_seconds=host_seconds,
    )
