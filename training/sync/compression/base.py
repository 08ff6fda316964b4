"""What the compressing synchronizers have in common: which tensors they compress, and from which step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from ringfeed.training.optimizers.keras_doors import Tensor, Variable
from ringfeed.training.ring.ring import Ring
from ringfeed.training.sync.synchronizer import EveryStep, Exchange


class Compressed(EveryStep, ABC):
    """Synchronises in each step, and compresses the matrices: the float32 variables of two dimensions and more.

    Vectors (biases, normalisation) are few bytes, and what compression does to them costs accuracy: they travel dense,
    in one grouped all-reduce with the scalars. Steps before `start_step` are dense.
    """

    least_dimensions = 2

    def __init__(self, ring: Ring, start_step: int = 0) -> None:
        super().__init__(ring)
        self._start_step = start_step
        self._places: list[int] = []
        self._shapes: list[list[int]] = []

    def build(self, variables: Sequence[Variable], optimizer: Any = None) -> None:
        self._places = [i for i, v in enumerate(variables) if self.compresses(list(v.shape), v.dtype)]
        self._shapes = [list(variables[i].shape) for i in self._places]
        self.create(variables)

    def compresses(self, shape: list[int], dtype: Any) -> bool:
        return len(shape) >= self.least_dimensions and tf.as_dtype(dtype) == tf.float32

    def create(self, variables: Sequence[Variable]) -> None:
        """Create the state, for the shapes `_shapes` of the compressed tensors."""

    @abstractmethod
    def compressed_means(self, tensors: list[Tensor], others: Exchange, step: Tensor) -> tuple[list[Tensor], Exchange]:
        """Return the means over ranks of `tensors`, which are compressed, and of all else."""

    def dense_means(self, sent: Exchange) -> Exchange:
        return sent.received(self._ring.allreduce_mean(sent.tensors))

    def reduce(self, sent: Exchange, step: Tensor) -> Exchange:
        """The means over ranks: approximate for matrices, exact for vectors and scalars."""
        if not self._start_step:
            return self._compressed(sent, step)
        is_dense = step < self._start_step
        dense = partial(self._ring.allreduce_mean, sent.tensors)
        return sent.received(tf.cond(is_dense, dense, lambda: self._compressed(sent, step).tensors))

    def _compressed(self, sent: Exchange, step: Tensor) -> Exchange:
        gradients, places = sent.gradients, range(len(sent.gradients))
        dense = [i for i in places if i not in self._places]
        others = sent._replace(gradients=[gradients[i] for i in dense])
        means, others = self.compressed_means([gradients[i] for i in self._places], others, step)
        result = dict(zip(self._places, means, strict=True)) | dict(zip(dense, others.gradients, strict=True))
        return others._replace(gradients=[result[i] for i in places])


def zeros_like(shapes: Sequence[Sequence[int]], name: str) -> list[Variable]:
    return [tf.Variable(tf.zeros(shape), trainable=False, name=f"{name}_{i}") for i, shape in enumerate(shapes)]
