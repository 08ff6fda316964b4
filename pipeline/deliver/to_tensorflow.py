"""From gathered columns to `tf.data`: chunks of several steps cross from Python at once, to be cut up in TensorFlow."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Container, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf

from ...sharding.errors import ConfigError
from ...sharding.formats.arrow_binary import data_of, offsets_of
from ...sharding.formats.tfrecord import FOOTER_BYTES, HEADER_BYTES
from ...sharding.schema import Feature, Schema
from ..decode.columns import Column, Columns, copy_views, slice_columns
from ..decode.tfrecord_frames import join_frames
from ..metrics.profiler_trace import annotate
from ..select.sample_columns import CLASS_ID, EXAMPLES, SAMPLE_KEY, SOFT_LABEL, SOURCE_ID, WEIGHT
from .generator_dataset import generator_dataset_maker, is_op_determinism_enabled, rewritable, unbatch
from .malloc import keep_freed_memory
from .string_views import copy_views_operation, locate_views

__all__ = ["Delivery", "dataset_maker", "feature_spec", "parse_batch", "supervised_pairs"]

_LENGTHS, _ADDRESSES = "\0lengths", "\0addresses"
_NO_FEATURES = (CLASS_ID, SOFT_LABEL, WEIGHT, SAMPLE_KEY, SOURCE_ID)
Batch = dict[str, Any]
Chunks = Callable[[int, int], Iterator[tuple[int, Columns]]]

_numbers = itertools.count()
_sources: dict[int, weakref.WeakMethod[Chunks]] = {}  # of the datasets that can be made
_makers: dict[str, Callable[[int, int, int, int], tf.data.Dataset]] = {}


def feature_spec(schema: Schema, fill: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What `tf.io.parse_example` needs to parse the dataset's TFRecord shards.

    Args:
        schema: of the dataset.
        fill: what stands for a missing value, by feature; floats default to NaN, others have no default.

    Returns:
        `tf.io.FixedLenFeature` or `tf.io.RaggedFeature` by feature. ``raw`` features come out as tf.string, to be
        decoded with `tf.io.decode_raw`; `parse_batch` does so.
    """
    return {feature.name: _feature_spec(feature, (fill or {}).get(feature.name)) for feature in schema.features}


def _feature_spec(feature: Feature, fill: Any) -> Any:
    kind = feature.example_kind
    dtype = {"int64": tf.int64, "float": tf.float32}.get(kind, tf.string)
    if kind == "raw":
        if feature.elements is None:
            return tf.io.FixedLenFeature([], tf.string, b"")
        if fill is None and feature.dtype == "float64":
            fill = float("nan")
        default = None if fill is None else np.full(feature.elements, fill, feature.dtype).tobytes()
        return tf.io.FixedLenFeature([], tf.string, default)
    if feature.fixed_shape is None:
        return tf.io.RaggedFeature(dtype, row_splits_dtype=tf.int64)  # as those of Parquet shards
    if fill is None and kind == "float":
        fill = float("nan")
    nested = fill
    for size in reversed(feature.fixed_shape):  # by lists, for NumPy strips zeros from the end of text
        nested = [nested] * size
    return tf.io.FixedLenFeature(feature.fixed_shape, dtype, None if fill is None else nested)


def parse_batch(examples: tf.Tensor, schema: Schema, fill: Mapping[str, Any] | None = None) -> Batch:
    """Parse a batch of serialised examples to the features' own dtypes and shapes.

    Args:
        examples: tf.string [batch].
        schema: of the dataset.
        fill: as for `feature_spec`.

    Returns:
        [batch, *shape] by feature; ragged where the length varies.
    """
    parsed = tf.io.parse_example(examples, feature_spec(schema, fill))
    return {feature.name: _restore(parsed[feature.name], feature) for feature in schema.features}


def _restore(values: Any, feature: Feature) -> Any:
    dtype = _tf_dtype(feature)
    if feature.example_kind == "raw":
        if feature.elements is None:
            return tf.ragged.map_flat_values(tf.identity, _ragged_raw(values, dtype))
        decoded = tf.io.decode_raw(values, dtype, fixed_length=None)
        batch = -1 if values.shape[0] is None else values.shape[0]
        return tf.reshape(decoded, [batch, *(feature.fixed_shape or ())])
    return values if values.dtype == dtype else tf.cast(values, dtype)


def _ragged_raw(values: Any, dtype: tf.DType) -> Any:
    lengths = tf.cast(tf.strings.length(values), tf.int64) // dtype.size
    flat = tf.io.decode_raw(tf.strings.reduce_join(values), dtype)
    return tf.RaggedTensor.from_row_lengths(flat, lengths)


def _tf_dtype(feature: Feature) -> tf.DType:
    return tf.string if not feature.numeric else tf.as_dtype(feature.dtype)


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """How columns cross into TensorFlow, and become batches there.

    Attributes:
        schema: of the dataset.
        fill: what stands for missing values.
        local_batch: samples of this rank in a step.
        undecoded: whether the columns hold whole examples, to be parsed here.
        added: columns beside the features and `CLASS_ID`, and the dtypes of one sample's entries.
        large: where records are so long that strings, or undecoded the examples, had better each cross by itself: how
            many steps cross together. Else 0.
        single: whether each chunk is one step: then it crosses as the batch that it is, and nothing cuts it up.
        prefetch: batches kept ready.
    """

    schema: Schema
    fill: Mapping[str, Any]
    local_batch: int
    undecoded: bool
    added: Mapping[str, npt.DTypeLike]
    large: int
    single: bool
    prefetch: int


def dataset_maker(chunks: Chunks, delivery: Delivery) -> Callable[[int, int, int], tf.data.Dataset]:
    """What makes datasets of batches out of iterators of chunks.

    To trace it takes longer than to read a small epoch, and TensorFlow never lets go of what is traced. So it is traced
    once for all that are delivered alike, such as the loader of each trial or restart.

    Args:
        chunks: starts the iterator of an epoch, from a step on; each item is a number of steps, and columns of
            ``steps * local_batch`` rows. A method, whose object has to be held as long as a dataset is read.
        delivery: of the columns.

    Returns:
        A function of the epoch, the first step, and the number of batches there will be.
    """
    number = next(_numbers)
    sources = _sources  # at the end of a program a method may outlast the names of this module
    sources[number] = weakref.WeakMethod(chunks, lambda _: sources.pop(number, None))
    alike = repr(delivery)  # which tells -0.0 from 0.0, unlike equality
    if alike not in _makers:
        _makers[alike] = _traced_maker(delivery)
    return functools.partial(_makers[alike], number)


def _begin(source: int, epoch: int, start_step: int) -> Iterator[tuple[int, Columns]]:
    chunks = _sources[source]()
    assert chunks is not None  # the dataset holds its object
    return chunks(epoch, start_step)


def _traced_maker(delivery: Delivery) -> Callable[[int, int, int, int], tf.data.Dataset]:
    """`dataset_maker` for any source, by its number."""
    schema, local_batch, large, undecoded = delivery.schema, delivery.local_batch, delivery.large, delivery.undecoded
    signature = _signature(schema, local_batch, undecoded=undecoded, added=delivery.added)
    ragged = [f for f in schema.features if f.elements is None and not undecoded]
    single = delivery.single and not undecoded and not ragged and not large
    if large and undecoded:
        del signature[_LENGTHS]
        signature[EXAMPLES] = tf.TensorSpec([None, local_batch], tf.string)
    if single:
        signature = {name: tf.TensorSpec(spec.shape[1:], spec.dtype) for name, spec in signature.items()}
    copy = copy_views_operation() if large else None
    viewed = {name: spec for name, spec in signature.items() if copy and spec.dtype == tf.string}
    for name, spec in viewed.items():
        del signature[name]
        signature |= {name + end: tf.TensorSpec(spec.shape, tf.int64) for end in (_ADDRESSES, _LENGTHS)}

    def encoded(source: int, epoch: int, start_step: int) -> Generator[Batch, None, None]:
        keep_freed_memory()
        for steps, columns in _begin(source, epoch, start_step):
            if large:
                yield from _encode_large(columns, steps, local_batch, large, viewed)
                continue
            with annotate("deliver"):
                chunk = _encode_chunk(join_frames(columns), schema, steps, local_batch)
            del columns  # whose memory is used again, once TensorFlow lets go of it
            yield {name: values[0] for name, values in chunk.items()} if single else chunk

    def copied(yielded: Batch) -> Batch:
        assert copy is not None
        copies = {
            name: tf.ensure_shape(copy(yielded.pop(name + _ADDRESSES), yielded.pop(name + _LENGTHS)), spec.shape)
            for name, spec in viewed.items()
        }
        return yielded | copies

    generated = generator_dataset_maker(encoded, 3, signature, copied if viewed else None)

    def batches(dataset: tf.data.Dataset, steps: tf.Tensor) -> tf.data.Dataset:
        if large and undecoded:
            # Parsing copies once more: let it not keep this thread, which holds Python's lock, from the next batch.
            dataset = unbatch(dataset).prefetch(1).map(parse)
        elif undecoded:
            dataset = unbatch(dataset.map(lambda chunk: _cut_examples(chunk, local_batch)))
            # One at a time: parse_example itself uses all threads, and deterministic runs forbid parallel maps here.
            dataset = dataset.map(parse)
        elif ragged:  # chunks of one step
            dataset = dataset.map(lambda chunk: _join_ragged(chunk, ragged))
        elif not single:
            dataset = unbatch(dataset)
        return dataset.prefetch(delivery.prefetch).apply(tf.data.experimental.assert_cardinality(steps))

    def parse(batch: Batch) -> Batch:
        return parse_batch(batch.pop(EXAMPLES), schema, delivery.fill) | batch

    options = tf.data.Options()
    # A loader gives a rank its share. Sharded once more, by a strategy of several workers, records would be lost.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    options.autotune.enabled = False  # nothing is left to tune, and its thread holds up the end of an epoch for 0.2 s
    # They are of graphs, which a generator has none of; TensorFlow would warn of it.
    options.experimental_optimization.apply_default_optimizations = False

    number = tf.TensorSpec([], tf.int64)

    @functools.cache
    def traced(*, deterministic: bool) -> Any:
        maker = rewritable(generated) if deterministic else generated

        def trace(source: tf.Tensor, epoch: tf.Tensor, start_step: tf.Tensor, steps: tf.Tensor) -> tf.data.Dataset:
            return batches(maker(source, epoch, start_step), steps)

        return tf.function(trace, [number] * 4, autograph=False).get_concrete_function()

    def make(source: int, epoch: int, start_step: int, steps: int) -> tf.data.Dataset:
        with tf.device("CPU:0"):
            numbers = (tf.constant(value, tf.int64) for value in (source, epoch, start_step, steps))
            return traced(deterministic=is_op_determinism_enabled())(*numbers).with_options(options)

    return make


def supervised_pairs(dataset: tf.data.Dataset, schema: Schema) -> tf.data.Dataset:
    """Batches as `keras.Model.fit` takes them.

    Args:
        dataset: of batches of the schema, or what transforms have left of them and added.
        schema: of the features delivered.

    Raises:
        ConfigError: there is no feature but the label, or transforms have left no classes.
    """
    spec = dataset.element_spec
    if not isinstance(spec, Mapping) or CLASS_ID not in spec:
        raise ConfigError(
            f"as_supervised pairs features with {CLASS_ID!r}, which the last transform does not return; let it return "
            "the element changed, or the pairs themselves, without as_supervised"
        )
    features = [name for name in schema.names if name in spec and name != schema.label]
    names = features + [name for name in spec if name not in _NO_FEATURES and name not in schema.names]
    if not names:
        raise ConfigError("as_supervised needs a feature beside the label; name more columns")
    target = SOFT_LABEL if SOFT_LABEL in spec else CLASS_ID

    def pair(batch: Batch) -> tuple[Any, ...]:
        features = batch[names[0]] if len(names) == 1 else {name: batch[name] for name in names}
        return (features, batch[target], *([batch[WEIGHT]] if WEIGHT in batch else []))

    return dataset.map(pair)


def _signature(
    schema: Schema, local_batch: int, *, undecoded: bool, added: Mapping[str, npt.DTypeLike]
) -> dict[str, tf.TensorSpec]:
    specs = {}
    for name, dtype in {CLASS_ID: np.int32, **added}.items():
        entry = np.dtype(dtype)
        specs[name] = tf.TensorSpec([None, local_batch, *entry.shape], tf.as_dtype(entry.base))
    if undecoded:
        return specs | {EXAMPLES: tf.TensorSpec([], tf.string), _LENGTHS: tf.TensorSpec([None], tf.int64)}
    for feature in schema.features:
        if feature.elements is None:
            specs[feature.name] = tf.TensorSpec([None], _tf_dtype(feature))
            specs[feature.name + _LENGTHS] = tf.TensorSpec([local_batch], tf.int64)  # chunks of one step
        else:
            shape = [None, local_batch, *(feature.fixed_shape or ())]
            specs[feature.name] = tf.TensorSpec(shape, _tf_dtype(feature))
    return specs


def _encode_chunk(columns: Columns, schema: Schema, steps: int, local_batch: int) -> Batch:
    """Columns as what crosses into TensorFlow: arrays [steps, local_batch, ...], or flat values and lengths."""
    chunk: Batch = {}
    for name, values in columns.items():
        if isinstance(values, np.ndarray):
            chunk[name] = values.reshape(steps, local_batch, *values.shape[1:])
        elif name == EXAMPLES:
            chunk[EXAMPLES], chunk[_LENGTHS] = _join_binary(values)
        elif schema[name].elements is None:
            chunk[name] = _to_numpy(pc.list_flatten(values))
            chunk[name + _LENGTHS] = pc.list_value_length(values).to_numpy().astype(np.int64)
        else:
            chunk[name] = _to_numpy(values).reshape(steps, local_batch, *(schema[name].fixed_shape or ()))
    return chunk


def _encode_large(
    columns: Columns, steps: int, local_batch: int, together: int, viewed: Container[str]
) -> Iterator[Batch]:
    """Some steps of a chunk after the other, with what TensorFlow copies its strings from: copied no sooner, and once.

    That is where those `viewed` lie, which `columns` keep there; or a `bytes` object for each. Short examples cross
    faster joined, in chunks; but that copies each four times.
    """
    margins = {EXAMPLES: {"before": HEADER_BYTES, "after": FOOTER_BYTES}}
    located: dict[str, Column] = {}
    for name, values in columns.items():
        if name in viewed:
            located[name + _ADDRESSES], located[name + _LENGTHS] = locate_views(values, **margins.get(name, {}))
        else:
            located[name] = values
    for first in range(0, steps, together):
        rows = slice_columns(located, first * local_batch, min(first + together, steps) * local_batch)
        crossing = {
            name: values if isinstance(values, np.ndarray) else copy_views(values, **margins.get(name, {}))
            for name, values in rows.items()
        }
        yield {name: values.reshape(-1, local_batch, *values.shape[1:]) for name, values in crossing.items()}


def _join_binary(values: pa.Array) -> tuple[bytes, npt.NDArray[np.int64]]:
    offsets = offsets_of(values)
    data = data_of(values).slice(offsets[0], offsets[-1] - offsets[0])
    return data.to_pybytes(), np.diff(offsets)


def _to_numpy(values: pa.Array) -> npt.NDArray[Any]:
    if pa.types.is_fixed_size_list(values.type):
        values = pc.list_flatten(values)
    return np.asarray(values.to_numpy(zero_copy_only=False))


def _cut_examples(chunk: Batch, local_batch: int) -> Batch:
    """Cut the joined frames of a chunk into the messages within, tf.string [steps, local_batch]."""
    lengths = chunk.pop(_LENGTHS)
    starts = tf.cumsum(lengths, exclusive=True)
    frames = chunk.pop(EXAMPLES)
    messages = tf.strings.substr(frames, starts + HEADER_BYTES, lengths - (HEADER_BYTES + FOOTER_BYTES))
    return chunk | {EXAMPLES: tf.reshape(messages, [-1, local_batch])}


def _join_ragged(chunk: Batch, ragged: list[Feature]) -> Batch:
    result = {name: values for name, values in chunk.items() if not name.endswith(_LENGTHS)}
    for feature in ragged:
        lengths = chunk[feature.name + _LENGTHS]
        result[feature.name] = tf.RaggedTensor.from_row_lengths(chunk[feature.name], lengths)
    names = {feature.name for feature in ragged}
    return {name: values if name in names else values[0] for name, values in result.items()}
