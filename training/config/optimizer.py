"""Options of the optimizer, its learning rate over the run, the loss scale, and the average of weights.

Tested in tests/training/config/test_config.py and tests/training/optimizers/test_build.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ringfeed.sharding.errors import ConfigError

from .checks import FUNCTION, is_function, is_pattern, key, one_of, require, require_finite, require_size

__all__ = [
    "DECAYS",
    "SCALINGS",
    "STRETCHED",
    "VARIANTS",
    "WARMUPS",
    "EMAConfig",
    "LossScaleConfig",
    "OptimizerConfig",
    "ScheduleConfig",
]

DECAYS = ("cosine", "polynomial", "step", "constant", "one-cycle")
STRETCHED = ("cosine", "polynomial", "one-cycle")  # decays that depend on the length of the schedule
WARMUPS = ("gradual", "constant")
OPTIMIZERS = ("lars", "lamb", "sgd", "adam", "adamw")
SCALINGS = ("linear", "sqrt")
VARIANTS = {
    "lars": ("optax", "paper", "mlperf", "mlperf-unscaled", "tf-models", "tf-models-popular", "larc"),
    "lamb": ("paper", "nvlamb", "v1"),
}
"""The first of each optimizer is its default."""
WITHOUT_EPS = ("paper", "tf-models", "tf-models-popular")  # of lars


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """Options of the optimizer."""

    name: str = key(
        "lars",
        f"{', '.join(OPTIMIZERS)}, or module:function, such as keras.optimizers:Lion",
        choices=OPTIMIZERS,
        pattern=f"^{FUNCTION}$",
    )
    variant: str | None = key(
        None,
        "; ".join(f"{name}: {', '.join(names)}" for name, names in VARIANTS.items()) + "; null: the first",
        choices=tuple(name for names in VARIANTS.values() for name in names),
    )
    learning_rate: float = key(1.0, "peak learning rate; for a batch of base_batch_size, if that is given")
    base_batch_size: int | None = key(None, "the peak is learning_rate scaled by batch_size / base_batch_size")
    scaling: str = key(
        "linear", "how the peak grows with the batch: linear, or sqrt (its square root)", choices=SCALINGS
    )
    weight_decay: float = key(0.0, "lars, lamb: added to the step before its norm is taken; sgd, adamw: decoupled")
    momentum: float = key(0.9, "lars, sgd")
    nesterov: bool = key(False, "lars, sgd")
    trust_coefficient: float = key(0.001, "lars: eta of arXiv 1708.03888")
    eps: float | None = key(None, "added to the denominator; null: lars 0 (larc 1e-8), lamb 1e-6, adam and adamw 1e-7")
    beta_1: float = key(0.9, "lamb, adam, adamw")
    beta_2: float = key(0.999, "lamb, adam, adamw")
    exclude: tuple[str, ...] | None = key(
        None, "patterns of variable paths without decay and trust ratio; null: biases and normalisation parameters"
    )
    exclude_ratio: tuple[str, ...] | None = key(
        None, "lars, lamb: patterns of variable paths without trust ratio alone; null: those of exclude (nvlamb: none)"
    )
    clip_norm: float | None = key(None, "largest global norm of the gradients; null: no clipping")
    accumulate: int = key(
        1, "parts of a rank's batch that pass through the network one after the other, to save memory"
    )
    options: Mapping[str, Any] = field(
        default_factory=dict, metadata={"help": "module:function: further arguments of the optimizer"}
    )

    def __post_init__(self) -> None:
        known = self.name in OPTIMIZERS or is_function(self.name)
        require(known, "optimizer.name", f"one of {', '.join(OPTIMIZERS)}, or module:function", self.name)
        one_of("optimizer.scaling", self.scaling, SCALINGS)
        require_size("optimizer.accumulate", self.accumulate)
        self._check_pairs()
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
        for name in ("exclude", "exclude_ratio"):
            for pattern in getattr(self, name) or ():
                require(is_pattern(pattern), f"optimizer.{name}", "regular expressions", pattern)
        if self.clip_norm is not None:
            rule = "in [1e-37, 1e37] (it is a float32, as is its reciprocal)"
            require(1e-37 <= self.clip_norm <= 1e37, "optimizer.clip_norm", rule, self.clip_norm)

    def _check_pairs(self) -> None:
        """Refuse options that the optimizer does not have."""
        variants = VARIANTS.get(self.name, ())
        if self.variant is not None and self.variant not in variants:
            owners = [name for name, names in VARIANTS.items() if self.variant in names]
            remedy = f"; {self.variant} is one of optimizer.name={owners[0]}" if owners else ""
            rule = f"one of {', '.join(variants)}" if variants else "null"
            raise ConfigError(f"optimizer.variant must be {rule} for {self.name}, got {self.variant!r}{remedy}")
        has_nesterov = not self.nesterov or self.name in ("lars", "sgd")
        require(has_nesterov, "optimizer.nesterov", f"false for {self.name} (lars and sgd have it)", self.nesterov)
        has_ratio = self.exclude_ratio is None or self.name in VARIANTS
        require(
            has_ratio, "optimizer.exclude_ratio", f"null for {self.name} (lars and lamb have it)", self.exclude_ratio
        )
        has_options = not self.options or is_function(self.name)
        require(has_options, "optimizer.options", f"empty for {self.name} (module:function has it)", dict(self.options))
        has_eps = not self.eps or self.name != "lars" or self.variant not in WITHOUT_EPS
        rule = f"null or 0 for the variant {self.variant} (optax, mlperf and larc have it)"
        require(has_eps, "optimizer.eps", rule, self.eps)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """Options of the learning rate over the run."""

    decay: str = key("cosine", f"after the warm-up: one of {', '.join(DECAYS)}", choices=DECAYS)
    total_epochs: float | None = key(
        None, "length of the schedule, warm-up included; null: epochs. Set it to raise epochs"
    )
    total_steps: int | None = key(None, "the same in steps")
    warmup: str = key(
        "gradual", "gradual: rises linearly (one-cycle: as a cosine); constant: stays at init_factor", choices=WARMUPS
    )
    warmup_epochs: float = key(0.0, "epochs of warm-up, fractions allowed")
    warmup_steps: int | None = key(None, "the same in steps")
    init_factor: float = key(0.0, "learning rate at step 0 of the warm-up, as a fraction of the peak")
    end_factor: float = key(0.0, "learning rate at the end, as a fraction of the peak (cosine, polynomial, one-cycle)")
    power: float = key(2.0, "exponent of the polynomial")
    boundaries: tuple[float, ...] = key((), "step decay: epochs at which the learning rate falls")
    boundary_steps: tuple[int, ...] = key((), "step decay: the same in steps")
    factor: float = key(0.1, "step decay: factor of the learning rate at each boundary")

    def __post_init__(self) -> None:
        one_of("schedule.decay", self.decay, DECAYS)
        one_of("schedule.warmup", self.warmup, WARMUPS)
        require(self.warmup_epochs >= 0, "schedule.warmup_epochs", "at least 0", self.warmup_epochs)
        for name in ("warmup", "total"):
            epochs, steps = getattr(self, f"{name}_epochs"), getattr(self, f"{name}_steps")
            require(not epochs or steps is None, f"schedule.{name}_steps", f"null beside {name}_epochs", steps)
        if self.warmup_steps is not None:
            require(self.warmup_steps >= 0, "schedule.warmup_steps", "at least 0", self.warmup_steps)
        if self.total_steps is not None:
            require_size("schedule.total_steps", self.total_steps)
        if self.total_epochs is not None:
            rule = "finite and above 0"
            require(0 < self.total_epochs < math.inf, "schedule.total_epochs", rule, self.total_epochs)
        has_warmup = bool(self.warmup_epochs or self.warmup_steps)
        cycles = self.decay != "one-cycle" or (has_warmup and self.warmup == "gradual")
        require(cycles, "schedule.warmup_epochs", "above 0, and warmup gradual, for one-cycle", self.warmup_epochs)
        moves = self.warmup != "constant" or self.init_factor > 0
        require(moves, "schedule.init_factor", "above 0 for a constant warm-up", self.init_factor)
        for name in ("init_factor", "end_factor", "factor"):
            require_finite(f"schedule.{name}", getattr(self, name))
        require(0 < self.power < math.inf, "schedule.power", "finite and above 0", self.power)
        for name in ("boundaries", "boundary_steps"):
            values = list(getattr(self, name))
            rising = values == sorted(set(values)) and all(0 < value < math.inf for value in values)
            unit = "epochs" if name == "boundaries" else "steps"
            require(rising, f"schedule.{name}", f"rising {unit} above 0", values)
        given = bool(self.boundaries) + bool(self.boundary_steps)
        rule = "given for step decay, in epochs or as boundary_steps"
        require(self.decay != "step" or given == 1, "schedule.boundaries", rule, list(self.boundaries))


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScaleConfig:
    """Options of the dynamic loss scale of float16."""

    initial: float = key(2.0**15, "first scale; halved at an overflow")
    growth_interval: int = key(2000, "steps without an overflow before the scale doubles")

    def __post_init__(self) -> None:
        require(1 <= self.initial <= 2.0**126, "loss_scale.initial", "at least 1, and at most 2**126", self.initial)
        require_size("loss_scale.growth_interval", self.growth_interval)


@dataclass(frozen=True, slots=True, kw_only=True)
class EMAConfig:
    """Options of the moving average of weights, which is evaluated and saved in place of the last weights."""

    decay: float | None = key(None, "share of the average that a step keeps, such as 0.999; null: no average")
    warmup: bool = key(True, "let step t keep at most (1 + t) / (10 + t), to forget the initial weights")

    def __post_init__(self) -> None:
        if self.decay is not None:
            require(0 < self.decay < 1, "ema.decay", "in (0, 1)", self.decay)
