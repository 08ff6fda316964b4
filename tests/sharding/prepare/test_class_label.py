"""Labels that are no classes yet: one element in a list, whole floats, one-hot vectors, numbers that have names."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import (
    AppendOptions,
    ExportOptions,
    Feature,
    Original,
    SourceError,
    append,
    export,
    open_dataset,
    repair,
)
from ringfeed.sharding.dataset.dataset import read_records
from ringfeed.sharding.prepare import Cast, PrepareOptions, Rename
from ringfeed.sharding.prepare.open import open_prepared
from tests.helpers.builds import built
from tests.helpers.contents import labels


def classes(tmp_path: Path, values: npt.NDArray[np.generic]) -> tuple[Feature, list[object]]:
    np.savez(tmp_path / "a.npz", x=np.zeros((len(values), 2)), y=values)
    dataset = built(str(tmp_path / "a.npz"), tmp_path / "o", label="y", shards=2)
    assert [row["y"] for row in read_records(dataset, "train", 100)].count(1) == 4
    return dataset.manifest.schema["y"], list(dataset.manifest.classes)


@pytest.mark.parametrize("shape", [(8, 1), (8, 1, 1)])
@pytest.mark.parametrize("dtype", ["uint8", "int64", "float16", "float32", "float64"])
def test_labels_of_one_element_are_classes(tmp_path: Path, shape: tuple[int, ...], dtype: str) -> None:
    feature, found = classes(tmp_path, (np.arange(8) % 2).astype(dtype).reshape(shape))
    assert feature == Feature(name="y", dtype="int64" if dtype.startswith("float") else dtype)
    assert found == [0, 1]


def test_texts_of_one_element_are_classes(tmp_path: Path) -> None:
    column = pa.FixedSizeListArray.from_arrays(pa.array(["a", "b"] * 4), 1)
    pq.write_table(pa.table({"y": column}), tmp_path / "a.parquet")
    dataset = built(str(tmp_path / "a.parquet"), tmp_path / "o", label="y", shards=2)
    assert dataset.manifest.classes == ("a", "b")


def test_whole_floats_of_any_sign_are_classes(tmp_path: Path) -> None:
    assert classes(tmp_path, np.array([-1.0, 1.0, -0.0, 0.0] * 4))[1] == [-1, 0, 1]


def test_a_missing_label_stays_missing(tmp_path: Path) -> None:
    column = pa.array([[1], None, [2], [2]], pa.list_(pa.int8(), 1))
    pq.write_table(pa.table({"id": range(4), "y": column}), tmp_path / "a.parquet")
    source = open_prepared(str(tmp_path / "a.parquet"), "y", "auto", PrepareOptions())
    assert labels(source) == [1, None, 2, 2]


def test_a_schema_makes_scalars_of_lists_of_one_element(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(3.0)[:, None])
    options = PrepareOptions(features={"x": Feature(name="x", dtype="int16")})
    source = open_prepared(str(tmp_path / "a.npz"), None, "auto", options)
    assert [batch.to_pylist() for batch in source.drafts(source.parts[0])] == [[{"x": 0}, {"x": 1}, {"x": 2}]]


def test_an_append_makes_the_same_classes(tmp_path: Path) -> None:
    for name, text in (("a.csv", "1.0,2.0,2.0,1.0"), ("b.csv", "2.0,1,1,2"), ("c.csv", "1,2,2,1")):
        (tmp_path / name).write_text("\n".join(["id,y", *(f"{i},{y}" for i, y in enumerate(text.split(",")))]) + "\n")
    built(str(tmp_path / "a.csv"), tmp_path / "o", label="y", shards=1)
    for name in ("b.csv", "c.csv"):
        append(AppendOptions(source=str(tmp_path / name), destination=str(tmp_path / "o")))
    dataset = open_dataset(tmp_path / "o")
    assert dataset.manifest.classes == (1, 2)
    assert sorted(row["y"] for row in read_records(dataset, "train", 100)) == [1] * 6 + [2] * 6


@pytest.mark.parametrize("dtype", ["bool", "uint8", "float32"])
def test_one_hot_vectors_are_the_class_of_their_one(tmp_path: Path, dtype: str) -> None:
    numbers = np.array([2, 0, 1, 1, 2, 0, 1, 1])
    feature, found = classes(tmp_path, np.eye(3, dtype=dtype)[numbers])
    assert (feature, found) == (Feature(name="y", dtype="int64"), [0, 1, 2])
    source = open_prepared(str(tmp_path / "a.npz"), "y", "auto", PrepareOptions())
    assert labels(source) == numbers.tolist()


@pytest.mark.parametrize(
    ("vector", "shown"), [([0.9, 0.1], "0.9, 0.1"), ([1, 1], "1, 1"), ([0, 0], "0, 0"), ([1, None], "1, nan")]
)
def test_soft_and_other_vectors_are_refused(tmp_path: Path, vector: list[float], shown: str) -> None:
    column = pa.array([[0, 1], None, vector], pa.list_(pa.float32(), 2))
    pq.write_table(pa.table({"y": column}), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match=rf"a.parquet: .*'y' holds the vector \[{shown}\], .*--map .* omit --label"):
        labels(open_prepared(str(tmp_path / "a.parquet"), "y", "auto", PrepareOptions()))


def write_named(path: Path, numbers: list[int], names: list[str]) -> None:
    """A Parquet file with a `ClassLabel` column, as Hugging Face's datasets write it."""
    features: dict[str, Any] = {"y": {"names": names, "_type": "ClassLabel"}, "x": {"dtype": "int64", "_type": "Value"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pa.table({"x": pa.array(range(len(numbers))), "y": pa.array(numbers)})
    path.parent.mkdir(exist_ok=True)
    pq.write_table(table.replace_schema_metadata(metadata), path)


def test_numbers_that_have_names_become_these(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_named(path, [1, 0, 1, -1], ["dog", "cat"])
    assert labels(open_prepared(str(path), "y", "auto", PrepareOptions())) == ["cat", "dog", "cat", None]
    renamed = PrepareOptions(steps=(Rename((("y", "kind"),)),))
    assert labels(open_prepared(str(path), "kind", "auto", renamed)) == ["cat", "dog", "cat", None]
    cast = PrepareOptions(steps=(Cast((("y", "int64"),)),))
    assert labels(open_prepared(str(path), "y", "auto", cast)) == [1, 0, 1, -1]


def test_numbers_without_names_and_names_that_differ_are_refused(tmp_path: Path) -> None:
    write_named(tmp_path / "odd.parquet", [0, 2], ["dog", "cat"])
    with pytest.raises(SourceError, match=r"'y' holds 2, and .* name only 2 classes, from 0 on; .*--cast y=int64"):
        labels(open_prepared(str(tmp_path / "odd.parquet"), "y", "auto", PrepareOptions()))
    write_named(tmp_path / "in" / "a.parquet", [0, 1], ["dog", "cat"])
    write_named(tmp_path / "in" / "b.parquet", [0, 1], ["cat", "dog"])
    files = {"a": "a*", "b": "b*"}
    for split_files in ({}, files):
        with pytest.raises(SourceError, match=r"of 'y' .*; keep the numbers with --cast y=int64"):
            open_prepared(str(tmp_path / "in"), "y", "auto", PrepareOptions(), split_files=split_files)


def test_class_ids_are_those_of_the_source(tmp_path: Path) -> None:
    """Also in an append whose file has another order and a new class, in a copy of all, and in an export."""
    write_named(tmp_path / "a.parquet", [0, 1] * 4, ["dog", "cat", "ant"])
    write_named(tmp_path / "b.parquet", [2, 2, 0, 0], ["cat", "dog", "cow"])
    destination, copy = str(tmp_path / "o"), str(tmp_path / "copy")
    built(str(tmp_path / "a.parquet"), destination, label="y", shards=1)
    assert open_dataset(destination).manifest.classes == ("dog", "cat")
    append(AppendOptions(source=str(tmp_path / "b.parquet"), destination=destination))
    for dataset in (open_dataset(destination), built(destination, copy, shards=1)):
        assert dataset.manifest.classes == ("dog", "cat", "cow")
        assert sorted(row["y"] for row in read_records(dataset, "train", 99)) == ["cat"] * 6 + ["cow"] * 2 + ["dog"] * 4
    export(ExportOptions(url=copy, destination=str(tmp_path / "hf"), to="hf"))
    features = json.loads(pq.read_schema(next(tmp_path.glob("hf/*.parquet"))).metadata[b"huggingface"])
    assert features["info"]["features"]["y"]["names"] == ["dog", "cat", "cow"]


def test_a_dataset_of_numbers_is_appended_to_and_repaired_as_numbers(tmp_path: Path) -> None:
    source, destination = tmp_path / "a.parquet", str(tmp_path / "o")
    write_named(source, [0, 1] * 4, ["dog", "cat"])
    with pytest.MonkeyPatch.context() as patch:  # as it was built before names were known
        patch.setattr("ringfeed.sharding.sources.tables.table_files.class_names", lambda *_: ())
        dataset = built(str(source), destination, label="y", shards=1)
    append(AppendOptions(source=str(source), destination=destination, again=True))
    assert open_dataset(destination).manifest.classes == (0, 1)
    shard = tmp_path / "o" / dataset.shards[0].path
    whole = shard.read_bytes()
    shard.unlink()
    repair(destination, originals=[Original(url=str(source))])
    assert shard.read_bytes() == whole
