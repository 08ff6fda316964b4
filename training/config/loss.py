"""Options of the training loss.

Tested in tests/training/config/test_config.py and tests/training/models/test_losses.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .checks import key, require, require_finite

__all__ = ["LossConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """Options of the training loss; evaluation reports the plain cross entropy, or squared error."""

    label_smoothing: float = key(0.0, "share of the label that all classes get alike, in [0, 1)")
    focal_gamma: float = key(0.0, "exponent of the focal loss, (1 - p) ** gamma; 0: cross entropy")
    class_weights: Mapping[Any, float] | None = key(None, "factors of the loss, {class: weight}; others have 1")
    huber_delta: float | None = key(
        None, "regression: error from which the loss grows linearly, in standard deviations; null: squared error"
    )

    def __post_init__(self) -> None:
        require(0 <= self.label_smoothing < 1, "loss.label_smoothing", "in [0, 1)", self.label_smoothing)
        require_finite("loss.focal_gamma", self.focal_gamma)
        if self.huber_delta is not None:
            require(0 < self.huber_delta < math.inf, "loss.huber_delta", "finite and above 0", self.huber_delta)
        for name, weight in (self.class_weights or {}).items():
            require(0 <= weight < math.inf, f"loss.class_weights.{name}", "finite and at least 0", weight)
