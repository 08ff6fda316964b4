"""Batches as NumPy arrays, without TensorFlow: the samples, values and dtypes of `Loader.epoch`."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.pipeline.decode.columns import Column, Columns, copy_views, filled_columns, slice_columns, views_of
from ringfeed.pipeline.decode.tfrecord_frames import join_frames
from ringfeed.pipeline.metrics.stage_counters import Counters
from ringfeed.pipeline.select.sample_columns import EXAMPLES
from ringfeed.sharding.dataset.consistency import corruption_errors
from ringfeed.sharding.errors import RingfeedError
from ringfeed.sharding.formats.arrow_binary import data_of, offsets_of
from ringfeed.sharding.formats.example_decode import decode_examples
from ringfeed.sharding.formats.tfrecord import FOOTER_BYTES, HEADER_BYTES
from ringfeed.sharding.schema import Feature, Schema

from .background_iterator import prefetch
from .malloc import keep_freed_memory

Array = npt.NDArray[Any]


class Ragged(NamedTuple):
    """Rows of variable length, end to end, as `tf.RaggedTensor` holds them.

    Attributes:
        values: values of all rows, [sum(row_lengths)].
        row_lengths: number of values in each row, int64 [rows].

    >>> [row.tolist() for row in Ragged(np.array([1, 2, 3]), np.array([2, 0, 1])).rows()]
    [[1, 2], [], [3]]
    """

    values: Array
    row_lengths: npt.NDArray[np.int64]

    def rows(self) -> list[Array]:
        """Each row, as a view of the values."""
        return np.split(self.values, np.cumsum(self.row_lengths)[:-1]) if len(self.row_lengths) else []


NumpyBatch = dict[str, "Array | Ragged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """Some batches, made when they are taken, and the bytes that they take in memory."""

    batches: Iterable[Any]
    size: int


def iterate_numpy(
    chunks: Generator[tuple[int, Columns], None, None],
    stored: Schema,
    schema: Schema,
    fill: Mapping[str, Any],
    *,
    counters: Counters,
    prefetch_bytes: int,
    large: int,
    transform: Callable[[NumpyBatch], Any] | None = None,
) -> Generator[NumpyBatch, None, None]:
    """The batches of chunks, which a background thread gathers and decodes ahead.

    Args:
        chunks: chunks of steps; see `BaseLoader._chunks`.
        stored: schema of the dataset.
        schema: the features to deliver.
        fill: value for missing values, by feature.
        counters: the loader's counters.
        prefetch_bytes: limit of decoded batches that wait for the consumer; 0 for no thread.
        transform: function of each batch, for the background thread; None for none.
        large: steps to decode at a time, of chunks of large records, which hold the addresses of many batches; else 0.

    Raises:
        RingfeedError: the iterator was started before this process was forked.
    """
    process = os.getpid()

    def ready() -> Generator[_Ready, None, None]:
        for steps, columns in chunks:
            for taken, piece in _pieces(columns, steps, large or steps):
                size = _columns_bytes(piece)
                with counters.busy("deliver", size=size):
                    whole = _decode_messages(join_frames(piece), stored, schema, fill)
                    whole = {name: _copied(values) for name, values in whole.items()}
                batches = _batches(whole, taken, schema)
                if transform is None:
                    yield _Ready(batches=batches, size=size)
                    continue
                for batch in batches:
                    transformed = transform(batch)
                    yield _Ready(batches=[transformed], size=_batch_bytes(transformed))

    def queued(change: int) -> None:
        counters.add("deliver", queue=change)

    if large:
        keep_freed_memory()
    for item in prefetch(ready(), lambda item: item.size, prefetch_bytes, queued):
        for batch in item.batches:
            yield batch
            if os.getpid() != process:
                raise RingfeedError(
                    "this iterator was begun in the process that this one was forked from, and its threads do not run "
                    "in a fork; make one here: loader.numpy_epoch(epoch, start_step)"
                )


def _pieces(columns: Columns, steps: int, most: int) -> Iterator[tuple[int, Columns]]:
    """A chunk cut into pieces of `most` steps, and the steps of each."""
    rows = len(next(iter(columns.values()))) // steps
    for first in range(0, steps, most):
        last = min(first + most, steps)
        yield last - first, slice_columns(columns, first * rows, last * rows)


def _copied(values: Column) -> Column:
    """Views of strings in a file as `bytes` objects [values]; other columns as they are."""
    return copy_views(values) if _has_views(values) else values


def _has_views(values: Column) -> bool:
    return isinstance(values, pa.Array) and pa.types.is_binary_view(values.type)


def _decode_messages(columns: Columns, stored: Schema, schema: Schema, fill: Mapping[str, Any]) -> Columns:
    """Decode the column `EXAMPLES`, if there is one, into features; other columns stay as they are.

    Args:
        columns: gathered columns.
        stored: schema of the dataset, in whose order the records hold their features.
        schema: the features to decode.
        fill: value for missing values, by feature.
    """
    if EXAMPLES not in columns:
        return columns
    frames: Any = columns[EXAMPLES]
    offsets, data = offsets_of(frames), np.frombuffer(data_of(frames), np.uint8)
    starts, ends = offsets[:-1] + HEADER_BYTES, offsets[1:] - FOOTER_BYTES
    with corruption_errors("a record"):
        table = pa.Table.from_batches([decode_examples(data, starts, ends, stored, schema.names, wide=True)])
        decoded = filled_columns(table, schema, fill)
    return {**decoded, **{name: values for name, values in columns.items() if name != EXAMPLES}}


def _batches(columns: Columns, steps: int, schema: Schema) -> Iterator[NumpyBatch]:
    """The batches of a chunk: decoded columns of ``steps * batch`` rows, step after step."""
    for _, batch in _pieces(columns, steps, 1):
        yield numpy_batch(batch, schema)


def numpy_batch(columns: Columns, schema: Schema) -> NumpyBatch:
    """Return decoded columns as a batch.

    Args:
        columns: decoded columns, of the features of the schema and others that are NumPy arrays.
        schema: features in the batch.

    Returns:
        By feature: numbers as writable arrays [batch, *shape] of the feature's dtype; strings and bytes as arrays of
        `bytes` objects, as from TensorFlow's tensors; features of variable length as `Ragged`.
    """
    return {
        name: _writable(values) if isinstance(values, np.ndarray) else _from_arrow(values, schema[name])
        for name, values in columns.items()
    }


def _columns_bytes(columns: Columns) -> int:
    """Size of the columns in memory, with the strings that are viewed."""
    return sum(
        int(views_of(values)["length"].sum(dtype=np.int64)) if _has_views(values) else int(values.nbytes)
        for values in columns.values()
    )


def _batch_bytes(batch: Any) -> int:
    """Size of a transformed batch in memory, as far as it holds arrays."""
    values = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else [batch]
    return sum(int(getattr(value, "nbytes", 0)) for value in values)


def _from_arrow(values: Any, feature: Feature) -> Array | Ragged:
    if feature.elements is None:
        lengths = pc.list_value_length(values).to_numpy(zero_copy_only=False).astype(np.int64)
        return Ragged(_flat(pc.list_flatten(values), feature), lengths)
    if feature.shape == ():
        return _flat(values, feature)
    return _flat(pc.list_flatten(values), feature).reshape(len(values), *(feature.fixed_shape or ()))


def _flat(values: Any, feature: Feature) -> Array:
    if not feature.numeric:
        return _objects(values.cast(pa.large_binary()).to_pylist())
    return _writable(values.to_numpy(zero_copy_only=False))


def _objects(values: Sequence[bytes]) -> Array:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _writable(values: Array) -> Array:
    """The values, copied if they are Arrow's, whose memory is read-only: `torch.from_numpy` warns about that."""
    return values if values.flags.writeable else values.copy()
