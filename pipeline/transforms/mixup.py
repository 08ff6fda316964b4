"""`Mixup` and `CutMix`: mix samples of a batch with each other, and their labels too. `mixup_ops.py` does the work.

Samples are mixed within groups, runs of consecutive samples of the global batch. A group's random numbers are drawn by
the key of its first sample, so the result does not depend on ranks if the group divides each rank's batch (checked).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from ringfeed.sharding.common.validation import integer, number, texts
from ringfeed.sharding.errors import ConfigError

from .apply import GraphTransform

_GROUP = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixup(GraphTransform):
    """``x = share * x_i + (1 - share) * x_j``, also for labels; Zhang et al., "mixup", ICLR 2018, equation 2.

    For each group, the share is drawn from Beta(alpha, alpha), and the distance at which j follows i uniformly. Adds
    ``soft_label``, float32 [batch, classes], or mixes the one that an earlier transform added.

    Attributes:
        features: float features to mix, such as images decoded by an earlier transform.
        classes: number of classes: ``len(loader.manifest.classes)``. A `class_id` that is not below it is an error.
        alpha: parameter of the Beta distribution, above 0.
        group: number of samples mixed among themselves; a divisor of each rank's batch.

    Raises:
        ConfigError: a value breaks its rule.

    >>> Mixup(features=("image",), classes=10, alpha=0)
    Traceback (most recent call last):
        ...
    ringfeed.sharding.errors.ConfigError: alpha must be above 0, got 0
    """

    features: tuple[str, ...]
    classes: int
    alpha: float = 0.2
    group: int = _GROUP

    def __post_init__(self) -> None:
        if not texts("features", self.features, "names"):
            raise ConfigError("features must name one or more, got none")
        _check(self)

    def __call__(self, element: Mapping[str, Any]) -> dict[str, Any]:
        """The element with mixed samples.

        Raises:
            ConfigError: the element lacks a feature or the sample keys, or the group does not divide the batch.
        """
        from .mixup_ops import mix_up

        return mix_up(element, self.features, classes=self.classes, alpha=self.alpha, group=self.group)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutMix(GraphTransform):
    """Replaces a box of each image by the same box of another image; Yun et al., "CutMix", ICCV 2019, section 3.1.

    Labels are mixed in proportion to area. For each group, the area left outside the box is drawn from Beta(alpha,
    alpha), and the box's centre anywhere in the image. Images are paired as in `Mixup`. Adds ``soft_label``.

    Attributes:
        feature: images decoded by an earlier transform, [batch, height, width, channels].
        classes: as of `Mixup`.
        alpha: as of `Mixup`.
        group: as of `Mixup`.

    Raises:
        ConfigError: a value breaks its rule.

    >>> CutMix(feature="image", classes=1)
    Traceback (most recent call last):
        ...
    ringfeed.sharding.errors.ConfigError: classes must be at least 2, got 1
    """

    feature: str
    classes: int
    alpha: float = 1.0
    group: int = _GROUP

    def __post_init__(self) -> None:
        _check(self)

    def __call__(self, element: Mapping[str, Any]) -> dict[str, Any]:
        """The element with mixed samples.

        Raises:
            ConfigError: the element lacks the feature or the sample keys, or the group does not divide the batch.
        """
        from .mixup_ops import cut_mix

        return cut_mix(element, self.feature, classes=self.classes, alpha=self.alpha, group=self.group)


def _check(options: Mixup | CutMix) -> None:
    for name in ("classes", "group"):  # TensorFlow would mix int32 with the int64 of a NumPy integer
        object.__setattr__(options, name, integer(name, getattr(options, name), 2))
    if not number("alpha", options.alpha) > 0 or not isfinite(options.alpha):
        raise ConfigError(f"alpha must be above 0, got {options.alpha}")
