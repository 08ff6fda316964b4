"""TensorFlow Datasets opens what ringfeed built, and reads every value as it was."""

import json
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from ringfeed.sharding import FeatureStatistics, Manifest, open_dataset
from ringfeed.sharding.interop.tfds import obstacle, tfds_files
from tests.sharding.conftest import built

tfds = pytest.importorskip("tensorflow_datasets")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorflow_datasets.*")

ROWS = 24
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
RAGGED = {
    "float64": pa.float64(),
    "float32": pa.float32(),
    "int32": pa.int32(),
    "uint8": pa.uint8(),
    "string": pa.string(),
}


def image(number: int) -> bytes:
    pixels = np.full((2 + number % 3, 4, 3), number * 10, np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, ("png", "jpeg", "bmp")[number % 3])
    return file.getvalue()


def gapped(column: pa.Array) -> pa.Array:
    """The column with every third value missing."""
    return column.take(pa.array([None if i % 3 == 0 else i for i in range(len(column))]))


def columns() -> dict[str, pa.Array]:
    rng = np.random.default_rng(0)
    reals = rng.normal(size=(ROWS, 6))
    reals[0] = [np.nan, np.inf, -0.0, 5e-324, 1.7e308, 0.1]
    flags = pa.array(rng.random(ROWS) < 0.5)
    texts = pa.array(["", "é", "\0x"] * (ROWS // 3))
    made = {f"scalar {t}": pa.array([np.iinfo(t).min, np.iinfo(t).max] * (ROWS // 2), t) for t in INTEGERS}
    made |= {
        "scalar bool": flags,
        "scalar string": texts,
        "scalar binary": pa.array([bytes([i, 0, 255]) for i in range(ROWS)]),
        "scalar float64": pa.array(reals[:, 0]),
        "scalar float32": pa.array(rng.normal(size=ROWS).astype(np.float32)),
        "scalar float16": pa.array(rng.normal(size=ROWS).astype(np.float16)),
        "tensor float64": pa.FixedShapeTensorArray.from_numpy_ndarray(reals.reshape(ROWS, 2, 3)),
        "tensor float32": pa.FixedShapeTensorArray.from_numpy_ndarray(rng.normal(size=(ROWS, 2, 2)).astype(np.float32)),
        "tensor uint8": pa.FixedShapeTensorArray.from_numpy_ndarray(rng.integers(0, 256, (ROWS, 3, 2), np.uint8)),
        "tensor string": pa.FixedSizeListArray.from_arrays(pa.array([f"t{i}" for i in range(2 * ROWS)]), 2),
        "a/slash": pa.array(range(ROWS)),
    }
    for name, kind in RAGGED.items():
        word = str if name == "string" else int
        made[f"ragged {name}"] = pa.array([[word(j) for j in range(i % 4)] for i in range(ROWS)], pa.list_(kind))
    made |= {f"missing {name}": gapped(made[f"scalar {name}"]) for name in ("bool", "string", "float64", "uint8")}
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(reals[:, :2].reshape(-1)), 2)
    counts = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(2 * ROWS, dtype=np.int16)), 2)
    made |= {"missing vector": gapped(vectors), "missing counts": gapped(counts)}
    return made


COLUMNS = columns()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tfds")
    table = pa.table({"id": pa.array(range(ROWS)), **COLUMNS, "label": pa.array([i % 2 for i in range(ROWS)])})
    encoded = pa.field("image", pa.binary(), metadata={"encoding": "image"})
    table = table.append_column(encoded, [[image(i) for i in range(ROWS)]])
    pq.write_table(table, folder / "all-kinds.parquet")
    built(str(folder / "all-kinds.parquet"), folder / "out", label="label", shards=3, min_class_records=1)
    return folder / "out"


@pytest.fixture(scope="module")
def builder(dataset: Path) -> Any:
    return tfds.builder_from_directory(dataset)


@pytest.fixture(scope="module")
def records(builder: Any) -> dict[int, dict[str, Any]]:
    undecoded = {"image": tfds.decode.SkipDecoding()}
    found = tfds.as_numpy(builder.as_dataset(split="train", decoders=undecoded))
    return {int(record["id"]): record for record in found}


def plain(value: Any) -> Any:
    """As Python values whose `repr` is equal only if every bit is: texts as their bytes, tensors as lists."""
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, list):
        return [plain(entry) for entry in value]
    return value.encode() if isinstance(value, str) else value


@pytest.mark.parametrize("name", COLUMNS)
def test_every_value_is_read_exactly(records: dict[int, dict[str, Any]], name: str) -> None:
    column = COLUMNS[name]
    values = list(column.to_numpy_ndarray()) if isinstance(column, pa.ExtensionArray) else column.to_pylist()
    if column.null_count:
        values = [[] if value is None else [value] for value in values]
    assert [repr(plain(records[i][name])) for i in range(ROWS)] == [repr(plain(value)) for value in values]


def test_images_are_decoded_or_their_files_as_they_were(builder: Any, records: dict[int, dict[str, Any]]) -> None:
    assert [records[i]["image"] for i in range(ROWS)] == [image(i) for i in range(ROWS)]
    for record in tfds.as_numpy(builder.as_dataset(split="train")):
        number = int(record["id"])
        assert record["image"].shape == (2 + number % 3, 4, 3)
        assert abs(int(record["image"][0, 0, 0]) - number * 10) <= 2  # JPEG rounds


def test_what_it_says_of_the_splits_is_so(builder: Any, dataset: Path) -> None:
    assert builder.info.name == "all_kinds"
    assert builder.info.splits["train"].num_examples == ROWS
    assert builder.info.splits["train"].shard_lengths == [8, 8, 8]
    assert [path.name for path in builder.info.splits["train"].filepaths] == sorted(
        path.name for path in dataset.glob("*.tfrecord")
    )
    assert builder.info.dataset_size == sum(path.stat().st_size for path in dataset.glob("*.tfrecord"))
    assert len(list(builder.as_dataset(split="train[25%:75%]"))) == ROWS // 2


def test_supervised_pairs_are_the_image_and_the_label(builder: Any) -> None:
    pairs = list(tfds.as_numpy(builder.as_dataset(split="train", as_supervised=True)))
    assert sorted(int(label) for _, label in pairs) == [0] * (ROWS // 2) + [1] * (ROWS // 2)
    assert all(pixels.dtype == np.uint8 for pixels, _ in pairs)


def test_supervised_pairs_of_a_table_are_its_columns_and_the_label(
    parquet: str, table: pa.Table, tmp_path: Path
) -> None:
    built(parquet, tmp_path / "out", label="label", shards=2)
    opened = tfds.builder_from_directory(tmp_path / "out").as_dataset(split="train", as_supervised=True)
    pairs = list(tfds.as_numpy(opened.take(3)))
    assert all(set(inputs) == set(table.column_names) - {"label"} for inputs, _ in pairs)
    assert all(label.decode() == table["label"][int(inputs["id"])].as_py() for inputs, label in pairs)


@pytest.fixture
def manifest(dataset: Path) -> Manifest:
    return open_dataset(str(dataset)).manifest


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shard_format": "parquet"}, "it reads TFRecord shards, these are parquet"),
        ({"compression": "gzip"}, "compressed with gzip"),
    ],
)
def test_a_dataset_that_it_cannot_read_gets_no_metadata(manifest: Manifest, change: dict[str, str], words: str) -> None:
    refused = replace(manifest, **change)  # type: ignore[arg-type]
    assert words in obstacle(refused)
    assert tfds_files(refused, ()) == {}


def test_names_that_it_would_read_otherwise_get_no_metadata(manifest: Manifest) -> None:
    split = manifest.splits["train"]
    assert "a split is named 'all'" in obstacle(replace(manifest, splits={"all": split}))
    many = {"train": replace(split, shards=100_000)}
    assert "split 'train' has 100,000 shards" in obstacle(replace(manifest, splits=many))


def test_lists_that_may_be_missing_or_empty_get_no_metadata(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [[1], None, []]}), tmp_path / "x.parquet")
    dataset = built(str(tmp_path / "x.parquet"), tmp_path / "out", shards=1)
    assert "feature 'x' holds lists of any length, and none at all" in obstacle(dataset.manifest)
    assert dataset.manifest.files == {}
    assert [path.name for path in (tmp_path / "out").glob("*.json")] == ["dataset.json"]


@pytest.mark.parametrize("formats", [("webp",), ("gif", "jpeg"), ("",), None])
def test_images_that_it_cannot_decode_are_their_bytes(manifest: Manifest, formats: tuple[str, ...] | None) -> None:
    split = manifest.splits["train"]
    statistics = {**split.statistics, "image": FeatureStatistics(count=ROWS, vocabulary=formats)}
    changed = replace(manifest, splits={"train": replace(split, statistics=statistics)})
    features = json.loads(tfds_files(changed, ())["features.json"])["featuresDict"]["features"]
    assert features["image"]["tensor"] == {"shape": {"dimensions": []}, "dtype": "string", "encoding": "none"}
