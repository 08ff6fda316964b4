"""Gathered columns as `tf.data` batches: chunks of several steps cross from Python, and TensorFlow cuts them up."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import tensorflow as tf

from ringfeed.pipeline.decode.columns import Columns
from ringfeed.pipeline.metrics.stage_counters import annotate
from ringfeed.pipeline.select.sample_columns import CLASS_ID, EXAMPLES, SAMPLE_KEY, SOFT_LABEL, SOURCE_ID, WEIGHT
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.formats.tfrecord import FOOTER_BYTES, HEADER_BYTES
from ringfeed.sharding.schema import Feature, Schema

from .chunk_encoding import LENGTHS, Batch, ChunkEncoder, Delivery
from .example_parsing import parse_batch
from .generator_dataset import generator_dataset_maker, is_op_determinism_enabled, rewritable, unbatch
from .malloc import keep_freed_memory

_NO_FEATURES = (CLASS_ID, SOFT_LABEL, WEIGHT, SAMPLE_KEY, SOURCE_ID)
Chunks = Callable[[int, int], Iterator[tuple[int, Columns]]]
Maker = Callable[[int, int, int], tf.data.Dataset]

_numbers = itertools.count()
_sources: dict[int, weakref.WeakMethod[Chunks]] = {}  # by number, those that datasets can still be made of
_makers: dict[str, Callable[[int, int, int, int], tf.data.Dataset]] = {}


def dataset_maker(delivery: Delivery) -> Callable[[Chunks], Maker]:
    """A function that makes functions that make datasets of batches from iterators of chunks.

    Tracing takes longer than reading a small epoch, and TensorFlow never frees what it traced. So there is one trace
    for all equal deliveries, such as the loaders of several trials or restarts.

    Args:
        delivery: how the columns are delivered.

    Returns:
        A function of a method that starts the iterator of an epoch from a step on, whose items are a number of steps,
        and columns of ``steps * local_batch`` rows; its object must outlive the reading of a dataset. It returns a
        function of the epoch, the first step, and the number of batches to come.
    """
    key = repr(delivery)  # tells -0.0 from 0.0, unlike equality
    if key not in _makers:
        _makers[key] = _trace_maker(delivery)
    make = _makers[key]

    def reads(chunks: Chunks) -> Maker:
        number, sources = next(_numbers), _sources  # at a program's end, a method may outlive this module's names
        sources[number] = weakref.WeakMethod(chunks, lambda _: sources.pop(number, None))
        return functools.partial(make, number)

    return reads


def _trace_maker(delivery: Delivery) -> Callable[[int, int, int, int], tf.data.Dataset]:
    """`dataset_maker` for any source, which is given by its number; traces when first called."""
    encoder = ChunkEncoder(delivery)
    generate = functools.partial(_generate, encoder, is_large=delivery.large > 0)
    finish = encoder.copy_located if encoder.located else None
    generated = generator_dataset_maker(generate, 3, encoder.signature, finish)
    number, options = tf.TensorSpec([], tf.int64), _options()

    @functools.cache
    def traced(*, deterministic: bool) -> Any:
        maker = rewritable(generated) if deterministic else generated

        def trace(source: tf.Tensor, epoch: tf.Tensor, start_step: tf.Tensor, steps: tf.Tensor) -> tf.data.Dataset:
            batches = _cut_chunks(maker(source, epoch, start_step), delivery)
            return batches.prefetch(delivery.prefetch).apply(tf.data.experimental.assert_cardinality(steps))

        return tf.function(trace, [number] * 4, autograph=False).get_concrete_function()

    def make(source: int, epoch: int, start_step: int, steps: int) -> tf.data.Dataset:
        with tf.device("CPU:0"):
            numbers = (tf.constant(value, tf.int64) for value in (source, epoch, start_step, steps))
            return traced(deterministic=is_op_determinism_enabled())(*numbers).with_options(options)

    return make


def _generate(
    encoder: ChunkEncoder, source: int, epoch: int, start_step: int, *, is_large: bool
) -> Generator[Batch, None, None]:
    keep_freed_memory()
    chunks = _sources[source]()
    assert chunks is not None  # the dataset keeps its object alive
    for steps, columns in chunks(epoch, start_step):
        if is_large:
            yield from encoder.encode_large(columns, steps)
            continue
        with annotate("deliver"):
            chunk = encoder.encode(columns, steps)
        del columns  # so that its memory can be reused as soon as TensorFlow lets go of it
        yield chunk


def _cut_chunks(dataset: tf.data.Dataset, delivery: Delivery) -> tf.data.Dataset:
    """The batches within a dataset of chunks."""

    def parse(batch: Batch) -> Batch:
        return parse_batch(batch.pop(EXAMPLES), delivery.schema, delivery.fill) | batch

    if delivery.undecoded and delivery.large:
        # Parsing copies once more. The prefetch frees this thread, which holds Python's lock, for the next batch.
        return _mapped(unbatch(dataset).prefetch(1), parse)
    if delivery.undecoded:
        dataset = unbatch(_mapped(dataset, lambda chunk: _cut_examples(chunk, delivery.local_batch)))
        # One at a time: parse_example uses all threads by itself, and deterministic runs forbid parallel maps here.
        return _mapped(dataset, parse)
    if delivery.ragged:
        return _mapped(dataset, lambda chunk: _join_ragged(chunk, delivery.ragged))
    return dataset if delivery.crosses_as_batch else unbatch(dataset)


def _mapped(dataset: tf.data.Dataset, function: Callable[[Batch], Any]) -> tf.data.Dataset:
    """Map by TensorFlow operations alone, which AutoGraph need not look through."""
    return dataset.map(tf.autograph.experimental.do_not_convert(function))


def _cut_examples(chunk: Batch, local_batch: int) -> Batch:
    """Cut the joined frames of a chunk into the messages within, tf.string [steps, local_batch]."""
    lengths = chunk.pop(LENGTHS)
    starts = tf.cumsum(lengths, exclusive=True)
    frames = chunk.pop(EXAMPLES)
    messages = tf.strings.substr(frames, starts + HEADER_BYTES, lengths - (HEADER_BYTES + FOOTER_BYTES))
    return chunk | {EXAMPLES: tf.reshape(messages, [-1, local_batch])}


def _join_ragged(chunk: Batch, ragged: list[Feature]) -> Batch:
    """The batch of a chunk of one step, with ragged tensors made of flat values and lengths."""
    names = {feature.name for feature in ragged}
    return {
        name: tf.RaggedTensor.from_row_lengths(values, chunk[name + LENGTHS]) if name in names else values[0]
        for name, values in chunk.items()
        if not name.endswith(LENGTHS)
    }


def _options() -> tf.data.Options:
    options = tf.data.Options()
    # A loader gives a rank its share. A strategy of several workers would shard it once more, and lose records.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    options.autotune.enabled = False  # there is nothing to tune, and its thread delays the end of an epoch by 0.2 s
    # These rewrite graphs. A generator has none, which TensorFlow would warn about.
    options.experimental_optimization.apply_default_optimizations = False
    return options


def supervised_pairs(dataset: tf.data.Dataset, schema: Schema) -> tf.data.Dataset:
    """Batches as `keras.Model.fit` takes them.

    Args:
        dataset: batches of the schema, perhaps transformed.
        schema: the features delivered.

    Raises:
        ConfigError: there is no feature beside the label, or transforms removed the classes.
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

    return _mapped(dataset, pair)
