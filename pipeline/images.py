"""What becomes of the images of a batch: crop, size, flips, colour, scale, dtype. The work is in `image_ops.py`.

Here nothing imports TensorFlow; calling an `ImageTransform` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

from ..sharding.errors import ConfigError
from ..sharding.manifest import Manifest
from ..sharding.schema import Feature
from .arguments import boolean, integer, number, numbers
from .transform import GraphTransform

__all__ = ["CentreCrop", "ColourJitter", "ImageTransform", "Normalisation", "RandomCrop"]

_DTYPES = ("uint8", "float16", "bfloat16", "float32")


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
        known = manifest.split(split).statistics[_image_feature(manifest, feature).name]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTransform(GraphTransform):
    """Encoded images, or uint8 tensors, of a loader's element to a batch of one size; other features pass as they are.

    A function for `Loader.epoch(transform=...)`. Crop, flips and jitter are drawn by ``sample_key``, so a loader
    with ``sample_keys=True`` gives the same augmented batches on any number of ranks, and wherever it resumes.
    The feature becomes a tensor of `dtype`, [batch, *size, channels].

    Attributes:
        feature: that holds images.
        size: height and width that they are brought to, by antialiased bilinear filtering.
        channels: 1 or 3, of what files are decoded to; uint8 tensors keep those that they have, as `shape` says.
        crop: None takes the whole image.
        flip_left_right: whether half of the images are mirrored.
        flip_up_down: whether half of them are turned upside down.
        jitter: of colours.
        scale: ``unit`` for [0, 1], ``bytes`` for 0 to 255, or a `Normalisation`.
        dtype: ``float32``, ``float16`` or ``bfloat16``; ``uint8``, rounded, goes with ``bytes``.
        jpeg: whether all are JPEG files, which spares looking; see `for_dataset`.
        jpeg_scaling: whether a JPEG is decoded to a half, a quarter or an eighth of its sides where what is wanted of
            it still has `size` at least. Photographs much larger than that take a fraction of the time; pixels differ
            slightly from those of the whole image brought to `size`.
        shape: of uint8 tensors, (height, width) or (height, width, channels); None for encoded images.

    Raises:
        ConfigError: a value its rule forbids.
    """

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
            self._take_shape()
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

    def _take_shape(self) -> None:
        numbers("shape", self.shape)
        shape = tuple(integer("shape", side) for side in self.shape or ())
        if len(shape) not in (2, 3) or min(shape) < 1:
            raise ConfigError(f"shape must be (height, width) or (height, width, channels), got {self.shape}")
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "channels", shape[2] if len(shape) == 3 else 1)

    @classmethod
    def for_dataset(
        cls,
        manifest: Manifest,
        feature: str,
        *,
        size: tuple[int, int],
        channels: int = 3,
        crop: RandomCrop | CentreCrop | None = None,
        flip_left_right: bool = False,
        flip_up_down: bool = False,
        jitter: ColourJitter | None = None,
        scale: Literal["unit", "bytes", "statistics"] | Normalisation = "unit",
        dtype: str = "float32",
        jpeg_scaling: bool = False,
        statistics_split: str = "train",
    ) -> ImageTransform:
        """The transform of a feature of a dataset, of which the manifest knows formats, shape and statistics.

        Args:
            manifest: of the dataset.
            feature: see `ImageTransform`, as for all but these two:
            scale: ``statistics`` normalises by the stored mean and deviation of each channel,
            statistics_split: of this split, in evaluation too.

        Raises:
            ConfigError: the feature holds no images, or there are no statistics of it.
        """
        found = _image_feature(manifest, feature)
        if found.fixed_shape:
            channels = found.fixed_shape[2] if len(found.fixed_shape) == 3 else 1  # for the statistics
        if scale == "statistics":
            scale = Normalisation.of(manifest, feature, split=statistics_split, channels=channels)
        known = [split.statistics[feature] for split in manifest.splits.values() if split.records]
        return cls(
            feature=feature,
            size=size,
            channels=channels,
            crop=crop,
            flip_left_right=flip_left_right,
            flip_up_down=flip_up_down,
            jitter=jitter,
            scale=scale,
            dtype=dtype,
            jpeg=not found.fixed_shape and all(of.vocabulary == ("jpeg",) and not of.nulls for of in known),
            jpeg_scaling=jpeg_scaling,
            shape=found.fixed_shape or None,
        )

    @property
    def random(self) -> bool:
        """Whether anything is drawn."""
        jitter = self.jitter is not None and self.jitter != ColourJitter()
        return isinstance(self.crop, RandomCrop) or self.flip_left_right or self.flip_up_down or jitter

    def __call__(self, element: Mapping[str, Any]) -> dict[str, Any]:
        """The element with its images decoded: dtype [batch, *size, channels].

        Raises:
            ConfigError: the element lacks the feature, or the keys to draw by.
        """
        from .image_ops import transform_images

        return transform_images(element, self)


def _image_feature(manifest: Manifest, name: str) -> Feature:
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
