"""The trial of the loader alone: an epoch read as fast as it comes, and discarded."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...pipeline import Loader
from ..console import stage_progress
from ..signals import deferred_signals

__all__ = ["LoaderTrial", "try_loader"]

_BLOCK_BYTES = 512  # of a block as getrusage counts them


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderTrial:
    """Steps, seconds until the first batch and after it, decoded bytes after it, and bytes read from local disks."""

    steps: int
    first_batch_seconds: float
    seconds: float
    decoded_bytes: int
    disk_bytes: int

    def epoch_seconds(self, loader: Loader) -> float:
        """Seconds of a whole epoch of the loader, at the measured rates."""
        later = self.seconds / (self.steps - 1) * (loader.steps_per_epoch - 1)
        return self.first_batch_seconds + later


def try_loader(loader: Loader, seconds: float, *, steps: int | None, progress: bool) -> LoaderTrial:
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
    dataset = loader.epoch(0).take(total)  # TensorFlow is imported here, before the clock starts
    done = epoch = decoded_bytes = 0
    first_batch: Mapping[str, Any] = {}
    disk_bytes = _disk_bytes()
    start = first = now = time.perf_counter()
    end = math.inf if steps else start + seconds
    with loader.own_errors(), stage_progress({"read": "read"}, silent=not progress) as report:
        report("read", 0, total, 0)  # starts its clock
        while done < total and (now < end or done < 2):
            for batch in dataset:
                deliver_signals()
                done, now = done + 1, time.perf_counter()
                if done == 1:
                    first, first_batch = now, batch
                    continue
                decoded_bytes += sum(map(_tensor_bytes, batch.values()))
                if done % 64 == 0 or done == total:
                    report("read", done, total, done * loader.local_batch_size)
                if now >= end:
                    break
            epoch += 1
            dataset = loader.epoch(epoch).take(total - done)
    return LoaderTrial(
        steps=done,
        first_batch_seconds=first - start,
        seconds=now - first,
        decoded_bytes=decoded_bytes + (done - 1) * sum(map(_string_bytes, first_batch.values())),
        disk_bytes=_disk_bytes() - disk_bytes,
    )


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
