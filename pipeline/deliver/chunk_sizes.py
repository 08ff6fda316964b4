"""How many steps cross into TensorFlow at once, and how many batches wait there, by the size of a record.

Tested in tests/pipeline/deliver/test_to_tensorflow.py and tests/pipeline/deliver/test_to_numpy.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

_CHUNK_BYTES = 8 << 20  # per crossing into TensorFlow: 4 MiB takes 1.1 times as long, 2 MiB 1.35 (2026-11-21)
_LARGE_STRINGS = (
    512  # bytes; `large_record` where a record is strings with a few numbers: 1.3 to 2.0 times as fast (2026-11-28)
)
_FEW_NUMBERS = 4  # with 40, locating them takes NumPy 1.4 times as long as decoding chunks
_LARGE_STEPS = 32  # most steps of addresses in a chunk
_LARGE_CHUNK_BYTES = 64 << 20  # at their addresses: the first batch of a chunk waits for the windows of all
_READY_BYTES = 16 << 20  # so that one crossing's batches can be made while the last one's are consumed
_READY_BATCHES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSizes:
    """Sizes for the records of one dataset."""

    record_bytes: int  # mean bytes of a delivered record
    undecoded: bool  # whether TensorFlow parses whole examples
    ragged: bool  # whether a feature varies in length
    numbers: int  # numbers in a delivered record; features of varying length do not count
    most_steps: int = 64  # most steps of a chunk
    large_record: int = 4096  # bytes from which undecoded records cross one at a time, by their addresses
    large_bytes: int = 8 << 20  # bytes of large records that cross together

    @property
    def large(self) -> bool:
        """Whether undecoded records are so long that they cross faster one at a time."""
        least = _LARGE_STRINGS if self.numbers <= _FEW_NUMBERS and not self.ragged else self.large_record
        return self.undecoded and self.record_bytes >= min(least, self.large_record)

    def chunk_steps(self, local_batch: int) -> int:
        """Steps of `local_batch` samples in a chunk."""
        if self.ragged and not self.undecoded:
            return 1
        limit, most = (_LARGE_CHUNK_BYTES, _LARGE_STEPS) if self.large else (_CHUNK_BYTES, self.most_steps)
        return self._steps(limit, local_batch, 1, most)

    def large_steps(self, local_batch: int) -> int:
        """Steps that cross together where records cross one at a time; 0 where they do not."""
        return self._steps(self.large_bytes, local_batch, 1, _LARGE_STEPS) if self.large else 0

    def ready_batches(self, local_batch: int) -> int:
        """Batches that TensorFlow keeps ready."""
        return self._steps(_READY_BYTES, local_batch, 2, _READY_BATCHES)

    def _steps(self, limit_bytes: int, local_batch: int, least: int, most: int) -> int:
        return int(np.clip(limit_bytes // (self.record_bytes * local_batch), least, most))


def chunk_ranges(start: int, stop: int, most: int, first: int = 1) -> Iterator[range]:
    """The steps of each chunk: each has twice as many as the last, so that the first batch waits for its own data only.

    Args:
        start: first step.
        stop: just past the last step.
        most: most steps of a chunk.
        first: steps of the first chunk.

    >>> [(chunk.start, chunk.stop) for chunk in chunk_ranges(10, 30, 8)]
    [(10, 11), (11, 13), (13, 17), (17, 25), (25, 30)]
    """
    steps = min(first, most)
    while start < stop:
        yield range(start, min(start + steps, stop))
        start, steps = start + steps, min(2 * steps, most)
