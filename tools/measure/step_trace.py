"""The step from inside: the longest operations of a few steps, copies to the device, and the time between operations.

Recorded by TensorFlow's profiler, or by PyTorch's where the step computes with that. Each recording is a list of spans;
one rule then counts them for any device.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.storage.temporary_folder import temporary_folder
from ringfeed.sharding.storage.untrusted_files import guarded, read_untrusted

from .training_trials import Workload, guarded_step
from .trial import synchronize_devices

_STEPS = 5
_LONGEST = 5
_STEP = "ringfeed step"  # what a recording calls each step
_FILES, _MOST_BYTES = "*.xplane.pb", 1 << 30  # a trace of some steps has a few MB
_OPERATION = re.compile(r"([^:\s]+):(\w+)")  # name and type, as TensorFlow's executor names what it runs
_EAGER = "EagerLocalExecute: "
_CALLS = re.compile(r"__(inference|forward|backward)_|((Stateful)?PartitionedCall|_?XlaRun|XlaLaunch|While|If|Case)$")
_TO_DEVICE = re.compile(r"memcpy ?h(to|2)d", re.IGNORECASE)
_TORCH_KINDS = {"cpu_op": "host", "kernel": "device", "gpu_memset": "device", "gpu_memcpy": "device"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One event of a recording.

    Attributes:
        name: operation, kernel, or copy.
        kind: ``host`` or ``device``, where an operation ran; ``step``: a whole step.
        place: thread of the host, or stream of a device.
        begin, end: seconds of the recording's clock.
    """

    name: str
    kind: str
    place: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationTime:
    """What an operation takes in a step.

    Attributes:
        name: its name.
        calls: how often it runs in a step, on average.
        seconds: of a step, without operations that it calls itself.
        share: `seconds` / seconds of a step; the shares of operations that run at once can exceed 1 together.
    """

    name: str
    calls: float
    seconds: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInside:
    """Where the time of a step goes, on average.

    Attributes:
        profiler: ``TensorFlow`` or ``PyTorch``.
        kind: ``device`` if kernels of a device were recorded; else ``host``, for operations on the cores.
        seconds: seconds of a step, while it is recorded.
        longest: the longest operations, at most five.
        copies: copies from the host to the device.
        gaps: times when none of these ran: the device, or the cores, waited for the program to start one.
    """

    profiler: str
    kind: str
    seconds: float
    longest: tuple[OperationTime, ...]
    copies: OperationTime
    gaps: OperationTime


def trace_step(workload: Workload) -> tuple[StepInside, list[Span]]:
    """Record a few steps on batches held in memory.

    Raises:
        ConfigError: the step fails, or a profiler is at work already.
    """
    step = guarded_step(workload)
    batches = list(islice(chain.from_iterable(map(workload.batches, range(_STEPS))), _STEPS))
    step(batches[0])  # which may compile
    if "torch" in sys.modules:
        spans = _by_torch(step, batches)
        if any(span.kind != "step" for span in spans):
            return look_inside(spans, "PyTorch"), spans
    spans = _by_tensorflow(step, batches)
    return look_inside(spans, "TensorFlow"), spans


def find_trace(folder: str) -> str | None:
    """The newest file that TensorFlow's profiler wrote below a local folder, such as a run's `track.profile`."""
    places = (Path(folder), *Path(folder).glob("plugins/profile/*"))
    return max((str(path) for place in places for path in place.glob(_FILES)), default=None)


def read_trace(path: str) -> tuple[StepInside, list[Span]]:
    """Read a file of TensorFlow's profiler; all that it holds counts as one step.

    Raises:
        ConfigError: it is no such file, or holds no operations.
    """
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    with guarded(path, "a trace by TensorFlow's profiler"):
        spans = list(read_space(xplane_pb2.XSpace.FromString(read_untrusted(path, _MOST_BYTES))))
        if not spans:
            raise ConfigError("no operation ran while it was recorded")
        begin, end = min(span.begin for span in spans), max(span.end for span in spans)
        whole = Span(name=_STEP, kind="step", place="trace", begin=begin, end=end)
        return look_inside([whole, *(span for span in spans if span.kind != "step")], "TensorFlow"), spans


def look_inside(spans: Sequence[Span], profiler: str) -> StepInside:
    """Count the spans of a recording, which has at least one step."""
    steps = [span for span in spans if span.kind == "step"]
    kind = "device" if any(span.kind == "device" for span in spans) else "host"
    seconds = sum(step.end - step.begin for step in steps)

    def average(name: str, times: Sequence[float]) -> OperationTime:
        total = sum(times)
        return OperationTime(
            name=name, calls=len(times) / len(steps), seconds=total / len(steps), share=total / max(seconds, 1e-12)
        )

    by_name: dict[str, list[float]] = defaultdict(list)
    own = [span for span in spans if span.kind == kind]
    for span, time in _own_times(own):
        by_name["copies to the device" if _TO_DEVICE.match(span.name) else span.name].append(time)
    copies = average("copies to the device", by_name.pop("copies to the device", []))
    longest = sorted((average(name, times) for name, times in by_name.items()), key=lambda each: -each.seconds)
    return StepInside(
        profiler=profiler, kind=kind, seconds=seconds / len(steps), longest=tuple(longest[:_LONGEST]), copies=copies,
        gaps=average("no operation", [gap for step in steps for gap in _gaps(step, own)]),
    )  # fmt: skip


def _own_times(spans: Sequence[Span]) -> Iterator[tuple[Span, float]]:
    """Each span, and its seconds without the spans inside it on the same thread."""
    open_spans: list[tuple[Span, list[float]]] = []  # with the seconds of those inside, outermost first
    for span in sorted(spans, key=lambda each: (each.place, each.begin, -each.end)):
        while open_spans and (open_spans[-1][0].place != span.place or open_spans[-1][0].end <= span.begin):
            done, inner = open_spans.pop()
            yield done, done.end - done.begin - sum(inner)
        if open_spans:
            open_spans[-1][1].append(min(span.end, open_spans[-1][0].end) - span.begin)
        open_spans.append((span, []))
    for done, inner in open_spans:
        yield done, done.end - done.begin - sum(inner)


def _gaps(step: Span, spans: Sequence[Span]) -> Iterator[float]:
    """Seconds of a step when no span runs."""
    free = step.begin
    for span in sorted(spans, key=lambda each: each.begin):
        if span.begin >= step.end:
            break
        if free < span.begin:
            yield span.begin - free
        free = max(free, span.end)
    if free < step.end:
        yield step.end - free


def _by_tensorflow(step: Callable[[Any], None], batches: Sequence[Any]) -> list[Span]:
    import tensorflow as tf
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    with temporary_folder() as folder:
        try:
            tf.profiler.experimental.start(str(folder))
        except tf.errors.AlreadyExistsError as error:
            raise ConfigError("a profiler is at work in this process already; stop it, or leave --trace out") from error
        try:
            for batch in batches:
                with tf.profiler.experimental.Trace(_STEP):
                    step(batch)
                    synchronize_devices()
        finally:
            tf.profiler.experimental.stop()
        spaces = [xplane_pb2.XSpace.FromString(path.read_bytes()) for path in Path(folder).rglob(_FILES)]
    return [span for space in spaces for span in read_space(space)]


def read_space(space: Any) -> Iterator[Span]:
    """Yield steps and operations of an `XSpace`, the format of TensorFlow's profiler (`xplane.proto`)."""
    for plane in space.planes:
        on_device = plane.name.startswith("/device:")
        streams = [line for line in plane.lines if line.name.startswith("Stream")]  # of a GPU; others repeat them
        operations = [line for line in plane.lines if line.name == "XLA Ops"]  # of a TPU
        for line in (streams or operations) if on_device else plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                if not on_device:
                    stats = {plane.stat_metadata[stat.metadata_id].name for stat in event.stats}
                    name = name if "hlo_op" in stats or name == _STEP else _operation(name)
                begin = line.timestamp_ns * 1e-9 + event.offset_ps * 1e-12
                kind = "step" if name == _STEP else "device" if on_device else "host"
                if name and event.duration_ps:
                    place = f"{plane.name} {line.name or line.id}"
                    yield Span(name=name, kind=kind, place=place, begin=begin, end=begin + event.duration_ps * 1e-12)


def _operation(name: str) -> str:
    """The operation that an event on the host is; empty if it is none, or calls others that have events.

    The stages of a loader are none.

    >>> names = ("model/dense/MatMul:_MklMatMul", "EagerLocalExecute: Sin", "FunctionRun", "ringfeed:gather")
    >>> [_operation(name) for name in names]
    ['model/dense/MatMul', 'Sin', '', '']
    """
    if name.startswith(_EAGER):
        operation = kind = name.removeprefix(_EAGER)
    else:
        found = _OPERATION.fullmatch(name)
        operation, kind = found.groups() if found else ("", "")
    return "" if operation == "ringfeed" or _CALLS.match(kind) else operation


def _by_torch(step: Callable[[Any], None], batches: Sequence[Any]) -> list[Span]:
    import torch

    with torch.profiler.profile() as recorded:
        for batch in batches:
            with torch.profiler.record_function(_STEP):
                step(batch)
                synchronize_devices()
    with temporary_folder() as folder:
        path = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        return list(read_events(json.loads(path.read_text())["traceEvents"]))


def read_events(events: Sequence[Mapping[str, Any]]) -> Iterator[Span]:
    """Yield steps and operations of a trace by PyTorch's profiler, in Chrome's trace event format."""
    for event in events:
        category = event.get("cat", "")
        is_step = event["name"] == _STEP and category == "user_annotation"
        kind = "step" if is_step else _TORCH_KINDS.get(category)
        if kind and event["ph"] == "X":
            begin, place = event["ts"] * 1e-6, f"{kind} {event['tid']}"
            yield Span(name=event["name"], kind=kind, place=place, begin=begin, end=begin + event["dur"] * 1e-6)
