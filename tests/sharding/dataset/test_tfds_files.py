"""TensorFlow Datasets opens datasets in place, and reads every value exactly."""

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import (
    AppendOptions,
    Feature,
    FeatureStatistics,
    Manifest,
    ShardInfo,
    append,
    open_dataset,
    read_records,
)
from ringfeed.sharding.dataset.tfds_files import tfds_files, tfds_obstacle
from ringfeed.sharding.prepare import PrepareOptions
from tests.helpers.builds import built
from tests.helpers.kinds import ROWS, columns, image, plain, values_of, write_kinds

tfds = pytest.importorskip("tensorflow_datasets")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorflow_datasets.*")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tfds")
    built(write_kinds(folder / "all-kinds.parquet"), folder / "out", label="label", shards=3)
    return folder / "out"


@pytest.fixture(scope="module")
def builder(dataset: Path) -> Any:
    return tfds.builder_from_directory(dataset)


@pytest.fixture(scope="module")
def records(builder: Any) -> dict[int, dict[str, Any]]:
    undecoded = {"image": tfds.decode.SkipDecoding()}
    found = tfds.as_numpy(builder.as_dataset(split="train", decoders=undecoded))
    return {int(record["id"]): record for record in found}


@pytest.mark.parametrize("name", columns())
def test_every_value_is_read_exactly(records: dict[int, dict[str, Any]], name: str) -> None:
    values = values_of(name)
    if None in values:
        values = [[] if value is None else [value] for value in values]
    assert [repr(plain(records[i][name])) for i in range(ROWS)] == [repr(plain(value)) for value in values]


def test_images_are_decoded_or_left_as_files(builder: Any, records: dict[int, dict[str, Any]]) -> None:
    assert [records[i]["image"] for i in range(ROWS)] == [image(i) for i in range(ROWS)]
    for record in tfds.as_numpy(builder.as_dataset(split="train")):
        number = int(record["id"])
        assert record["image"].shape == (2 + number % 3, 4, 3)
        assert abs(int(record["image"][0, 0, 0]) - number * 10) <= 2  # JPEG rounds


def test_splits_are_described_correctly(builder: Any, dataset: Path) -> None:
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
    assert sorted(label for _, label in pairs) == [b"even"] * (ROWS // 2) + [b"odd"] * (ROWS // 2)
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


@pytest.fixture
def shards(dataset: Path) -> tuple[ShardInfo, ...]:
    return open_dataset(str(dataset)).shards


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shard_format": "parquet"}, "it reads only TFRecord shards, these are parquet"),
        ({"compression": "gzip"}, "compressed with gzip"),
    ],
)
def test_a_dataset_unreadable_to_tfds_gets_no_metadata(
    manifest: Manifest, shards: tuple[ShardInfo, ...], change: dict[str, str], words: str
) -> None:
    refused = replace(manifest, **change)  # type: ignore[arg-type]
    assert words in tfds_obstacle(refused, shards)
    assert tfds_files(refused, shards) == {}


def test_names_that_tfds_would_misread_get_no_metadata(manifest: Manifest, shards: tuple[ShardInfo, ...]) -> None:
    split = manifest.splits["train"]
    assert "a split is named 'all'" in tfds_obstacle(replace(manifest, splits={"all": split}), shards)
    many = {"train": replace(split, shards=100_000)}
    assert "split 'train' has 100,000 shards" in tfds_obstacle(replace(manifest, splits=many), shards)
    salvaged = (replace(shards[0], path="train-00000-of-00001.salvaged.tfrecord"), *shards[1:])
    assert "a repair left records out" in tfds_obstacle(manifest, salvaged)
    assert tfds_obstacle(manifest, shards) == ""


def test_lists_that_may_be_missing_or_empty_get_no_metadata(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [[1], None, []]}), tmp_path / "x.parquet")
    dataset = built(str(tmp_path / "x.parquet"), tmp_path / "out", shards=1)
    assert "feature 'x' holds lists of any length, and is missing" in tfds_obstacle(dataset.manifest, dataset.shards)
    assert dataset.manifest.files == {}
    assert list((tmp_path / "out").glob("*.json")) == []


@pytest.mark.parametrize("formats", [("webp",), ("gif", "jpeg"), ("bmp", "bmp-palette"), ("",), None])
def test_images_that_tfds_cannot_decode_are_bytes(
    manifest: Manifest, shards: tuple[ShardInfo, ...], formats: tuple[str, ...] | None
) -> None:
    split = manifest.splits["train"]
    statistics = {**split.statistics, "image": FeatureStatistics(count=ROWS, vocabulary=formats)}
    changed = replace(manifest, splits={"train": replace(split, statistics=statistics)})
    features = json.loads(tfds_files(changed, shards)["features.json"])["featuresDict"]["features"]
    assert features["image"]["tensor"] == {"shape": {"dimensions": []}, "dtype": "string", "encoding": "none"}


def test_lists_of_images_are_lists_of_bytes(tmp_path: Path) -> None:
    pages = [[image(i) for i in range(count)] for count in (1, 2, 3, 4)]
    pq.write_table(pa.table({"pages": pages}), tmp_path / "x.parquet")
    features = {"pages": Feature(name="pages", dtype="binary", shape=(None,), encoding="image")}
    built(str(tmp_path / "x.parquet"), tmp_path / "out", shards=1, prepare=PrepareOptions(features=features))
    found = tfds.as_numpy(tfds.builder_from_directory(tmp_path / "out").as_dataset(split="train"))
    assert sorted((record["pages"].tolist() for record in found), key=len) == pages


def test_each_appended_generation_has_splits_of_its_own(tmp_path: Path) -> None:
    shares = {"train": Fraction(3, 4), "test": Fraction(1, 4)}
    for number in range(3):
        rows = np.arange(40) + 40 * number
        pq.write_table(pa.table({"id": rows, "label": rows % 2}), tmp_path / f"{number}.parquet")
        source, out = str(tmp_path / f"{number}.parquet"), str(tmp_path / "out")
        if number == 0:
            built(source, out, label="label", shards=3, splits=shares)
        else:
            append(AppendOptions(source=source, destination=out, shards=1 + number))
    builder = tfds.builder_from_directory(tmp_path / "out")
    assert sorted(builder.info.splits) == sorted(f"{name}_g{n:05d}" for name in shares for n in range(3))
    found = {
        name: [
            int(record["id"])
            for record in tfds.as_numpy(builder.as_dataset(split="+".join(f"{name}_g{n:05d}" for n in range(3))))
        ]
        for name in shares
    }
    assert sorted(found["train"] + found["test"]) == list(range(120))
    dataset = open_dataset(str(tmp_path / "out"))
    for name, ids in found.items():
        assert sorted(ids) == sorted(row["id"] for row in read_records(dataset, name, 120))
    with pytest.raises(ValueError, match="Unknown split"):
        builder.as_dataset(split="train")
