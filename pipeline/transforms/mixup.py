"""Mixup and CutMix: samples of a batch mixed with others of it, and their labels alike. The work is in `blend_ops.py`.

Samples are mixed within groups: runs of so many samples of the global batch. A group is drawn for by the key of its
first sample, so the result knows no ranks, as long as the group divides the batch of each rank, which is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from ...sharding.common.validation import integer, number, texts
from ...sharding.errors import ConfigError
from .apply import GraphTransform

__all__ = ["CutMix", "Mixup"]

_GROUP = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixup(GraphTransform):
    """``x = share * x_i + (1 - share) * x_j``, and the labels alike; Zhang et al., "mixup", ICLR 2018, equation 2.

    The share is drawn for each group from Beta(alpha, alpha), and j follows i at a distance drawn for each group.
    Added is ``soft_label``, float32 [batch, classes]; one that is there already is mixed on.

    Attributes:
        features: floats that are mixed, such as images that were decoded before.
        classes: how many there are: ``len(loader.manifest.classes)``. A `class_id` that is not below ends the epoch.
        alpha: of the Beta distribution, above 0.
        group: samples that are mixed among themselves; a divisor of the batch of each rank.

    Raises:
        ConfigError: a value its rule forbids.
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
        """The element mixed.

        Raises:
            ConfigError: it lacks a feature or the keys, or cannot be mixed in such groups.
        """
        from .mixup_ops import mix_up

        return mix_up(element, self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutMix(GraphTransform):
    """A box of each image is that of another one; Yun et al., "CutMix", ICCV 2019, section 3.1.

    Labels are mixed by the parts of the area. For each group, 1 - the box's part is drawn from Beta(alpha, alpha), its
    centre anywhere in the image, and which images are mixed as in `Mixup`. Added is ``soft_label``.

    Attributes:
        feature: images that were decoded before, [batch, height, width, channels].
        classes: as of `Mixup`.
        alpha: as of `Mixup`.
        group: as of `Mixup`.

    Raises:
        ConfigError: a value its rule forbids.
    """

    feature: str
    classes: int
    alpha: float = 1.0
    group: int = _GROUP

    def __post_init__(self) -> None:
        _check(self)

    def __call__(self, element: Mapping[str, Any]) -> dict[str, Any]:
        """The element mixed.

        Raises:
            ConfigError: it lacks the feature or the keys, or cannot be mixed in such groups.
        """
        from .mixup_ops import cut_mix

        return cut_mix(element, self)


def _check(options: Mixup | CutMix) -> None:
    for name in ("classes", "group"):  # with one of NumPy, TensorFlow would count in int64 here, and in int32 there
        object.__setattr__(options, name, integer(name, getattr(options, name), 2))
    if not number("alpha", options.alpha) > 0 or not isfinite(options.alpha):
        raise ConfigError(f"alpha must be above 0, got {options.alpha}")
