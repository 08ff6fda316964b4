"""What the compressing synchronizers have in common: which tensors they compress, and from which step.

Tested in tests/training/compression/test_codecs.py.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ringfeed.training.ring.ring import Ring
from ringfeed.training.ring.synchronizer import EveryStep

__all__ = ["Compressed", "Tensor", "Variable", "joined", "parted", "zeros_like"]

Tensor = Any
Variable = Any


class Compressed(EveryStep, ABC):
    """Synchronises in each step, and compresses the matrices: the float32 variables of two dimensions and more.

    Vectors (biases, normalisation) are few bytes, and what compression does to them costs accuracy: they travel dense,
    in one grouped all-reduce with the scalars.

    Args:
        ring: the ranks.
        start_step: steps before this one are dense.
    """

    least_dimensions = 2

    def __init__(self, ring: Ring, start_step: int = 0) -> None:
        super().__init__(ring)
        self._start_step = start_step
        self._places: list[int] = []
        self._shapes: list[list[int]] = []

    def build(self, variables: Sequence[Variable], slots: Sequence[Variable] = ()) -> None:
        """Create the state of the method."""
        self._places = [i for i, v in enumerate(variables) if self.compresses(list(v.shape), v.dtype)]
        self._shapes = [list(variables[i].shape) for i in self._places]
        self.create(variables)

    def compresses(self, shape: list[int], dtype: Any) -> bool:
        """Whether a variable's gradient is compressed."""
        return len(shape) >= self.least_dimensions and tf.as_dtype(dtype) == tf.float32

    def create(self, variables: Sequence[Variable]) -> None:
        """Create the state, for the shapes `_shapes` of the compressed tensors."""

    @abstractmethod
    def compressed_means(
        self, tensors: list[Tensor], dense: list[Tensor], step: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the means over ranks: of `tensors`, which are compressed, and of `dense`, which are not."""

    def reduce(
        self, gradients: Sequence[Tensor], scalars: Sequence[Tensor], step: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The means over ranks: approximate for matrices, exact for vectors and scalars."""
        count = len(scalars)
        if self._start_step:
            both = tf.cond(
                step < self._start_step,
                lambda: self._ring.allreduce_mean([*scalars, *gradients]),
                lambda: self._compressed(gradients, scalars, step),
            )
        else:
            both = self._compressed(gradients, scalars, step)
        return both[count:], both[:count]

    def _compressed(self, gradients: Sequence[Tensor], scalars: Sequence[Tensor], step: Tensor) -> list[Tensor]:
        others = [i for i in range(len(gradients)) if i not in self._places]
        means, dense = self.compressed_means(
            [gradients[i] for i in self._places], [*scalars, *(gradients[i] for i in others)], step
        )
        result = dict(zip(self._places, means, strict=True)) | dict(zip(others, dense[len(scalars) :], strict=True))
        return [*dense[: len(scalars)], *(result[i] for i in range(len(gradients)))]


def zeros_like(shapes: Sequence[Sequence[int]], name: str) -> list[Variable]:
    """Create float32 variables of zeros."""
    return [tf.Variable(tf.zeros(shape), trainable=False, name=f"{name}_{i}") for i, shape in enumerate(shapes)]


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Return the entries of all tensors as one vector."""
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


def parted(vector: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return the tensors of which `joined` made a vector.

    >>> [part.numpy().tolist() for part in parted(joined([tf.constant([[1, 2]]), tf.constant([3])]), [[1, 2], [1]])]
    [[[1, 2]], [3]]
    """
    parts = tf.split(vector, [math.prod(shape) for shape in shapes])
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]
