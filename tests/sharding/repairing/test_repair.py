"""Repair without a source: shards from their intact records, other files from each other; also after a kill."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import (
    BuildOptions,
    CorruptionError,
    Dataset,
    DatasetError,
    Original,
    apply_repair,
    build,
    check_dataset,
    open_dataset,
    plan_repair,
    read_records,
    repair,
    verify,
)
from ringfeed.sharding.storage.lease import LEASE_NAME, TAKEOVER_PREFIX
from ringfeed.sharding.storage.storage import Storage
from tests.helpers.builds import built, make_table, rows_of_blocks
from tests.helpers.files import contents


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """900 records in three shards."""
    folder = tmp_path_factory.mktemp("pristine")
    table = make_table(900).append_column("text", pa.array(["x" * (i % 400) for i in range(900)]))
    pq.write_table(table, folder / "x.parquet")
    return built(str(folder / "x.parquet"), folder / "out", label="label", shards=3)


def flip(path: Path, *bits: tuple[int, int]) -> None:
    """Invert bits, each given by its byte and its number."""
    data = bytearray(path.read_bytes())
    for position, bit in bits:
        data[position] ^= 1 << bit
    path.write_bytes(data)


def invert(path: Path, start: int, stop: int) -> None:
    flip(path, *((position, bit) for position in range(start, stop) for bit in range(8)))


def large_parquet(folder: Path, compression: str) -> Dataset:
    """20,000 records in two shards of five row groups."""
    pq.write_table(make_table(20_000), folder / "x.parquet")
    with rows_of_blocks(2000):
        options = {"shard_format": "parquet", "compression": compression, "label": "label", "shards": 2}
        return built(str(folder / "x.parquet"), folder / "out", **options)


@pytest.fixture(autouse=True)
def _small_row_groups() -> Iterator[None]:
    """Repairs write shards as those above were written."""
    with rows_of_blocks(2000):
        yield


def actions(root: Path) -> dict[str, str]:
    return {remedy.path: remedy.action for remedy in plan_repair(str(root)).remedies}


class TestRestored:
    def test_a_shard_whose_records_are_intact_is_encoded_again(self, root: Path, pristine: Dataset) -> None:
        shard = pristine.shards[0]
        flip(root / shard.path, (3, 1), (9, 7))  # the length of a record, and its CRC
        assert actions(root) == {shard.path: "rewrite"}
        assert repair(str(root)).lost == ()
        assert contents(root) == contents(Path(pristine.storage.locate()))

    @pytest.mark.parametrize("missing", [1, 4])
    def test_a_shard_that_lacks_only_a_crc_is_encoded_again(self, root: Path, pristine: Dataset, missing: int) -> None:
        path = root / pristine.shards[0].path
        path.write_bytes(path.read_bytes()[:-missing])
        assert actions(root) == {path.name: "rewrite"}
        assert repair(str(root)).lost == ()
        assert contents(root) == contents(Path(pristine.storage.locate()))

    def test_a_flipped_bit_costs_its_record_and_with_the_source_nothing(self, root: Path, pristine: Dataset) -> None:
        flip(root / pristine.shards[0].path, (100, 3), (40_000, 7), (80_000, 0))
        copy = shutil.copytree(root, root.with_name("second"))
        assert [entry.records for entry in repair(str(root)).lost] == [3]
        source = Path(pristine.storage.locate()).with_name("x.parquet")
        assert repair(str(copy), originals=[Original(url=str(source))]).lost == ()
        assert contents(copy) == contents(Path(pristine.storage.locate()))

    @pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
    def test_nothing_is_taken_from_a_copy_of_another_shard(self, tmp_path: Path, shard_format: str) -> None:
        """All records of the copy have valid checksums, but they are those of the other shard."""
        pq.write_table(make_table(900), tmp_path / "x.parquet")
        options = {"label": "label", "shards": 3, "shard_format": shard_format}
        dataset = built(str(tmp_path / "x.parquet"), tmp_path / "out", **options)
        a, b, _ = (tmp_path / "out" / shard.path for shard in dataset.shards)
        shutil.copy(a, b)
        (lost,) = repair(str(tmp_path / "out")).lost
        assert (lost.path, lost.records) == (b.name, dataset.shards[1].records)
        records = list(read_records(open_dataset(str(tmp_path / "out")), "train", 900))
        assert len({record["id"] for record in records}) == len(records) == 900 - lost.records
        assert verify(str(tmp_path / "out"), deep=True) == []

    @pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
    def test_a_parquet_shard_with_intact_rows_is_encoded_again(self, tmp_path: Path, compression: str) -> None:
        dataset = large_parquet(tmp_path, compression)
        before = contents(tmp_path / "out")
        path = tmp_path / "out" / dataset.shards[0].path
        flip(path, (path.read_bytes().rindex(b"parquet-cpp-arrow"), 0), (path.read_bytes().rindex(b"version"), 1))
        damage = verify(str(tmp_path / "out"))[0]
        assert damage.offset == path.read_bytes().rindex(b"qarquet-cpp-arrow")
        assert "all values can be read" in damage.problem
        assert repair(str(tmp_path / "out")).lost == ()
        assert contents(tmp_path / "out") == before

    def test_added_bytes_are_cut_off(self, root: Path, pristine: Dataset) -> None:
        for name in (pristine.shards[0].path, pristine.shards[1].index_path, "_ringfeed/dataset.json"):
            (root / name).write_bytes((root / name).read_bytes() + b"more")
        assert repair(str(root)).lost == ()
        assert contents(root) == contents(Path(pristine.storage.locate()))

    @pytest.mark.parametrize(("name", "more"), [("dataset.json", b"\xff{}"), ("shards.table", b"more")])
    def test_bytes_added_to_the_manifest_or_the_table_are_cut_off(
        self, root: Path, pristine: Dataset, name: str, more: bytes
    ) -> None:
        path = root / "_ringfeed" / name
        path.write_bytes(path.read_bytes() + more)
        assert [(damage.path, damage.kind) for damage in verify(str(root))] == [(f"_ringfeed/{name}", "extended")]
        assert repair(str(root)).lost == ()
        assert contents(root) == contents(Path(pristine.storage.locate()))

    def test_renamed_files_are_found_and_foreign_files_kept(self, root: Path, pristine: Dataset) -> None:
        a, b, c = (root / shard.path for shard in pristine.shards)
        for path, target in ((a, "aside"), (b, a), (c, b), (root / "aside", c)):  # in a ring
            path.rename(root / target)
        (root / pristine.shards[0].index_path).rename(root / "backup.bin")
        assert repair(str(root)).lost == ()
        assert contents(root) == contents(Path(pristine.storage.locate())) | {
            "backup.bin": (root / pristine.shards[0].index_path).read_bytes()
        }

    @pytest.mark.parametrize("whole", [True, False])
    def test_the_draft_of_a_write_that_was_killed_is_used_or_removed(
        self, root: Path, pristine: Dataset, whole: bool
    ) -> None:
        path = root / pristine.shards[1].path
        data = path.read_bytes()
        path.with_name(f".{path.name}.0123abcd.part").write_bytes(data if whole else data[:1000])
        if whole:
            path.unlink()
        assert repair(str(root)).lost == ()
        assert contents(root) == contents(Path(pristine.storage.locate()))

    def test_dataset_json_and_the_table_are_rebuilt(self, root: Path, pristine: Dataset) -> None:
        (root / "_ringfeed/dataset.json").unlink()
        for shard in pristine.shards:  # what else was lost is told by the table
            (root / shard.index_path).unlink()
        repair(str(root))
        invert(root / "_ringfeed/shards.table", 200, 300)
        assert [damage.path for damage in verify(str(root))] == ["_ringfeed/shards.table"]
        repair(str(root))
        assert contents(root) == contents(Path(pristine.storage.locate()))

    def test_a_table_that_another_version_of_arrow_writes_is_proven_by_its_rows(
        self, root: Path, pristine: Dataset, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from ringfeed.sharding.dataset import shard_table as table

        (root / "_ringfeed/shards.table").unlink()
        monkeypatch.setattr(table, "_COPY_KEY", "ringfeed.other")  # other bytes, the same rows
        assert repair(str(root)).lost == ()
        dataset = open_dataset(str(root))
        assert dataset.shards == pristine.shards
        assert dataset.manifest.shards_checksum != pristine.manifest.shards_checksum
        assert verify(str(root)) == []

    def test_a_table_is_not_rebuilt_from_shards_that_were_changed(self, root: Path, pristine: Dataset) -> None:
        (root / "_ringfeed/shards.table").unlink()
        invert(root / pristine.shards[0].path, 500, 502)
        with pytest.raises(CorruptionError, match=r"repair it with --source .*x\.parquet"):
            repair(str(root))


class TestSalvage:
    def test_damaged_row_groups_of_a_parquet_shard_are_left_out(self, tmp_path: Path) -> None:
        dataset = large_parquet(tmp_path, "snappy")
        root = tmp_path / "out"
        shard = dataset.shards[1]
        chunk = pq.ParquetFile(root / shard.path).metadata.row_group(2).column(1)
        start = min(chunk.dictionary_page_offset or chunk.data_page_offset, chunk.data_page_offset)
        flip(root / shard.path, (start + chunk.total_compressed_size - 2, 5))
        damage = verify(str(root))[0]
        assert (damage.row_group, damage.column, damage.record) == (2, "vector", 4000)
        assert repair(str(root)).lost[0].records == 2000
        rows = {record["id"]: record for record in read_records(open_dataset(str(root)), "train", 30_000)}
        whole = {record["id"]: record for record in make_table(20_000).to_pylist()}
        assert len(rows) == 18_000
        assert rows == {number: whole[number] for number in rows}
        assert verify(str(root), deep=True) == []
        pq.read_table([root / info.path for info in open_dataset(str(root)).shards])  # one schema, as it was

    def test_intact_records_of_every_damaged_shard_are_kept(self, root: Path, pristine: Dataset) -> None:
        a, b, c = pristine.shards
        invert(root / a.path, 0, 4)  # a length
        invert(root / b.path, 30_000, 30_900)
        (root / b.index_path).unlink()
        (root / c.path).unlink()
        table = make_table(900)
        report = repair(str(root))
        lost = {entry.path: entry.records for entry in report.lost}
        assert set(lost) == {b.path, c.path}  # the length of a record follows from the index, and its bytes are proven
        assert lost[c.path] == 300
        assert 1 < lost[b.path] < 20
        dataset = open_dataset(str(root))
        assert (dataset.manifest.records, dataset.manifest.splits["train"].shards) == (600 - lost[b.path], 2)
        assert dataset.manifest.lost == report.lost
        left = {record["id"] for record in read_records(dataset, "train", 900)}
        gone = [str(row["label"]) for row in table.to_pylist() if row["id"] not in left]
        assert report.lost_by_class == {"train": {value: gone.count(value) for value in "abc"}}
        assert {shard.path for shard in dataset.shards} == {a.path, b.path.replace(".tf", ".salvaged.tf")}
        assert dataset.manifest.shards_path == "_ringfeed/shards.salvaged.table"
        names = set(contents(root))
        assert names == {"_ringfeed/dataset.json", "_ringfeed/shards.salvaged.table"} | {
            name for shard in dataset.shards for name in (shard.path, shard.index_path)
        }

    def test_a_salvaged_dataset_can_be_damaged_repaired_and_replaced_again(
        self, root: Path, pristine: Dataset, tmp_path: Path
    ) -> None:
        (root / pristine.shards[0].path).unlink()
        repair(str(root))
        manifest = open_dataset(str(root)).manifest
        (root / "_ringfeed/dataset.json").unlink()
        repair(str(root))
        assert open_dataset(str(root)).manifest == manifest
        (root / manifest.shards_path).unlink()
        repair(str(root))
        assert open_dataset(str(root)).manifest == manifest
        invert(root / pristine.shards[1].path, 30_000, 30_900)
        repair(str(root))
        dataset = open_dataset(str(root))
        assert [entry.path for entry in dataset.manifest.lost] == [shard.path for shard in pristine.shards[:2]]
        assert dataset.manifest.shards_path == "_ringfeed/shards.salvaged-2.table"
        invert(root / dataset.shards[0].path, 20_000, 20_900)
        repair(str(root))
        assert open_dataset(str(root)).shards[0].path == "train-00001-of-00003.salvaged-2.tfrecord"
        assert verify(str(root), deep=True) == []
        assert check_dataset(str(root)).notes == ()
        pq.write_table(make_table(60), tmp_path / "y.parquet")
        options = BuildOptions(source=str(tmp_path / "y.parquet"), destination=str(root), label="label", shards=1)
        build(replace(options, overwrite=True, min_class_records=1))
        assert len(contents(root)) == 6

    def test_a_split_without_records_is_no_split(self, pristine: Dataset, tmp_path: Path) -> None:
        from fractions import Fraction

        pq.write_table(make_table(200), tmp_path / "x.parquet")
        splits = {"train": Fraction(1, 2), "test": Fraction(1, 2)}
        dataset = built(str(tmp_path / "x.parquet"), tmp_path / "d", label="label", shards=1, splits=splits)
        (tmp_path / "d" / dataset.shards[1].path).unlink()
        repair(str(tmp_path / "d"))
        dataset = open_dataset(str(tmp_path / "d"))
        assert list(dataset.manifest.splits) == ["train"]
        assert dataset.manifest.lost[0].split == "test"
        with pytest.raises(DatasetError, match="no split 'test'"):
            dataset.split_shards("test")
        (tmp_path / "d" / dataset.shards[0].path).unlink()
        with pytest.raises(CorruptionError, match=r"no record of .* is intact"):
            repair(str(tmp_path / "d"))

    def test_nothing_is_overwritten(self, root: Path, pristine: Dataset) -> None:
        invert(root / pristine.shards[0].path, 30_000, 30_900)
        names = [pristine.shards[0].path.replace(".tf", ".salvaged.tf"), "_ringfeed/shards.salvaged.table"]
        for name in names:
            (root / name).write_text("mine")
        repair(str(root))
        assert [(root / name).read_text() for name in names] == ["mine", "mine"]
        assert open_dataset(str(root)).shards[0].path.endswith(".salvaged-2.tfrecord")
        assert verify(str(root)) == []

    def test_a_dry_run_writes_nothing_and_reports_the_same(self, root: Path, pristine: Dataset) -> None:
        invert(root / pristine.shards[0].path, 30_000, 30_900)
        flip(root / pristine.shards[1].path, (10, 1))
        before = contents(root)
        told = repair(str(root), dry_run=True)
        assert contents(root) == before
        assert repair(str(root)) == told
        assert actions(root) == {}


class TestInterrupted:
    def wound(self, root: Path, pristine: Dataset) -> None:
        a, b, c = pristine.shards
        invert(root / a.path, 30_000, 30_900)
        (root / b.path).rename(root / "aside")
        (root / c.path).rename(root / b.path)
        (root / "aside").rename(root / c.path)
        (root / b.index_path).unlink()
        (root / "_ringfeed/dataset.json").unlink()

    @pytest.mark.parametrize("torn", [False, True])
    def test_a_repair_killed_at_any_step_ends_the_same_when_run_again(
        self, pristine: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: bool
    ) -> None:
        """Every write, move and removal in turn is the last; `torn`: a move had copied and not yet removed."""
        source = pristine.storage.locate()
        whole = Path(shutil.copytree(source, tmp_path / "whole"))
        self.wound(whole, pristine)
        told = repair(str(whole))
        expected = contents(whole)

        class Killed(BaseException):
            pass

        for last in range(100):
            root = Path(shutil.copytree(source, tmp_path / f"{last}"))
            self.wound(root, pristine)
            plan = plan_repair(str(root))
            steps = 0

            def interrupt(name: str, last: int = last) -> Callable[..., Any]:
                original = getattr(Storage, name)

                def step(storage: Storage, *args: Any) -> Any:
                    nonlocal steps
                    if args[0] == LEASE_NAME:  # this process lives on, and so would its claim
                        return original(storage, *args)
                    steps += 1
                    if steps > last:
                        if torn and name == "move":
                            storage.write(args[1], storage.read(args[0]))
                        raise Killed
                    return original(storage, *args)

                return step

            with monkeypatch.context() as patch:
                for name in ("write", "move", "remove"):
                    patch.setattr(Storage, name, interrupt(name))
                try:
                    apply_repair(plan)
                except Killed:
                    done = False
                else:
                    done = True
            repair(str(root))
            assert contents(root) == expected, last
            shutil.rmtree(root)
            if done:
                break
        assert 12 < last < 99
        assert sum(entry.records for entry in told.lost) > 0

    def test_a_repair_killed_over_a_draft_or_its_lease_leaves_neither(self, root: Path, pristine: Dataset) -> None:
        invert(root / pristine.shards[0].path, 30_000, 30_900)
        repair(str(root))
        repaired = contents(root)
        (salvaged,) = (name for name in repaired if name.endswith(".salvaged.tfrecord"))
        holder = {"token": "1", "host": "elsewhere", "boot": "", "pid": 1, "started": "", "about": {"task": "repair"}}
        mark = json.dumps(holder | {"released": True})
        drafts = [(f".{name}.0123abcd.part", "x") for name in (salvaged, LEASE_NAME, f"{TAKEOVER_PREFIX}1.json")]
        for left, text in (*drafts, (LEASE_NAME, mark)):
            (root / left).write_text(text)
            repair(str(root))
            assert contents(root) == repaired

    def test_a_reader_sees_the_dataset_before_or_after(
        self, root: Path, pristine: Dataset, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (root / pristine.shards[0].path).unlink()
        write, remove = Storage.write, Storage.remove
        seen = set()

        def look() -> None:
            dataset = open_dataset(str(root))
            assert all(len((root / shard.path).read_bytes()) == shard.bytes for shard in dataset.shards[1:])
            seen.add(dataset.manifest.records)

        def writing(storage: Storage, path: str, data: Any) -> None:
            look()
            write(storage, path, data)
            look()

        def removing(storage: Storage, path: str) -> None:
            look()
            remove(storage, path)
            look()

        monkeypatch.setattr(Storage, "write", writing)
        monkeypatch.setattr(Storage, "remove", removing)
        repair(str(root))
        assert seen == {900, 600}
