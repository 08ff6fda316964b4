"""Opening and verifying datasets, and reading their first records."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.sharding import CorruptionError, DatasetError, RingfeedError, open_dataset, read_records, repair, verify
from ringfeed.sharding.storage.storage import Storage
from tests.helpers.builds import built, make_table
from tests.helpers.files import all_files, contents


@pytest.fixture(scope="module", params=["tfrecord", "parquet"])
def pristine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pristine")
    pq.write_table(make_table(60), folder / "x.parquet")
    built(
        str(folder / "x.parquet"),
        folder / "out",
        label="label",
        shards=2,
        shard_format=request.param,
        min_class_records=1,
    )
    return folder / "out"


def found_damage(root: Path) -> set[str]:
    """Names of the files that `verify` finds damaged."""
    try:
        return {damage.path for damage in verify(str(root))}
    except RingfeedError as error:
        return {name for name in ("_ringfeed/dataset.json", "_ringfeed/shards.table") if str(root / name) in str(error)}


@given(data=st.data())
def test_every_flipped_byte_is_found_and_its_file_named(
    pristine: Path, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = data.draw(st.sampled_from(all_files(pristine)), label="file")
    position = data.draw(st.integers(0, file.stat().st_size - 1), label="position")
    original = file.read_bytes()
    damaged = bytearray(original)
    damaged[position] ^= data.draw(st.integers(1, 255), label="flip")
    try:
        file.write_bytes(damaged)
        assert found_damage(pristine) == {str(file.relative_to(pristine))}
    finally:
        file.write_bytes(original)


@given(data=st.data())
def test_every_truncation_and_addition_is_found(pristine: Path, data: st.DataObject) -> None:
    file = data.draw(st.sampled_from(all_files(pristine)), label="file")
    original = file.read_bytes()
    change = data.draw(st.integers(-len(original), 3).filter(bool), label="change")
    try:
        file.write_bytes(original[:change] if change < 0 else original + bytes(change))
        assert found_damage(pristine) == {str(file.relative_to(pristine))}
    finally:
        file.write_bytes(original)


def test_every_missing_file_is_found(pristine: Path, tmp_path: Path) -> None:
    for name in contents(pristine):
        root = tmp_path / Path(name).name
        shutil.copytree(pristine, root)
        (root / name).unlink()
        assert found_damage(root) == {name}


def test_swapped_files_are_found(pristine: Path, tmp_path: Path) -> None:
    root = tmp_path / "x"
    shutil.copytree(pristine, root)
    a, b = sorted(root.glob("train-*-of-00002.[tp]*"))
    a.rename(root / "t")
    b.rename(a)
    (root / "t").rename(b)
    assert found_damage(root) == {a.name, b.name}


def test_a_dataset_is_opened_by_its_url_path_or_storage(pristine: Path) -> None:
    url = f"file://{pristine}"
    found = [open_dataset(place).manifest for place in (url, str(pristine), pristine, Storage(url))]
    assert found == [found[0]] * 4
    assert verify(pristine) == []


def test_a_moved_dataset_is_intact(pristine: Path, tmp_path: Path) -> None:
    shutil.copytree(pristine, tmp_path / "moved")
    assert verify(str(tmp_path / "moved")) == []


def test_records_come_from_checked_shards_up_to_the_limit(pristine: Path, tmp_path: Path) -> None:
    dataset = open_dataset(str(pristine))
    assert len(list(read_records(dataset, "train", 45))) == 45
    assert len(list(read_records(dataset, "train", 1000))) == 60
    assert list(read_records(dataset, "train", 0)) == []
    with pytest.raises(DatasetError, match="no split 'nope'"):
        list(read_records(dataset, "nope", 1))
    shutil.copytree(pristine, tmp_path / "x")
    shard = next((tmp_path / "x").glob("train-00000*.[tp]*"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    mend = f"; repair it with: shard-dataset repair {tmp_path / 'x'}$"
    with pytest.raises(CorruptionError, match=f"is damaged: its checksum does not match{mend}"):
        list(read_records(open_dataset(str(tmp_path / "x")), "train", 1))
    shard.write_bytes(data[:-1])
    with pytest.raises(CorruptionError, match=rf"is damaged: it has \d+ bytes, \d+ were written{mend}"):
        list(read_records(open_dataset(str(tmp_path / "x")), "train", 1))
    shard.unlink()
    with pytest.raises(CorruptionError, match=f"is missing{mend}"):
        list(read_records(open_dataset(str(tmp_path / "x")), "train", 1))


@pytest.mark.parametrize("url", ["{}/missing", "{}"])
def test_only_a_dataset_opens(tmp_path: Path, url: str) -> None:
    with pytest.raises(DatasetError, match=r"there is no dataset at .*: it has no dataset\.json"):
        open_dataset(url.format(tmp_path))


def test_a_split_is_named_apart_from_the_folder(pristine: Path) -> None:
    with pytest.raises(DatasetError, match=rf"#train, but at {pristine}; name that folder, .* --split train$"):
        open_dataset(f"{pristine}#train")


def test_a_file_is_no_dataset_but_may_become_or_belong_to_one(pristine: Path, tmp_path: Path) -> None:
    table = tmp_path / "my rows.parquet"
    table.touch()
    with pytest.raises(
        DatasetError, match=r"is a file, .* make one with: shard-dataset build '.*/my rows\.parquet' DST"
    ):
        open_dataset(str(table))
    with pytest.raises(DatasetError, match=rf"is a file, and a dataset is a folder; name its folder, {pristine}$"):
        open_dataset(str(pristine / "_ringfeed/dataset.json"))


def test_an_unfinished_build_does_not_open(pristine: Path, tmp_path: Path) -> None:
    root: Any = tmp_path / "x"
    shutil.copytree(pristine, root)
    (root / "_ringfeed/dataset.json").unlink()
    (root / "_building.json").touch()
    with pytest.raises(DatasetError, match="a build did not finish"):
        open_dataset(str(root))


def test_a_dataset_that_lost_its_manifest_names_the_command_that_brings_it_back(pristine: Path, tmp_path: Path) -> None:
    root: Any = tmp_path / "x"
    shutil.copytree(pristine, root)
    (root / "_ringfeed/dataset.json").unlink()
    with pytest.raises(
        DatasetError, match=r"dataset\.json is missing, but _ringfeed/shards\.table is there; repair it with: "
    ) as no:
        open_dataset(str(root))
    assert str(no.value).endswith(f"shard-dataset repair {root}")
    repair(str(root))
    assert open_dataset(str(root)).manifest == open_dataset(str(pristine)).manifest


def test_a_repaired_dataset_that_lost_its_manifest_names_that_command_too(pristine: Path, tmp_path: Path) -> None:
    root: Any = tmp_path / "x"
    shutil.copytree(pristine, root)
    (root / open_dataset(str(root)).shards[0].path).unlink()
    repair(str(root))
    (root / "_ringfeed/shards.table").unlink(missing_ok=True)
    (root / "_ringfeed/dataset.json").unlink()
    with pytest.raises(
        DatasetError, match=r"missing, but _ringfeed/shards\.salvaged\.table is there; repair it with: .* repair "
    ):
        open_dataset(str(root))
    repair(str(root))
    open_dataset(str(root))
