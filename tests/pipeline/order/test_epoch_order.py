"""The order of samples as pure arithmetic: streams, windows and the remainder."""

import math
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ringfeed.pipeline.order.epoch_order import EpochOrder, Geometry, Remainder, coprime_stride, default_streams
from ringfeed.pipeline.order.remainder import dropped_ranges
from ringfeed.pipeline.order.windows import Segment, SegmentTable, StreamWindows
from ringfeed.sharding import ConfigError
from ringfeed.sharding.dataset.manifest import ShardInfo
from tests.helpers.orders import orders


def served(order: EpochOrder) -> list[tuple[int, int]]:
    """Shard and row of each record that an epoch serves."""
    found = []
    for stream in range(order.geometry.streams):
        for window in order.windows(stream):
            held = [(segment.shard, row) for segment in window.segments for row in range(segment.start, segment.stop)]
            found += [held[place] for place in order.permutation(window)]
    return found


@given(orders())
def test_windows_cover_each_record_at_most_once_and_all_but_the_remainder(order: EpochOrder) -> None:
    seen = served(order)
    assert len(seen) == len(set(seen)) == order.geometry.records - order.geometry.dropped
    assert all(0 <= row < order.shard_records[shard] for shard, row in seen)


@given(orders())
def test_windows_of_a_stream_follow_each_other_without_a_gap(order: EpochOrder) -> None:
    for stream in range(order.geometry.streams):
        windows = order.windows(stream)
        starts = [window.start for window in windows]
        assert starts == [0, *(window.stop for window in windows[:-1])]
        start, stop = order.stream_range(stream)
        dropped = order.geometry.dropped
        served = order.geometry.steps * order.geometry.piece if dropped else stop - start
        assert windows[-1].stop == served
        assert sum(window.records for window in windows) == stop - start
        assert dropped or all(window.samples == window.records for window in windows)
        for window in windows:
            mean = order.geometry.records / len(order.shard_records)
            assert window.records < order.geometry.window_shards * mean + max(order.shard_records)
            np.testing.assert_array_equal(np.sort(order.full_permutation(window)), np.arange(window.records))
            np.testing.assert_array_equal(order.permutation(window), order.full_permutation(window)[: window.samples])


def test_slivers_make_no_windows_of_their_own() -> None:
    order = EpochOrder(Geometry(records=1603, batch_size=16, streams=16), [101] * 3 + [100] * 13, seed=1, epoch=0)
    assert [len(order.windows(stream)) for stream in range(16)] == [1] * 16
    assert any(len(order.windows(stream)[0].segments) == 2 for stream in range(16))


@given(
    st.sampled_from(["drop", "pad", "wrap"]), st.integers(1, 16), st.integers(1, 5), st.integers(200, 400), st.data()
)
def test_streams_read_whole_shards_if_a_few_records_more_or_less_allow_it(
    remainder: Remainder, streams: int, each: int, size: int, data: st.DataObject
) -> None:
    """Shards as a build makes them: of one size, or one record more. Nearly as many are left over as fill a batch."""
    longer = data.draw(st.integers(0, 4))
    shards = [size + 1] * min(longer, streams * each) + [size] * (streams * each - longer)
    piece = data.draw(st.integers(20, 60).filter(lambda p: 10 <= -(each * size) % p <= p - 10 and each * size > 2 * p))
    geometry = Geometry(records=sum(shards), batch_size=streams * piece, streams=streams, remainder=remainder)
    order = EpochOrder(geometry, shards, seed=data.draw(st.integers(0, 9)), epoch=data.draw(st.integers(0, 3)))
    read = [order.windows(stream).segments.shards.tolist() for stream in range(streams)]
    assert sorted(shard for shards in read for shard in shards) == list(range(len(shards)))


@given(orders(), st.data())
def test_neighbouring_streams_read_their_common_shard_at_the_same_time(order: EpochOrder, data: st.DataObject) -> None:
    streams = order.geometry.streams
    reads = [
        [(s.shard, s.start, s.stop) for w in order.windows(stream) for s in w.segments] for stream in range(streams)
    ]
    for stream, (this, following) in enumerate(pairwise(reads)):
        shared = this[-1], following[0]
        if order.geometry.shuffle:
            shared = (this[0], following[0]) if stream % 2 else (this[-1], following[-1])
        (shard, _, stop), (other, start, _) = shared
        if stop < order.shard_records[shard]:
            assert (other, start) == (shard, stop)
    first = data.draw(st.integers(0, streams - 1))
    own = range(first, data.draw(st.integers(first, streams - 1)) + 1)
    for stream in own:
        for shard, start, stop in reads[stream]:
            together = order.shared_segment(Segment(shard=shard, start=start, stop=stop), own)
            needed = [(s, e) for each in own for other, s, e in reads[each] if other == shard]
            if not order.geometry.shuffle:
                needed = [(start, stop)]
            assert (together.shard, together.start, together.stop) == (
                shard, min(s for s, _ in needed), max(e for _, e in needed),
            )  # fmt: skip


def test_the_first_and_the_last_stream_share_no_segment() -> None:
    """A short epoch that begins within a shard may end within it."""
    geometry = Geometry(records=100, batch_size=2, streams=2, samples=90)
    order = EpochOrder(geometry, [40, 60], seed=1, epoch=1)
    segments = [s for stream in range(2) for window in order.windows(stream) for s in window.segments]
    assert {segment.shard for segment in segments} == {0, 1}
    for segment in segments:
        assert order.shared_segment(segment, range(2)) == segment


def test_each_record_is_dropped_as_often_as_any_other() -> None:
    """The chance is 0.2; of 800 records and 100 epochs none is 6 deviations off."""
    geometry = Geometry(records=800, batch_size=16 * 40, streams=16)
    times = Counter(
        record for epoch in range(100) for record in served(EpochOrder(geometry, [50] * 16, seed=1, epoch=epoch))
    )
    assert len(times) == 800
    assert all(56 <= count <= 99 for count in times.values())


@pytest.mark.parametrize(("shards", "samples"), [(1, 40), (1, 395), (4, 40), (4, 100), (16, 10)])
def test_short_epochs_serve_each_record_as_often_as_any_other(shards: int, samples: int) -> None:
    """Such epochs go on from one another."""
    geometry = Geometry(records=400, batch_size=10, streams=2, samples=samples)
    epochs = [served(EpochOrder(geometry, [400 // shards] * shards, seed=1, epoch=epoch)) for epoch in range(400)]
    assert all(len(set(records)) == len(records) == samples // 10 * 10 for records in epochs)
    times = Counter(record for records in epochs for record in records)
    assert set(times.values()) == {samples // 10 * 10}


@given(st.integers(1, 4), st.integers(1, 3), st.lists(st.integers(1, 9), min_size=1, max_size=9), st.data())
def test_short_epochs_serve_all_records_before_any_comes_again(
    streams: int, piece: int, shards: list[int], data: st.DataObject
) -> None:
    """In the order of the batches, and with no record twice in an epoch."""
    batch, records = streams * piece, sum(shards)
    assume(records >= batch)
    samples = data.draw(st.integers(batch, records))
    geometry = Geometry(records=records, batch_size=batch, streams=streams, samples=samples)
    drawn: list[tuple[int, int]] = []
    first = data.draw(st.integers(0, 30)) * records // math.gcd(records, geometry.steps * batch)  # where a pass begins
    for epoch in range(first, first + 3 * -(-records // samples) + 3):
        order = EpochOrder(geometry, shards, seed=1, epoch=epoch)
        by_stream = [
            [(s.shard, row) for s, row in _rows_of(order, window)]
            for stream in range(streams)
            for window in [order.windows(stream)]
        ]
        steps = range(geometry.steps)
        found = [by_stream[k][s * piece + i] for s in steps for k in range(streams) for i in range(piece)]
        assert len(set(found)) == len(found)
        drawn += found
    for start in range(0, len(drawn) - records + 1, records):
        assert len(set(drawn[start : start + records])) == records


def _rows_of(order: EpochOrder, windows: Any) -> list[tuple[Segment, int]]:
    found = []
    for window in windows:
        held = [(segment, row) for segment in window.segments for row in range(segment.start, segment.stop)]
        found += [held[place] for place in order.permutation(window)]
    return found


@given(st.integers(1, 5), st.integers(1, 90), st.integers(0, 30), st.booleans())
def test_a_short_epoch_drops_exactly_the_records_it_does_not_serve(
    shards: int, samples: int, epoch: int, shuffle: bool
) -> None:
    geometry = Geometry(records=90, batch_size=1, streams=1, samples=samples, shuffle=shuffle)
    infos = [
        ShardInfo(
            split="train", path=str(number), bytes=1, records=90 // shards + (number < 90 % shards), checksum="",
            class_counts=(1,), index_path="index", index_bytes=1, index_checksum="",
        )
        for number in range(shards)
    ]  # fmt: skip
    order = EpochOrder(geometry, [info.records for info in infos], seed=1, epoch=epoch)
    dropped = [(int(r.shard), row) for r in dropped_ranges(order, infos) for row in range(r.start, r.stop)]
    every = [(shard, row) for shard, info in enumerate(infos) for row in range(info.records)]
    assert sorted([*served(order), *dropped]) == every


@given(orders())
def test_steps_serve_every_stream_position(order: EpochOrder) -> None:
    geometry = order.geometry
    served = [order.windows(stream).samples for stream in range(geometry.streams)]
    assert max(served) <= geometry.steps * geometry.piece
    assert geometry.remainder != "drop" or min(served) == max(served)
    if geometry.remainder == "drop":
        assert geometry.dropped < geometry.batch_size
    assert geometry.steps * geometry.batch_size == sum(
        (geometry.records, -geometry.dropped, geometry.padded, geometry.wrapped)
    )
    assert [geometry.dropped, geometry.padded, geometry.wrapped].count(0) >= 2


@given(st.integers(1, 5), st.integers(1, 12), st.integers(1, 12))
def test_ranks_share_each_global_batch_in_contiguous_slices(streams: int, piece: int, world_size: int) -> None:
    geometry = Geometry(records=10_000, batch_size=streams * piece * world_size, streams=streams)
    positions = [
        part.stream * geometry.piece + place
        for rank in range(world_size)
        for part in geometry.rank_slices(rank, world_size)
        for place in range(part.start, part.stop)
    ]
    assert positions == list(range(geometry.batch_size))


def test_each_epoch_has_another_order() -> None:
    geometry = Geometry(records=100, batch_size=10, streams=2)
    orders = [EpochOrder(geometry, [10] * 10, seed=1, epoch=epoch) for epoch in range(3)]
    tapes = {tuple(order.tape[0]) for order in orders}
    permutations = {tuple(order.permutation(order.windows(0)[0])) for order in orders}
    assert len(tapes) == len(permutations) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"streams": 3}, "streams must divide the global batch of 10, got 3"),
        ({"remainder": "fold"}, "remainder must be 'drop', 'pad' or 'wrap', got 'fold'"),
        ({"records": 9}, "9 records, fewer than one global batch of 10"),
        ({"records": 1, "remainder": "pad"}, "1 records, fewer than its 2 streams"),
    ],
)
def test_an_impossible_geometry_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Geometry(**{"records": 100, "batch_size": 10, "streams": 2, **arguments})  # type: ignore[arg-type]


@given(st.integers(1, 5), st.integers(1, 12), st.integers(1, 70))
def test_any_number_of_ranks_shares_a_batch_but_for_one_sample(streams: int, piece: int, world_size: int) -> None:
    geometry = Geometry(records=10_000, batch_size=streams * piece, streams=streams)
    ranks = [geometry.rank_slices(rank, world_size) for rank in range(world_size)]
    positions = [
        part.stream * geometry.piece + place
        for parts in ranks
        for part in parts
        for place in range(part.start, part.stop)
    ]
    assert positions == list(range(geometry.batch_size))
    widths = {sum(part.width for part in parts) for parts in ranks}
    assert widths == {geometry.local_batch(world_size)}
    fillers = [part.filler for parts in ranks for part in parts]
    assert set(fillers) <= {0, 1}
    assert {part.weighted for parts in ranks for part in parts} == {any(fillers)}


def test_without_shuffling_streams_are_parts_of_the_dataset_in_its_order() -> None:
    order = EpochOrder(Geometry(records=50, batch_size=10, streams=2, shuffle=False), [20, 20, 10], seed=1, epoch=3)
    assert [[(s.shard, s.start, s.stop) for w in order.windows(i) for s in w.segments] for i in range(2)] == [
        [(0, 0, 20), (1, 0, 5)],
        [(1, 5, 20), (2, 0, 10)],
    ]
    assert order.permutation(order.windows(1)[0]).tolist() == list(range(order.windows(1)[0].samples))


@given(st.integers(1, 5000))
def test_a_coprime_stride_visits_everything(size: int) -> None:
    assert len({step * coprime_stride(size) % size for step in range(size)}) == size


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_default_streams_divide_the_batch(batch_size: int, records: int) -> None:
    streams = default_streams(batch_size, records)
    assert batch_size % streams == 0
    assert 1 <= streams <= min(16, records)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.floats(0.5, 90), st.floats(0, 30))
def test_windows_equal_those_of_a_loop_over_the_segments(lengths: list[int], enough: float, sliver: float) -> None:
    groups: list[list[int]] = []
    for length in lengths:
        if not groups or sum(groups[-1]) >= enough:
            groups.append([])
        groups[-1].append(length)
    if len(groups) > 1 and sum(groups[-1]) < sliver:
        groups[-2:] = [groups[-2] + groups[-1]]
    shards = np.arange(len(lengths))
    table = SegmentTable(shards=shards, firsts=shards * 2, lengths=np.array(lengths))
    windows = StreamWindows(0, table, min_records=enough, sliver_records=sliver)
    assert [[s.stop - s.start for s in window.segments] for window in windows] == groups
    assert [s.start for window in windows for s in window.segments] == [2 * shard for shard in shards]
    assert [windows.number_at(window.start) for window in windows] == list(range(len(groups)))
    assert [windows.number_at(window.stop - 1) for window in windows[:]] == list(range(len(groups)))
