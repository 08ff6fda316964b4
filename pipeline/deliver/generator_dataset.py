"""`tf.data` from a Python generator, with iterators that start fast.

`tf.data.Dataset.from_generator` makes the same operation inside one more function, and its iterators take 16 ms longer
to give the first element. With an `output_signature`, which its deprecation notice asks for, elements become tensors in
Python, which takes three times as long for chunks of 4 MiB (2026-11-21, TensorFlow 2.21).

The functions here run on the CPU, and TensorFlow is told to leave them as they are: placing each on devices and
optimising it, for every iterator anew, takes 15 ms.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.config import (  # there is no public name for it
    is_op_determinism_enabled as is_op_determinism_enabled,
)

from ringfeed.sharding.errors import RingfeedError

Element = dict[str, Any]
Generate = Callable[..., Generator[Element, None, None]]
Finish = Callable[[Element], Element]
Maker = Callable[..., tf.data.Dataset]

_LEFT_AS_IT_IS = {"experimental_ints_on_device": True}  # means nothing on a CPU, but skips placing and optimising


def generator_dataset_maker(
    generate: Generate, arguments: int, signature: Mapping[str, tf.TensorSpec], finish: Finish | None = None
) -> Maker:
    """A function of a few numbers that makes a dataset of what a generator of them yields.

    Args:
        generate: starts a generator; each iterator of a dataset has its own, and closes it. TensorFlow never frees this
            function, nor what it refers to.
        arguments: how many numbers it takes, int64.
        signature: types of what it yields: `bytes` and arrays; TensorFlow takes over aligned arrays uncopied.
        finish: turns that into the dataset's elements, in TensorFlow operations that run while the generator waits at
            its `yield`.
    """
    running = _RunningGenerators(generate)
    number = tf.TensorSpec([], tf.int64)

    def element(name: tf.Tensor) -> Any:
        yielded = tf.numpy_function(running.advance, [name], [spec.dtype for spec in tf.nest.flatten(signature)])
        for tensor, spec in zip(yielded, tf.nest.flatten(signature), strict=True):
            tensor.set_shape(spec.shape)
        named = tf.nest.pack_sequence_as(dict(signature), yielded)
        return named if finish is None else finish(named)

    advance = _trace(element, number)
    elements = {name: tf.TensorSpec(one.shape, one.dtype) for name, one in advance.structured_outputs.items()}
    functions = {
        "init_func": _trace(
            lambda *numbers: tf.numpy_function(running.begin, numbers, tf.int64), *[number] * arguments
        ),
        "next_func": advance,
        "finalize_func": _trace(lambda name: tf.numpy_function(running.end, [name], tf.int64), number),
    }

    def dataset(*numbers: tf.Tensor) -> tf.data.Dataset:
        variant = tf.raw_ops.GeneratorDataset(
            init_func_other_args=numbers,
            next_func_other_args=[],
            finalize_func_other_args=[],
            **functions,
            **_outputs(elements),
        )
        return tf.data.experimental.from_variant(variant, elements)

    return dataset


class _RunningGenerators:
    """The generators of all iterators, by the numbers that TensorFlow knows them by."""

    def __init__(self, generate: Generate) -> None:
        self._generate = generate
        self._running: dict[int, Generator[Element, None, None]] = {}
        self._names = itertools.count()

    def begin(self, *arguments: np.int64) -> np.int64:
        name = next(self._names)
        self._running[name] = self._generate(*map(int, arguments))
        return np.int64(name)

    def advance(self, name: np.int64) -> list[Any]:
        try:
            chunk: list[Any] = tf.nest.flatten(next(self._running[int(name)]))  # StopIteration is TensorFlow's end
        except RingfeedError as error:
            raise error.with_traceback(None) from None  # TensorFlow quotes the traceback, and users need one line
        return chunk

    def end(self, name: np.int64) -> np.int64:
        self._running.pop(int(name)).close()
        return name


def _trace(function: Callable[..., Any], *inputs: tf.TensorSpec) -> Any:
    traced = tf.function(function, list(inputs), autograph=False, experimental_attributes=_LEFT_AS_IT_IS)
    return traced.get_concrete_function()


def rewritable(maker: Maker) -> Maker:
    """The same datasets with a graph that TensorFlow can rewrite, in iterators that take 40 ms longer to start.

    Under op determinism, TensorFlow needs the graph to bring parallel maps back to one thread.
    """
    return lambda *numbers: tf.data.Dataset.from_tensors(0).flat_map(lambda _: maker(*numbers))


def unbatch(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """`tf.data.Dataset.unbatch` without its map for ragged and sparse tensors, which do not occur here."""
    elements = tf.nest.map_structure(lambda spec: tf.TensorSpec(spec.shape[1:], spec.dtype), dataset.element_spec)
    whole = tf.data.experimental.to_variant(dataset)
    return tf.data.experimental.from_variant(
        tf.raw_ops.UnbatchDataset(input_dataset=whole, **_outputs(elements)), elements
    )


def _outputs(elements: Element) -> dict[str, list[Any]]:
    specs = tf.nest.flatten(elements)
    return {"output_types": [spec.dtype for spec in specs], "output_shapes": [spec.shape for spec in specs]}
