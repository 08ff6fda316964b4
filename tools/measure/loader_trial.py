"""The trial of the loader alone: an epoch read as fast as it comes, and discarded."""

from __future__ import annotations

import math
import resource
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

from ringfeed.pipeline import Loader
from ringfeed.tools.console import stage_progress
from ringfeed.tools.signals import deferred_signals

from .estimates import Estimate, estimate, window_rates

_BLOCK_BYTES = 512  # of a block as getrusage counts them
_SAMPLE_SECONDS = 0.05  # between two looks at the queues: a look takes 20 us
_MOST_LOOKS = 400
_PARTS = 10
_CALIBRATION = 200  # repetitions of what the loop does beside waiting for batches


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderTrial:
    """An epoch of the loader, or a part of it.

    Attributes:
        steps: batches that were read.
        first_batch_seconds: seconds until the first of them.
        seconds: seconds after it.
        decoded_bytes: decoded bytes after it.
        disk_bytes: bytes read from local disks.
        rates: samples a second in each of up to ten parts of `seconds`.
        depths: seconds since the start, and the shards that were being fetched or waited to be.
        fetch_rates: bytes fetched a second in each of up to ten parts of the whole time.
        own_seconds: seconds that the measurement itself took meanwhile.
        first_batch: the first batch.
    """

    steps: int
    first_batch_seconds: float
    seconds: float
    decoded_bytes: int
    disk_bytes: int
    rates: tuple[float, ...] = ()
    depths: tuple[tuple[float, int], ...] = ()
    fetch_rates: tuple[float, ...] = ()
    own_seconds: float = 0.0
    first_batch: Mapping[str, Any] | None = None

    def epoch_seconds(self, loader: Loader) -> float:
        """Seconds of a whole epoch of the loader, at the measured rates."""
        later = self.seconds / (self.steps - 1) * (loader.steps_per_epoch - 1)
        return self.first_batch_seconds + later

    def samples_per_second(self, loader: Loader) -> float:
        """Rate after the first batch."""
        return (self.steps - 1) * loader.local_batch_size / self.seconds

    def estimate(self, loader: Loader) -> Estimate:
        """The rate after the first batch, with its interval."""
        return estimate(self.samples_per_second(loader), self.rates)


def try_loader(loader: Loader, seconds: float, *, steps: int | None, progress: bool = False) -> LoaderTrial:
    """Read an epoch and discard it.

    Args:
        loader: the loader.
        seconds: time after which an epoch ends early, though not before its second batch.
        steps: number of batches to read instead, however long they take; after the end of an epoch, the next follows.
        progress: whether to show a progress bar.
    """
    with deferred_signals() as deliver_signals:
        return _read(loader, seconds, steps, progress, deliver_signals)


def _read(
    loader: Loader, seconds: float, steps: int | None, progress: bool, deliver_signals: Callable[[], None]
) -> LoaderTrial:
    total = max(steps or loader.steps_per_epoch, 2)
    ragged = _ragged_names(loader.epoch(0).element_spec)  # TensorFlow is imported here, before the clock starts
    epoch = decoded_bytes = 0
    first_batch: Mapping[str, Any] = {}
    disk_bytes = _disk_bytes()
    queues = _QueueWatch(loader)
    start = now = time.perf_counter()
    times: list[float] = []
    end = math.inf if steps else start + seconds
    with queues, stage_progress({"read": "read"}, silent=not progress) as report:
        report("read", 0, total, 0)  # starts its clock
        while len(times) < total and (now < end or len(times) < 2):
            for batch in islice(loader.batches(epoch), total - len(times)):
                deliver_signals()
                now = time.perf_counter()
                times.append(now)
                if len(times) == 1:
                    first_batch = batch
                    continue
                for name in ragged:
                    decoded_bytes += _tensor_bytes(batch[name])
                if len(times) % 64 == 0 or len(times) == total:
                    report("read", len(times), total, len(times) * loader.local_batch_size)
                if now >= end:
                    break
            epoch += 1
    equal_bytes = sum(
        _string_bytes(values) + (0 if name in ragged else _tensor_bytes(values)) for name, values in first_batch.items()
    )
    return LoaderTrial(
        steps=len(times), first_batch_seconds=times[0] - start, seconds=now - times[0],
        decoded_bytes=decoded_bytes + (len(times) - 1) * equal_bytes, disk_bytes=_disk_bytes() - disk_bytes,
        rates=window_rates(times, loader.local_batch_size),
        depths=tuple((seconds, depth) for seconds, depth, _ in queues.looks), fetch_rates=queues.fetch_rates(),
        first_batch=first_batch, own_seconds=queues.own_seconds + len(times) * _loop_seconds(first_batch, ragged),
    )  # fmt: skip


class _QueueWatch:
    """Notes now and then how many shards are being fetched, in a thread of its own."""

    def __init__(self, loader: Loader) -> None:
        self.looks: list[tuple[float, int, int]] = []  # seconds, shards and bytes fetched since the start
        self.own_seconds = 0.0
        self._loader = loader
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ringfeed-profile-queues", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def fetch_rates(self) -> tuple[float, ...]:
        """Bytes fetched a second in up to ten parts of the time in which shards came."""
        last = max((number for number, look in enumerate(self.looks) if look[1]), default=-1)
        parts = min(_PARTS, last)
        cuts = [round(number * last / parts) for number in range(parts + 1)] if parts > 0 else []
        looks = [self.looks[cut] for cut in cuts]
        return tuple(
            (after[2] - before[2]) / (after[0] - before[0]) for before, after in pairwise(looks) if after[2] > before[2]
        )

    def _watch(self) -> None:
        start, pause = time.perf_counter(), _SAMPLE_SECONDS
        before = self._loader.stats()["fetch"].bytes
        while not self._ended.wait(pause):
            fetch = self._loader.stats()["fetch"]
            self.looks.append((time.perf_counter() - start, fetch.queue_depth, fetch.bytes - before))
            if len(self.looks) == _MOST_LOOKS:
                del self.looks[::2]
                pause *= 2
        self.own_seconds = time.thread_time()


def _loop_seconds(batch: Mapping[str, Any], ragged: list[str]) -> float:
    """Seconds that the measuring loop spends on each batch itself."""
    times: list[float] = []
    start = time.perf_counter()
    for _ in range(_CALIBRATION):
        times.append(time.perf_counter())
        for name in ragged:
            _tensor_bytes(batch[name])
    return (time.perf_counter() - start) / _CALIBRATION


def _ragged_names(spec: Mapping[str, Any]) -> list[str]:
    """The features whose batches differ in size."""
    return [name for name, each in spec.items() if hasattr(each, "ragged_rank") or not each.shape.is_fully_defined()]


def _tensor_bytes(values: Any) -> int:
    """Bytes of a tensor's elements of fixed size."""
    flat = getattr(values, "flat_values", values)
    return int(flat.shape.num_elements() or 0) * int(flat.dtype.size)


def _string_bytes(values: Any) -> int:
    """Bytes of a tensor's strings. Counting them in every batch would take as long as reading small batches."""
    import tensorflow as tf

    flat = getattr(values, "flat_values", values)
    return int(tf.reduce_sum(tf.cast(tf.strings.length(flat), tf.int64))) if flat.dtype == tf.string else 0


def _disk_bytes() -> int:
    """Bytes that this process has read from local disks, mapped files included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_inblock * _BLOCK_BYTES
