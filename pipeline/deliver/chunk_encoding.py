"""Chunks of columns as they cross from Python into TensorFlow, with their types there."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf

from ringfeed.pipeline.decode.columns import Column, Columns, copy_views, locate_views, slice_columns
from ringfeed.pipeline.decode.tfrecord_frames import join_frames
from ringfeed.pipeline.select.sample_columns import CLASS_ID, EXAMPLES
from ringfeed.sharding.formats.arrow_binary import data_of, offsets_of
from ringfeed.sharding.formats.tfrecord import FOOTER_BYTES, HEADER_BYTES
from ringfeed.sharding.schema import Feature, Schema

from .operations import copy_views_operation

ADDRESSES, LENGTHS = "\0addresses", "\0lengths"
"""Ends of the names of columns that hold the addresses and lengths of another column's values."""

_MARGINS = {EXAMPLES: {"before": HEADER_BYTES, "after": FOOTER_BYTES}}

Batch = dict[str, Any]
Specs = dict[str, tf.TensorSpec]


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """How columns cross into TensorFlow and become batches there."""

    schema: Schema  # the features to deliver
    fill: Mapping[str, Any]  # value for missing values, by feature
    local_batch: int  # samples of this rank in a step
    undecoded: bool  # whether the columns hold whole examples, to be parsed in TensorFlow
    # Columns beside the features and `CLASS_ID`, with the dtype of one sample's entry
    added: Mapping[str, npt.DTypeLike]
    # Steps that cross together where strings, or undecoded examples, are so long that they cross faster one at a time;
    # else 0
    large: int
    single: bool  # whether each chunk is one step, which then crosses as a batch and needs no cutting up
    prefetch: int  # batches to keep ready

    @property
    def ragged(self) -> list[Feature]:
        """Features of variable length that cross as flat values and lengths."""
        return [] if self.undecoded else [feature for feature in self.schema.features if feature.elements is None]

    @property
    def crosses_as_batch(self) -> bool:
        """Whether a chunk crosses as the one batch that it is."""
        return self.single and not (self.undecoded or self.ragged or self.large)


class ChunkEncoder:
    """Encodes chunks for a delivery, on both sides of the crossing.

    Args:
        delivery: how columns are delivered.

    Attributes:
        signature: types of what crosses.
        located: types of the string columns that cross as `ADDRESSES` and `LENGTHS`, and are copied in TensorFlow.
    """

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._copy = copy_views_operation() if delivery.large else None
        self.signature = _signature(delivery)
        self.located: Specs = {}
        if self._copy is not None:
            self.located = {name: spec for name, spec in self.signature.items() if spec.dtype == tf.string}
        for name, spec in self.located.items():
            del self.signature[name]
            self.signature |= {name + end: tf.TensorSpec(spec.shape, tf.int64) for end in (ADDRESSES, LENGTHS)}

    def encode(self, columns: Columns, steps: int) -> Batch:
        """A chunk whole: arrays [steps, local_batch, ...], or flat values and lengths."""
        schema, local_batch = self._delivery.schema, self._delivery.local_batch
        chunk: Batch = {}
        for name, values in join_frames(columns).items():
            if isinstance(values, np.ndarray):
                chunk[name] = values.reshape(steps, local_batch, *values.shape[1:])
            elif name == EXAMPLES:
                chunk[EXAMPLES], chunk[LENGTHS] = _join_binary(values)
            elif schema[name].elements is None:
                chunk[name] = _to_numpy(pc.list_flatten(values))
                chunk[name + LENGTHS] = pc.list_value_length(values).to_numpy().astype(np.int64)
            else:
                chunk[name] = _to_numpy(values).reshape(steps, local_batch, *(schema[name].fixed_shape or ()))
        return {name: values[0] for name, values in chunk.items()} if self._delivery.crosses_as_batch else chunk

    def encode_large(self, columns: Columns, steps: int) -> Iterator[Batch]:
        """A chunk of long strings, a few steps at a time, each string copied as late as possible and once.

        Strings cross as addresses where TensorFlow copies them (`columns` keeps them in memory until then), else as
        `bytes` objects. Short strings cross faster joined, which copies each four times.
        """
        local_batch, large = self._delivery.local_batch, self._delivery.large
        addressed = _with_addresses(columns, self.located)
        for first in range(0, steps, large):
            rows = slice_columns(addressed, first * local_batch, min(first + large, steps) * local_batch)
            crossing = {
                name: values if isinstance(values, np.ndarray) else copy_views(values, **_MARGINS.get(name, {}))
                for name, values in rows.items()
            }
            yield {name: values.reshape(-1, local_batch, *values.shape[1:]) for name, values in crossing.items()}

    def copy_located(self, chunk: Batch) -> Batch:
        """Copy the strings at the addresses of a chunk, in TensorFlow."""
        assert self._copy is not None
        copies = {
            name: tf.ensure_shape(self._copy(chunk.pop(name + ADDRESSES), chunk.pop(name + LENGTHS)), spec.shape)
            for name, spec in self.located.items()
        }
        return chunk | copies


def _signature(delivery: Delivery) -> Specs:
    local_batch, specs = delivery.local_batch, {}
    for name, dtype in {CLASS_ID: np.int32, **delivery.added}.items():
        entry = np.dtype(dtype)
        specs[name] = tf.TensorSpec([None, local_batch, *entry.shape], tf.as_dtype(entry.base))
    if delivery.undecoded and delivery.large:
        return specs | {EXAMPLES: tf.TensorSpec([None, local_batch], tf.string)}
    if delivery.undecoded:
        return specs | {EXAMPLES: tf.TensorSpec([], tf.string), LENGTHS: tf.TensorSpec([None], tf.int64)}
    for feature in delivery.schema.features:
        dtype = tf.as_dtype(feature.dtype) if feature.numeric else tf.string
        if feature.elements is None:  # in chunks of one step
            specs[feature.name] = tf.TensorSpec([None], dtype)
            specs[feature.name + LENGTHS] = tf.TensorSpec([local_batch], tf.int64)
        else:
            specs[feature.name] = tf.TensorSpec([None, local_batch, *(feature.fixed_shape or ())], dtype)
    if delivery.crosses_as_batch:
        return {name: tf.TensorSpec(spec.shape[1:], spec.dtype) for name, spec in specs.items()}
    return specs


def _with_addresses(columns: Columns, located: Container[str]) -> dict[str, Column]:
    result: dict[str, Column] = {}
    for name, values in columns.items():
        if name in located:
            result[name + ADDRESSES], result[name + LENGTHS] = locate_views(values, **_MARGINS.get(name, {}))
        else:
            result[name] = values
    return result


def _join_binary(values: pa.Array) -> tuple[bytes, npt.NDArray[np.int64]]:
    offsets = offsets_of(values)
    data = data_of(values).slice(offsets[0], offsets[-1] - offsets[0])
    return data.to_pybytes(), np.diff(offsets)


def _to_numpy(values: pa.Array) -> npt.NDArray[Any]:
    if pa.types.is_fixed_size_list(values.type):
        values = pc.list_flatten(values)
    return np.asarray(values.to_numpy(zero_copy_only=False))
