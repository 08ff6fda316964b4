"""PowerSGD: the gradient of a matrix as a product of two thin ones. Vogels et al., arXiv 1905.13727, Algorithms 1, 2.

Both factors are reduced by all-reduces, so the bytes do not grow with the ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ringfeed.training.config.compression import PowerSGDConfig
from ringfeed.training.optimizers.keras_doors import Tensor, Variable
from ringfeed.training.sync.synchronizer import Exchange, SyncRun

from .base import Compressed, zeros_like
from .payload import step_seed


def matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Return the matrix that a tensor is taken for: Keras' kernels have their outputs last.

    >>> matrix_shape([3, 3, 16, 32])
    (144, 32)
    """
    return math.prod(shape[:-1]), shape[-1]


def is_worth_it(rows: int, columns: int, rank: int, min_rate: float) -> bool:
    """Whether factors of a rank are `min_rate` times smaller than the matrix.

    >>> is_worth_it(784, 256, 2, 2.0), is_worth_it(3, 4, 2, 2.0)
    (True, False)
    """
    return (rows + columns) * min(rows, columns, rank) * min_rate < rows * columns


class PowerSGD(Compressed):
    """One step of power iteration for each step of training, from the last right factor (warm start).

    Each rank's residual is its own matrix less its own share ``P (M^T P)^T`` of the product, as in the authors' code;
    the mean of the shares is what all ranks apply. Matrices whose factors are not `min_rate` times smaller travel
    dense.
    """

    def __init__(self, run: SyncRun, options: PowerSGDConfig) -> None:
        super().__init__(run.ring, run.start_step)
        self._rank, self._min_rate, self._seed = options.rank, options.min_rate, run.config.seed

    def compresses(self, shape: list[int], dtype: Any) -> bool:
        return super().compresses(shape, dtype) and is_worth_it(*matrix_shape(shape), self._rank, self._min_rate)

    def create(self, variables: Sequence[Variable]) -> None:
        """Create residuals, and the first right factors, from N(0, 1)."""
        self.rank_variables = zeros_like(self._shapes, "residual")
        factors = []
        for i, shape in enumerate(self._shapes):
            rows, columns = matrix_shape(shape)
            factor = [columns, min(rows, columns, self._rank)]
            start = tf.random.stateless_normal(factor, step_seed(self._seed, 0, tf.constant(0, tf.int64), i))
            factors.append(tf.Variable(start, trainable=False, name=f"right_factor_{i}"))
        self.shared_variables = factors

    def compressed_means(self, tensors: list[Tensor], others: Exchange, step: Tensor) -> tuple[list[Tensor], Exchange]:
        """The means, by two all-reduces of thin matrices; the first also holds the dense tensors."""
        corrected = [tensor + residual for tensor, residual in zip(tensors, self.rank_variables, strict=True)]
        matrices = [tf.reshape(t, matrix_shape(s)) for t, s in zip(corrected, self._shapes, strict=True)]
        firsts = [tf.matmul(m, q) for m, q in zip(matrices, self.shared_variables, strict=True)]
        reduced = self._ring.allreduce_mean([*firsts, *others.tensors])
        bases = [tf.linalg.qr(p).q for p in reduced[: len(firsts)]]  # by Householder: zeros have a basis, too
        others = others.received(reduced[len(firsts) :])
        own = [tf.matmul(m, p, transpose_a=True) for m, p in zip(matrices, bases, strict=True)]
        rights = self._ring.allreduce_mean(own) if own else []
        means = []
        for i, basis in enumerate(bases):
            share = tf.matmul(basis, own[i], transpose_b=True)
            self.rank_variables[i].assign(corrected[i] - tf.reshape(share, self._shapes[i]))
            self.shared_variables[i].assign(rights[i])
            means.append(tf.reshape(tf.matmul(basis, rights[i], transpose_b=True), self._shapes[i]))
        return means, others
