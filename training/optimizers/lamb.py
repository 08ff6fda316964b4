"""LAMB: Adam whose step is scaled layer by layer, for very large batches.

Published variants differ: see `VARIANTS`.
Tested in tests/training/optimizers/test_references.py and tests/training/optimizers/test_stacked.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from .frozen_ratio import RATIO_DECAY, next_average, next_factor
from .moments import MomentsOptimizer
from .norms import layer_norms, trust_ratio

__all__ = ["LAMB"]

Tensor = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class _Variant:
    """What a variant of LAMB does.

    Attributes:
        corrects_bias: whether the moments are divided by what they lack in their first steps.
        largest_norm: the greatest norm of weights that counts; None: any.
        largest_gradient: the greatest global norm of the gradients, which are scaled down to it; None: any.
        adapts_all: whether variables without decay have a trust ratio, too.
    """

    corrects_bias: bool = True
    largest_norm: float | None = None
    largest_gradient: float | None = None
    adapts_all: bool = False


VARIANTS = {
    "paper": _Variant(),
    "nvlamb": _Variant(largest_gradient=1.0, adapts_all=True),
    "v1": _Variant(corrects_bias=False, largest_norm=10.0),
}


@keras.saving.register_keras_serializable(package="ringfeed", name="LAMB")
class LAMB(MomentsOptimizer):
    """Layer-wise adaptive moments; with `exclude_ratio=[]` equal to `optax.lamb` step by step.

    For each variable `w` with gradient `g`, at step `t`, counted from 1::

        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g ** 2
        u = m / (1 - beta_1 ** t) / (sqrt(v / (1 - beta_2 ** t)) + eps) + weight_decay * w    # left out: no decay
        r = |w| / |u|                                                # left out, or a norm is zero: r = 1
        w = w - learning_rate(t) * r * u

    You et al., "Large Batch Optimization for Deep Learning", arXiv 1904.00962v5, Algorithm 2. The variants:

    - `paper`: as above, also that of MLPerf and TensorFlow Addons.
    - `nvlamb`: gradients whose global norm exceeds 1 are first scaled down to it, and every variable has a trust ratio
      unless `exclude_ratio` says otherwise (`apex.optimizers.FusedLAMB` with `use_nvlamb`).
    - `v1`: of the paper's first version: no bias correction, and ``r = min(|w|, 10) / |u|``.

    Args:
        learning_rate: a float, a `LearningRateSchedule`, or a callable without arguments.
        weight_decay: factor of `w` in the step.
        beta_1, beta_2: decay of the moments, in [0, 1).
        eps: added to the root of the second moment.
        exclude: regular expressions of the paths without decay and ratio; `None` leaves out variables of fewer than
            two dimensions.
        name: the optimizer's name.
        variant: one of `VARIANTS`.
        exclude_ratio: regular expressions of the paths without trust ratio; `None`: those of `exclude`.
        freeze_step: steps after which `v`, and its correction, change no more, and `r` is that of 1-bit LAMB
            (`frozen_ratio`); `None`: they always do.

    Raises:
        ValueError: an argument out of its range.

    >>> w = keras.Variable([[3.0, 4.0]])
    >>> LAMB(learning_rate=0.1, eps=0.0).apply([tf.constant([[2.0, 2.0]])], [w])
    >>> [round(float(x), 4) for x in w.numpy()[0]]  # u = (1, 1), r = 5 / sqrt(2)
    [2.6464, 3.6464]
    """

    # One variable for both moments: reads and writes are what a small update costs.
    slots: tuple[tuple[str, tuple[int, ...]], ...] = (("moments", (2,)),)

    def __init__(
        self,
        learning_rate: float | Callable[..., Any] = 0.001,
        weight_decay: float = 0.0,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        eps: float = 1e-6,
        exclude: Sequence[str] | None = None,
        name: str = "lamb",
        variant: str = "paper",
        exclude_ratio: Sequence[str] | None = None,
        freeze_step: int | None = None,
    ) -> None:
        if variant not in VARIANTS:
            raise ValueError(f"LAMB: variant must be one of {', '.join(VARIANTS)}, got {variant!r}")
        all_adapt = exclude_ratio is None and VARIANTS[variant].adapts_all
        ratio = [] if all_adapt else exclude_ratio
        super().__init__(learning_rate, weight_decay, beta_1, beta_2, eps, exclude, name, ratio, freeze_step)
        self.variant = variant
        if freeze_step is not None:
            self.slots = (*self.slots, ("unfrozen_second", ()))
            self.layer_slots = (("ratio_and_factor", (2,)),)
        self.needs_all_gradients = VARIANTS[variant].largest_gradient is not None

    def prepared(self, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """Scale all gradients down to the variant's greatest global norm."""
        largest = VARIANTS[self.variant].largest_gradient
        if largest is None:
            return gradients
        wide = [tf.cast(g, tf.float64 if g.dtype == tf.float64 else tf.float32) for g in gradients]
        norms = [tf.cast(tf.reshape(layer_norms(g[tf.newaxis]), [1]), tf.float64) for g in wide]
        norm = tf.reduce_max(layer_norms(tf.concat(norms, 0)[tf.newaxis]))
        factor = tf.maximum(norm / largest, 1.0)
        return [g / tf.cast(factor, g.dtype) for g in wide]

    def updated(
        self, weights: Tensor, gradient: Tensor, slots: Sequence[Tensor], rate: Tensor, *, decays: bool, adapts: bool
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """One step of a stack of variables."""
        first, second = self.moments(gradient, *_halves(slots[0]))
        root = tf.sqrt(self._corrected(second, self.beta_2, self.freeze_step)) + self.eps
        direction = self._corrected(first, self.beta_1) / root
        update = direction + self.decay_rate * weights if decays else direction
        others = slots[1:]
        if adapts:
            largest, norm = VARIANTS[self.variant].largest_norm, layer_norms(weights)
            ratio = trust_ratio(norm if largest is None else tf.minimum(norm, largest), layer_norms(update))
            if self.freeze_step is not None:
                share = trust_ratio(layer_norms(direction), layer_norms(update))
                ratio, *others = self._frozen(ratio, gradient, second, root, share, others)
            update *= ratio
        return weights - rate * update, [tf.stack([first, second], axis=1), *others]

    def _frozen(
        self, ratio: Tensor, gradient: Tensor, second: Tensor, root: Tensor, share: Tensor, slots: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The trust ratio to use, and the next values of the slots that it is made of, from `freeze_step` on."""
        is_frozen = self.iterations.value >= self.freeze_step
        average, factor = tf.unstack(slots[1], axis=1)
        unfrozen = self.beta_2 * slots[0] + (1 - self.beta_2) * gradient * gradient
        unfrozen = tf.where(is_frozen, unfrozen, second)
        other_root = tf.sqrt(self._corrected(unfrozen, self.beta_2)) + self.eps
        factor = next_factor(tf.where(is_frozen, factor, 1.0), root, other_root, second > 0, tf.reshape(share, [-1]))
        factor = tf.where(is_frozen, factor, 1.0)
        average = tf.where(is_frozen, average, next_average(average, tf.reshape(ratio, [-1])))
        lasting = average / tf.cast(self.share(RATIO_DECAY, self.freeze_step), average.dtype) * factor
        ratio = tf.where(is_frozen, tf.reshape(lasting, tf.shape(ratio)), ratio)
        return ratio, unfrozen, tf.stack([average, factor], axis=1)

    def _corrected(self, moment: Tensor, beta: float, last: int | None = None) -> Tensor:
        if beta == 0 or not VARIANTS[self.variant].corrects_bias:
            return moment
        return moment / tf.cast(self.share(beta, last), moment.dtype)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, for Keras to save and restore."""
        return {**super().get_config(), "variant": self.variant}


def _halves(moments: Tensor) -> tuple[Tensor, Tensor]:
    """Return both moments, [variables, ...], of [variables, 2, ...]; those of one variable, perhaps large, uncopied."""
    if moments.shape[0] == 1:
        first, second = tf.unstack(tf.squeeze(moments, 0))
        return first[None], second[None]
    return moments[:, 0], moments[:, 1]
