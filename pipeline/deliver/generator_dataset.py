"""`tf.data` from a Python generator, with an iterator that is soon at work.

`tf.data.Dataset.from_generator` makes the same operation, inside a function more: its iterators take 16 ms longer to
give the first element; and from an `output_signature`, as its deprecation notice wants it, the elements become tensors
in Python, which takes three times as long with chunks of 4 MiB (2026-11-21, TensorFlow 2.21).

What is here runs on the CPU, and TensorFlow is told to take it as it is. To place each function on devices, and to
optimise it, for every iterator anew, takes 15 ms.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled  # there is no public name for it

from ...sharding.errors import RingfeedError

__all__ = ["generator_dataset_maker", "is_op_determinism_enabled", "rewritable", "unbatch"]

Element = dict[str, Any]
Finish = Callable[[Element], Element]
Maker = Callable[..., tf.data.Dataset]

_AS_IT_IS = {"experimental_ints_on_device": True}  # means nothing on a CPU, but leaves placing and optimising out


def generator_dataset_maker(
    generate: Callable[..., Generator[Element, None, None]],
    arguments: int,
    signature: Mapping[str, tf.TensorSpec],
    finish: Finish | None = None,
) -> Maker:
    """What makes, of some numbers, a dataset of what a generator of them yields.

    Args:
        generate: starts a generator; each iterator of a dataset has its own, which is closed with it. TensorFlow never
            lets go of this function, nor of what it holds.
        arguments: how many numbers it takes, int64.
        signature: of what it yields; `bytes` and arrays, of which TensorFlow takes over what is aligned.
        finish: makes the elements of that, in TensorFlow operations that run while the generator waits at its `yield`.
    """
    number = tf.TensorSpec([], tf.int64)
    running: dict[int, Generator[Element, None, None]] = {}
    names = itertools.count()

    def begin(*given: np.int64) -> np.int64:
        name = next(names)
        running[name] = generate(*map(int, given))
        return np.int64(name)

    def proceed(name: np.int64) -> list[Any]:
        try:
            chunk: list[Any] = tf.nest.flatten(next(running[int(name)]))  # TensorFlow takes StopIteration for the end
        except RingfeedError as error:
            raise error.with_traceback(None) from None  # its line is all that a user needs of TensorFlow's long text
        return chunk

    def end(name: np.int64) -> np.int64:
        running.pop(int(name)).close()
        return name

    def function(call: Callable[..., Any], *inputs: tf.TensorSpec) -> Any:
        traced = tf.function(call, list(inputs), autograph=False, experimental_attributes=_AS_IT_IS)
        return traced.get_concrete_function()

    def element(name: tf.Tensor) -> Any:
        yielded = tf.numpy_function(proceed, [name], [spec.dtype for spec in tf.nest.flatten(signature)])
        for tensor, spec in zip(yielded, tf.nest.flatten(signature), strict=True):
            tensor.set_shape(spec.shape)
        named = tf.nest.pack_sequence_as(dict(signature), yielded)
        return named if finish is None else finish(named)

    following = function(element, number)
    elements = {name: tf.TensorSpec(one.shape, one.dtype) for name, one in following.structured_outputs.items()}
    functions = {
        "init_func": function(lambda *numbers: tf.numpy_function(begin, numbers, tf.int64), *[number] * arguments),
        "next_func": following,
        "finalize_func": function(lambda name: tf.numpy_function(end, [name], tf.int64), number),
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


def rewritable(maker: Maker) -> Maker:
    """The same datasets, of which TensorFlow can see a graph: under op determinism it takes parallel maps back to one
    thread by it. Their iterators take 40 ms longer to start.
    """
    return lambda *numbers: tf.data.Dataset.from_tensors(0).flat_map(lambda _: maker(*numbers))


def unbatch(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """As `tf.data.Dataset.unbatch` gives it, which first maps what is ragged or sparse; there is no such thing here."""
    elements = tf.nest.map_structure(lambda spec: tf.TensorSpec(spec.shape[1:], spec.dtype), dataset.element_spec)
    whole = tf.data.experimental.to_variant(dataset)
    return tf.data.experimental.from_variant(
        tf.raw_ops.UnbatchDataset(input_dataset=whole, **_outputs(elements)), elements
    )


def _outputs(elements: Element) -> dict[str, list[Any]]:
    specs = tf.nest.flatten(elements)
    return {"output_types": [spec.dtype for spec in specs], "output_shapes": [spec.shape for spec in specs]}
