"""Borrowed records: compared with a plain LRU of (shard, class) pairs."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.pipeline import Loader
from ringfeed.pipeline.decode.columns import Column, Columns, take_columns, view_bytes
from ringfeed.pipeline.order.epoch_order import EpochOrder, Geometry
from ringfeed.pipeline.order.missing_classes import choose_donors, first_shards_with
from ringfeed.pipeline.select.sample_columns import CLASS_ID
from ringfeed.pipeline.streams.borrowed_records import BorrowedRecords
from ringfeed.pipeline.streams.shard_fetcher import ShardFetcher
from ringfeed.sharding import BuildOptions, build

Int64 = npt.NDArray[np.int64]
NONE = np.empty(0, np.int64)


def shard_columns(shard: int, class_ids: list[int], kind: str) -> Columns:
    """Records of 100 bytes or so, which tell their shard and row."""
    texts = [f"{shard}/{row}".ljust(80 + row % 3) for row in range(len(class_ids))]
    values: dict[str, Column] = {
        "numbers": np.array([[shard, row] * 5 for row in range(len(class_ids))]),
        "strings": pa.array(texts),
        "lists": pa.array([[text] * 2 for text in texts]),
    }
    ends = np.cumsum([len(text) for text in texts])
    values["views"] = view_bytes(pa.py_buffer("".join(texts).encode()), np.append(0, ends[:-1]), ends)
    return {kind: values[kind], CLASS_ID: np.array(class_ids, np.int32)}


def told(columns: Columns, kind: str) -> list[tuple[int, str]]:
    return sorted(zip(columns[CLASS_ID].tolist(), map(str, columns[kind].tolist()), strict=True))


@pytest.mark.parametrize("kind", ["numbers", "strings", "lists", "views"])
def test_the_most_recently_used_records_are_kept_within_the_limit(kind: str) -> None:
    rng = np.random.default_rng(7)
    limit = 20_000
    lent = BorrowedRecords(limit)
    shards = [shard_columns(shard, sorted(rng.integers(0, 40, 60).tolist()), kind) for shard in range(12)]
    latest: OrderedDict[tuple[int, int], int] = OrderedDict()  # bytes of each pair, that asked for last at the end
    found = asked_again = 0
    for _ in range(300):
        shard = int(rng.integers(12))
        own = shards[shard][CLASS_ID]
        classes = np.sort(rng.choice(np.unique(own), 3, replace=False))
        kept = lent.get(np.full(3, shard), classes)
        there = set() if kept is None else set(kept[CLASS_ID].tolist())
        assert {c for s, c in latest if s == shard} & set(classes.tolist()) <= there  # nothing is asked for once more
        asked_again += len([c for c in classes.tolist() if (shard, c) in latest])
        found += len(there)
        left = classes[~np.isin(classes, list(there))]
        asked, spare = np.flatnonzero(np.isin(own, left)), np.flatnonzero(~np.isin(own, left))
        records = told(lent.keep(shard, shards[shard], asked, spare), kind) + ([] if kept is None else told(kept, kind))
        assert sorted(records) == told(take_columns(shards[shard], np.flatnonzero(np.isin(own, classes))), kind)
        for c in classes.tolist():
            latest.pop((shard, c), None)
            latest[shard, c] = int((own == c).sum()) * 250  # more than they take
        while sum(latest.values()) > limit:
            latest.popitem(last=False)
        held = [values for block in lent._blocks for values in block.columns.values()]
        assert sum(values.nbytes for values in held if isinstance(values, np.ndarray)) <= limit * 9 / 8
        assert lent._held_bytes <= limit * 9 / 8
    assert found > asked_again > 0  # what was spare, too


def test_spare_records_are_evicted_first_and_evict_nothing() -> None:
    lent = BorrowedRecords(8_000)  # of 84 bytes each
    large, other = (
        shard_columns(0, [c for c in range(80) for _ in range(2)], "numbers"),
        shard_columns(1, [*range(60)], "numbers"),
    )
    lent.keep(0, large, np.arange(40), np.arange(40, 160))
    kept = lent.get(np.zeros(80, np.int64), np.arange(80))
    assert kept is not None
    assert 40 < len(kept[CLASS_ID]) <= 8_000 / 84
    lent = BorrowedRecords(8_000)
    lent.keep(0, large, np.arange(40), np.arange(40, 160))
    lent.keep(1, other, np.arange(50), NONE)
    kept = lent.get(np.zeros(20, np.int64), np.arange(20))
    assert kept is not None
    assert len(kept[CLASS_ID]) == 40


def test_a_large_class_is_lent_and_not_kept() -> None:
    lent = BorrowedRecords(8_000)
    columns = shard_columns(3, [0, 0, *[1] * 40], "views")
    piece = lent.keep(3, columns, np.arange(42), NONE)
    assert told(piece, "views") == told(columns, "views")
    kept = lent.get(np.array([3, 3]), np.array([0, 1]))
    assert kept is not None
    assert kept[CLASS_ID].tolist() == [0, 0]


def test_many_classes_find_the_donors_that_each_would() -> None:
    rng = np.random.default_rng(3)
    records = [10] * 90
    order = EpochOrder(Geometry(records=900, batch_size=10, streams=2), records, 5, 1)
    counts = rng.random((90, 50)) < rng.random(50) ** 4
    counts[rng.integers(90, size=50), np.arange(50)] = True
    for last in range(90):
        for stream in (0, 1):  # which read in opposite directions
            one = np.array([stream]), np.array([last])
            each = [int(choose_donors(order, *one, counts[:, c].astype(np.int64))[0]) for c in range(50)]
            found = first_shards_with(counts.astype(np.uint8), order.shards_after(last, stream), np.arange(50))
            assert found.tolist() == each


def test_a_shard_that_lends_many_classes_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classes, shards = 300, 40
    labels = np.random.default_rng(1).permutation(np.arange(1200) % classes)
    pq.write_table(pa.table({"id": np.arange(1200), "label": labels}), tmp_path / "source.parquet")
    source, destination = str(tmp_path / "source.parquet"), str(tmp_path / "shards")
    build(BuildOptions(source=source, destination=destination, label="label", shards=shards, min_class_records=1))
    fetched: list[object] = []
    takes: list[object] = []
    fetch, keep = ShardFetcher._fetch, BorrowedRecords.keep
    monkeypatch.setattr(ShardFetcher, "_fetch", lambda *given: fetched.append(given[1]) or fetch(*given))  # type: ignore[func-returns-value]
    monkeypatch.setattr(BorrowedRecords, "keep", lambda *given: takes.append(given[1]) or keep(*given))  # type: ignore[func-returns-value]
    loader = Loader(tmp_path / "shards", batch_size=60, streams=2, balance="uniform", prefetch_bytes=0)
    assert sum(len(batch["id"]) for batch in loader.numpy_epoch(0)) == 1200
    assert len(loader.plan().missing) > 200 * shards
    assert len(fetched) <= 2 * shards + 2
    assert len(takes) <= shards + 5
