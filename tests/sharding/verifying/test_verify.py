"""Verification finds, names and locates every damage; anything else is a note."""

import random
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.sharding import (
    CorruptionError,
    Damage,
    Dataset,
    DatasetError,
    Storage,
    StorageError,
    VerifyProgress,
    check_dataset,
    open_dataset,
    read_records,
    repair,
    verify,
)
from ringfeed.sharding.common.checksums import checksum
from ringfeed.sharding.dataset.shard_table import seal
from ringfeed.sharding.formats import parquet as parquet_format
from ringfeed.sharding.formats.shard_encode import encode_index
from ringfeed.sharding.storage.retry import RetryPolicy
from tests.helpers.builds import built, make_table, rows_of_blocks
from tests.helpers.damages import Wound, offsets, wound
from tests.helpers.files import contents
from tests.servers.store import Store

RECORDS = 240
Make = Callable[..., Dataset]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Build a dataset of two splits in four shards, of several row groups each; equal arguments share one."""
    made: dict[Any, Dataset] = {}

    def dataset(shard_format: str, *, compression: str | None = None, text: bool = False, seed: int = 0) -> Dataset:
        key = (shard_format, compression, text, seed)
        if key not in made:
            folder = tmp_path_factory.mktemp("made")
            table = make_table(RECORDS)
            if text:
                table = table.append_column("text", pa.array(["x" * (i % 40) for i in range(RECORDS)]))
            pq.write_table(table, folder / "x.parquet")
            with rows_of_blocks(20):
                made[key] = built(
                    str(folder / "x.parquet"),
                    folder / "out",
                    label="label",
                    shards=3,
                    shard_format=shard_format,
                    compression=compression,
                    min_class_records=1,
                    seed=seed,
                    splits={"train": Fraction(3, 4), "test": Fraction(1, 4)},
                )
        return made[key]

    return dataset


@pytest.fixture(autouse=True)
def _small_row_groups() -> Iterator[None]:
    """Repairs write shards as the datasets above were written."""
    with rows_of_blocks(20):
        yield


def root_of(dataset: Dataset) -> Path:
    path = dataset.storage.local_path
    assert path is not None
    return path


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[Dataset], Path]:
    """A copy of a dataset, to be damaged."""

    def make_copy(dataset: Dataset) -> Path:
        root = tmp_path / "copy"
        shutil.rmtree(root, ignore_errors=True)
        return Path(shutil.copytree(root_of(dataset), root))

    return make_copy


def overwrite(path: Path, start: int, stop: int) -> None:
    """Invert bytes ``[start, stop)``."""
    data = path.read_bytes()
    path.write_bytes(data[:start] + bytes(byte ^ 255 for byte in data[start:stop]) + data[stop:])


def only(found: list[Damage]) -> Damage:
    (damage,) = found
    return damage


CASES = [("tfrecord", None, False), ("tfrecord", None, True), ("tfrecord", "gzip", False), ("parquet", None, False)]


class TestRandomDamage:
    def check(self, dataset: Dataset, other: Dataset, root: Path, rng: random.Random) -> Wound:
        """Damage a copy at random; then it must be found, named, placed, and be gone after a repair."""
        files = contents(root)
        done = wound(root, dataset, root_of(other), rng)
        found = verify(str(root))
        assert {damage.path for damage in found} == set(done.paths), done
        assert all(damage.kind in done.kinds for damage in found), (done, found)
        if done.offset is not None:
            self.check_place(dataset, done, only(found))
        if done.record is not None:
            assert only(found).record == done.record, (done, found)
        shard_damaged = {shard.path for shard in dataset.shards} & set(done.paths)
        report = repair(str(root))
        assert verify(str(root), deep=True) == [], (done, report)
        lost = sum(entry.records for entry in report.lost)
        if lost:
            assert shard_damaged
            assert done.kind in ("flip", "burst", "truncate", "delete"), done
            assert_salvaged(root, dataset, lost)
        else:
            assert contents(root) == files, (done, report)
        return done

    def check_place(self, dataset: Dataset, done: Wound, damage: Damage) -> None:
        assert damage.offset is not None, (done, damage)
        if dataset.manifest.compression == "gzip" and done.paths[0].endswith(".tfrecord"):
            return  # the offset is of the decompressed data
        assert damage.offset <= (done.offset or 0), (done, damage)
        if damage.row_group is not None:
            name = f"{root_of(dataset)}/{damage.path}"
            group = pq.ParquetFile(name).metadata.row_group(damage.row_group)
            start = min(group.column(i).dictionary_page_offset or 1 << 40 for i in range(group.num_columns))
            start = min(start, *(group.column(i).data_page_offset for i in range(group.num_columns)))
            assert (
                start
                <= (done.offset or 0)
                < start + sum(group.column(i).total_compressed_size for i in range(group.num_columns))
            )

    @pytest.mark.parametrize("case", CASES)
    @pytest.mark.parametrize("number", range(15))
    def test_is_found_named_located_and_repaired(
        self, make: Make, copy: Callable[[Dataset], Path], case: tuple[str, str | None, bool], number: int
    ) -> None:
        shard_format, compression, text = case
        whole, other = (make(shard_format, compression=compression, text=text, seed=seed) for seed in (0, 1))
        self.check(whole, other, copy(whole), random.Random(f"{case} {number}"))

    @pytest.mark.campaign
    @pytest.mark.parametrize("case", CASES)
    def test_a_thousand_times(
        self, make: Make, copy: Callable[[Dataset], Path], case: tuple[str, str | None, bool]
    ) -> None:
        shard_format, compression, text = case
        whole, other = (make(shard_format, compression=compression, text=text, seed=seed) for seed in (0, 1))
        kinds: dict[str, int] = {}
        for number in range(250):
            done = self.check(whole, other, copy(whole), random.Random(f"campaign {case} {number}"))
            kinds[done.kind] = kinds.get(done.kind, 0) + 1
        print(case, kinds)


def assert_salvaged(root: Path, original: Dataset, lost: int) -> None:
    """What is left is what was there but for the lost records, each as it was, and the counts say so."""
    dataset = open_dataset(str(root))
    left = {split: {r["id"]: r for r in read_records(dataset, split, RECORDS)} for split in dataset.manifest.splits}
    whole = {s: {r["id"]: r for r in read_records(original, s, RECORDS)} for s in original.manifest.splits}
    assert sum(map(len, left.values())) == RECORDS - lost == dataset.manifest.records
    for split, records in left.items():
        assert records == {number: whole[split][number] for number in records}
    told = {entry.split: entry.class_counts for entry in dataset.manifest.lost}
    for split, counts in told.items():
        missing = [r["label"] for number, r in whole[split].items() if number not in left.get(split, {})]
        assert counts == tuple(missing.count(value) for value in original.manifest.classes)


class TestPlaces:
    @pytest.mark.parametrize("text", [False, True])
    def test_every_damaged_record_is_listed_even_behind_a_damaged_length(
        self, make: Make, copy: Callable[[Dataset], Path], text: bool
    ) -> None:
        dataset = make("tfrecord", text=text)
        shard = dataset.shards[1]
        starts = offsets(dataset, shard)
        path = copy(dataset) / shard.path
        overwrite(path, int(starts[3]), int(starts[3]) + 2)  # the length
        overwrite(path, int(starts[10]) + 30, int(starts[11]) + 30)
        damage = only(verify(str(path.parent)))
        assert (damage.kind, damage.split, damage.record, damage.offset) == ("altered", "train", 3, starts[3])
        assert damage.records == ((3, 4), (10, 12))
        assert "record 3 at offset" in damage.problem
        assert f"3 of {shard.records} records are damaged: 3, 10-11" in damage.problem

    def test_without_an_index_the_frames_are_found_by_their_lengths(
        self, make: Make, copy: Callable[[Dataset], Path]
    ) -> None:
        dataset = make("tfrecord", text=True)
        shard = dataset.shards[1]
        starts = offsets(dataset, shard)
        root = copy(dataset)
        (root / shard.index_path).unlink()
        overwrite(root / shard.path, int(starts[3]), int(starts[3]) + 40)  # its length, and some of its content
        index, data = sorted(verify(str(root)), key=lambda damage: damage.path)
        assert (index.kind, data.kind, data.record, data.offset) == ("missing", "altered", 3, starts[3])
        assert repair(str(root)).lost[0].records == 1
        assert_salvaged(root, dataset, 1)

    def test_damage_of_compressed_records_is_located_as_far_as_they_decompress(
        self, make: Make, copy: Callable[[Dataset], Path]
    ) -> None:
        dataset = make("tfrecord", compression="gzip")
        shard = dataset.shards[0]
        path = copy(dataset) / shard.path
        overwrite(path, shard.bytes // 2, shard.bytes // 2 + 64)
        damage = only(verify(str(path.parent)))
        assert damage.record is not None
        assert 0 < damage.record < shard.records
        assert "of the decompressed data" in damage.problem
        overwrite(path, shard.bytes // 2, shard.bytes // 2 + 64)
        overwrite(path, 9, 10)  # the operating system that gzip names; no record depends on it
        damage = only(verify(str(path.parent)))
        assert (damage.record, damage.offset) == (None, 9)

    def test_row_group_and_column_are_named(self, make: Make, copy: Callable[[Dataset], Path]) -> None:
        dataset = make("parquet")
        shard = dataset.shards[0]
        path = copy(dataset) / shard.path
        chunk = pq.ParquetFile(path).metadata.row_group(1).column(3)
        assert chunk.path_in_schema == "price"
        start = min(chunk.dictionary_page_offset or chunk.data_page_offset, chunk.data_page_offset)
        stop = start + chunk.total_compressed_size
        overwrite(path, stop - 9, stop - 4)
        damage = only(verify(str(path.parent)))
        assert (damage.row_group, damage.column, damage.record, damage.offset) == (1, "price", 20, start)
        assert f"row group 1, records 20-39, column 'price' at offset {start}" in damage.problem

    def test_a_misleading_footer_is_named_instead_of_the_column(
        self, make: Make, copy: Callable[[Dataset], Path]
    ) -> None:
        dataset = make("parquet")
        path = copy(dataset) / dataset.shards[0].path
        data = bytearray(path.read_bytes())
        footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        doubled = 2 * pq.ParquetFile(path).metadata.row_group(1).column(3).data_page_offset  # Thrift's zigzag, varint
        assert 1 << 7 <= doubled < 1 << 14
        place = data.index(bytes([doubled & 0x7F | 0x80, doubled >> 7]), footer)
        data[place] ^= 2
        path.write_bytes(data)
        assert any(group.damaged for group in parquet_format.scan_row_groups(pa.py_buffer(bytes(data))))
        damage = only(verify(str(path.parent)))
        assert (damage.row_group, damage.column, damage.offset) == (None, None, footer)
        assert f"in the footer, at offset {footer}: its columns do not fill the file" in damage.problem

    def test_a_flip_that_readers_miss_is_found_by_the_checksum_of_its_page(self, tmp_path: Path) -> None:
        values = pa.array(np.random.default_rng(0).normal(size=1000))
        buffer = parquet_format.write_parquet(pa.record_batch({"x": values}), "none", 1 << 16)
        data = bytearray(buffer.to_pybytes())
        place = data.index(values.buffers()[1].to_pybytes()[800:816])
        data[place] ^= 1
        groups = list(parquet_format.scan_row_groups(pa.py_buffer(bytes(data))))
        assert parquet_format.read_parquet(bytes(data)).num_rows == 1000
        assert [group.damaged for group in groups if group.damaged] == [("x",)]

    def test_stale_and_damaged_indexes_are_distinguished(self, make: Make, copy: Callable[[Dataset], Path]) -> None:
        dataset, other = make("tfrecord", text=True), make("tfrecord", text=True, seed=1)
        shard = dataset.shards[0]
        root = copy(dataset)
        shutil.copy(root_of(other) / shard.index_path, root / shard.index_path)
        damage = only(verify(str(root)))
        assert damage.kind == "stale"
        assert "an index of other records" in damage.problem
        classes = pa.ipc.open_file(str(root_of(dataset) / shard.index_path)).read_all().column("class_id").to_numpy()
        changed = classes.copy()
        changed[7] = (changed[7] + 1) % 3
        starts = np.append(offsets(dataset, shard), shard.bytes)
        (root / shard.index_path).write_bytes(encode_index(changed, starts))
        damage = only(verify(str(root)))
        assert (damage.kind, damage.record) == ("altered", 7)

    def test_swapped_shards_name_each_other(self, make: Make, copy: Callable[[Dataset], Path]) -> None:
        dataset = make("parquet")
        root = copy(dataset)
        a, b = dataset.shards[0].path, dataset.shards[2].path
        (root / a).rename(root / "x")
        (root / b).rename(root / a)
        (root / "x").rename(root / b)
        first, second = verify(str(root))
        assert (first.path, first.kind, second.path) == (a, "swapped", b)
        assert first.problem == f"it holds the content of {b}, and vice versa"


class TestDeep:
    def reseal(self, root: Path, dataset: Dataset, **changes: Any) -> None:
        """Make the dataset say of its first shard what a writer with a fault would have said."""
        first = replace(dataset.shards[0], **changes)
        manifest, table = seal(dataset.manifest, [first, *dataset.shards[1:]])
        (root / "_ringfeed/shards.table").write_bytes(table)
        (root / "_ringfeed/dataset.json").write_bytes(manifest.encode())

    def rewrite(self, root: Path, dataset: Dataset, field: str, data: bytes) -> None:
        (root / getattr(dataset.shards[0], f"{field}path")).write_bytes(data)
        self.reseal(root, dataset, **{f"{field}bytes": len(data), f"{field}checksum": checksum(data)})

    @pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
    def test_an_intact_dataset_passes(self, make: Make, shard_format: str) -> None:
        assert verify(str(root_of(make(shard_format))), deep=True) == []
        if shard_format == "tfrecord":
            assert verify(str(root_of(make(shard_format, compression="gzip"))), deep=True) == []

    @pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
    def test_an_index_with_another_class_than_the_label(
        self, make: Make, copy: Callable[[Dataset], Path], shard_format: str
    ) -> None:
        dataset = make(shard_format)
        root = copy(dataset)
        index = pa.ipc.open_file(str(root / dataset.shards[0].index_path)).read_all()
        classes = index.column("class_id").to_numpy().copy()
        classes[[4, 9]] = (classes[[4, 9]] + 1) % 3
        starts = None
        if shard_format == "tfrecord":
            starts = np.append(index.column("offset").to_numpy(), dataset.shards[0].bytes)
        self.rewrite(root, dataset, "index_", encode_index(classes, starts).to_pybytes())
        assert [(damage.path, damage.kind) for damage in verify(str(root))] == [
            (dataset.shards[0].index_path, "miscounted")
        ]
        damage = only(verify(str(root), deep=True))
        assert (damage.path, damage.kind, damage.record) == (dataset.shards[0].index_path, "mislabelled", 4)
        assert damage.records == ((4, 5), (9, 10))

    def test_an_index_of_another_shard(self, make: Make, copy: Callable[[Dataset], Path]) -> None:
        dataset, other = make("tfrecord", text=True), make("tfrecord", text=True, seed=1)
        root = copy(dataset)
        data = (root_of(other) / dataset.shards[0].index_path).read_bytes()
        self.rewrite(root, dataset, "index_", data)
        assert verify(str(root)) == []
        assert only(verify(str(root), deep=True)).kind == "stale"

    def test_a_record_that_does_not_parse(self, make: Make, copy: Callable[[Dataset], Path]) -> None:
        from ringfeed.sharding.formats.tfrecord import frame_records

        dataset = make("tfrecord", text=True)
        root = copy(dataset)
        shard = dataset.shards[0]
        view = (root / shard.path).read_bytes()
        starts = [*offsets(dataset, shard), shard.bytes]
        messages = [view[start + 12 : stop - 4] for start, stop in pairwise(starts)]
        messages[5] = b"\x0b" + messages[5][1:]
        framed = frame_records(pa.array(messages, pa.large_binary()))
        self.rewrite(root, dataset, "", framed.buffers()[2].to_pybytes()[: shard.bytes])
        assert verify(str(root)) == []
        damage = only(verify(str(root), deep=True))
        assert (damage.kind, damage.record, damage.offset) == ("unparsable", 5, starts[5])

    def test_counts_that_are_wrong(self, make: Make, copy: Callable[[Dataset], Path]) -> None:
        dataset = make("tfrecord")
        root = copy(dataset)
        a, b, c = dataset.shards[0].class_counts
        self.reseal(root, dataset, class_counts=(a - 1, b + 1, c))
        quick = verify(str(root))
        assert [(damage.path, damage.kind) for damage in quick] == [
            (dataset.shards[0].index_path, "miscounted"),
            ("_ringfeed/shards.table", "miscounted"),
        ]
        assert quick[0].problem == f"it holds {a} records of class 'a', the table says {a - 1}"
        found = verify(str(root), deep=True)
        assert [(d.path, d.kind) for d in found] == [
            (dataset.shards[0].path, "miscounted"),
            ("_ringfeed/shards.table", "miscounted"),
        ]
        assert "the table says" in found[0].problem
        assert "dataset.json says" in found[1].problem


class TestManifest:
    def test_a_newer_dataset_is_refused_and_not_taken_for_damaged(
        self, make: Make, copy: Callable[[Dataset], Path]
    ) -> None:
        root = copy(make("tfrecord"))
        path = root / "_ringfeed/dataset.json"
        text = path.read_text().replace('"format_version": "1.0"', '"format_version": "3.0"')
        path.write_text(text)
        assert only(verify(str(root))).path == "_ringfeed/dataset.json"  # one byte: no newer version writes that
        path.write_text(text.replace('"seed": 0', '"seeds": [0, 1, 2]'))
        with pytest.raises(DatasetError, match=r"format version 3\.0.*upgrade"):
            verify(str(root))

    def test_an_unfinished_build_is_no_lost_manifest(self, make: Make, copy: Callable[[Dataset], Path]) -> None:
        root = copy(make("tfrecord"))
        (root / "_ringfeed/dataset.json").unlink()
        assert only(verify(str(root))).kind == "missing"
        (root / "_building.json").write_text("{}")
        with pytest.raises(DatasetError, match="a build did not finish"):
            verify(str(root))

    def test_without_manifest_and_table_nothing_can_be_verified(
        self, make: Make, copy: Callable[[Dataset], Path]
    ) -> None:
        root = copy(make("tfrecord"))
        overwrite(root / "_ringfeed/dataset.json", 100, 140)
        overwrite(root / "_ringfeed/shards.table", 100, 140)
        with pytest.raises(CorruptionError, match=r"dataset\.json is damaged.*build the dataset again"):
            verify(str(root))

    @pytest.mark.parametrize("text", [False, True])
    def test_damage_besides_a_damaged_table_is_found_by_deep_checks(
        self, make: Make, copy: Callable[[Dataset], Path], text: bool
    ) -> None:
        dataset = make("tfrecord", text=text)
        root = copy(dataset)
        (root / "_ringfeed/shards.table").unlink()
        overwrite(root / dataset.shards[0].path, 500, 520)
        (root / dataset.shards[1].path).unlink()
        overwrite(root / dataset.shards[2].index_path, 400, 1200)
        found = {damage.path: damage.kind for damage in verify(str(root))}
        assert found[dataset.shards[0].path] == "unparsable"
        assert found[dataset.shards[1].path] == "missing"
        assert found[dataset.shards[2].index_path] == "altered"
        assert found["_ringfeed/shards.table"] in ("missing", "miscounted")
        with pytest.raises(CorruptionError, match=r"repair it with --source .*x\.parquet"):
            repair(str(root))


class TestWholeDatasets:
    def test_unknown_files_are_noted(self, make: Make, copy: Callable[[Dataset], Path]) -> None:
        dataset = make("tfrecord")
        root = copy(dataset)
        for name in ("mine.txt", ".train-00000-of-00003.tfrecord.0badcafe.part", "_building.json"):
            (root / name).write_text("x")
        found = check_dataset(str(root))
        assert found.damages == ()
        assert {note.path: " ".join(note.remark.split()[:4]) for note in found.notes} == {
            "mine.txt": "not part of this",
            "_building.json": "lease of a build,",
            ".train-00000-of-00003.tfrecord.0badcafe.part": "left by an unfinished",
        }

    @pytest.mark.parametrize("workers", [1, 3])
    def test_progress_is_reported_in_files_and_bytes(self, make: Make, workers: int) -> None:
        dataset = make("parquet")
        seen: list[VerifyProgress] = []
        found = check_dataset(str(root_of(dataset)), seen.append, workers=workers)
        total = sum(shard.bytes + shard.index_bytes for shard in dataset.shards)
        assert (found.files, found.bytes) == (8, total)
        assert [progress.files for progress in seen] == list(range(1, 9))
        assert seen[-1] == VerifyProgress(files=8, total_files=8, bytes=total, total_bytes=total)

    @given(block=st.integers(1, 5000))
    def test_files_are_hashed_in_blocks_of_any_size(self, make: Make, block: int) -> None:
        from ringfeed.sharding.storage import file_contents

        dataset = make("tfrecord")
        found = file_contents.digest_file(dataset.storage, dataset.shards[0].path, block_bytes=block)
        assert found == file_contents.FileInfo(bytes=dataset.shards[0].bytes, checksum=dataset.shards[0].checksum)


class TestEveryStore:
    def test_a_remote_dataset_is_read_in_blocks_located_and_repaired(
        self, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from ringfeed.sharding.storage import file_contents

        monkeypatch.setattr(file_contents, "_BLOCK_BYTES", 4096)
        pq.write_table(make_table(RECORDS), tmp_path / "x.parquet")
        dataset = built(str(tmp_path / "x.parquet"), store.url, label="label", shards=2, compression="gzip")
        assert verify(store.url, deep=True) == []
        files = {name: store.read_bytes(name) for name in store.list()}
        a, b = (shard.path for shard in dataset.shards)
        store.write_bytes(a, files[b])
        store.write_bytes(b, files[a])
        store.delete("_ringfeed/dataset.json")
        assert {damage.path for damage in verify(store.url)} == {a, b, "_ringfeed/dataset.json"}
        repair(store.url)
        assert {name: store.read_bytes(name) for name in store.list()} == files
        half = len(files[a]) // 2
        store.write_bytes(a, files[a][:half])
        damage = only(verify(store.url))
        assert (damage.kind, damage.path) == ("truncated", a)
        assert damage.record
        report = repair(store.url)
        assert report.lost[0].records == dataset.shards[0].records - damage.record
        assert verify(store.url, deep=True) == []
        assert a not in store.list()


class TestAStoreThatDoesNotAnswer:
    @pytest.fixture
    def storage(self, make: Make) -> Storage:
        folder = make("tfrecord").storage.local_path
        assert folder is not None
        url = f"memory://{uuid.uuid4().hex}"
        fsspec.filesystem("memory").put(f"{folder}/", f"{url}/", recursive=True)
        return Storage(url, retries=RetryPolicy(attempts=3, base_seconds=0.01))

    def test_an_unreachable_store_is_retried_once(self, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = self.silenced(monkeypatch, "find", "cat_file")
        with pytest.raises(StorageError, match=r"^cannot list memory://.*: no answer .* \(3 attempts in"):
            verify(storage)
        assert asked == ["find"] * 3 + ["cat_file"]

    def test_a_store_that_cannot_list_is_verified(self, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.silenced(monkeypatch, "find")
        found = check_dataset(storage)
        assert found.damages == ()
        assert [note.remark[:27] for note in found.notes] == ["the folder cannot be listed"]

    def silenced(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
        """The calls that come, of what answers no more."""
        asked: list[str] = []

        def silent(name: str) -> Callable[..., Any]:
            def call(*_: object, **__: object) -> None:
                asked.append(name)
                raise TimeoutError

            return call

        for name in names:
            monkeypatch.setattr(MemoryFileSystem, name, silent(name))
        return asked
