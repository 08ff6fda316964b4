"""Options of the learning rate over a run, of the loss scale, and of the average of weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .checks import FUNCTION, SIZES, Options, key, require

DECAYS = ("cosine", "polynomial", "step", "constant", "one-cycle")
STRETCHED = ("cosine", "polynomial", "one-cycle")
"""Decays that depend on the length of the schedule."""
WARMUPS = ("gradual", "constant")


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig(Options, group="schedule"):
    """Options of the learning rate over the run."""

    name: str | None = key(
        None,
        "module:function, called with (peak, steps) for a function of the step, without warm-up; null: decay",
        choices=(FUNCTION,),
    )
    decay: str = key("cosine", f"after the warm-up: one of {', '.join(DECAYS)}", choices=DECAYS)
    total_epochs: float | None = key(
        None, "length of the schedule, warm-up included; null: epochs. Set it to raise epochs", above=0
    )
    total_steps: int | None = key(None, "the same in steps", at_least=1, below=SIZES)
    warmup: str = key(
        "gradual", "gradual: rises linearly (one-cycle: as a cosine); constant: stays at init_factor", choices=WARMUPS
    )
    warmup_epochs: float = key(0.0, "epochs of warm-up, fractions allowed", at_least=0)
    warmup_steps: int | None = key(None, "the same in steps", at_least=0)
    init_factor: float = key(0.0, "learning rate at step 0 of the warm-up, as a fraction of the peak", at_least=0)
    end_factor: float = key(
        0.0, "learning rate at the end, as a fraction of the peak (cosine, polynomial, one-cycle)", at_least=0
    )
    power: float = key(2.0, "exponent of the polynomial", above=0)
    boundaries: tuple[float, ...] = key((), "step decay: epochs at which the learning rate falls")
    boundary_steps: tuple[int, ...] = key((), "step decay: the same in steps")
    factor: float = key(0.1, "step decay: factor of the learning rate at each boundary", at_least=0)
    options: Mapping[str, Any] = key(dict, "module:function: further arguments of the schedule")

    @property
    def has_warmup(self) -> bool:
        return bool(self.warmup_epochs or self.warmup_steps)

    @property
    def has_boundaries(self) -> bool:
        """Whether there are boundaries, in epochs or in steps."""
        return bool(self.boundaries or self.boundary_steps)

    def check(self) -> None:
        for name, unit in (("boundaries", "epochs"), ("boundary_steps", "steps")):
            values = list(getattr(self, name))
            rising = values == sorted(set(values)) and all(0 < value < math.inf for value in values)
            require(rising, f"schedule.{name}", f"rising {unit} above 0", values)


@dataclass(frozen=True, kw_only=True)
class LossScaleConfig(Options, group="loss_scale"):
    """Options of the dynamic loss scale of float16."""

    initial: float = key(2.0**15, "first scale; halved at an overflow", at_least=1, at_most=2.0**126)
    growth_interval: int = key(2000, "steps without an overflow before the scale doubles", at_least=1, below=SIZES)


@dataclass(frozen=True, kw_only=True)
class EMAConfig(Options, group="ema"):
    """Options of the moving average of weights, which is evaluated and saved in place of the last weights."""

    decay: float | None = key(
        None, "share of the average that a step keeps, such as 0.999; null: no average", above=0, below=1
    )
    warmup: bool = key(True, "let step t keep at most (1 + t) / (10 + t), to forget the initial weights")
