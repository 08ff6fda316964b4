"""Options of the training loss.

Tested in tests/training/config/test_config.py and tests/training/models/test_losses.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .checks import FUNCTION, is_function, key, require, require_finite
from .class_names import class_name

__all__ = ["LossConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """Options of the training loss; evaluation reports the plain cross entropy, or squared error, or `name`."""

    name: str | None = key(
        None,
        "module:function, called with (target, outputs) for a loss per sample; null: cross entropy or squared error",
        pattern=f"^{FUNCTION}$",
    )
    label_smoothing: float = key(0.0, "share of the label that all classes get alike, in [0, 1)")
    focal_gamma: float = key(0.0, "exponent of the focal loss, (1 - p) ** gamma; 0: cross entropy")
    class_weights: Mapping[Any, float] | None = key(None, "factors of the loss, {class: weight}; others have 1")
    huber_delta: float | None = key(
        None, "regression: error from which the loss grows linearly, in standard deviations; null: squared error"
    )

    options: Mapping[str, Any] = field(
        default_factory=dict, metadata={"help": "module:function: further arguments of the loss"}
    )

    def __post_init__(self) -> None:
        self._check_name()
        require(0 <= self.label_smoothing < 1, "loss.label_smoothing", "in [0, 1)", self.label_smoothing)
        require_finite("loss.focal_gamma", self.focal_gamma)
        if self.huber_delta is not None:
            require(0 < self.huber_delta < math.inf, "loss.huber_delta", "finite and above 0", self.huber_delta)
        if self.class_weights is not None:
            by_name = {class_name(value): weight for value, weight in self.class_weights.items()}
            object.__setattr__(self, "class_weights", by_name)
        for name, weight in (self.class_weights or {}).items():
            require(0 <= weight < math.inf, f"loss.class_weights.{name}", "finite and at least 0", weight)

    def _check_name(self) -> None:
        """Refuse options that the loss does not have."""
        if self.name is None:
            require(not self.options, "loss.options", "{} without loss.name, whose arguments they are", self.options)
            return
        require(is_function(self.name), "loss.name", "module:function, or null", self.name)
        for name, unset in (
            ("label_smoothing", 0.0), ("focal_gamma", 0.0), ("class_weights", None), ("huber_delta", None),
        ):  # fmt: skip
            rule = f"{'null' if unset is None else unset} with loss.name, a loss of your own"
            require(getattr(self, name) == unset, f"loss.{name}", rule, getattr(self, name))
