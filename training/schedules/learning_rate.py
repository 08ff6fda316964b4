"""Learning rates as pure functions of the step: warm-up, then cosine, polynomial, step, one-cycle or no decay.

Each function equals the optax schedule that its docstring names. For a step that is a Python number or NumPy array, the
result is NumPy float64; for a TensorFlow tensor it is float32, also inside `tf.function`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import keras
import numpy as np

from ringfeed.training.config.optimizers import SCALINGS
from ringfeed.training.config.schedule import DECAYS, WARMUPS

if TYPE_CHECKING:
    from typing_extensions import Unpack

Schedule = Callable[[Any], Any]


def _schedule(value: Callable[[Any, Any], Any]) -> Schedule:
    """Return a schedule by a function of the array namespace of a step, and of the step as a float in it."""

    def schedule(step: Any) -> Any:
        if isinstance(step, (int, float, np.ndarray, np.generic)):
            return value(np, np.asarray(step, np.float64))
        return value(keras.ops, keras.ops.cast(step, "float32"))

    return schedule


def scaled_learning_rate(
    base_learning_rate: float, batch_size: int, base_batch_size: int, scaling: str = "linear"
) -> float:
    """The linear scaling rule, `base_learning_rate * batch_size / base_batch_size`, or the rule of the square root.

    Linear: Goyal et al., "Accurate, Large Minibatch SGD", arXiv 1706.02677, section 2.1, for SGD. Square root:
    Krizhevsky, arXiv 1404.5997, section 5, and You et al., arXiv 1904.00962, section 4.3, for LAMB. The batches are
    global ones.

    Args:
        base_learning_rate: the rate for `base_batch_size`.
        batch_size, base_batch_size: samples per step.
        scaling: "linear" or "sqrt".

    Raises:
        ValueError: a batch size is below 1, or the scaling is unknown.

    >>> scaled_learning_rate(0.1, batch_size=8192, base_batch_size=256)
    3.2
    >>> scaled_learning_rate(0.1, 4096, 256, scaling="sqrt")
    0.4
    """
    if scaling not in SCALINGS:
        raise ValueError(f"scaling must be one of {', '.join(SCALINGS)}, got {scaling!r}")
    if batch_size < 1 or base_batch_size < 1:
        raise ValueError(f"batch sizes must be at least 1, got {batch_size} and {base_batch_size}")
    if scaling == "sqrt":
        return base_learning_rate * math.sqrt(batch_size / base_batch_size)
    return base_learning_rate * batch_size / base_batch_size


def constant(value: float) -> Schedule:
    """`value` at every step (`optax.constant_schedule`)."""
    return _schedule(lambda xp, count: xp.ones_like(count) * value)


def polynomial(init_value: float, end_value: float, power: float, steps: int) -> Schedule:
    """`(init - end) * (1 - min(t, T) / T) ** power + end` (`optax.polynomial_schedule`); T = 0 holds `init_value`.

    >>> ramp = polynomial(0.0, 1.0, power=1.0, steps=4)
    >>> [float(ramp(t)) for t in (0, 1, 4, 9)]
    [0.0, 0.25, 1.0, 1.0]
    """
    if steps == 0:
        return constant(init_value)

    def value(xp: Any, count: Any) -> Any:
        left = 1 - xp.clip(count, 0.0, float(steps)) / steps
        return (init_value - end_value) * left**power + end_value

    return _schedule(value)


def cosine(init_value: float, steps: int, alpha: float = 0.0) -> Schedule:
    """`init * ((1 - alpha) * (1 + cos(pi * min(t, T) / T)) / 2 + alpha)` (`optax.cosine_decay_schedule`).

    Loshchilov and Hutter, "SGDR", arXiv 1608.03983, equation 5, without restarts.

    >>> fall = cosine(2.0, steps=10, alpha=0.5)
    >>> [round(float(fall(t)), 6) for t in (0, 5, 10, 99)]
    [2.0, 1.5, 1.0, 1.0]
    """

    def value(xp: Any, count: Any) -> Any:
        swing = 0.5 * (1 + xp.cos(math.pi * xp.minimum(count, float(steps)) / steps))
        return init_value * ((1 - alpha) * swing + alpha)

    return _schedule(value)


def swing(init_value: float, end_value: float, steps: int) -> Schedule:
    """`init + (end - init) * (1 - cos(pi * min(t, T) / T)) / 2`: a half of `optax.cosine_onecycle_schedule`.

    >>> rise = swing(0.0, 2.0, steps=4)
    >>> [round(float(rise(t)), 6) for t in (0, 2, 4, 9)]
    [0.0, 1.0, 2.0, 2.0]
    """

    def value(xp: Any, count: Any) -> Any:
        passed = 0.5 * (1 - xp.cos(math.pi * xp.minimum(count, float(steps)) / steps))
        return init_value + (end_value - init_value) * passed

    return _schedule(value)


def piecewise(init_value: float, scales: Mapping[int, float]) -> Schedule:
    """`init_value` times every scale whose boundary is at or before the step (`optax.piecewise_constant_schedule`).

    >>> stairs = piecewise(1.0, {3: 0.1})
    >>> [float(stairs(t)) for t in (2, 3)]
    [1.0, 0.1]
    """

    def value(xp: Any, count: Any) -> Any:
        rate = xp.ones_like(count) * init_value
        for boundary, scale in sorted(scales.items()):
            rate = xp.where(count >= boundary, rate * scale, rate)
        return rate

    return _schedule(value)


def join(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """Schedule `i + 1` from boundary `i` on, with steps counted from there (`optax.join_schedules`).

    >>> both = join([polynomial(0.0, 1.0, 1.0, 2), constant(5.0)], [2])
    >>> [float(both(t)) for t in (1, 2)]
    [0.5, 5.0]
    """

    def value(xp: Any, count: Any) -> Any:
        rate = schedules[0](count)
        for boundary, piece in zip(boundaries, schedules[1:], strict=True):
            rate = xp.where(count < boundary, rate, piece(count - boundary))
        return rate

    return _schedule(value)


class WarmUpDecayOptions(TypedDict, total=False):
    """The options of `WarmUpDecay` that only some decays have, and their types; see there."""

    power: float
    scales: Sequence[tuple[int, float]]
    warmup: str


@keras.saving.register_keras_serializable(package="ringfeed", name="WarmUpDecay")
class WarmUpDecay(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]  # Keras ships no types
    """Linear warm-up from `init_value` to `peak_value`, then a decay to `end_value` at `total_steps`.

    With decay "cosine" this is `optax.warmup_cosine_decay_schedule`. The warm-ups, gradual and constant, come from
    Goyal et al., arXiv 1706.02677, section 2.2. "one-cycle" rises and falls as a cosine, and is
    `optax.cosine_onecycle_schedule`; Smith and Topin, arXiv 1708.07120, also lower the momentum, which it does not.

    Args:
        peak_value: learning rate at the end of the warm-up.
        warmup_steps: steps of the warm-up; 0 starts at the peak.
        total_steps: steps of the whole run, warm-up included.
        decay: one of `DECAYS`.
        init_value: learning rate at step 0, if there is a warm-up.
        end_value: learning rate at `total_steps` (cosine and polynomial).
        power: exponent of the polynomial.
        scales: for "step": pairs of (step, factor), with steps counted from the start of the run.
        warmup: "gradual", or "constant" at `init_value`.

    Raises:
        ValueError: the decay is unknown, or no step is left after the warm-up.

    >>> rate = WarmUpDecay(peak_value=1.0, warmup_steps=2, total_steps=12)
    >>> [round(float(rate(t)), 6) for t in (0, 1, 2, 7, 12)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """

    def __init__(
        self,
        peak_value: float,
        warmup_steps: int,
        total_steps: int,
        decay: str = "cosine",
        init_value: float = 0.0,
        end_value: float = 0.0,
        **options: Unpack[WarmUpDecayOptions],
    ) -> None:
        given: WarmUpDecayOptions = {"power": 2.0, "scales": (), "warmup": "gradual", **options}
        if unknown := given.keys() - WarmUpDecayOptions.__annotations__.keys():
            raise TypeError(f"WarmUpDecay has no argument {min(unknown)!r}")
        for name, value, words in (("decay", decay, DECAYS), ("warmup", given["warmup"], WARMUPS)):
            if value not in words:
                raise ValueError(f"{name} must be one of {', '.join(words)}, got {value!r}")
        if not 0 <= warmup_steps < total_steps:
            raise ValueError(
                f"warmup_steps must be at least 0 and below total_steps ({total_steps}), got {warmup_steps}"
            )
        self.peak_value, self.init_value, self.end_value = float(peak_value), float(init_value), float(end_value)
        self.warmup_steps, self.total_steps = int(warmup_steps), int(total_steps)
        self.decay, self.warmup, self.power = decay, given["warmup"], float(given["power"])
        self.scales = [(int(step), float(factor)) for step, factor in given["scales"]]
        self._schedule = self._with_warmup()

    def _with_warmup(self) -> Schedule:
        if self.warmup_steps == 0:
            return self._after_warmup()
        if self.warmup == "constant":
            ramp = constant(self.init_value)
        elif self.decay == "one-cycle":
            ramp = swing(self.init_value, self.peak_value, self.warmup_steps)
        else:
            ramp = polynomial(self.init_value, self.peak_value, 1.0, self.warmup_steps)
        return join([ramp, self._after_warmup()], [self.warmup_steps])

    def _after_warmup(self) -> Schedule:
        steps = self.total_steps - self.warmup_steps
        if self.decay == "cosine":
            return cosine(self.peak_value, steps, self.end_value / self.peak_value if self.peak_value else 0.0)
        if self.decay == "one-cycle":
            return swing(self.peak_value, self.end_value, steps)
        if self.decay == "polynomial":
            return polynomial(self.peak_value, self.end_value, self.power, steps)
        if self.decay == "step":
            factors: dict[int, float] = {}
            for step, factor in self.scales:  # boundaries may fall on the same step
                factors[step - self.warmup_steps] = factors.get(step - self.warmup_steps, 1.0) * factor
            return piecewise(self.peak_value, factors)
        return constant(self.peak_value)

    def __call__(self, step: Any) -> Any:
        """The learning rate at a step, or at an array of steps."""
        return self._schedule(step)

    def get_config(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_schedule"}
