"""Hugging Face `datasets` reads what `export` wrote, every value as it was."""

import os
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from ringfeed.sharding import ExportOptions, export, read_records
from ringfeed.sharding.prepare import ImageOptions, PrepareOptions
from ringfeed.sharding.prepare.image_transform import parse_encoding
from tests.helpers.builds import built
from tests.helpers.kinds import ROWS, columns, image, plain, values_of, write_kinds

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything here is a local file
datasets = pytest.importorskip("datasets")
datasets.disable_progress_bars()


@pytest.fixture(scope="module", params=["tfrecord", "parquet"])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("hf")
    source = write_kinds(folder / "x.parquet")
    splits = {"train": Fraction(3, 4), "held_out": Fraction(1, 4)}
    built(source, folder / "dataset", label="label", shards=3, splits=splits, shard_format=request.param)
    export(ExportOptions(url=str(folder / "dataset"), destination=str(folder / "out"), to="hf"))
    return datasets.load_dataset(str(folder / "out"), cache_dir=str(folder / "cache"))


@pytest.fixture(scope="module")
def records(loaded: Any) -> dict[int, dict[str, Any]]:
    whole = datasets.concatenate_datasets([loaded["train"], loaded["held_out"]])
    return {record["id"]: record for record in whole.cast_column("image", datasets.Image(decode=False))}


@pytest.mark.parametrize("name", columns())
def test_every_value_is_read_exactly(records: dict[int, dict[str, Any]], name: str) -> None:
    assert [repr(plain(records[i][name])) for i in range(ROWS)] == [repr(plain(value)) for value in values_of(name)]


def test_the_splits_are_named_in_the_card(loaded: Any) -> None:
    assert {name: split.num_rows for name, split in loaded.items()} == {"train": ROWS * 3 // 4, "held_out": ROWS // 4}


def test_the_label_is_a_class_label(loaded: Any, records: dict[int, dict[str, Any]]) -> None:
    label = loaded["train"].features["label"]
    assert label == datasets.ClassLabel(names=["even", "odd"])
    assert [label.int2str(records[i]["label"]) for i in range(ROWS)] == [("odd", "even")[i % 2] for i in range(ROWS)]


def test_images_are_images(loaded: Any, records: dict[int, dict[str, Any]]) -> None:
    assert [records[i]["image"]["bytes"] for i in range(ROWS)] == [image(i) for i in range(ROWS)]
    record = loaded["train"][0]
    assert np.array_equal(record["image"], Image.open(BytesIO(image(record["id"]))))


def test_tensors_have_their_shapes(loaded: Any) -> None:
    record = loaded["train"].with_format("numpy")[0]
    assert (record["tensor uint8"].shape, record["tensor float64"].shape) == ((3, 2), (2, 3))


def test_integer_classes_are_named_by_their_values_and_a_missing_image_is_none(tmp_path: Path) -> None:
    encoded = pa.field("image", pa.binary(), metadata={"encoding": "image"})
    table = pa.table([pa.array([-5, 7, 7, -5])], ["y"]).append_column(encoded, [[image(0), None, image(1), None]])
    pq.write_table(table, tmp_path / "x.parquet")
    built(str(tmp_path / "x.parquet"), tmp_path / "dataset", label="y", shards=1)
    export(ExportOptions(url=str(tmp_path / "dataset"), destination=str(tmp_path / "out"), to="hf"))
    split = datasets.load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))["train"]
    assert split.features["y"].names == ["-5", "7"]
    pairs = [(split.features["y"].int2str(r["y"]), r["image"] is None) for r in split]
    assert sorted(pairs) == [("-5", False), ("-5", True), ("7", False), ("7", True)]


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_images_written_by_datasets_are_built_as_images(tmp_path: Path, form: str) -> None:
    files = [{"bytes": image(i), "path": f"{i}.png"} for i in range(4)]
    features = datasets.Features({"photo": datasets.Image(), "y": datasets.Value("string")})
    made = datasets.Dataset.from_dict({"photo": files, "y": ["a", "b"] * 2}, features=features)
    if form == "parquet":
        made.to_parquet(str(tmp_path / "x.parquet"))
    else:
        made.save_to_disk(str(tmp_path / "x"))
    source = str(tmp_path / ("x.parquet" if form == "parquet" else "x/*.arrow"))
    prepare = PrepareOptions(images=ImageOptions(encoding=parse_encoding("png")))
    for folder, options in (("plain", PrepareOptions()), ("png", prepare)):
        dataset = built(source, tmp_path / folder, label="y", shards=1, prepare=options)
        assert dataset.manifest.schema["photo"].is_image
        found = [row["photo"] for row in read_records(dataset, "train", 9)]
        expected = [image(i) for i in range(4)]
        if folder == "plain":
            assert sorted(found) == sorted(expected)
        assert {Image.open(BytesIO(data)).size for data in found} == {
            Image.open(BytesIO(data)).size for data in expected
        }


def test_an_export_can_be_built_again(loaded: Any, tmp_path: Path) -> None:
    loaded["held_out"].to_parquet(str(tmp_path / "x.parquet"))
    dataset = built(str(tmp_path / "x.parquet"), tmp_path / "again", label="label", shards=1)
    found = {row["id"]: row["image"] for row in read_records(dataset, "train", ROWS)}
    assert found == {record["id"]: image(record["id"]) for record in loaded["held_out"].remove_columns("image")}


@pytest.mark.parametrize("form", ["disk", "parquet"])
def test_the_classes_of_a_dataset_dict_are_the_names_of_its_labels(tmp_path: Path, form: str) -> None:
    features = datasets.Features({"x": datasets.Value("int64"), "label": datasets.ClassLabel(names=["dog", "cat"])})
    splits = datasets.DatasetDict(
        {
            name: datasets.Dataset.from_dict({"x": range(4), "label": [0, 1, 1, 0]}, features)
            for name in ("train", "test")
        }
    )
    folder = tmp_path / "in"
    if form == "disk":
        splits.save_to_disk(str(folder))
    else:
        for name, split in splits.items():
            (folder / name).mkdir(parents=True)
            split.to_parquet(str(folder / name / "a.parquet"))
    files = {"train": "train", "test": "test"}
    dataset = built(str(folder), tmp_path / "out", label="label", split_files=files, shards=1)
    for name in files:
        assert sorted((row["x"], row["label"]) for row in read_records(dataset, name, 10)) == [
            (0, "dog"), (1, "cat"), (2, "cat"), (3, "dog"),
        ]  # fmt: skip
