"""Options of an `ImageTransform`: crops, colour jitter and normalisation, and which features hold images.

Tested in tests/pipeline/transforms/test_images.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Literal

from ringfeed.sharding.common.validation import boolean, integer, number, numbers
from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.schema import Feature

_DTYPES = ("uint8", "float16", "bfloat16", "float32")


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomCrop:
    """A random-resized crop: a box of random area and shape, anywhere in the image, resized to the target size.

    As in "Going deeper with convolutions" (Szegedy et al., 2015), section 6: areas are uniform between their bounds,
    and so are the logarithms of ratios. The first of a hundred boxes that fits is taken. If none fits, the whole image
    is taken: no square of 80 % of its area fits into an image of 3:4, but of the default boxes nearly always one does.

    Attributes:
        area: smallest and largest fraction of the image's area, in (0, 1]; sides are rounded to pixels.
        ratio: smallest and largest width / height of the box.

    Raises:
        ConfigError: a value breaks its rule.

    >>> RandomCrop(area=(0.0, 1.0))
    Traceback (most recent call last):
        ...
    ringfeed.sharding.errors.ConfigError: area must be two ascending numbers in (0, 1], got (0.0, 1.0)
    """

    area: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        area, ratio = numbers("area", self.area, 2), numbers("ratio", self.ratio, 2)
        if not 0 < area[0] <= area[1] <= 1:
            raise ConfigError(f"area must be two ascending numbers in (0, 1], got {self.area}")
        if not 0 < ratio[0] <= ratio[1] or not isfinite(ratio[1]):
            raise ConfigError(f"ratio must be two ascending positive numbers, got {self.ratio}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CentreCrop:
    """A fraction of the largest centred box of the target's shape, resized to the target size.

    Attributes:
        fraction: fraction of the box's sides, in (0, 1]; 0.875 is 224 of 256 pixels.

    Raises:
        ConfigError: the fraction lies outside (0, 1].

    >>> CentreCrop(fraction=1.5)
    Traceback (most recent call last):
        ...
    ringfeed.sharding.errors.ConfigError: fraction must lie in (0, 1], got 1.5
    """

    fraction: float = 0.875

    def __post_init__(self) -> None:
        if not 0 < number("fraction", self.fraction) <= 1:
            raise ConfigError(f"fraction must lie in (0, 1], got {self.fraction}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColourJitter:
    """Random brightness, contrast, saturation and hue, in that order, on values in [0, 1], then clipped to [0, 1].

    Attributes:
        brightness: values are multiplied by a factor in [1 - brightness, 1 + brightness].
        contrast: distances from the image's mean of each channel are multiplied by a factor in [1 - contrast,
            1 + contrast].
        saturation: the saturation of HSV is multiplied by a factor in [1 - saturation, 1 + saturation].
        hue: the hue is rotated by a fraction of a full turn in [-hue, hue].

    Raises:
        ConfigError: a value lies outside [0, 1], or the hue outside [0, 0.5].

    >>> ColourJitter(brightness=0.2, hue=0.1)
    ColourJitter(brightness=0.2, contrast=0.0, saturation=0.0, hue=0.1)
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0

    def __post_init__(self) -> None:
        for name, most in (("brightness", 1.0), ("contrast", 1.0), ("saturation", 1.0), ("hue", 0.5)):
            if not 0 <= number(name, getattr(self, name)) <= most:
                raise ConfigError(f"{name} must lie in [0, {most:g}], got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalisation:
    """``(value - mean) / std`` of each channel.

    Attributes:
        mean: mean of each channel, or one for all, of values from 0 to 255.
        std: standard deviation of each channel, or one for all; 0 counts as 1, so that a constant channel becomes 0.

    Raises:
        ConfigError: mean and std differ in length or are not finite, or a std is negative.

    >>> Normalisation(mean=(0.5,), std=(0.25,))
    Normalisation(mean=(0.5,), std=(0.25,))
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        mean, std = numbers("mean", self.mean), numbers("std", self.std)
        if len(mean) != len(std) or not mean:
            raise ConfigError(f"mean and std must have one number a channel, got {self.mean} and {self.std}")
        if not all(map(isfinite, (*mean, *std))) or min(std) < 0:
            raise ConfigError(f"mean and std must be finite, and std not negative, got {self.mean} and {self.std}")

    @classmethod
    def of(cls, manifest: Manifest, feature: str, *, split: str = "train", channels: int = 3) -> Normalisation:
        """Normalisation by the statistics in the manifest.

        Raises:
            ConfigError: there are no statistics for these channels.
        """
        known = manifest.split(split).statistics[image_feature(manifest, feature).name]
        mean, std = (known.image.mean, known.image.std) if known.image else ((known.mean,), (known.std,))
        if mean is None or std is None or mean[0] is None or std[0] is None:
            raise ConfigError(
                f"no image of {feature!r} in split {split!r} was decoded: give Normalisation(mean=, std=)"
            )
        if len(mean) == 3 and channels == 1:
            if max(mean) - min(mean) > 1e-6:
                raise ConfigError(
                    f"images of {feature!r} have colours, and statistics of their grey values are not stored: "
                    "give Normalisation(mean=, std=), or channels=3"
                )
            mean, std = mean[:1], std[:1]
        return cls(mean=tuple(map(float, mean)), std=tuple(map(float, std)))  # type: ignore[arg-type]  # none is None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTransformOptions:
    """The fields of an `ImageTransform`, which says what they mean, and their checks."""

    feature: str
    size: tuple[int, int]
    channels: int = 3
    crop: RandomCrop | CentreCrop | None = None
    flip_left_right: bool = False
    flip_up_down: bool = False
    jitter: ColourJitter | None = None
    scale: Literal["unit", "bytes"] | Normalisation = "unit"
    dtype: str = "float32"
    jpeg: bool = False
    jpeg_scaling: bool = False
    shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        numbers("size", self.size, 2)
        if min(integer("size", side) for side in self.size) < 1:
            raise ConfigError(f"size must be a height and a width of at least 1, got {self.size}")
        if not isinstance(self.crop, RandomCrop | CentreCrop | None):
            raise ConfigError(f"crop must be a RandomCrop, a CentreCrop or None, got {self.crop!r}")
        if not isinstance(self.jitter, ColourJitter | None):
            raise ConfigError(f"jitter must be a ColourJitter or None, got {self.jitter!r}")
        for name in ("flip_left_right", "flip_up_down", "jpeg", "jpeg_scaling"):
            boolean(name, getattr(self, name))
        if self.shape is not None:
            self._set_shape()
        if self.channels not in (1, 3):
            raise ConfigError(f"channels must be 1 or 3, got {self.channels}")
        if self.dtype not in _DTYPES:
            raise ConfigError(f"dtype must be one of {', '.join(_DTYPES)}, got {self.dtype!r}")
        if not isinstance(self.scale, Normalisation) and self.scale not in ("unit", "bytes"):
            raise ConfigError(f"scale must be 'unit', 'bytes' or a Normalisation, got {self.scale!r}")
        if self.dtype == "uint8" and self.scale != "bytes":
            raise ConfigError(f"dtype='uint8' needs scale='bytes', got {self.scale!r}")
        if isinstance(self.scale, Normalisation) and len(self.scale.mean) not in (1, self.channels):
            raise ConfigError(f"images of {self.channels} channels cannot have the mean {self.scale.mean}")
        if self.channels == 1 and self.jitter and (self.jitter.saturation or self.jitter.hue):
            raise ConfigError("saturation and hue need channels=3")

    def _set_shape(self) -> None:
        numbers("shape", self.shape)
        shape = tuple(integer("shape", side) for side in self.shape or ())
        if len(shape) not in (2, 3) or min(shape) < 1:
            raise ConfigError(f"shape must be (height, width) or (height, width, channels), got {self.shape}")
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "channels", shape[2] if len(shape) == 3 else 1)

    @property
    def random(self) -> bool:
        """Whether the transform draws random numbers."""
        jitter = self.jitter is not None and self.jitter != ColourJitter()
        return isinstance(self.crop, RandomCrop) or self.flip_left_right or self.flip_up_down or jitter


def image_feature(manifest: Manifest, name: str) -> Feature:
    """The feature of a dataset that holds images, encoded or as uint8 tensors.

    Raises:
        ConfigError: there is no such feature, or it holds no images.
    """
    if name not in manifest.schema.names:
        raise ConfigError(f"the dataset has no feature {name!r}; they are: {', '.join(manifest.schema.names)}")
    feature = manifest.schema[name]
    encoded = feature.dtype == "binary" and feature.shape == ()
    shape = feature.fixed_shape or ()
    if not encoded and (feature.dtype != "uint8" or len(shape) not in (2, 3) or (*shape, 1)[2] not in (1, 3)):
        raise ConfigError(
            f"feature {name!r} ({feature.dtype}, shape {list(feature.shape)}) holds no images: they are binary, or "
            "uint8 of shape [height, width] or [height, width, 1 or 3]"
        )
    return feature
