"""Options of the training loss.

Tested in tests/training/config/test_config.py and tests/training/models/test_losses.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .checks import FUNCTION, Options, key, require
from .class_names import by_class_name


@dataclass(frozen=True, kw_only=True)
class LossConfig(Options, group="loss"):
    """Options of the training loss; evaluation reports the plain cross entropy, or squared error, or `name`."""

    name: str | None = key(
        None,
        "module:function, called with (target, outputs) for a loss per sample; null: cross entropy or squared error",
        choices=(FUNCTION,),
    )
    label_smoothing: float = key(0.0, "share of the label that all classes get alike", at_least=0, below=1)
    focal_gamma: float = key(0.0, "exponent of the focal loss, (1 - p) ** gamma; 0: cross entropy", at_least=0)
    class_weights: Mapping[Any, float] | None = key(None, "factors of the loss, {class: weight}; others have 1")
    huber_delta: float | None = key(
        None,
        "regression: error from which the loss grows linearly, in standard deviations; null: squared error",
        above=0,
    )

    options: Mapping[str, Any] = key(dict, "module:function: further arguments of the loss")

    def check(self) -> None:
        object.__setattr__(self, "class_weights", by_class_name(self.class_weights))
        for name, weight in (self.class_weights or {}).items():
            require(0 <= weight < math.inf, f"loss.class_weights.{name}", "finite and at least 0", weight)
