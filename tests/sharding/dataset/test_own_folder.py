"""Datasets whose own files lie beside the shards, as earlier versions wrote them, are still datasets.

`golden/old_layout.tar.gz` was written by commit b132abb: `records` (TFRecord, built from rows.csv with --dali-index and
--on-bad-record skip:1, and appended to with more.csv) and `tables` (Parquet with 2x2 tensors, from rows.parquet).
"""

import tarfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from ringfeed.pipeline import Loader
from ringfeed.sharding import (
    AppendOptions,
    BuildOptions,
    DestinationError,
    Original,
    RingfeedError,
    append,
    build,
    clean,
    open_dataset,
    plan_repair,
    read_records,
    repair,
    verify,
)
from ringfeed.sharding.dataset.file_names import NAMES, OLD_NAMES
from ringfeed.sharding.dataset.own_folder import find_names, holds_dataset, listed_names, read_manifest
from ringfeed.sharding.storage.storage import Storage
from tests.helpers.builds import built
from tests.helpers.files import contents

ARCHIVE = Path(__file__).resolve().parents[2] / "golden" / "old_layout.tar.gz"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 has it
        archive.extractall(tmp_path)
    return tmp_path


def ids(root: Path) -> list[int]:
    dataset = open_dataset(str(root))
    return sorted(row["id"] for split in dataset.manifest.splits for row in read_records(dataset, split, 100))


def test_the_manifest_says_which_names_a_dataset_has(old: Path, tmp_path: Path) -> None:
    storage = Storage(str(old / "records"))
    assert (find_names(storage), listed_names(storage.list())) == (OLD_NAMES, OLD_NAMES)
    assert read_manifest(storage)[0] == open_dataset(storage).manifest.names == OLD_NAMES
    (tmp_path / "new" / "_ringfeed").mkdir(parents=True)
    assert not holds_dataset(Storage(str(tmp_path / "new")))
    (tmp_path / "new" / "dataset.json").touch()
    (tmp_path / "new" / "_ringfeed" / "dataset.json").touch()
    assert find_names(Storage(str(tmp_path / "new"))) == NAMES


def test_the_folder_of_own_files_is_no_dataset(old: Path) -> None:
    source, out = str(old / "rows.parquet"), old / "out"
    build(BuildOptions(source=source, destination=str(out), label="y", shards=1))
    before = contents(out)
    inside = str(out / "_ringfeed")
    for use in (open_dataset, verify, repair, clean):
        with pytest.raises(RingfeedError, match=f"{inside} holds files of the dataset at {out}, and is none itself"):
            use(inside)
    for options in ({}, {"overwrite": True}):
        with pytest.raises(DestinationError, match="ringfeed's own files of a dataset; choose another name"):
            build(BuildOptions(source=source, destination=inside, label="y", **options))
    assert contents(out) == before


def test_it_opens_and_is_whole(old: Path) -> None:
    rows = [*range(2), *range(3, 12), *range(20, 24)]  # row 2 was bad
    assert ids(old / "records") == rows
    assert verify(str(old / "records"), deep=True) == verify(str(old / "tables"), deep=True) == []
    loader = Loader(str(old / "tables"), split="train", batch_size=8, shuffle=False)
    (batch,) = loader.numpy_epoch(0)
    assert batch["x"].shape == (8, 2, 2)
    assert sorted(batch["x"].reshape(-1).tolist()) == list(range(32))


@pytest.mark.parametrize(
    "name",
    [
        "dataset.json", "shards-g00001.parquet", "train-00000-of-00002.index.arrow", "test-00001-of-00002.idx",
        "g00001/dataset_info.json", "g00001/train-00000-of-00001.index.arrow",
    ],
)  # fmt: skip
def test_a_lost_file_is_found_and_rebuilt_bit_by_bit(old: Path, name: str) -> None:
    before = contents(old / "records")
    (old / "records" / name).unlink()
    assert [damage.path for damage in verify(str(old / "records"))] == [name]
    assert repair(str(old / "records")).lost == ()
    assert contents(old / "records") == before


@pytest.mark.parametrize(
    ("root", "shard", "sources"),
    [
        ("tables", "train-00000-of-00001.parquet", ["rows.parquet"]),
        ("records", "g00001/test-00000-of-00001.tfrecord", ["more.csv"]),
    ],
)
def test_a_lost_shard_is_rebuilt_from_its_source(old: Path, root: str, shard: str, sources: list[str]) -> None:
    before = contents(old / root)
    (old / root / shard).unlink()
    repair(str(old / root), originals=[Original(url=str(old / source)) for source in sources])
    assert contents(old / root) == before


def test_what_is_left_of_a_damaged_shard_keeps_the_old_names(old: Path) -> None:
    path = old / "records" / "train-00000-of-00002.tfrecord"
    path.write_bytes(path.read_bytes()[:-70] + bytes(70))
    assert {remedy.action for remedy in plan_repair(str(old / "records")).remedies} >= {"salvage", "remove"}
    repair(str(old / "records"))
    manifest = open_dataset(str(old / "records")).manifest
    assert manifest.shards_path == "shards-g00001.salvaged.parquet"
    assert len(ids(old / "records")) == manifest.records < 15
    assert verify(str(old / "records")) == []


def test_an_append_goes_on_with_its_names(old: Path) -> None:
    before = contents(old / "records")
    more = old / "last.csv"
    more.write_text("id,x,label\n30,1.0,a\n31,2.0,b\n32,3.0,a\n33,4.0,b\n")
    manifest = append(AppendOptions(source=str(more), destination=str(old / "records"), shards=1))
    added = contents(old / "records").keys() - before.keys()
    assert {name.partition("/")[0] for name in added} == {"g00002", "shards-g00002.parquet"}
    assert "g00002/train-00000-of-00001.index.arrow" in added
    assert before.keys() - contents(old / "records").keys() == {"g00001/dataset_info.json", "g00001/features.json"}
    assert manifest.names == OLD_NAMES
    assert ids(old / "records")[-4:] == [30, 31, 32, 33]
    assert verify(str(old / "records")) == []
    assert [Path(url).name for url in clean(str(old / "records"))] == ["shards-g00001.parquet", "shards.parquet"]
    pq.write_table(pq.read_table(old / "rows.parquet").slice(0, 4), old / "four.parquet")
    append(AppendOptions(source=str(old / "four.parquet"), destination=str(old / "tables"), shards=1))
    assert verify(str(old / "tables"), deep=True) == []


def test_a_build_that_replaces_it_leaves_nothing_of_it(old: Path) -> None:
    options = {"source": str(old / "rows.parquet"), "label": "y", "shards": 1, "splits": {"train": Fraction(1)}}
    build(BuildOptions(destination=str(old / "records"), overwrite=True, **options))  # type: ignore[arg-type]
    build(BuildOptions(destination=str(old / "fresh"), **options))  # type: ignore[arg-type]
    assert contents(old / "records") == contents(old / "fresh")


@pytest.mark.parametrize("shards", [1, 3])
def test_tensors_are_declared_in_parquet(old: Path, shards: int) -> None:
    source: Callable[[str], str] = lambda name: str(old / name)  # noqa: E731
    dataset = built(source("rows.parquet"), source("new"), shard_format="parquet", shards=shards, label="y")
    table = pq.read_table(sorted((old / "new").glob("*.parquet")))
    assert str(table.schema.field("x").type) == "extension<arrow.fixed_shape_tensor[value_type=float, shape=[2,2]]>"
    found = np.concatenate([chunk.to_numpy_ndarray() for chunk in table.column("x").chunks])
    assert (found.shape, sorted(found.reshape(-1).tolist())) == ((8, 2, 2), list(range(32)))
    assert sorted(row["x"][0][0] for row in read_records(dataset, "train", 8)) == list(range(0, 32, 4))
