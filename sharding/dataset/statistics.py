"""Statistics of features, computed per shard and merged without loss of precision."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import frexp, fsum, hypot, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.formats.images.file_types import image_formats
from ringfeed.sharding.formats.images.statistics import ImageStatistics, merge_image_statistics, summarise_images
from ringfeed.sharding.schema import Feature

VOCABULARY_LIMIT = 1000  # distinct strings; a feature with more is text or an identifier, and gets no vocabulary

VOCABULARY_CHARACTERS = 1 << 16  # in all strings together: keeps `dataset.json` small
_BLOCK = 1 << 16  # elements widened to float64 at a time: 512 KiB, which fits a core's cache
_EXACT = 1 << 53  # float64 represents all integers up to it
_PLAIN = 2.0**-400, 2.0**400  # squares of numbers in between neither overflow nor vanish
_SEEN = 2.0**-30  # of the deviation: a smaller rounding error of the mean affects no merge


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureStatistics:
    """Statistics of one feature in one split, over all elements of its tensors.

    Attributes:
        count: finite elements; for strings and bytes, all that are not null.
        nulls: records without a value.
        nonfinite: elements that are NaN or infinite.
        mean, std, min, max: over the finite elements, std of the population; None where count is 0.
        mean_rest: rounding error of the mean in float64, where it matters beside std: 0.5 for 2**60 and 2**60 + 1.
        vocabulary: distinct strings of a scalar feature, sorted, if there are at most `VOCABULARY_LIMIT` with at most
            `VOCABULARY_CHARACTERS` together; for a feature of image files, their formats; else None.
        image: statistics of a feature of image files; else None.

    >>> from ringfeed.sharding import open_dataset
    >>> statistics = open_dataset("flights").manifest.split("train").statistics["miles"]
    >>> statistics.min, statistics.max
    (0.0, 2499.0)
    """

    count: int
    nulls: int = 0
    nonfinite: int = 0
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None
    vocabulary: tuple[str, ...] | None = None
    image: ImageStatistics | None = None
    mean_rest: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return its entry in `dataset.json`."""
        value = {spec.name: getattr(self, spec.name) for spec in fields(self)}
        value |= {"image": None if self.image is None else self.image.to_json()}
        return value if self.mean_rest else {name: entry for name, entry in value.items() if name != "mean_rest"}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> FeatureStatistics:
        """Invert `to_json`."""
        vocabulary, image = value.get("vocabulary"), value.get("image")
        nested = {
            "vocabulary": None if vocabulary is None else tuple(vocabulary),
            "image": None if image is None else ImageStatistics.from_json(image),
        }
        return cls(**(dict(value) | nested))


def summarise(column: pa.Array, feature: Feature) -> FeatureStatistics:
    """Compute the statistics of one column."""
    nulls = column.null_count
    values = column if feature.shape == () else pc.list_flatten(column)
    values = values.drop_null()
    if not feature.numeric:
        image = summarise_images(values) if feature.is_image else None
        return FeatureStatistics(count=len(values), nulls=nulls, vocabulary=_vocabulary(values, feature), image=image)
    if feature.dtype == "bool":
        values = values.cast(pa.uint8())
    return replace(_moments(values.to_numpy(zero_copy_only=False)), nulls=nulls)


def _moments(numbers: npt.NDArray[Any]) -> FeatureStatistics:
    """Compute moments block by block, two passes over each, and merge them."""
    total = FeatureStatistics(count=0)
    for start in range(0, len(numbers), _BLOCK):
        total = merge_statistics(total, _block_moments(numbers[start : start + _BLOCK]))
    return total


def _block_moments(block: npt.NDArray[Any]) -> FeatureStatistics:
    elements = len(block)
    is_float = block.dtype.kind == "f"
    if is_float and not (finite := np.isfinite(block)).all():
        block = block[finite]
    if not len(block):
        return FeatureStatistics(count=0, nonfinite=elements)
    low, high = block.min().item() + 0, block.max().item() + 0  # exact for integers; + 0 turns -0.0 into 0.0
    largest = max(-low, high)
    origin, scale = 0, 1.0
    if is_float and largest and not _PLAIN[0] < largest < _PLAIN[1]:
        scale = 2.0 ** (frexp(largest)[1] - 1)
    elif not is_float and largest > _EXACT:
        origin = low
        block = block.astype(np.uint64)
        block -= np.uint64(low % (1 << 64))
    values = block.astype(np.float64)
    if scale != 1:
        values /= scale
    mean = float(values.mean())
    values -= mean
    rest = float(values.mean())  # the rounding error of the mean
    variance = float(np.square(values, out=values).mean()) - rest * rest
    near = float(origin)
    terms = (near, float(origin - int(near)), mean, rest)
    return FeatureStatistics(
        count=len(values),
        nonfinite=elements - len(values),
        min=low,
        max=high,
        **_moments_of(terms, sqrt(max(variance, 0.0)), scale, largest),
    )


def _moments_of(terms: Sequence[float], std: float, scale: float, largest: float) -> dict[str, Any]:
    """Return the moments as they are stored.

    Args:
        terms: numbers that add up to the mean.
        scale: power of two by which both were divided.
        largest: largest magnitude of any value; only by rounding could the deviation exceed it.
    """
    mean = fsum(terms)
    rest = fsum((*terms, -mean))
    return {
        "mean": mean * scale,
        "mean_rest": rest * scale if abs(rest) > std * _SEEN else 0.0,
        "std": float(min(std * scale, largest)),
    }


def _vocabulary(values: pa.Array, feature: Feature) -> tuple[str, ...] | None:
    if feature.encoding == "image":
        values = image_formats(values)
    elif feature.dtype != "string" or feature.shape != ():
        return None
    distinct = pc.unique(values)
    return _within_limits(distinct.to_pylist()) if len(distinct) <= VOCABULARY_LIMIT else None


def _within_limits(distinct: Collection[str]) -> tuple[str, ...] | None:
    if len(distinct) > VOCABULARY_LIMIT or sum(map(len, distinct)) > VOCABULARY_CHARACTERS:
        return None
    return tuple(sorted(distinct))


def merge_statistics(a: FeatureStatistics, b: FeatureStatistics) -> FeatureStatistics:
    """Merge the statistics of two disjoint sets of records.

    Mean and deviation by the pairwise update of Chan, Golub and LeVeque (1979).
    """
    vocabulary = None
    if a.vocabulary is not None and b.vocabulary is not None:
        vocabulary = _within_limits({*a.vocabulary, *b.vocabulary})
    return FeatureStatistics(
        count=a.count + b.count,
        nulls=a.nulls + b.nulls,
        nonfinite=a.nonfinite + b.nonfinite,
        vocabulary=vocabulary,
        image=merge_image_statistics(a.image, b.image) if a.image and b.image else None,
        **_merge_moments(a, b),
    )


def _merge_moments(a: FeatureStatistics, b: FeatureStatistics) -> dict[str, Any]:
    if not (a.count and b.count):
        known = a if a.count else b
        return {name: getattr(known, name) for name in ("mean", "mean_rest", "std", "min", "max")}
    if a.min is None or b.min is None or a.max is None or b.max is None:
        return {}
    low, high = min(a.min, b.min), max(a.max, b.max)
    if a.mean is None or b.mean is None or a.std is None or b.std is None:
        return {"min": low, "max": high}
    largest = max(-low, high)
    scale = 4.0 if largest > _PLAIN[1] else 1.0  # keeps differences from overflowing
    mean, rest = a.mean / scale, a.mean_rest / scale
    delta = fsum((b.mean / scale, b.mean_rest / scale, -mean, -rest))
    ours, theirs = a.count / (a.count + b.count), b.count / (a.count + b.count)
    std = hypot(a.std / scale * sqrt(ours), b.std / scale * sqrt(theirs), delta * sqrt(ours * theirs))
    return {"min": low, "max": high, **_moments_of((mean, rest, delta * theirs), std, scale, largest)}
