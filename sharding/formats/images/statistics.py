"""Statistics of encoded images: bounds of the sizes of all, mean and deviation of the pixels of a sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from io import BytesIO
from itertools import pairwise
from math import sqrt
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from ringfeed.sharding.compute.arrays import Int64
from ringfeed.sharding.formats.arrow_binary import data_of, offsets_of

from .orientation import is_rotated
from .sizes import image_size

_EIGHT_BITS = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLimits:
    """How many images of a shard are decoded for mean and std.

    Attributes:
        images: most images, within the larger of the next two limits.
        pixels: pixels in all: 5 ms to decode.
        pixels_per_record: pixels for each image of the shard: 4 us, where writing one takes 60 us.
        largest_pixels: pixels of the largest image that is decoded.
    """

    images: int = 256
    pixels: int = 1 << 20
    pixels_per_record: int = 800
    largest_pixels: int = 1 << 26


_LIMITS = SampleLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageStatistics:
    """Statistics of the images of a feature in one split.

    Attributes:
        images: number of images with readable headers, which the bounds cover.
        min_height, max_height, min_width, max_width: bounds in pixels; None if `images` is 0.
        sampled: number of images decoded for mean and std: the first of each shard, whose order is random.
        pixels: number of pixels of the sampled images.
        mean, std: mean and population deviation of red, green and blue, from 0 to 255, over all sampled pixels. Grey
            images count as three equal channels; transparency is ignored. None if `sampled` is 0.
        rotated: number of images that EXIF says to turn or mirror for display; decoding them for training does not.

    >>> ImageStatistics(images=2, min_height=28, max_height=32, min_width=28, max_width=32).max_height
    32
    """

    images: int
    min_height: int | None = None
    max_height: int | None = None
    min_width: int | None = None
    max_width: int | None = None
    sampled: int = 0
    pixels: int = 0
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    rotated: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the entry in `dataset.json`."""
        value = asdict(self)
        return value if self.rotated else {name: entry for name, entry in value.items() if name != "rotated"}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ImageStatistics:
        """Read an entry of `dataset.json`."""
        channels = {name: None if value[name] is None else tuple(value[name]) for name in ("mean", "std")}
        return cls(**(dict(value) | channels))


def summarise_images(column: pa.Array, limits: SampleLimits = _LIMITS) -> ImageStatistics:
    """Statistics of a shard's image files, in order, as a binary column without nulls."""
    sizes = np.array([size for _, size in _sized(column)], np.int64)
    if not len(sizes):
        return ImageStatistics(images=0)
    (min_height, min_width), (max_height, max_width) = sizes.min(axis=0).tolist(), sizes.max(axis=0).tolist()
    bounds = ImageStatistics(
        images=len(sizes), min_height=min_height, max_height=max_height, min_width=min_width, max_width=max_width,
        rotated=sum(map(is_rotated, _files(column))),
    )  # fmt: skip
    return merge_image_statistics(bounds, _sample(column, limits))


def _sized(column: pa.Array) -> Iterator[tuple[memoryview, tuple[int, int]]]:
    """Yield each file with a readable header, and its height and width."""
    for data in _files(column):
        try:
            yield data, image_size(data)
        except ValueError:
            continue


def _files(column: pa.Array) -> Iterator[memoryview]:
    """Yield the values, not copied."""
    data = memoryview(data_of(column)).cast("B")
    for start, end in pairwise(offsets_of(column).tolist()):
        yield data[start:end]


def _sample(column: pa.Array, limits: SampleLimits) -> ImageStatistics:
    """Mean and deviation over the first images, within the limits on pixels, but at least one image."""
    counts, sampled = np.zeros((3, 256), np.int64), 0
    left = max(limits.pixels, limits.pixels_per_record * len(column))
    for data, (height, width) in _sized(column):
        left -= height * width
        if sampled == limits.images or (left < 0 and sampled):
            break
        histogram = _histogram(data) if height * width <= limits.largest_pixels else None
        if histogram is not None:
            counts += histogram
            sampled += 1
    pixels = int(counts[0].sum())
    if not pixels:
        return ImageStatistics(images=0)
    mean = counts @ np.arange(256) / pixels
    variance = (counts * np.square(np.arange(256) - mean[:, None])).sum(axis=1) / pixels
    return ImageStatistics(
        images=0, sampled=sampled, pixels=pixels, mean=tuple(mean.tolist()), std=tuple(np.sqrt(variance).tolist())
    )


def _histogram(data: memoryview) -> Int64 | None:
    """Number of pixels with each value, [channel, 256]; None if undecodable or of more than 8 bits."""
    try:
        with Image.open(BytesIO(data)) as image:
            if image.mode not in _EIGHT_BITS:
                return None
            # Palettes are converted via RGBA, as the direct way warns of a palette with transparency.
            palette = image.mode in ("P", "PA")
            pixels = image if image.mode == "RGB" else image.convert("RGBA" if palette else "RGB")
            return np.array(pixels.histogram()[: 3 * 256], np.int64).reshape(3, 256)
    except Exception:  # the header was fine, but decoding can still find damage
        return None


def merge_image_statistics(a: ImageStatistics, b: ImageStatistics) -> ImageStatistics:
    """Combine the statistics of two disjoint sets of images by the update of Chan, Golub and LeVeque (1979)."""
    bounds = {
        name: choose((x for x in (getattr(a, name), getattr(b, name)) if x is not None), default=None)
        for name, choose in (("min_height", min), ("max_height", max), ("min_width", min), ("max_width", max))
    }
    known = a if a.pixels else b
    mean, std = known.mean, known.std
    pixels = a.pixels + b.pixels
    if a.mean and a.std and b.mean and b.std:
        share = b.pixels / pixels
        mean = tuple(x + (y - x) * share for x, y in zip(a.mean, b.mean, strict=True))
        std = tuple(
            sqrt(s * s * (1 - share) + t * t * share + (y - x) ** 2 * share * (1 - share))
            for x, y, s, t in zip(a.mean, b.mean, a.std, b.std, strict=True)
        )
    return ImageStatistics(
        images=a.images + b.images, sampled=a.sampled + b.sampled, pixels=pixels, mean=mean, std=std,
        rotated=a.rotated + b.rotated, **bounds,
    )  # fmt: skip
