"""Options of an image transform: crops, colour jitter, normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from ...sharding.common.validation import number, numbers
from ...sharding.dataset.manifest import Manifest
from ...sharding.errors import ConfigError
from ...sharding.schema import Feature

__all__ = ["IMAGE_DTYPES", "CentreCrop", "ColourJitter", "Normalisation", "RandomCrop", "image_feature"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomCrop:
    """A random-resized crop: a box of random area and shape, somewhere in the image, brought to the wanted size.

    As in "Going deeper with convolutions" (Szegedy et al., 2015), section 6: areas are even between their bounds, as
    are the logarithms of ratios, and of a hundred boxes the first that fits is taken, anywhere in the image.
    Where none fits, as no square of 80 % of its area does into a picture of 3:4, the whole image is taken; of the
    default ones, nearly always one does.

    Attributes:
        area: the least and the greatest part of the image's area, in (0, 1]; sides are then rounded to pixels.
        ratio: the least and the greatest width / height of the box.

    Raises:
        ConfigError: a value its rule forbids.
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
    """The largest box of the wanted shape around the centre, times a fraction, brought to the wanted size.

    Attributes:
        fraction: in (0, 1]; 0.875 is what 224 of 256 pixels are.

    Raises:
        ConfigError: it is not.
    """

    fraction: float = 0.875

    def __post_init__(self) -> None:
        if not 0 < number("fraction", self.fraction) <= 1:
            raise ConfigError(f"fraction must lie in (0, 1], got {self.fraction}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColourJitter:
    """Random brightness, contrast, saturation and hue, in that order, on values of [0, 1]; then cut off at 0 and 1.

    Attributes:
        brightness: values are multiplied by a factor of [1 - brightness, 1 + brightness].
        contrast: so are their distances from the image's mean of each channel.
        saturation: and so is the saturation (of HSV).
        hue: is turned by a part of a full turn in [-hue, hue].

    Raises:
        ConfigError: one that is not in [0, 1], or a hue that is not in [0, 0.5].
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
        mean: of each channel, or one for all, where values are 0 to 255.
        std: likewise; 0 counts as 1, so that a constant channel becomes 0.

    Raises:
        ConfigError: they are not as many, or not finite, or a std is negative.
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
        """By the statistics that the manifest stores.

        Raises:
            ConfigError: it has none of these channels.
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
                    f"images of {feature!r} have colours, and what they are in grey is not stored: "
                    "give Normalisation(mean=, std=), or channels=3"
                )
            mean, std = mean[:1], std[:1]
        return cls(mean=tuple(map(float, mean)), std=tuple(map(float, std)))  # type: ignore[arg-type]  # none is None


def image_feature(manifest: Manifest, name: str) -> Feature:
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


IMAGE_DTYPES = ("uint8", "float16", "bfloat16", "float32")
