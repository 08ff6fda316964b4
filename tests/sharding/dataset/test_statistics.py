"""Statistics of columns, computed at once and merged."""

import json
from dataclasses import asdict
from fractions import Fraction
from functools import reduce
from io import BytesIO
from math import sqrt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ringfeed.sharding.dataset.statistics import (
    VOCABULARY_CHARACTERS,
    VOCABULARY_LIMIT,
    FeatureStatistics,
    merge_statistics,
    summarise,
)
from ringfeed.sharding.schema import Feature


def of(values: Any, dtype: str, shape: tuple[int | None, ...] = ()) -> FeatureStatistics:
    feature = Feature(name="x", dtype=dtype, shape=shape)
    return summarise(pa.array(values, feature.arrow_type), feature)


finite = st.floats(-1e6, 1e6, width=32)


@given(parts=st.lists(st.lists(finite, max_size=30), min_size=1, max_size=6).filter(lambda p: any(p)))
def test_merged_statistics_are_those_of_all_values(parts: list[list[float]]) -> None:
    merged = reduce(merge_statistics, (of(part, "float32") for part in parts))
    values = np.concatenate([np.array(part, np.float64) for part in parts])
    assert merged.count == len(values)
    assert merged.mean == pytest.approx(values.mean(), rel=1e-9, abs=1e-6)
    assert merged.std == pytest.approx(values.std(), rel=1e-6, abs=1e-3)
    assert (merged.min, merged.max) == (values.min(), values.max())


def test_many_blocks_agree_with_numpy() -> None:
    values = np.random.default_rng(0).normal(1e4, 3, 300_000).astype(np.float32)
    statistics = of(values, "float32")
    assert statistics.mean == pytest.approx(values.mean(dtype=np.float64), rel=1e-12)
    assert statistics.std == pytest.approx(values.std(dtype=np.float64), rel=1e-9)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([2**62 + i for i in range(1000)], "int64"),
        ([10**17 + i % 10 for i in range(1000)], "int64"),
        ([2**53 + i % 2 for i in range(1000)], "int64"),
        ([-(2**63) + i % 40 for i in range(1000)], "int64"),
        ([2**64 - 1 - i % 40 for i in range(1000)], "uint64"),
        ([-(2**63), 2**63 - 1], "int64"),
        ([1e15 + i % 7 / 8 for i in range(1000)], "float64"),
        ([1e301 * (i % 7) for i in range(1000)], "float64"),
        ([1e-301 * (i % 7) for i in range(1000)], "float64"),
    ],
)
@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_moments_far_from_zero_are_exact(values: list[float], dtype: str, pieces: int) -> None:
    values = sorted(values)
    step = -(-len(values) // pieces)
    parts = (of(values[start : start + step], dtype) for start in range(0, len(values), step))
    kept = (FeatureStatistics.from_json(json.loads(json.dumps(part.to_json()))) for part in parts)
    merged = reduce(merge_statistics, kept)
    exact = list(map(Fraction, values))
    mean = sum(exact) / len(exact)
    scale = Fraction(max(map(abs, values)))  # no square beyond float64
    variance = sum(((x - mean) / scale) ** 2 for x in exact) / len(exact)
    std = sqrt(variance) * scale
    assert merged.mean == pytest.approx(float(mean), rel=1e-15, abs=1e-15 * std)
    assert merged.std == pytest.approx(std, rel=1e-9)


def test_a_negligible_rest_of_the_mean_is_dropped() -> None:
    assert "mean_rest" not in of(np.random.default_rng(0).normal(1e4, 3, 1000), "float64").to_json()
    assert of([2**60, 2**60 + 1], "int64").to_json()["mean_rest"] == 0.5


def test_nulls_and_nonfinite_values_are_counted_and_left_out() -> None:
    statistics = of([1.0, None, float("nan"), float("inf"), 3.0], "float64")
    assert statistics == FeatureStatistics(count=2, nulls=1, nonfinite=2, mean=2.0, std=1.0, min=1.0, max=3.0)


@pytest.mark.parametrize("values", [[], [None], [float("nan"), float("-inf")]])
def test_with_no_finite_value_there_are_no_moments(values: list[float | None]) -> None:
    statistics = of(values, "float64")
    assert (statistics.count, statistics.mean, statistics.std, statistics.min) == (0, None, None, None)


@pytest.mark.parametrize("values", [[1e308, 1e308, -1e308], [1.7e308] * 3, [1e200, 0.0]])
def test_values_at_the_edge_of_float64_still_make_json(values: list[float]) -> None:
    statistics = merge_statistics(of(values, "float64"), of(values[::-1], "float64"))
    json.dumps(asdict(statistics), allow_nan=False)
    assert (statistics.min, statistics.max) == (min(values), max(values))


def test_bounds_of_large_integers_are_exact() -> None:
    statistics = of([2**64 - 1, 2**63], "uint64")
    assert (statistics.min, statistics.max) == (2**63, 2**64 - 1)
    assert of([-(2**63), 5], "int64").min == -(2**63)


def test_negative_zero_is_zero() -> None:
    assert str(of([-0.0], "float32").min) == "0.0"


@pytest.mark.parametrize(("values", "dtype"), [([True, False], "bool"), ([0, 1], "uint8"), ([0.0, 1.0], "float16")])
def test_every_number_has_moments(values: list[Any], dtype: str) -> None:
    column = np.array(values, np.float16) if dtype == "float16" else values
    assert of(column, dtype).mean == 0.5


def test_tensors_count_elements_and_their_nulls_records() -> None:
    statistics = of([[1, 2], None, [3, 6]], "uint8", (2,))
    assert (statistics.count, statistics.nulls, statistics.mean, statistics.max) == (4, 1, 3.0, 6)


def test_a_vocabulary_is_kept_sorted_up_to_its_limits() -> None:
    assert of(["b", "a", None, "b", ""], "string").vocabulary == ("", "a", "b")
    assert of([str(i) for i in range(VOCABULARY_LIMIT)], "string").vocabulary is not None
    assert of([str(i) for i in range(VOCABULARY_LIMIT + 1)], "string").vocabulary is None
    assert of(["x" * VOCABULARY_CHARACTERS, "y"], "string").vocabulary is None
    assert of([["a"]], "string", (None,)).vocabulary is None


def test_vocabularies_merge_until_they_are_too_large() -> None:
    a, b = of(["a", "b"], "string"), of(["b", "c"], "string")
    assert merge_statistics(a, b).vocabulary == ("a", "b", "c")
    many = of([str(i) for i in range(VOCABULARY_LIMIT)], "string")
    assert merge_statistics(many, a).vocabulary is None
    assert merge_statistics(merge_statistics(many, a), a).vocabulary is None


def test_from_json_is_the_inverse_of_asdict() -> None:
    for statistics in (of(["a"], "string"), of([1.5, None], "float32"), of([], "int64")):
        for value in (asdict(statistics), statistics.to_json()):
            assert FeatureStatistics.from_json(json.loads(json.dumps(value))) == statistics


def file_of(image: Image.Image, form: str) -> bytes:
    out = BytesIO()
    image.save(out, form)
    return out.getvalue()


def test_the_vocabulary_of_images_is_their_formats() -> None:
    feature = Feature(name="x", dtype="binary", encoding="image")
    colours = Image.new("RGB", (2, 2))
    bitmaps = [file_of(colours.convert(mode), "BMP") for mode in ("RGB", "L", "P", "1")]
    files = pa.array([b"\x89PNG\r\n\x1a\n...", None, b"\xff\xd8\xff\xe0", *bitmaps[:2], b"?"], pa.binary())
    assert summarise(files, feature).vocabulary == ("", "bmp", "jpeg", "png")
    assert summarise(pa.array(bitmaps, pa.binary()), feature).vocabulary == ("bmp", "bmp-palette")
    assert summarise(files.slice(2, 1), feature).vocabulary == ("jpeg",)
