"""Options of the optimizer, its learning rate over the run, and the loss scale."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .checks import is_pattern, key, one_of, require, require_finite, require_size

__all__ = ["DECAYS", "LossScaleConfig", "OptimizerConfig", "ScheduleConfig"]

DECAYS = ("cosine", "polynomial", "step", "constant")
OPTIMIZERS = ("lars", "sgd", "adam", "adamw")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """Options of the optimizer."""

    name: str = key("lars", f"one of {', '.join(OPTIMIZERS)}")
    learning_rate: float = key(1.0, "peak learning rate; for a batch of base_batch_size, if that is given")
    base_batch_size: int | None = key(None, "linear scaling: the peak is learning_rate * batch_size / base_batch_size")
    weight_decay: float = key(0.0, "lars: added to the gradient; sgd, adamw: decoupled")
    momentum: float = key(0.9, "lars, sgd")
    nesterov: bool = key(False, "lars, sgd")
    trust_coefficient: float = key(0.001, "lars: eta of arXiv 1708.03888")
    eps: float | None = key(None, "added to the denominator; null: 0 for lars, 1e-7 for adam and adamw")
    beta_1: float = key(0.9, "adam, adamw")
    beta_2: float = key(0.999, "adam, adamw")
    exclude: tuple[str, ...] | None = key(
        None, "patterns of variable paths without decay and trust ratio; null: biases and normalisation parameters"
    )
    clip_norm: float | None = key(None, "largest global norm of the gradients; null: no clipping")

    def __post_init__(self) -> None:
        one_of("optimizer.name", self.name, OPTIMIZERS)
        require(0 < self.learning_rate < math.inf, "optimizer.learning_rate", "finite and above 0", self.learning_rate)
        require_finite("optimizer.weight_decay", self.weight_decay)
        no_decay = self.name != "adam" or self.weight_decay == 0
        require(no_decay, "optimizer.weight_decay", "0 for adam (adamw has it)", self.weight_decay)
        require(0 <= self.momentum < 1, "optimizer.momentum", "in [0, 1)", self.momentum)
        trust_holds = 0 < self.trust_coefficient < math.inf
        require(trust_holds, "optimizer.trust_coefficient", "finite and above 0", self.trust_coefficient)
        for name in ("beta_1", "beta_2"):
            require(0 <= getattr(self, name) < 1, f"optimizer.{name}", "in [0, 1)", getattr(self, name))
        if self.eps is not None:
            require_finite("optimizer.eps", self.eps)
        if self.base_batch_size is not None:
            require_size("optimizer.base_batch_size", self.base_batch_size)
        for pattern in self.exclude or ():
            require(is_pattern(pattern), "optimizer.exclude", "regular expressions", pattern)
        if self.clip_norm is not None:
            rule = "in [1e-37, 1e37] (it is a float32, as is its reciprocal)"
            require(1e-37 <= self.clip_norm <= 1e37, "optimizer.clip_norm", rule, self.clip_norm)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """Options of the learning rate over the run."""

    decay: str = key("cosine", f"after the warm-up: one of {', '.join(DECAYS)}")
    warmup_epochs: float = key(0.0, "epochs of linear warm-up, fractions allowed")
    init_factor: float = key(0.0, "learning rate at step 0 of the warm-up, as a fraction of the peak")
    end_factor: float = key(0.0, "learning rate at the end, as a fraction of the peak (cosine, polynomial)")
    power: float = key(2.0, "exponent of the polynomial")
    boundaries: tuple[float, ...] = key((), "step decay: epochs at which the learning rate falls")
    factor: float = key(0.1, "step decay: factor of the learning rate at each boundary")

    def __post_init__(self) -> None:
        one_of("schedule.decay", self.decay, DECAYS)
        require(self.warmup_epochs >= 0, "schedule.warmup_epochs", "at least 0", self.warmup_epochs)
        for name in ("init_factor", "end_factor", "factor"):
            require_finite(f"schedule.{name}", getattr(self, name))
        require(0 < self.power < math.inf, "schedule.power", "finite and above 0", self.power)
        rising = list(self.boundaries) == sorted(set(self.boundaries)) and all(
            0 < b < math.inf for b in self.boundaries
        )
        require(rising, "schedule.boundaries", "rising epochs above 0", list(self.boundaries))
        has_boundaries = self.decay != "step" or bool(self.boundaries)
        require(has_boundaries, "schedule.boundaries", "given for step decay", list(self.boundaries))


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScaleConfig:
    """Options of the dynamic loss scale of float16."""

    initial: float = key(2.0**15, "first scale; halved at an overflow")
    growth_interval: int = key(2000, "steps without an overflow before the scale doubles")

    def __post_init__(self) -> None:
        require(1 <= self.initial <= 2.0**126, "loss_scale.initial", "at least 1, and at most 2**126", self.initial)
        require_size("loss_scale.growth_interval", self.growth_interval)
