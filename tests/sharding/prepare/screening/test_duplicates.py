"""De-duplication (also `record_hashes`) keeps the first of equal records, however they are batched and bucketed."""

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ringfeed.sharding import BuildOptions, ConfigError, Progress, SourceError, build, open_dataset, plan_build
from ringfeed.sharding.prepare import Drop, Filter, ImageOptions, PrepareOptions, Size, open_prepared
from ringfeed.sharding.prepare.screening.duplicates import HashSizes, drop_duplicates, find_duplicates
from ringfeed.sharding.prepare.screening.record_hashes import hash_records
from ringfeed.sharding.schema import Schema
from ringfeed.sharding.sources import Part, Source, open_source
from ringfeed.sharding.sources.base import Reject, fail_on_bad
from ringfeed.sharding.sources.dropping_source import DroppingSource
from ringfeed.sharding.storage.storage import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """A source of record batches in memory, one list a part."""

    batches: tuple[tuple[pa.RecordBatch, ...], ...]
    schema: Schema
    url: str = "memory"
    fingerprint: str = "of memory"

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(Part(path=f"part {i}", first_record=i) for i in range(len(self.batches)))

    def labels(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.Array]:
        for batch in self.drafts(part):
            yield batch.column(self.schema.label)

    def drafts(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.RecordBatch]:
        yield from self.batches[part.first_record]

    def sample(self, part: Part, records: int) -> pa.RecordBatch:
        return self.batches[part.first_record][0].slice(0, records)

    def complete(self, drafts: pa.RecordBatch) -> pa.RecordBatch:
        return drafts


def batches_of(table: pa.Table, cuts: list[int], parts: int) -> Batches:
    """The table cut at these places, the pieces dealt to parts in order."""
    bounds = sorted({0, len(table), *(cut % (len(table) + 1) for cut in cuts)})
    pieces = [table.slice(a, b - a).combine_chunks() for a, b in pairwise(bounds)]
    found = [batch for piece in pieces for batch in piece.to_batches()]
    empty = table.schema.empty_table().to_batches(max_chunksize=1) or [
        pa.RecordBatch.from_pylist([], schema=table.schema)
    ]
    share = -(-len(found) // parts)
    groups = [tuple(found[i * share : (i + 1) * share]) or tuple(empty) for i in range(parts)]
    return Batches(batches=tuple(groups), schema=Schema.from_arrow(table.schema, "label"))


def without_doubles(source: Source, *columns: str, **sizes: int) -> Source:
    with TemporaryDirectory() as folder:
        result = drop_duplicates(source, columns, None, Storage(folder), sizes=HashSizes(**sizes))
        assert not any(Path(folder).rglob("*"))
    return result


def kept(source: Source, *columns: str, **sizes: int) -> list[dict[str, Any]]:
    dropping = without_doubles(source, *columns, **sizes)
    rows = [row for part in dropping.parts for batch in dropping.drafts(part) for row in batch.to_pylist()]
    labels = [value for part in dropping.parts for batch in dropping.labels(part) for value in batch.to_pylist()]
    assert labels == [row["label"] for row in rows]
    return rows


def first_of_each(rows: list[dict[str, Any]], *columns: str) -> list[dict[str, Any]]:
    seen: set[str] = set()
    found = []
    for row in rows:
        key = repr([value for name, value in row.items() if not columns or name in columns])
        if key not in seen:
            found.append(row)
        seen.add(key)
    return found


ROWS = st.fixed_dictionaries(
    {
        "i": st.sampled_from([None, 0, 1, -1]),
        "f": st.sampled_from([None, 0.0, -0.0, 1.5, float("nan")]),
        "b": st.sampled_from([None, True, False]),
        "s": st.sampled_from([None, "", "a", "aa", "\0"]),
        "t": st.sampled_from([None, [], [""], ["a"], ["", "a"], ["a", ""], ["aa"]]),
        "v": st.sampled_from([None, [], [0], [0, 0], [1]]),
        "w": st.sampled_from([None, [0.0, 1.0], [0.0, 0.0]]),
        "p": st.sampled_from([None, ["a", "aa"], ["aa", "a"]]),
        "label": st.sampled_from(["x", "y"]),
    }
)
TYPES = pa.schema(
    {
        "i": pa.int16(), "f": pa.float64(), "b": pa.bool_(), "s": pa.string(), "t": pa.list_(pa.string()),
        "v": pa.list_(pa.uint8()), "w": pa.list_(pa.float32(), 2), "p": pa.list_(pa.binary(), 2), "label": pa.string(),
    }
)  # fmt: skip


@given(
    rows=st.lists(ROWS, min_size=1, max_size=60),
    columns=st.lists(st.sampled_from(TYPES.names), unique=True, max_size=3),
    cuts=st.lists(st.integers(0, 60), max_size=6),
    parts=st.integers(1, 4),
    run=st.sampled_from([1, 7, 1 << 20]),
    bucket=st.sampled_from([5, 1 << 22]),
)
def test_the_first_of_equal_records_stays(
    rows: list[dict[str, Any]], columns: list[str], cuts: list[int], parts: int, run: int, bucket: int
) -> None:
    table = pa.Table.from_pylist(rows, TYPES)
    source = batches_of(table, cuts, parts)
    found = kept(source, *columns, run_records=run, bucket_records=bucket)
    assert repr(found) == repr(first_of_each(table.to_pylist(), *columns))


@given(rows=st.lists(ROWS, min_size=2, max_size=30), cut=st.integers(1, 29))
def test_a_record_s_hash_does_not_depend_on_its_batch(rows: list[dict[str, Any]], cut: int) -> None:
    batch = pa.RecordBatch.from_pylist(rows, TYPES)
    whole = hash_records(batch)
    pieces = [hash_records(batch.slice(0, cut)), hash_records(batch.slice(cut))]
    assert np.array_equal(whole, np.concatenate(pieces))
    assert np.array_equal(hash_records(batch.take(list(range(len(rows)))[::-1])), whole[::-1])


def test_hashes_are_those_of_xxh3() -> None:
    """Golden: of the bytes 01 05 00 (there, 5 as int16), by the command `xxhsum -H2`'s library."""
    import xxhash

    (high, low) = hash_records(pa.record_batch({"x": pa.array([5], pa.int16())}))[0].tolist()
    assert high << 64 | low == xxhash.xxh3_128_intdigest(b"\x01\x05\x00")


def test_lists_with_nulls_are_refused() -> None:
    with pytest.raises(SourceError, match="lists that hold nulls"):
        hash_records(pa.record_batch({"x": pa.array([[1, None]])}))


def test_memory_holds_one_bucket_of_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 4000, 20_000)
    table = pa.table({"n": numbers, "label": ["x"] * len(numbers)})
    sizes: list[int] = []
    lexsort = np.lexsort
    monkeypatch.setattr(np, "lexsort", lambda keys: (sizes.append(len(keys[0])), lexsort(keys))[1])
    source = batches_of(table, list(range(0, 20_000, 999)), 4)
    small = HashSizes(bucket_records=1000)
    dropped = find_duplicates(source, ("n",), None, Storage(str(tmp_path)), sizes=small).within_source
    assert sum(map(len, dropped)) == len(numbers) - len(set(numbers.tolist()))
    assert len(sizes) == 20
    assert max(sizes) < 2000


def test_columns_are_compared_as_the_steps_leave_them(parquet: str, table: pa.Table) -> None:
    steps = (Filter("id >= 100"), Drop(("id", "vector", "price")))
    source = open_prepared(parquet, "label", "auto", PrepareOptions(steps=steps))
    expected = first_of_each(table.slice(100).select(["small", "flag", "label"]).to_pylist())
    assert kept(source) == expected
    assert kept(source, "flag", "label") == first_of_each(expected, "flag", "label")


def test_only_the_columns_compared_are_read(parquet: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[Any] = []
    batches = pq.ParquetFile.iter_batches

    def watched(self: pq.ParquetFile, *args: Any, columns: list[str], **words: Any) -> Any:
        seen.append(sorted(columns))
        return batches(self, *args, columns=columns, **words)

    source = open_prepared(parquet, "label", "auto", PrepareOptions(steps=(Filter("price > 0"),)))
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", watched)
    find_duplicates(source, ("small",), None, Storage(str(tmp_path)))
    assert seen[-1] == ["price", "small"]


def test_an_unknown_column_is_refused(parquet: str, tmp_path: Path) -> None:
    options = BuildOptions(source=parquet, destination=str(tmp_path / "o"), prepare=PrepareOptions(dedup=("ids",)))
    with pytest.raises(ConfigError, match="--dedup: there is no column 'ids'; did you mean 'id'"):
        plan_build(options)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_build_holds_each_record_once(parquet: str, table: pa.Table, tmp_path: Path, workers: int) -> None:
    twice = tmp_path / "twice"
    twice.mkdir()
    for name in ("a.parquet", "b.parquet"):
        pq.write_table(table, twice / name, row_group_size=70)
    stages: list[Progress] = []
    for name, source, prepare in (("one", parquet, PrepareOptions()), ("two", str(twice), PrepareOptions(dedup=()))):
        options = BuildOptions(
            source=source, destination=str(tmp_path / name), label="label", workers=workers, prepare=prepare
        )
        build(options, report=stages.append)
    for shard in open_dataset(str(tmp_path / "one")).shards:
        assert (tmp_path / "one" / shard.path).read_bytes() == (tmp_path / "two" / shard.path).read_bytes()
    last = [stage for stage in stages if stage.stage == "dedup"][-1]
    assert (last.done, last.records) == (last.total, 2 * len(table))


# --- images ------------------------------------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path: Path) -> str:
    for i in range(9):
        path = tmp_path / "photos" / f"{'ab'[i % 2]}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        out = BytesIO()
        Image.new("RGB", (8, 6), (i % 4, 0, 0)).save(out, "PNG")
        path.write_bytes(out.getvalue())
    return str(tmp_path / "photos")


def test_images_are_compared_by_their_files(photos: str, tmp_path: Path) -> None:
    prepare = PrepareOptions(steps=(), dedup=("image",), images=ImageOptions(size=Size(width=3)))
    build(BuildOptions(source=photos, destination=str(tmp_path / "o"), prepare=prepare, min_class_records=1, shards=1))
    table = pa.Table.from_batches(list(_drafts(without_doubles(open_source(photos, None), "image"))))
    assert table.column("path").to_pylist() == ["a/0.png", "a/2.png", "b/1.png", "b/3.png"]
    manifest = open_dataset(str(tmp_path / "o")).manifest
    assert (manifest.records, manifest.split("train").statistics["height"].max) == (4, 3)
    without_path = open_prepared(photos, None, "auto", PrepareOptions(steps=(Drop(("path",)),)))
    assert len(pa.Table.from_batches(list(_drafts(without_doubles(without_path))))) == 4


@pytest.mark.parametrize("policy", ["fail", "skip:1"])
def test_images_that_are_only_encoded_alike_are_kept(tmp_path: Path, policy: str) -> None:
    for level in (0, 9, 9):
        path = tmp_path / "photos" / "a" / f"{len(list(tmp_path.rglob('*.png')))}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 6)).save(path, compress_level=level)
    prepare = PrepareOptions(dedup=("image",), images=ImageOptions(size=Size(width=3)))
    how: dict[str, Any] = {"prepare": prepare, "on_bad_record": policy, "min_class_records": 1, "shards": 1}
    build(BuildOptions(source=str(tmp_path / "photos"), destination=str(tmp_path / "out"), **how))
    assert open_dataset(str(tmp_path / "out")).manifest.records == 2


def _drafts(source: Source) -> Iterator[pa.RecordBatch]:
    for part in source.parts:
        yield from source.drafts(part)


def test_whole_records_with_their_own_paths_are_not_compared(photos: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"its own path.*--dedup image"):
        find_duplicates(open_source(photos, None), (), None, Storage(str(tmp_path)))


# --- dropping ----------------------------------------------------------------------------------------------------


@given(rows=st.integers(1, 50), cuts=st.lists(st.integers(0, 50), max_size=5), parts=st.integers(1, 3), data=st.data())
def test_dropping_is_by_position_in_the_part(rows: int, cuts: list[int], parts: int, data: st.DataObject) -> None:
    table = pa.table({"n": range(rows), "label": ["x"] * rows})
    source = batches_of(table, cuts, parts)
    numbers = [[n for b in source.drafts(part) for n in b.column("n").to_pylist()] for part in source.parts]
    dropped = [sorted(data.draw(st.sets(st.integers(0, len(part) - 1)))) if part else [] for part in numbers]
    dropping = DroppingSource.over(source, [np.array(positions, np.int64) for positions in dropped])
    again: DroppingSource = pickle.loads(pickle.dumps(dropping))
    for part, held, gone in zip(dropping.parts, numbers, dropped, strict=True):
        expected = [n for i, n in enumerate(held) if i not in gone]
        batches = list(again.drafts(part))
        assert all(batch.num_rows for batch in batches)
        assert [n for batch in batches for n in batch.column("n").to_pylist()] == expected
        assert sum(map(len, dropping.labels(part))) == len(expected)
        head = dropping.sample(part, 5).column("n").to_pylist()
        assert head == expected[: len(head)]
    assert again == dropping


def test_what_is_dropped_is_part_of_the_fingerprint(parquet: str) -> None:
    source = open_source(parquet, None)
    prints = {
        DroppingSource.over(source, [np.array(positions), *[np.array([], int)] * (len(source.parts) - 1)]).fingerprint
        for positions in ([0], [1], [0, 1])
    }
    assert len(prints | {source.fingerprint}) == 4


def test_invalid_positions_are_refused(parquet: str) -> None:
    source = open_source(parquet, None)
    rest = [np.array([], np.int64)] * (len(source.parts) - 1)
    with pytest.raises(ValueError, match="must ascend"):
        DroppingSource.over(source, [np.array([3, 3]), *rest])
    with pytest.raises(ValueError, match="must ascend"):
        DroppingSource.over(source, [np.array([-1]), *rest])
    with pytest.raises(ValueError, match="one array for each"):
        DroppingSource.over(source, [*rest])


def test_a_task_gets_only_the_positions_of_its_part(parquet: str) -> None:
    source = replace(batches_of(pa.table({"n": [1], "label": ["x"]}), [], 1))
    positions = np.flatnonzero(np.random.default_rng(0).random(1_000_000) < 0.1)
    assert len(pickle.dumps(DroppingSource.over(source, [positions]))) < 1.5 * len(positions)


@settings(max_examples=25)
@given(
    there=st.lists(ROWS, min_size=1, max_size=30),
    rows=st.lists(ROWS, min_size=1, max_size=30),
    columns=st.lists(st.sampled_from(TYPES.names), unique=True, max_size=3),
    parts=st.integers(1, 3),
    bucket=st.sampled_from([5, 1 << 22]),
)
def test_existing_records_come_first_and_are_not_reported(
    there: list[dict[str, Any]], rows: list[dict[str, Any]], columns: list[str], parts: int, bucket: int
) -> None:
    tables = [pa.Table.from_pylist(some, TYPES) for some in (there, rows)]
    before, source = (batches_of(table, [3, 8], parts) for table in tables)
    with TemporaryDirectory() as folder:
        drop = partial(drop_duplicates, source, columns, None, Storage(folder), sizes=HashSizes(bucket_records=bucket))
        alone = drop()
        result = drop(existing=before)
        known = drop(existing=before, earlier_fingerprints=[alone.fingerprint])
    found = [row for part in result.parts for batch in result.drafts(part) for row in batch.to_pylist()]
    there, rows = (table.to_pylist() for table in tables)
    both = first_of_each([*there, *rows], *columns)
    assert repr(found) == repr(both[len(first_of_each(there, *columns)) :])
    assert result.fingerprint == alone.fingerprint == known.fingerprint
    assert known == alone
