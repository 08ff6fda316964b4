"""A loader that repeats one chunk: the fastest input there could be, to measure what handing batches over costs.

Tested in tests/tools/profile/test_measure.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from .base_loader import BaseLoader
from .decode.columns import Columns, slice_columns

AnyLoader = TypeVar("AnyLoader", bound=BaseLoader)


def repeated_chunk(loader: AnyLoader) -> AnyLoader:
    """A copy of a loader whose epochs repeat one whole chunk: as long, as fast as hand-over allows, and read once.

    Args:
        loader: the loader to copy; it is not changed.

    Raises:
        RingfeedError: the chunk cannot be read.
    """
    chunks = loader._chunks(0, 0, locate_features=loader.locates_features)
    steps, columns = next(chunks)
    while steps < loader.chunk_steps and (chunk := next(chunks, None)) is not None:  # chunks grow up to that many
        steps, columns = max((steps, columns), chunk, key=lambda sized: sized[0])
    chunks.close()
    total = loader.steps_per_epoch

    def repeat(epoch: int, start_step: int = 0, epochs: int = 1, **_: bool) -> Iterator[tuple[int, Columns]]:
        for step in range(start_step, epochs * total, steps):
            rest = min(steps, epochs * total - step)
            yield rest, columns if rest == steps else slice_columns(columns, 0, rest * loader.local_batch_size)

    other = loader._copy()
    vars(other)["_chunks"] = repeat
    return other
