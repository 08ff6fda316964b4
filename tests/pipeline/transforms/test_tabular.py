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


def test_a_missing_code_or_text_is_no_category_and_its_neutral_value_is_one(tmp_path: Path) -> None:
    codes, names = [1, 0, None, 5, 7] * 4, ["", None, "x", "y", ""] * 4
    table = pa.table({"code": pa.array(codes), "name": names, "label": pa.array([0, 1, 0, 1, 1] * 4)})
    pq.write_table(table, tmp_path / "codes.parquet")
    options: dict[str, Any] = {"label": "label", "shards": 1, "min_class_records": 1}
    build(BuildOptions(source=str(tmp_path / "codes.parquet"), destination=str(tmp_path / "out"), **options))
    loader = Loader(str(tmp_path / "out"), batch_size=20, streams=1, masks=["code", "name"])
    inputs = TabularTransform(plan=plan_columns(loader.manifest, categorical=["code"]))
    (batch,) = loader.epoch(0, transform=inputs)
    code = zip(batch["code"].numpy().tolist(), batch["missing:code"].numpy().tolist(), strict=True)
    name = zip(batch["name"].numpy().tolist(), batch["missing:name"].numpy().tolist(), strict=True)
    assert dict(zip(code, batch["categories"].numpy()[:, 0].tolist(), strict=True)) == {
        (0, False): 1, (0, True): 0, (1, False): 2, (5, False): 6, (7, False): 8,
    }  # fmt: skip
    assert dict(zip(name, batch["categories"].numpy()[:, 1].tolist(), strict=True)) == {
        (b"", False): 1, (b"", True): 0, (b"x", False): 2, (b"y", False): 3,
    }  # fmt: skip


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
    ],
)
def test_unknown_names_and_wrong_types_are_refused(make_dataset: Make, options: dict[str, Any], message: str) -> None:
    manifest = open_dataset(make_dataset(fixed=False)).manifest
    with pytest.raises(ConfigError, match=message):
        plan_columns(manifest, manifest.schema.features, **options)


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.uint8(), pa.uint64(), pa.bool_()])
@pytest.mark.parametrize("shard_format", ["parquet", "tfrecord"])
def test_missing_numbers_become_the_mean_and_no_value_counts_as_missing(
    tmp_path: Path, kind: pa.DataType, shard_format: str
) -> None:
    held = [True, False] if kind == pa.bool_() else [0, 1, 127]
    codes = [None if i % 5 == 0 else held[i % len(held)] for i in range(30)]
    pq.write_table(pa.table({"code": pa.array(codes, kind), "label": [0, 1] * 15}), tmp_path / "source.parquet")
    source, url = str(tmp_path / "source.parquet"), str(tmp_path / "shards")
    build(BuildOptions(source=source, destination=url, label="label", shards=2, shard_format=shard_format))
    loader = Loader(url, batch_size=30, streams=1, masks=["code"])
    plan = plan_columns(loader.manifest)
    (batch,) = loader.epoch(0, transform=TabularTransform(plan=plan))
    missing, numbers = batch["missing:code"].numpy(), batch["numeric"].numpy()
    assert missing.sum() == 6
    np.testing.assert_array_equal(numbers[:, 1], missing)
    np.testing.assert_array_equal(numbers[missing, 0], 0)
    known = np.array([code for code in codes if code is not None], np.float64)
    expected = (batch["code"].numpy()[~missing].astype(np.float64) - known.mean()) / known.std()
    np.testing.assert_allclose(numbers[~missing, 0], expected, rtol=1e-6)
    with pytest.raises(ConfigError, match=r"has no 'missing:code' to mark them: Loader\(..., masks=\['code'\]\)"):
        Loader(url, batch_size=6, fill={"code": held[0]}).epoch(0, transform=TabularTransform(plan=plan))


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
