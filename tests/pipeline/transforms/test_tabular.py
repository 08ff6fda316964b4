"""Columns become inputs: standardised by the manifest, looked up in vocabularies, independent of batches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfeed.pipeline import Loader, TabularTransform, plan_columns
from ringfeed.pipeline.transforms.tabular_ops import tabular_inputs, text_ids
from ringfeed.pipeline.transforms.tabular_plan import CategoryColumn, NumericColumn, TabularPlan
from ringfeed.sharding import BuildOptions, ConfigError, build, open_dataset
from ringfeed.sharding.schema import Feature

Make = Callable[..., str]


def test_a_loader_gives_standardised_columns_by_the_manifest(make_dataset: Make) -> None:
    loader = Loader(make_dataset(fixed=False), batch_size=1000, streams=1)
    plan = plan_columns(loader.manifest)
    assert [column.name for column in plan.numeric] == ["id", "vector"]
    (batch,) = loader.epoch(0, transform=TabularTransform(plan=plan))
    numbers = batch["numeric"].numpy()
    assert numbers.shape == (1000, plan.numeric_width) == (1000, 4)
    ids = batch["id"].numpy().astype(np.float64)
    np.testing.assert_allclose(numbers[:, 0], (ids - ids.mean()) / ids.std(), rtol=1e-6)
    np.testing.assert_allclose(numbers.mean(axis=0), 0, atol=1e-6)
    assert "categories" not in batch


def test_inputs_need_their_columns_and_names_of_their_own(make_dataset: Make) -> None:
    loader = Loader(make_dataset(fixed=False), batch_size=100)
    inputs = TabularTransform(plan=plan_columns(loader.manifest))
    with pytest.raises(ConfigError, match="the element has no feature 'id'; it has: class_id, vector"):
        Loader(make_dataset(fixed=False), batch_size=100, columns=["vector"]).epoch(0, transform=inputs)
    with pytest.raises(ConfigError, match="already has a feature 'numeric'"):
        loader.epoch(0, transform=[inputs, inputs])


def test_the_fill_of_a_code_is_not_a_category(tmp_path: Path) -> None:
    table = pa.table({"code": pa.array([1, 3, None, 5, 7] * 4), "label": pa.array([0, 1, 0, 1, 1] * 4)})
    pq.write_table(table, tmp_path / "codes.parquet")
    options: dict[str, Any] = {"label": "label", "shards": 1, "min_class_records": 1}
    build(BuildOptions(source=str(tmp_path / "codes.parquet"), destination=str(tmp_path / "out"), **options))
    loader = Loader(str(tmp_path / "out"), batch_size=20, streams=1, fill={"code": 4})
    inputs = TabularTransform(plan=plan_columns(loader.manifest, categorical=["code"], fill={"code": 4}))
    (batch,) = loader.epoch(0, transform=inputs)
    ids = dict(zip(batch["code"].numpy().tolist(), batch["categories"].numpy()[:, 0].tolist(), strict=True))
    assert ids == {1: 1, 3: 3, 4: 0, 5: 5, 7: 7}


def test_texts_are_looked_up_in_the_given_or_the_stored_vocabulary(make_dataset: Make) -> None:
    loader = Loader(make_dataset(fixed=False), batch_size=100)
    label = [loader.schema["label"]]
    (known,) = plan_columns(loader.manifest, label).categories
    assert known == CategoryColumn(name="label", size=4, vocabulary=("common", "middling", "rare"))
    plan = plan_columns(loader.manifest, label, vocabularies={"label": ["rare", "common"]})
    batch = next(iter(loader.epoch(0, transform=TabularTransform(plan=plan))))
    ids = {b"rare": 1, b"common": 2, b"middling": 0}
    assert batch["categories"].numpy()[:, 0].tolist() == [ids[text] for text in batch["label"].numpy()]
    with pytest.raises(ConfigError, match=r"column 'id' \(int64, shape \(\)\) holds no text to look up"):
        plan_columns(loader.manifest, [loader.schema["id"]], vocabularies={"id": ["1"]})
    for several in (Feature(name="id", dtype="int64", shape=(None,)), Feature(name="id", dtype="string", shape=(2,))):
        with pytest.raises(ConfigError, match="cannot be an input of a tabular model; leave 'id' out of columns"):
            plan_columns(loader.manifest, [several])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"categorical": ["idd"]}, "categorical: there is no column 'idd'; did you mean 'id'"),
        ({"vocabularies": {"lable": ["rare"]}}, "vocabularies: there is no column 'lable'; did you mean 'label'"),
        ({"vocabularies": {"label": "rare"}}, "the vocabulary of column 'label' must be a list of texts, got 'rare'"),
        ({"vocabularies": ["label"]}, r"vocabularies must be a dict of texts by column, got \['label'\]"),
        ({"fill": {"idd": 3}}, "fill names 'idd', which is no feature; they are: id, vector, label"),
        ({"fill": {"id": 0.5}}, "fill of feature 'id' must be one int64 value, got 0.5"),
    ],
)
def test_unknown_names_and_wrong_types_are_refused(make_dataset: Make, options: dict[str, Any], message: str) -> None:
    manifest = open_dataset(make_dataset(fixed=False)).manifest
    with pytest.raises(ConfigError, match=message):
        plan_columns(manifest, manifest.schema.features, **options)


def test_integers_that_the_loader_fills_in_count_as_missing(tmp_path: Path) -> None:
    codes = [None if i % 5 == 0 else i % 4 for i in range(30)]
    pq.write_table(pa.table({"code": pa.array(codes, pa.int16()), "label": [0, 1] * 15}), tmp_path / "source.parquet")
    source, url = str(tmp_path / "source.parquet"), str(tmp_path / "shards")
    build(BuildOptions(source=source, destination=url, label="label", shards=2))
    loader = Loader(url, batch_size=6, fill={"code": -9})
    plan = plan_columns(loader.manifest, fill={"code": -9})
    batch = next(iter(loader.epoch(0, transform=TabularTransform(plan=plan))))
    is_missing = batch["code"].numpy() == -9
    numbers = batch["numeric"].numpy()
    np.testing.assert_array_equal(numbers[:, 1], is_missing)
    np.testing.assert_array_equal(numbers[is_missing, 0], 0)
    with pytest.raises(ConfigError, match=r"'code' \(int16\) has missing .*: plan_columns\(..., fill={'code': ...}"):
        plan_columns(loader.manifest)


def test_values_that_records_hold_do_not_count_as_missing(tmp_path: Path) -> None:
    columns = {
        "count": pa.array([0, 1, None, 3] * 5),
        "flag": pa.array([True, None, False, True] * 5),
        "share": pa.array([0.5, None, 0.0, 1.0] * 5),
        "whole": pa.array([0, 1, 2, 3] * 5),
    }
    pq.write_table(pa.table({**columns, "label": [0, 1] * 10}), tmp_path / "source.parquet")
    source, url = str(tmp_path / "source.parquet"), str(tmp_path / "shards")
    build(BuildOptions(source=source, destination=url, label="label", shards=1, min_class_records=1))
    manifest = open_dataset(url).manifest
    for name, value in {"count": 0, "flag": False, "share": 0.0}.items():
        told = f"fill of column '{name}': records hold {value}, which would count as missing"
        with pytest.raises(ConfigError, match=told):
            plan_columns(manifest, [manifest.schema[name]], categorical=["flag"], fill={name: value})
    plan = plan_columns(manifest, [manifest.schema["whole"]], fill={"whole": 0, "count": 0})
    loader = Loader(url, batch_size=4, columns=["whole"])
    batch = next(iter(loader.epoch(0, transform=TabularTransform(plan=plan))))
    values = np.array([0, 1, 2, 3])
    expected = ((values - values.mean()) / values.std()).astype(np.float32)[batch["whole"].numpy()]
    np.testing.assert_allclose(batch["numeric"].numpy()[:, 0], expected, rtol=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(-(10**6), 10**6).map(lambda number: number / 8), min_size=1, max_size=20),
    st.integers(-1000, 1000).map(lambda number: number / 7),
    st.just(1.0) | st.floats(1e-3, 1e3),
)
def test_standardisation_equals_that_of_numpy(values: list[float], mean: float, std: float) -> None:
    column = NumericColumn(name="x", mean=mean, std=std, has_missing=True)
    element = {"x": tf.constant([*values, float("nan")], tf.float32)}
    found = tabular_inputs(element, TabularPlan(numeric=(column,), categories=()))["numeric"].numpy()
    expected = (np.array(values, np.float32).astype(np.float64) - mean) / std
    np.testing.assert_array_equal(found[:-1, 0], expected.astype(np.float32))
    assert found[-1].tolist() == [0.0, 1.0]


def test_a_large_vocabulary_finds_every_text_and_no_other() -> None:
    words = [f"station-{i}" for i in range(1000)]
    lookup = tf.function(text_ids(words))
    np.testing.assert_array_equal(lookup(tf.constant(words[::-1])), np.arange(1000, 0, -1))
    np.testing.assert_array_equal(lookup(tf.constant(["station-1000", "", "station"])), [0, 0, 0])
    assert text_ids([])(tf.constant(["a"])).numpy().tolist() == [0]
