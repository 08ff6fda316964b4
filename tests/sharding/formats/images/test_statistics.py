"""Statistics of images, whole and merged."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import reduce
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ringfeed.sharding.dataset.statistics import FeatureStatistics, merge_statistics, summarise
from ringfeed.sharding.formats.images.statistics import (
    ImageStatistics,
    SampleLimits,
    merge_image_statistics,
    summarise_images,
)
from ringfeed.sharding.schema import Feature

FEATURE = Feature(name="image", dtype="binary", encoding="image")


def png(pixels: Any, **options: Any) -> bytes:
    out = BytesIO()
    (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(out, "PNG", **options)
    return out.getvalue()


def of(images: Sequence[bytes], /, **limits: int) -> ImageStatistics:
    return summarise_images(pa.array(images, pa.binary()), SampleLimits(**limits))


def noise(seed: int, height: int, width: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


@given(sizes=st.lists(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=4), min_size=1, max_size=4))
def test_merged_statistics_equal_those_of_all_pixels(sizes: list[list[tuple[int, int]]]) -> None:
    parts = [[noise(i + h * w, h, w) for i, (h, w) in enumerate(part)] for part in sizes]
    merged = reduce(merge_image_statistics, (of([png(pixels) for pixels in part]) for part in parts))
    every = [pixels for part in parts for pixels in part]
    assert (merged.images, merged.sampled) == (len(every), len(every))
    if not every:
        assert merged == ImageStatistics(images=0)
        return
    flat = np.concatenate([pixels.reshape(-1, 3) for pixels in every]).astype(np.float64)
    assert merged.pixels == len(flat)
    assert merged.mean == pytest.approx(flat.mean(axis=0))
    assert merged.std == pytest.approx(flat.std(axis=0), abs=1e-6)
    heights, widths = zip(*(pixels.shape[:2] for pixels in every), strict=True)
    assert (merged.min_height, merged.max_height) == (min(heights), max(heights))
    assert (merged.min_width, merged.max_width) == (min(widths), max(widths))


def test_the_sample_is_bounded_but_sizes_cover_all_images() -> None:
    images = [png(noise(i, 10, 10 + i)) for i in range(8)]
    found = of(images, pixels_per_record=0, pixels=100 + 110 + 119)
    assert (found.sampled, found.pixels, found.images, found.max_width) == (2, 210, 8, 17)
    assert of(images, pixels_per_record=0, pixels=1).sampled == 1
    assert of(images, pixels_per_record=0, images=3).sampled == 3


GREY = np.full((4, 5), 100, np.uint8)


@pytest.mark.parametrize(
    "image",
    [
        png(GREY),
        png(np.dstack([GREY] * 3)),
        png(np.dstack([GREY, GREY, GREY, np.zeros_like(GREY)])),
        png(Image.fromarray(GREY).convert("P"), transparency=b"\0" * 256),
    ],
)
def test_pixels_of_any_mode_count_as_red_green_and_blue(image: bytes) -> None:
    found = of([image])
    assert found.mean == (100.0, 100.0, 100.0)
    assert found.std == (0.0, 0.0, 0.0)


def test_undecodable_images_are_not_sampled() -> None:
    good = png(GREY)
    sixteen = png(Image.fromarray(GREY.astype(np.int32)).convert("I;16"))
    damaged = good.replace(b"IDAT", b"IDAX")
    found = of([b"", b"no image", damaged, sixteen, good])
    assert (found.images, found.sampled, found.mean) == (3, 1, (100.0, 100.0, 100.0))
    assert of([good], largest_pixels=19).sampled == 0


def test_only_image_features_have_image_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    column = pa.array([None, png(GREY), png(GREY)], pa.binary())
    statistics = summarise(column, FEATURE)
    assert (statistics.count, statistics.nulls) == (2, 1)
    assert statistics.image == of([png(GREY)] * 2)
    assert merge_statistics(statistics, statistics).image == of([png(GREY)] * 4)
    assert summarise(column, Feature(name="image", dtype="binary")).image is None
    assert summarise(column.slice(1, 1), FEATURE).image == of([png(GREY)])


def test_from_json_inverts_asdict_and_reads_older_entries() -> None:
    for column in ([png(GREY)], []):
        statistics = summarise(pa.array(column, pa.binary()), FEATURE)
        value = json.loads(json.dumps(asdict(statistics)))
        assert FeatureStatistics.from_json(value) == statistics
        del value["image"]
        assert FeatureStatistics.from_json(value).image is None
