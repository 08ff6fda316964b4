"""Traces that Perfetto (https://ui.perfetto.dev) and Chrome open: of a run, with a process for each rank, or of a step.

The format is Chrome's Trace Event Format: complete events (``X``) with times in microseconds, which nest by time,
counters (``C``), and metadata events (``M``) that name processes and threads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ringfeed.tools.measure.run_records import RunRecords
from ringfeed.tools.measure.step_trace import Span
from ringfeed.training.run.state.outputs import write_file

_GAP_SECONDS = 0.001  # between two looks at a stage that worked in both
_LOOP, _PARTS, _OTHER = 1, 2, 3
_THREADS = {_LOOP: "steps", _PARTS: "parts of steps", _OTHER: "evaluation and checkpoints"}


def write_trace(records: RunRecords, url: str) -> None:
    """Write the trace of a run to a path or URL.

    Raises:
        StorageError: it cannot be written.
    """
    _write(list(trace_events(records)), url)


def _write(events: Sequence[dict[str, Any]], url: str) -> None:
    document = {"displayTimeUnit": "ms", "traceEvents": events}
    write_file(url, json.dumps(document, separators=(",", ":")).encode())


def write_step_trace(spans: Sequence[Span], url: str) -> None:
    """Write a recording of a few steps to a path or URL, with a thread for each thread or stream.

    Raises:
        StorageError: it cannot be written.
    """
    places = {place: number for number, place in enumerate(sorted({span.place for span in spans}))}
    origin = min(span.begin for span in spans)
    events = [_named("thread_name", 0, number, place) for place, number in places.items()]
    events += [
        _slice(span.name, 0, places[span.place], span.begin - origin, span.end - span.begin, {}) for span in spans
    ]
    _write(events, url)


def trace_events(records: RunRecords) -> Iterator[dict[str, Any]]:
    """Yield the events of a run, in the trace event format.

    Each step is a slice, with its parts as slices on a thread below. The time zero is the first recorded step. The
    clocks of ranks are aligned by the ends of the all-reduces, which are the same for all. Counters show how many
    threads worked in each stage of the loader.
    """
    shifts = _clock_shifts(records)
    origin = float((records.started[:, 0] + shifts).min()) if records.steps.size else 0.0
    for place, launch in enumerate(records.launches):
        yield _named("process_name", launch.rank, 0, f"rank {launch.rank} ({launch.host})")
        for thread, name in _THREADS.items():
            yield _named("thread_name", launch.rank, thread, name)
        yield from _step_events(records, place, float(shifts[place]) - origin)
        yield from _stage_events(records.stages[place], launch.rank, float(shifts[place]) - origin)
    for each in records.activities:
        shift = float(shifts[records.ranks.index(each.rank)]) - origin
        yield _slice(each.name, each.rank, _OTHER, each.started + shift, each.seconds, {"step": each.step})


def _step_events(records: RunRecords, place: int, shift: float) -> Iterator[dict[str, Any]]:
    rank = records.launches[place].rank
    for i, step in enumerate(records.steps.tolist()):
        parts = {
            "wait for input": records.input_seconds[place, i],
            "forward and backward": records.gradient_seconds[place, i],
            "all-reduce": records.collective_seconds[place, i],
            "update": records.update_seconds[place, i],
        }
        begin = float(records.started[place, i]) + shift
        arguments = {"step": step, "epoch": int(records.epochs[i])}
        yield _slice(f"step {step}", rank, _LOOP, begin, float(sum(parts.values())), arguments)
        for name, seconds in parts.items():
            yield _slice(name, rank, _PARTS, begin, float(seconds), {"step": step})
            begin += float(seconds)


def _stage_events(stages: pa.Table, rank: int, shift: float) -> Iterator[dict[str, Any]]:
    """A track for each stage: threads at work since the look before, and what they began and did not hand on."""
    last: dict[str, float] = {}
    for row in stages.to_pylist():
        name = " ".join(filter(None, ("loader", row["dataset"], row["stage"])))
        begin, end = row["started"] + shift, row["started"] + shift + row["seconds"]
        if abs(last.get(name, begin) - begin) > _GAP_SECONDS:  # nothing was done meanwhile
            yield _counter(name, rank, last[name], 0.0, 0)
        busy = row["busy_seconds"] / max(row["seconds"], 1e-9)
        yield _counter(name, rank, begin, busy, row["queue_depth"])
        last[name] = end
    for name, end in last.items():
        yield _counter(name, rank, end, 0.0, 0)


def _counter(name: str, rank: int, begin: float, threads: float, queued: int) -> dict[str, Any]:
    values = {"threads": round(threads, 3), "queued": queued}
    return {"ph": "C", "name": name, "cat": "ringfeed", "pid": rank, "ts": round(1e6 * begin, 3), "args": values}


def _clock_shifts(records: RunRecords) -> Any:
    """Seconds to add to the clock of each rank, float64 [ranks], for all-reduces to end with those of the first."""
    ends = records.started + records.input_seconds + records.gradient_seconds + records.collective_seconds
    return np.median(ends[:1] - ends, axis=1) if records.steps.size else np.zeros(len(records.launches))


def _slice(
    name: str, rank: int, thread: int, begin: float, seconds: float, arguments: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X", "name": name, "cat": "ringfeed", "pid": rank, "tid": thread,
        "ts": round(1e6 * begin, 3), "dur": round(1e6 * max(seconds, 0.0), 3), "args": arguments,
    }  # fmt: skip


def _named(kind: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": rank, "tid": thread, "args": {"name": name}}
