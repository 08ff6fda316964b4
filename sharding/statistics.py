"""Statistics of features, computed shard by shard and merged without loss of precision."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import isfinite, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .formats.images import image_formats
from .image_statistics import ImageStatistics, merge_image_statistics, summarise_images
from .schema import Feature

__all__ = ["VOCABULARY_CHARACTERS", "VOCABULARY_LIMIT", "FeatureStatistics", "merge_statistics", "summarise"]

VOCABULARY_LIMIT = 1000  # distinct strings; above it a feature is text or an identifier, and no vocabulary is kept

VOCABULARY_CHARACTERS = 1 << 16  # so that `dataset.json` stays small
_BLOCK = 1 << 16  # elements widened to float64 at once: 512 KiB, which a core's cache holds


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureStatistics:
    """What is known of one feature's values in one split, over all elements of its tensors.

    Attributes:
        count: finite elements (all that are not null, for strings and bytes).
        nulls: records without a value.
        nonfinite: elements that are NaN or infinite.
        mean, std, min, max: over the finite elements; std is the population's. None where count is 0; mean and std
            also where they are beyond float64.
        vocabulary: the distinct strings of a scalar feature, sorted, where there are at most `VOCABULARY_LIMIT` of at
            most `VOCABULARY_CHARACTERS` together; of a feature of image files, their formats. Else None.
        image: of a feature that holds image files. Else None.
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

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> FeatureStatistics:
        """From an entry of `dataset.json`."""
        vocabulary, image = value.get("vocabulary"), value.get("image")
        nested = {
            "vocabulary": None if vocabulary is None else tuple(vocabulary),
            "image": None if image is None else ImageStatistics.from_json(image),
        }
        return cls(**(dict(value) | nested))


def summarise(column: pa.Array, feature: Feature) -> FeatureStatistics:
    """Statistics of one column."""
    nulls = column.null_count
    values = column if feature.shape == () else pc.list_flatten(column)
    values = values.drop_null()
    if not feature.numeric:
        image = summarise_images(values) if feature.encoding == "image" and feature.shape == () else None
        return FeatureStatistics(count=len(values), nulls=nulls, vocabulary=_vocabulary(values, feature), image=image)
    if feature.dtype == "bool":
        values = values.cast(pa.uint8())
    return replace(_moments(values.to_numpy(zero_copy_only=False)), nulls=nulls)


def _moments(numbers: npt.NDArray[Any]) -> FeatureStatistics:
    """Of any numbers, block by block: two passes over a block, then the blocks are merged."""
    total = FeatureStatistics(count=0)
    for start in range(0, len(numbers), _BLOCK):
        total = merge_statistics(total, _block_moments(numbers[start : start + _BLOCK]))
    return total


def _block_moments(block: npt.NDArray[Any]) -> FeatureStatistics:
    values = block.astype(np.float64)
    finite = np.isfinite(values)
    nonfinite = len(values) - int(np.count_nonzero(finite))
    if nonfinite:
        block, values = block[finite], values[finite]
    if not len(values):
        return FeatureStatistics(count=0, nonfinite=nonfinite)
    low, high = block.min().item() + 0, block.max().item() + 0  # exact for integers; + 0 makes -0.0 of 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(values.mean())
        values -= mean
        std = sqrt(float(np.square(values, out=values).mean()))
    return FeatureStatistics(
        count=len(values), nonfinite=nonfinite, mean=_finite(mean), std=_finite(std), min=low, max=high
    )


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


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
    """Statistics of two disjoint sets of records together.

    Mean and variance by the pairwise update of Chan, Golub and LeVeque (1979).
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


def _merge_moments(a: FeatureStatistics, b: FeatureStatistics) -> dict[str, float | None]:
    if not (a.count and b.count):
        known = a if a.count else b
        return {name: getattr(known, name) for name in ("mean", "std", "min", "max")}
    bounds = {
        "min": None if a.min is None or b.min is None else min(a.min, b.min),
        "max": None if a.max is None or b.max is None else max(a.max, b.max),
    }
    if a.mean is None or b.mean is None or a.std is None or b.std is None:
        return bounds | {"mean": None, "std": None}
    count = a.count + b.count
    delta = b.mean - a.mean
    variance = a.std * a.std * (a.count / count) + b.std * b.std * (b.count / count)
    variance += delta * delta * (a.count / count) * (b.count / count)
    mean = (
        a.mean * (a.count / count) + b.mean * (b.count / count)
        if not isfinite(delta)
        else a.mean + delta * (b.count / count)
    )
    return bounds | {"mean": _finite(mean), "std": _finite(sqrt(variance)) if isfinite(variance) else None}
