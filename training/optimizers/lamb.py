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

_RATIO_DECAY = 0.9  # the average of ratios decays by it; it and the bounds are the paper's (section 4)
_FACTORS = 0.5, 4.0
_FACTOR_STEP = 0.1  # a step changes the factor by this share of it at most


def _next_average(average: Tensor, ratio: Tensor) -> Tensor:
    """Return the moving average, from 0, of the trust ratios of the dense steps; of layers, [layers].

    >>> float(_next_average(tf.constant(2.0), tf.constant(12.0)))
    3.0
    """
    return _RATIO_DECAY * average + (1 - _RATIO_DECAY) * ratio


def _next_factor(factor: Tensor, frozen_root: Tensor, root: Tensor, moves: Tensor, share: Tensor) -> Tensor:
    """Return the factor of the average after a step: the greatest quotient of the roots, within bounds.

    Args:
        factor: the step before's, [layers]; at first 1.
        frozen_root, root: what the optimizer divides by, and would divide by, [layers, ...].
        moves: whether an entry is ever changed, bool [layers, ...]; others do not count.
        share: norm of the step without weight decay over the whole step's, [layers]; the rest keeps the factor 1.

    >>> roots = tf.constant([[2.0, 1.0, 9.0]]), tf.constant([[1.9, 1.0, 1.0]])
    >>> round(float(_next_factor(tf.ones(1), *roots, tf.constant([[True, True, False]]), tf.ones(1))[0]), 3)
    1.053
    """
    quotients = tf.where(moves, frozen_root / root, 0.0)
    greatest = tf.reduce_max(quotients, axis=list(range(1, quotients.shape.rank)))
    share = tf.minimum(share, 1.0)
    wanted = tf.clip_by_value(greatest * share + 1 - share, *_FACTORS)
    return tf.clip_by_value(wanted, factor * (1 - _FACTOR_STEP), factor * (1 + _FACTOR_STEP))


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

    @property
    def slots(self) -> Mapping[str, tuple[int, ...]]:  # type: ignore[override]  # it depends on `freeze_step`
        """One variable for both moments: reads and writes are what a small update costs."""
        return {"moments": (2,)} | ({} if self.freeze_step is None else {"unfrozen_second": ()})

    @property
    def layer_slots(self) -> Mapping[str, tuple[int, ...]]:
        """The trust ratio from `freeze_step` on."""
        return {} if self.freeze_step is None else {"ratio_and_factor": (2,)}

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
        first, second = next_moments(self, gradient, _halves(slots[0]), step.number)
        root = tf.sqrt(self._corrected(second, options.beta_2, step, self.freeze_step)) + options.epsilon
        direction = self._corrected(first, options.beta_1, step) / root
        update = direction + options.weight_decay * weights if step.decays else direction
        others = slots[1:]
        if step.adapts:
            largest, norm = self._variant.largest_norm, layer_norms(weights)
            ratio = trust_ratio(norm if largest is None else tf.minimum(norm, largest), layer_norms(update))
            if self.freeze_step is not None:
                share = trust_ratio(layer_norms(direction), layer_norms(update))
                ratio, *others = self._frozen(gradient, second, root, ratio, share, step, others)
            update *= ratio
        return weights - step.rate * update, [tf.stack([first, second], axis=1), *others]

    def _frozen(
        self, gradient: Tensor, second: Tensor, root: Tensor, ratio: Tensor, share: Tensor, step: RuleStep, slots: Slots
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The trust ratio of 1-bit LAMB, and the next values of the slots that it is made of, from `freeze_step` on.

        Once the second moment is frozen, the ratio of each layer is the average of its ratios so far, times a factor
        that follows the second moment as it would be now. The norms of compressed steps would give another ratio. Li et
        al., arXiv 2104.06069, Algorithm 1.
        """
        options = self.options
        is_frozen = step.number >= self.freeze_step
        average, factor = tf.unstack(slots[1], axis=1)
        unfrozen = options.beta_2 * slots[0] + (1 - options.beta_2) * gradient * gradient
        unfrozen = tf.where(is_frozen, unfrozen, second)
        other_root = tf.sqrt(self._corrected(unfrozen, options.beta_2, step)) + options.epsilon
        before, moves, share = tf.where(is_frozen, factor, 1.0), second > 0, tf.reshape(share, [-1])
        factor = tf.where(is_frozen, _next_factor(before, root, other_root, moves, share), 1.0)
        average = tf.where(is_frozen, average, _next_average(average, tf.reshape(ratio, [-1])))
        lasting = average / tf.cast(correction(_RATIO_DECAY, step.number, self.freeze_step), average.dtype) * factor
        ratio = tf.where(is_frozen, tf.reshape(lasting, tf.shape(ratio)), ratio)
        return ratio, unfrozen, tf.stack([average, factor], axis=1)

    def _corrected(self, moment: Tensor, beta: float, step: RuleStep, last: int | None = None) -> Tensor:
        if beta == 0 or not self._variant.corrects_bias:
            return moment
        return moment / tf.cast(correction(beta, step.number, last), moment.dtype)

    def moments(self, slots: Slots) -> tuple[Tensor, Tensor]:
        first, second = tf.unstack(slots[0])
        return first, second


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
        freeze_step: steps after which `v`, and its correction, change no more, and `r` is as in 1-bit LAMB;
            `None`: they always do.

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
        freeze_step: int | None = None,
        name: str = "lamb",
        **options: Unpack[LAMBOptions],
    ) -> None:
        given = {
            "beta_1": beta_1,
            "beta_2": beta_2,
            "eps": eps,
            "variant": "paper",
            "weight_decay": weight_decay,
            **options,
        }
        super().__init__(learning_rate, LAMBRule(make_options(LAMBConfig, "LAMB", given), freeze_step), name)
