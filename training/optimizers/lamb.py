"""LAMB: Adam whose step is scaled layer by layer, for very large batches.

Published variants differ: see `VARIANTS`.
Tested in tests/training/optimizers/test_references.py and tests/training/optimizers/test_rule.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

import keras
import tensorflow as tf

from ringfeed.training.config.optimizers import LAMBConfig

from .keras_doors import Tensor
from .norms import layer_norms, trust_ratio
from .rule import Rule, RuleOptimizer, RuleStep, Slots, correction, make_options, next_moments

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True, slots=True, kw_only=True)
class _Variant:
    corrects_bias: bool = True  # whether the moments are divided by what they lack in their first steps
    largest_norm: float | None = None  # the greatest norm of weights that counts; None: any
    # The greatest global norm of the gradients, which are scaled down to it; None: any
    largest_gradient: float | None = None
    adapts_all: bool = False  # whether variables without decay have a trust ratio, too


VARIANTS = {
    "paper": _Variant(),
    "nvlamb": _Variant(largest_gradient=1.0, adapts_all=True),
    "v1": _Variant(corrects_bias=False, largest_norm=10.0),
}


@dataclass(frozen=True)
class LAMBRule(Rule):
    """Adam with a rate for each layer: see `LAMB`."""

    keras_name: ClassVar[str] = "lamb"
    slots: ClassVar[Mapping[str, tuple[int, ...]]] = {"moments": (2,)}
    """One variable for both moments: reads and writes are what a small update costs."""

    @property
    def exclude_ratio(self) -> Sequence[str] | None:
        return () if super().exclude_ratio is None and self._variant.adapts_all else super().exclude_ratio

    @property
    def needs_all_gradients(self) -> bool:
        return self._variant.largest_gradient is not None

    @property
    def _variant(self) -> _Variant:
        return VARIANTS[self.options.variant or "paper"]

    def prepared(self, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """Scale all gradients down to the variant's greatest global norm."""
        largest = self._variant.largest_gradient
        if largest is None:
            return gradients
        wide = [tf.cast(g, tf.float64 if g.dtype == tf.float64 else tf.float32) for g in gradients]
        norms = [tf.cast(tf.reshape(layer_norms(g[tf.newaxis]), [1]), tf.float64) for g in wide]
        norm = tf.reduce_max(layer_norms(tf.concat(norms, 0)[tf.newaxis]))
        factor = tf.maximum(norm / largest, 1.0)
        return [g / tf.cast(factor, g.dtype) for g in wide]

    def updated(self, weights: Tensor, gradient: Tensor, slots: Slots, step: RuleStep) -> tuple[Tensor, Slots]:
        options = self.options
        first, second = next_moments(options, gradient, _halves(slots[0]))
        root = tf.sqrt(self._corrected(second, options.beta_2, step)) + options.epsilon
        update = self._corrected(first, options.beta_1, step) / root
        if step.decays:
            update += options.weight_decay * weights
        if step.adapts:
            largest, norm = self._variant.largest_norm, layer_norms(weights)
            update *= trust_ratio(norm if largest is None else tf.minimum(norm, largest), layer_norms(update))
        return weights - step.rate * update, [tf.stack([first, second], axis=1)]

    def _corrected(self, moment: Tensor, beta: float, step: RuleStep) -> Tensor:
        if beta == 0 or not self._variant.corrects_bias:
            return moment
        return moment / tf.cast(correction(beta, step.number), moment.dtype)


def _halves(moments: Tensor) -> tuple[Tensor, Tensor]:
    """Return both moments, [variables, ...], of [variables, 2, ...]; one variable, perhaps large, is not copied."""
    if moments.shape[0] == 1:
        first, second = tf.unstack(tf.squeeze(moments, 0))
        return first[None], second[None]
    return moments[:, 0], moments[:, 1]


class LAMBOptions(TypedDict, total=False):
    """The options of `LAMB` beside the learning rate, and their types; see there."""

    exclude: Sequence[str] | None
    variant: str
    exclude_ratio: Sequence[str] | None


@keras.saving.register_keras_serializable(package="ringfeed", name="LAMB")
class LAMB(RuleOptimizer):
    """Layer-wise adaptive moments; with `exclude_ratio=[]` equal to `optax.lamb` step by step.

    For each variable `w` with gradient `g`, at step `t`, counted from 1::

        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g ** 2
        u = m / (1 - beta_1 ** t) / (sqrt(v / (1 - beta_2 ** t)) + eps) + weight_decay * w    # left out: no decay
        r = |w| / |u|                                                # left out, or a norm is zero: r = 1
        w = w - learning_rate(t) * r * u

    You et al., "Large Batch Optimization for Deep Learning", arXiv 1904.00962v5, Algorithm 2. The variants:

    - `paper`: as above, also in MLPerf and TensorFlow Addons.
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
        exclude_ratio: regular expressions of the paths without trust ratio; `None`: `exclude`.

    Raises:
        ValueError: an argument out of its range.

    >>> w = keras.Variable([[3.0, 4.0]])
    >>> LAMB(learning_rate=0.1, eps=0.0).apply([tf.constant([[2.0, 2.0]])], [w])
    >>> [round(float(x), 4) for x in w.numpy()[0]]  # u = (1, 1), r = 5 / sqrt(2)
    [2.6464, 3.6464]
    """

    def __init__(
        self,
        learning_rate: float | Callable[..., Any] = 0.001,
        weight_decay: float = 0.0,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        eps: float = 1e-6,
        *,
        name: str = "lamb",
        **options: Unpack[LAMBOptions],
    ) -> None:
        given = {"weight_decay": weight_decay, "beta_1": beta_1, "beta_2": beta_2, "eps": eps, **options}
        super().__init__(learning_rate, LAMBRule(make_options(LAMBConfig, "LAMB", given)), name)
