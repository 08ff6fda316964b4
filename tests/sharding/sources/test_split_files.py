"""Sources whose files come in splits (`split_files.py`), built, appended to and repaired."""

import struct
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from ringfeed.sharding import BuildOptions, ConfigError, Dataset, SourceError, open_dataset, read_records, repair
from ringfeed.sharding.prepare import Cast, ImageOptions, PrepareOptions, parse_size, restore_options
from ringfeed.sharding.repairing.rebuild_plan import Original
from tests.helpers.appending import appended, assert_balanced
from tests.helpers.builds import built

FILES = {"train": "train*", "test": "test*"}


def values(dataset: Dataset, name: str) -> dict[str, list[Any]]:
    """The values of a column by split."""
    return {split: sorted(row[name] for row in read_records(dataset, split, 1000)) for split in dataset.manifest.splits}


def write_tables(folder: Path, **rows: tuple[int, int]) -> str:
    """A Parquet file for each split, of several row groups."""
    folder.mkdir()
    for name, (first, last) in rows.items():
        ids = np.arange(first, last)
        pq.write_table(
            pa.table({"id": ids, "y": ids % 3, "s": ["x" * (i % 7) for i in ids]}),
            folder / f"{name}-0.parquet",
            row_group_size=20,
        )
    return str(folder)


def write_csv(folder: Path, name: str, text: str) -> None:
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / f"{name}.csv").write_text(text)


@pytest.mark.parametrize("how", [{}, {"balance": "bytes"}, {"workers": 2}, {"shard_format": "parquet"}])
def test_each_split_holds_the_records_of_its_files(tmp_path: Path, how: dict[str, Any]) -> None:
    source = write_tables(tmp_path / "in", train=(0, 90), test=(100, 130), other=(200, 230))
    dataset = built(source, tmp_path / "out", label="y", split_files=FILES, shards=4, **how)
    assert values(dataset, "id") == {"train": list(range(90)), "test": list(range(100, 130))}
    assert len(dataset.manifest.all_generations) == 1
    assert_balanced(dataset)
    if how == {"workers": 2}:
        again = built(source, tmp_path / "again", label="y", split_files=FILES, shards=4)
        assert again.manifest.shards_checksum == dataset.manifest.shards_checksum


def test_idx_files_of_fashion_mnist(tmp_path: Path) -> None:
    def write(name: str, array: np.ndarray[Any, Any]) -> None:
        header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
        (tmp_path / "in" / name).write_bytes(header + array.tobytes())

    (tmp_path / "in").mkdir()
    for name, first, rows in (("train", 0, 60), ("t10k", 100, 20)):
        pixels = np.repeat(np.arange(first, first + rows, dtype=np.uint8), 4).reshape(rows, 2, 2)
        write(f"{name}-images-idx3-ubyte", pixels)
        write(f"{name}-labels-idx1-ubyte", np.arange(rows, dtype=np.uint8) % 10)
    dataset = built(
        str(tmp_path / "in"), tmp_path / "out", split_files={"train": "train-*", "test": "t10k-*"}, shards=2
    )
    found = {name: [image[0][0] for image in images] for name, images in values(dataset, "image").items()}
    assert found == {"train": list(range(60)), "test": list(range(100, 120))}


@pytest.mark.parametrize("resized", [False, True])
def test_image_folders_have_their_classes_below_the_splits(tmp_path: Path, resized: bool) -> None:
    for split, (red, rows) in {"train": (10, 6), "val": (200, 3)}.items():
        for label in ("cat", "dog"):
            (tmp_path / "in" / split / label).mkdir(parents=True)
            for number in range(rows):
                picture = Image.new("RGB", (6, 5), (red, number, 0))
                picture.save(tmp_path / "in" / split / label / f"{number}.png")
    prepare = PrepareOptions(images=ImageOptions(size=parse_size("4"))) if resized else PrepareOptions()
    dataset = built(
        str(tmp_path / "in"),
        tmp_path / "out",
        split_files={"train": "train", "val": "val/*"},
        shards=2,
        prepare=prepare,
    )
    assert dataset.manifest.classes == ("cat", "dog")
    assert values(dataset, "path")["val"] == [f"{label}/{n}.png" for label in ("cat", "dog") for n in range(3)]
    for split, red in (("train", 10), ("val", 200)):  # files of one name lie in both splits
        for row in read_records(dataset, split, 100):
            image = Image.open(BytesIO(row["image"]))
            assert image.getpixel((1, 1)) == (red, int(row["path"][4]), 0)
            assert min(image.size) == (4 if resized else 5)


def test_types_hold_for_all_splits(tmp_path: Path) -> None:
    write_csv(tmp_path, "train", "y,a,b\n" + "0,1,2\n1,3,4\n" * 2)
    write_csv(tmp_path, "test", "y,a,b\n" + "0,1.5,x\n1,2.5,7\n" * 2)
    dataset = built(str(tmp_path / "in"), tmp_path / "out", label="y", split_files=FILES, shards=1)
    assert values(dataset, "a") == {"train": [1.0, 1.0, 3.0, 3.0], "test": [1.5, 1.5, 2.5, 2.5]}
    assert values(dataset, "b") == {"train": ["2", "2", "4", "4"], "test": ["7", "7", "x", "x"]}


def test_splits_of_other_columns_are_refused(tmp_path: Path) -> None:
    write_csv(tmp_path, "train", "y,a\n0,1\n0,2\n")
    write_csv(tmp_path, "test", "y\n0\n0\n")
    with pytest.raises(SourceError, match="the split 'train' has a column 'a', and 'test' has none"):
        built(str(tmp_path / "in"), tmp_path / "out", label="y", split_files=FILES)


def test_a_split_without_files_is_named(tmp_path: Path) -> None:
    source = write_tables(tmp_path / "in", train=(0, 90))
    with pytest.raises(SourceError, match=r"no file matches .*/in/test\*"):
        built(source, tmp_path / "out", label="y", split_files=FILES)


def test_a_file_is_in_one_split(tmp_path: Path) -> None:
    source = write_tables(tmp_path / "in", train=(0, 90), test=(100, 130))
    with pytest.raises(SourceError, match=r"--split-files puts .*/in/test\S* in the splits 'train' and 'test'"):
        built(source, tmp_path / "out", label="y", split_files={"train": "t*", "test": "test*"})


def test_a_split_whose_records_are_all_dropped_gets_no_shard(tmp_path: Path) -> None:
    source = write_tables(tmp_path / "in", a=(200, 230), train=(0, 90), test=(100, 130))
    prepare = restore_options({"steps": ["--filter 'id < 150'"]}, "")
    files = {"a": "a-*"} | FILES
    dataset = built(source, tmp_path / "out", label="y", split_files=files, shards=2, prepare=prepare)
    assert values(dataset, "id") == {"train": list(range(90)), "test": list(range(100, 130))}


@pytest.mark.parametrize(
    ("option", "flag"),
    [
        ({"splits": {"a": Fraction(1, 2), "b": Fraction(1, 2)}}, "--split"),
        ({"split_column": "y"}, "--split-column"),
        ({"group_by": "y"}, "--group-by"),
    ],
)
def test_files_are_the_only_splits(option: dict[str, Any], flag: str) -> None:
    with pytest.raises(ConfigError, match=f"give --split-files or {flag}, not both"):
        BuildOptions(source="a", destination="b", split_files=FILES, **option)


def test_bad_records_are_listed_with_their_places(tmp_path: Path) -> None:
    write_csv(tmp_path, "train", "y,a\n0,1\n0,2\n1,1\n1,5\n")
    write_csv(tmp_path, "test", "y,a\n0,1\n0\n0,3\n1,6\n1,7\n")
    dataset = built(
        str(tmp_path / "in"), tmp_path / "out", label="y", split_files=FILES, on_bad_record="skip:1", shards=1
    )
    assert values(dataset, "a") == {"train": [1, 1, 2, 5], "test": [1, 3, 6, 7]}
    assert '"position": "line 3"' in (tmp_path / "out" / "_ringfeed/rejected.jsonl").read_text()


def test_an_append_keeps_to_the_splits_of_the_build(tmp_path: Path) -> None:
    source = write_tables(tmp_path / "in", train=(0, 90), test=(100, 130))
    built(source, tmp_path / "out", label="y", split_files=FILES, shards=2)
    more = write_tables(tmp_path / "more", train=(300, 330), test=(400, 410))
    assert values(appended(more, tmp_path / "out"), "id") == {
        "train": [*range(90), *range(300, 330)],
        "test": [*range(100, 130), *range(400, 410)],
    }
    last = write_tables(tmp_path / "last", new=(500, 520))
    with pytest.raises(
        SourceError, match=r"was built with --split-files train='train\*' test='test\*'; for other files"
    ):
        appended(last, tmp_path / "out")
    assert values(appended(last, tmp_path / "out", split_files={"test": "new*"}), "id")["test"][-20:] == list(
        range(500, 520)
    )
    final = write_tables(tmp_path / "final", new=(600, 620))
    assert values(appended(final, tmp_path / "out", splits={"train": 1}), "id")["train"][-1] == 619


def test_lost_shards_are_rebuilt_from_the_source(tmp_path: Path) -> None:
    source = write_tables(tmp_path / "in", train=(0, 90), test=(100, 130))
    prepare = PrepareOptions(steps=(Cast((("id", "float64"),)),))
    dataset = built(source, tmp_path / "out", label="y", split_files=FILES, shards=4, prepare=prepare)
    lost = [dataset.split_shards(name)[0].path for name in ("train", "test")]
    contents = {path: (tmp_path / "out" / path).read_bytes() for path in lost}
    for path in lost:
        (tmp_path / "out" / path).unlink()
    repair(str(tmp_path / "out"), originals=[Original(url=source)])
    assert {path: (tmp_path / "out" / path).read_bytes() for path in lost} == contents
    assert open_dataset(str(tmp_path / "out")).manifest == dataset.manifest
