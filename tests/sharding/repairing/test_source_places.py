"""Places in the source compared with those at which the test wrote each record."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from ringfeed.sharding import DatasetError, SourceError, append, build, open_dataset, repair
from ringfeed.sharding.dataset.file_names import generation_of
from ringfeed.sharding.dataset.shard_records import read_shard
from ringfeed.sharding.prepare import Filter, PrepareOptions
from ringfeed.sharding.repairing.source_places import find_source_places

Truth = dict[Any, tuple[str, str]]
SPLITS = {"train": 0.8, "val": 0.2}


def write_csv(folder: Path, first: int = 0) -> Truth:
    """Two files whose records span one line or two; the value of `key` is unique, that of `day` is not."""
    folder.mkdir()
    truth: Truth = {}
    for name in ("a.csv", "b.csv"):
        lines = ["key,label,customer,day,text"]
        for key in range(first + len(truth), first + len(truth) + 30):
            truth[key] = (str(folder / name), f"line {len(lines) + 1}")
            lines += f"{key},{'xyz'[key * 7 % 3]},{key % 11},{key % 9},{'one' if key % 4 else chr(34) + 'two'}".split(
                "|"
            )
            lines += [] if key % 4 else ['lines"']
        (folder / name).write_text("\n".join(lines) + "\n")
    return truth


def write_broken(folder: Path) -> Truth:
    """As `write_csv`, with a line that is no record among the others."""
    truth = write_csv(folder)
    path = folder / "b.csv"
    lines = path.read_text().split("\n")
    path.write_text("\n".join([*lines[:4], "1,x", *lines[4:]]))
    return {key: (file, place if file.endswith("a.csv") or int(place[5:]) < 5 else f"line {int(place[5:]) + 1}")
            for key, (file, place) in truth.items()}  # fmt: skip


def write_parquet(folder: Path) -> Truth:
    folder.mkdir()
    keys = list(range(100))
    table = pa.table({"key": keys, "label": [key % 3 for key in keys]})
    pq.write_table(table, folder / "a.parquet", row_group_size=16)
    return {key: (str(folder / "a.parquet"), f"record {key}") for key in keys}


def write_images(folder: Path) -> Truth:
    """The key of an image is its path."""
    truth: Truth = {}
    for number in range(12):
        path = folder / "cd"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (2, 2), number).save(path)
        truth[path.relative_to(folder).as_posix()] = (str(path), "")
    return truth


CASES: dict[str, tuple[Callable[[Path], Truth], dict[str, Any]]] = {
    "plain": (write_csv, {}),
    "filtered": (write_csv, {"prepare": PrepareOptions(steps=(Filter("day != 3"),))}),
    "without duplicates": (write_csv, {"prepare": PrepareOptions(dedup=("customer", "label"))}),
    "groups": (write_csv, {"group_by": "customer"}),
    "bytes": (write_csv, {"balance": "bytes"}),
    "by time": (write_csv, {"split_by_time": "key"}),
    "bad records": (write_broken, {"on_bad_record": "skip:1"}),
    "no label": (write_csv, {"label": None}),
    "row groups": (write_parquet, {"format": "parquet"}),
    "images": (write_images, {}),
}


def records_of(url: str, key: str) -> dict[tuple[str, int], Any]:
    """The key of each record, read from the shards."""
    dataset = open_dataset(url)
    shards = [shard for split in dataset.manifest.splits for shard in dataset.split_shards(split)]
    tables = {
        shard.path: pa.Table.from_batches(read_shard(dataset.storage, dataset.manifest, shard, [key]))
        for shard in shards
    }
    return {(path, row): value for path, table in tables.items() for row, value in enumerate(table[key].to_pylist())}


def assert_found(url: str, key: str, truth: Truth) -> None:
    records = records_of(url, key)
    found = find_source_places(open_dataset(url).storage, records)
    assert found.keys() == records.keys()
    assert {key: (found[record].file, found[record].place) for record, key in records.items()} == {
        key: truth[key] for key in records.values()
    }


@pytest.mark.parametrize("case", CASES)
def test_each_record_is_found_where_it_was_written(tmp_path: Path, case: str) -> None:
    write, options = CASES[case]
    truth = write(tmp_path / "source")
    url = str(tmp_path / "out")
    build(source=str(tmp_path / "source"), destination=url, workers=1, shards=3,
          **({"label": "label", "split": SPLITS} | options))  # fmt: skip
    kept = len(records_of(url, "path" if case == "images" else "key"))
    assert kept == len(truth) if "prepare" not in options else 20 < kept < len(truth)
    assert_found(url, "path" if case == "images" else "key", truth)


def test_appended_records_are_found_in_their_own_source_and_refused_where_it_changed(tmp_path: Path) -> None:
    url = str(tmp_path / "out")
    truth = write_csv(tmp_path / "first") | write_csv(tmp_path / "second", first=1000)
    build(source=str(tmp_path / "first"), destination=url, label="label", group_by="customer", split=SPLITS, workers=1)
    append(source=str(tmp_path / "second"), destination=url, workers=1)
    assert_found(url, "key", truth)

    storage = open_dataset(url).storage
    old, *_, new = sorted({path for path, _ in records_of(url, "key")}, key=generation_of)
    with (tmp_path / "second" / "b.csv").open("a") as file:
        file.write("9,x,1,1,late\n")
    assert find_source_places(storage, [(old, 0)])
    with pytest.raises(SourceError, match=r"second was changed since .* was built from it: names, sizes or times"):
        find_source_places(storage, [(new, 0)])
    shutil.rmtree(tmp_path / "first")
    with pytest.raises(SourceError, match="first"):
        find_source_places(storage, [(old, 0)])


def test_records_in_memory_and_of_a_repair_have_no_place(tmp_path: Path) -> None:
    url = str(tmp_path / "out")
    build(source=pa.table({"key": range(40)}), destination=url, workers=1, shards=2)
    storage = open_dataset(url).storage
    path = next(iter(records_of(url, "key")))[0]
    with pytest.raises(SourceError, match="was built from data in memory"):
        find_source_places(storage, [(path, 0)])

    write_csv(tmp_path / "source")
    url = str(tmp_path / "repaired")
    build(source=str(tmp_path / "source"), destination=url, label="label", workers=1, shards=2)
    shard = sorted(Path(url).glob("*.tfrecord"))[0]
    data = bytearray(shard.read_bytes())
    data[-10] ^= 1
    shard.write_bytes(data)
    repair(url)
    records = records_of(url, "key")
    (salvaged,) = {path for path, _ in records} - {one.name for one in Path(url).glob("*-of-00002.tfrecord")}
    with pytest.raises(DatasetError, match="was written by a repair"):
        find_source_places(open_dataset(url).storage, [(salvaged, 0)])
