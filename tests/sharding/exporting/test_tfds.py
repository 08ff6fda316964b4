"""TensorFlow Datasets opens an export with the names of classes and categories, and with every other value exactly."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ringfeed.sharding import ConfigError, ExportOptions, append, build, export
from tests.helpers.builds import built
from tests.helpers.kinds import ROWS, columns, image, plain, values_of, write_kinds

tfds = pytest.importorskip("tensorflow_datasets")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorflow_datasets.*")

SIZES = ("small", "medium", "large")


def opened(dataset: Path, out: Path) -> Any:
    export(ExportOptions(url=str(dataset), destination=str(out), to="tfds"))
    return tfds.builder_from_directory(out)


def test_every_value_is_read_exactly(tmp_path: Path) -> None:
    built(write_kinds(tmp_path / "x.parquet"), tmp_path / "data", label="label", shards=3, shard_format="parquet")
    builder = opened(tmp_path / "data", tmp_path / "out")
    decoders = {"image": tfds.decode.SkipDecoding()}
    records = {int(record["id"]): record for record in tfds.as_numpy(builder.as_dataset("train", decoders=decoders))}
    assert [records[i]["image"] for i in range(ROWS)] == [image(i) for i in range(ROWS)]
    for name in columns():
        values = values_of(name)
        if None in values:
            values = [[] if value is None else [value] for value in values]
        if name == "label":
            assert [builder.info.features[name].int2str(records[i][name]) for i in range(ROWS)] == values
        else:
            assert [repr(plain(records[i][name])) for i in range(ROWS)] == [repr(plain(value)) for value in values]


@pytest.mark.parametrize("format_", ["tfrecord", "parquet"])
def test_labels_and_ordered_categories_have_names_after_an_append_too(tmp_path: Path, format_: str) -> None:
    sizes = [None if i % 5 == 0 else SIZES[i % 3] for i in range(20)]
    rows = pd.DataFrame({"id": range(20), "size": pd.Categorical(sizes, SIZES, ordered=True), "risk": ["b", "a"] * 10})
    build(source=rows[:12], destination=str(tmp_path / "data"), label="risk", format=format_, shards=2)
    append(source=rows[12:], destination=str(tmp_path / "data"))
    builder = opened(tmp_path / "data", tmp_path / "out")
    features = builder.info.features
    assert (features["risk"].names, tuple(features["size"].feature.names)) == (["a", "b"], SIZES)
    records = {int(record["id"]): record for record in tfds.as_numpy(builder.as_dataset("train"))}
    for i, size in enumerate(sizes):
        assert records[i]["size"].tolist() == ([] if size is None else [SIZES.index(size)])
        assert records[i]["risk"] == "ab".index(rows["risk"][i])


def test_names_that_tfds_would_change_stay_texts(tmp_path: Path) -> None:
    build(source=pd.DataFrame({"x": range(4), "y": [" a", "b"] * 2}), destination=str(tmp_path / "data"), label="y")
    builder = opened(tmp_path / "data", tmp_path / "out")
    assert isinstance(builder.info.features["y"], tfds.features.Text)
    assert {record["y"] for record in tfds.as_numpy(builder.as_dataset("train"))} == {b" a", b"b"}


def test_what_it_cannot_read_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    rows = pd.DataFrame({"x": [np.arange(2), None, np.arange(3)], "y": [0, 0, 0]})
    build(source=rows, destination=str(tmp_path / "data"), label="y")
    with pytest.raises(ConfigError, match="cannot open this export: feature 'x' holds lists of any length"):
        opened(tmp_path / "data", tmp_path / "out")
    assert not (tmp_path / "out").exists()
