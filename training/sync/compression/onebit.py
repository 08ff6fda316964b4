"""One bit for each number, and momentum before the average: 1-bit SGD and 1-bit Adam. Tang et al., arXiv 2102.02888.

Numbers travel as signs, with the mean magnitude of each block of 256 (EF-SignSGD, Karimireddy et al., arXiv 1901.09847,
eq. 1): so an error is always smaller than what is encoded, whatever the distribution. With the root mean square of
1-bit Adam it is not where few entries are large, as in gradients; that method encodes momenta.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ringfeed.training.config.compression import OneBitConfig
from ringfeed.training.optimizers.keras_doors import Tensor, Variable
from ringfeed.training.sync.synchronizer import Array, EveryStep, Exchange, SyncRun

from .dgc import DGCRule, after_momentum
from .payload import from_bytes, pack, to_bytes, unpack
from .two_stage import TwoStage


def build(run: SyncRun, options: OneBitConfig) -> TwoStage:
    optimizer: Any = run.config.optimizer
    if optimizer.name == "sgd":
        return SignMomentum(run, momentum=optimizer.momentum, nesterov=optimizer.nesterov)
    return OneBitAdam(run, beta_1=optimizer.beta_1, eps=optimizer.epsilon)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneBit:
    """The codec of `TwoStage`: a bit for each number, four bytes for each block.

    With one scale for a whole matrix, entries that have no gradient, as of pixels that are always black, would be
    moved by as much as the others.

    >>> codec = OneBit(multiple=8)
    >>> row = tf.constant([[3.0, -1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    >>> codec.decode(codec.encode(row, tf.constant([3.0]))).numpy()[0, :3].tolist()
    [2.0, -2.0, 2.0]
    """

    multiple: int = 256
    """Numbers of a block, a multiple of 8."""

    def encode(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Scales and signs; 0 counts as positive."""
        number, length = rows.shape
        blocks = tf.reshape(rows, [number, length // self.multiple, self.multiple])
        starts = tf.range(0, length, self.multiple, dtype=tf.float32)
        in_block = tf.clip_by_value(counts[:, None] - starts, 0, self.multiple)
        scales = tf.math.divide_no_nan(tf.reduce_sum(tf.abs(blocks), 2), in_block)
        return tf.concat([to_bytes(scales), pack(rows >= 0, 1)], 1)

    def decode(self, payloads: Tensor) -> Tensor:
        number, width = payloads.shape
        count = width // (self.multiple // 8 + 4)
        scales = from_bytes(payloads[:, : 4 * count], tf.float32)
        signs = tf.cast(unpack(payloads[:, 4 * count :], 1), tf.float32) * 2 - 1
        blocks = tf.reshape(signs, [number, count, self.multiple]) * scales[:, :, None]
        return tf.reshape(blocks, [number, count * self.multiple])


class SignMomentum(TwoStage):
    """1-bit SGD: the mean of the ranks' momenta, as signs and scales in both stages, with error feedback.

    Signs give each entry of a block the same size, so they suit momenta, which average the noise of batches, better
    than gradients. With momentum after the average, the network of docs/synchronisation.md did not learn. The optimizer
    then has no momentum. Before `start_step`, and for vectors, it accumulates the mean gradient.
    """

    def __init__(self, run: SyncRun, *, momentum: float, nesterov: bool = False) -> None:
        super().__init__(run, OneBit(), error_feedback=True)
        self._rule = DGCRule(momentum=momentum, nesterov=nesterov)

    def create(self, variables: Sequence[Variable]) -> None:
        """Create the residuals of both stages, and a momentum for each variable."""
        super().create(variables)
        self._momenta = [tf.Variable(tf.zeros(v.shape, v.dtype), trainable=False, name="momentum") for v in variables]
        self.rank_variables = [*self.rank_variables, *self._momenta]

    def resize(self, stacked: Sequence[Array], rank: int, size: int) -> list[Array]:
        """The mean of the ranks' residuals and momenta; the residuals of parts are cut anew."""
        count = len(stacked) - len(self._momenta)
        return super().resize(stacked[:count], rank, size) + EveryStep.resize(self, stacked[count:], rank, size)

    def reduce(self, sent: Exchange, step: Tensor) -> Exchange:
        """The means of this step's momenta."""
        updates = after_momentum(sent.gradients, self._momenta, self._rule)
        return super().reduce(sent._replace(gradients=updates), step)


class OneBitAdam(TwoStage):
    """1-bit Adam: the mean of the ranks' momenta, as signs and scales in both stages, with error feedback.

    Once its second moment is frozen, Adam is SGD with momentum, with a fixed rate for each entry that all ranks know.
    So it sends the signs of ``m / (sqrt(v) + eps)``, where the paper (Algorithm 1) sends the signs of ``m``, which move
    an entry with a small `v` by the mean magnitude of its block over that small root: with them the network of
    docs/synchronisation.md did not learn.

    It returns the gradient that takes the optimizer's momentum to that mean, ``(mean - beta_1 * m) / (1 - beta_1)``.
    Entries whose `v` is 0, since they never had a gradient, do not move. The optimizer is one by the rule of Adam with
    `freeze_step=run.start_step`.
    """

    def __init__(self, run: SyncRun, *, beta_1: float, eps: float) -> None:
        super().__init__(run, OneBit(), error_feedback=True)
        self._beta, self._eps = beta_1, eps

    def build(self, variables: Sequence[Variable], optimizer: Any = None) -> None:
        """Create the residuals of both stages; `optimizer`, which keeps the moments, is a `RuleOptimizer`."""
        super().build(variables)
        self._optimizer, self._matrices = optimizer, [variables[i] for i in self._places]

    def compressed_means(self, tensors: list[Tensor], others: Exchange, step: Tensor) -> tuple[list[Tensor], Exchange]:
        """The gradients that the mean momenta stand for."""
        momenta, scales = [], []
        for variable in self._matrices:
            first, second = map(tf.convert_to_tensor, self._optimizer.slots_of(variable))
            momenta.append(self._beta * first)
            scales.append(tf.where(second > 0, tf.sqrt(second) + self._eps, 0.0))
        sent = [
            tf.math.divide_no_nan(momentum + (1 - self._beta) * tensor, scale)
            for momentum, tensor, scale in zip(momenta, tensors, scales, strict=True)
        ]
        means, others = super().compressed_means(sent, others, step)
        gradients = [
            (mean * scale - momentum) / (1 - self._beta)
            for mean, momentum, scale in zip(means, momenta, scales, strict=True)
        ]
        return gradients, others
