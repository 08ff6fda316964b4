"""Inputs of the tabular model: standardised by the train split alone, missing values marked, labels never leaked."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.dataset.statistics import FeatureStatistics
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.schema import Feature
from ringfeed.training.config.data import DataConfig
from ringfeed.training.models.preprocess import feature_columns, masked_features, plan_tabular, tabular_preprocess
from tests.helpers.manifests import manifest_of

FEATURES = (
    Feature(name="delay", dtype="float32"),
    Feature(name="when", dtype="int64"),
    Feature(name="pair", dtype="float64", shape=(2,)),
    Feature(name="hour", dtype="int32"),
    Feature(name="carrier", dtype="string"),
    Feature(name="late", dtype="bool"),
)
STATISTICS = {
    "delay": FeatureStatistics(count=3, nonfinite=1, mean=10.0, std=2.0, min=8.0, max=12.0),
    "when": FeatureStatistics(count=4, mean=1e15 + 2, std=2.0, min=1e15, max=1e15 + 4),
    "pair": FeatureStatistics(count=8, mean=1.0, std=0.0, min=1.0, max=1.0),
    "hour": FeatureStatistics(count=4, mean=12.0, std=4.0, min=5, max=23),
    "carrier": FeatureStatistics(count=4, vocabulary=("AA", "B6", "UA")),
    "late": FeatureStatistics(count=4, mean=0.2, std=0.4, min=0, max=1),
}


def manifest(statistics: Mapping[str, FeatureStatistics] = STATISTICS, features: Any = FEATURES) -> Manifest:
    return manifest_of(features, statistics, label="late", classes={False: 3, True: 1})


@functools.cache
def element() -> dict[str, Any]:
    return {
        "delay": tf.constant([12.0, float("nan"), float("inf")]),
        "when": tf.constant([10**15, 10**15 + 2, 10**15 + 3], tf.int64),
        "pair": tf.constant([[1.0, 3.0], [1.0, 1.0], [0.0, 1.0]], tf.float64),
        "hour": tf.constant([5, 23, 24], tf.int32),
        "carrier": tf.constant(["UA", "AA", "never seen"]),
        "late": tf.constant([True, False, False]),
        "class_id": tf.constant([1, 0, 0]),
    }


def test_standardises_embeds_and_marks_missing_values() -> None:
    plan = plan_tabular(manifest(), DataConfig(url="x", categorical=("hour",)))
    inputs, class_id, weight = tabular_preprocess(plan)(element())
    # delay, when, pair (std 0: only centred), then the indicator of delay, the one column with missing values
    expected = [[1.0, -1.0, 0.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0], [0.0, 0.5, -1.0, 0.0, 1.0]]
    np.testing.assert_array_equal(inputs["numeric"], np.array(expected, np.float32))
    assert plan.numeric_width == 5
    # hour 24 and the carrier that the train split never held are 0
    np.testing.assert_array_equal(inputs["categories"], [[1, 3], [19, 1], [0, 0]])
    assert [c.size for c in plan.categories] == [20, 4]
    np.testing.assert_array_equal(class_id, [1, 0, 0])
    np.testing.assert_array_equal(weight, [1.0, 1.0, 1.0])


def test_padding_weights_are_passed_on() -> None:
    plan = plan_tabular(manifest(), DataConfig(url="x", include=("delay",)))
    weight = tf.constant([1.0, 0.0, 0.0])
    assert tabular_preprocess(plan)({**element(), "sample_weight": weight})[2] is weight


def test_the_label_is_never_a_feature() -> None:
    names = [feature.name for feature in feature_columns(manifest(), DataConfig(url="x", exclude=("when",)))]
    assert names == ["delay", "pair", "hour", "carrier"]
    with pytest.raises(ConfigError, match="'late' is the label"):
        feature_columns(manifest(), DataConfig(url="x", include=("late", "delay")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exclude": ("dely",)}, "data.exclude: the dataset has no column 'dely'; did you mean 'delay'?"),
        ({"categorical": ("zzz",)}, "data.categorical: the dataset has no column 'zzz'"),
        ({"include": ("hour",), "exclude": ("hour",)}, "leave no column to learn from"),
        ({"categorical": ("delay",)}, "'delay' must hold one integer or text per record"),
        ({"categorical": ("when",)}, r"spans 5 codes|at most"),
    ],
)
def test_a_wrong_column_is_named(options: dict[str, Any], message: str) -> None:
    wide = {**STATISTICS, "when": FeatureStatistics(count=4, mean=0.0, std=1.0, min=0, max=10**9)}
    with pytest.raises(ConfigError, match=message):
        plan_tabular(manifest(wide), DataConfig(url="x", **options))


def test_texts_without_a_vocabulary_and_ragged_columns_say_what_to_do() -> None:
    free = {**STATISTICS, "carrier": FeatureStatistics(count=4)}
    with pytest.raises(ConfigError, match=r"leave it out with data.exclude=\[carrier\]"):
        plan_tabular(manifest(free), DataConfig(url="x"))
    images = (Feature(name="photo", dtype="binary", encoding="image"), FEATURES[-1])
    with pytest.raises(ConfigError, match=r"'photo' holds images, .* model.name=convnet and .*exclude=\[photo\]"):
        plan_tabular(manifest({**STATISTICS, "photo": STATISTICS["when"]}, images), DataConfig(url="x"))
    ragged = (Feature(name="tags", dtype="int64", shape=(None,)), FEATURES[-1])
    with pytest.raises(ConfigError, match=r"'tags' .* cannot be an input of a tabular model"):
        plan_tabular(manifest({**STATISTICS, "tags": STATISTICS["when"]}, ragged), DataConfig(url="x"))


def test_masks_mark_missing_integers_and_texts() -> None:
    statistics = {
        **STATISTICS,
        "when": FeatureStatistics(count=3, nulls=1, mean=2.0**60, std=2.0**50, min=2**60, max=2**60 + 1),
        "carrier": FeatureStatistics(count=3, nulls=1, vocabulary=("", "UA")),
    }
    data, held = DataConfig(url="x", include=("when", "carrier")), manifest(statistics)
    assert [feature.name for feature in masked_features(held, data)] == ["when", "carrier"]
    element = {
        "when": tf.constant([2**60, 2**60, 2**60 - 2**50], tf.int64),
        "missing:when": tf.constant([False, True, False]),
        "carrier": tf.constant(["UA", "", ""]),
        "missing:carrier": tf.constant([False, False, True]),
        "class_id": tf.constant([0, 1, 0]),
    }
    inputs, _, _ = tabular_preprocess(plan_tabular(held, data))(element)
    np.testing.assert_array_equal(inputs["numeric"], [[0.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    np.testing.assert_array_equal(inputs["categories"], [[2], [1], [0]])
