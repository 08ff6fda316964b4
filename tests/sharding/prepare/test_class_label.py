"""Labels that hold numbers in another form than classes need: one element in a list, or whole floats."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import AppendOptions, Feature, append, open_dataset
from ringfeed.sharding.dataset.dataset import read_records
from ringfeed.sharding.prepare import PrepareOptions
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
