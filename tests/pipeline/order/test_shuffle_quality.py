"""The measures of an order, against their definitions and known orders."""

from collections.abc import Callable
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings

from ringfeed.pipeline import Loader
from ringfeed.pipeline.order.epoch_order import EpochOrder, Geometry
from ringfeed.pipeline.order.shuffle_quality import shuffle_quality
from tests.helpers.numbered_records import RECORDS
from tests.helpers.orders import orders
from tests.helpers.reading import read


def order_of(shards: int, records: int, batch_size: int, streams: int, window_shards: int = 1) -> EpochOrder:
    """An epoch of shards of so many records each."""
    geometry = Geometry(records=shards * records, batch_size=batch_size, streams=streams, window_shards=window_shards)
    return EpochOrder(geometry, [records] * shards, seed=1, epoch=0)


def served(order: EpochOrder) -> np.ndarray:
    """The records of an epoch by their place in the dataset, batch by batch; -1 where none is."""
    geometry = order.geometry
    firsts = np.cumsum([0, *order.shard_records])
    places = np.full((geometry.steps, geometry.batch_size), -1)
    for stream in range(geometry.streams):
        for window in order.windows(stream):
            held = [firsts[s.shard] + row for s in window.segments for row in range(s.start, s.stop)]
            for position, record in enumerate(order.permutation(window).tolist(), window.start):
                places[position // geometry.piece, stream * geometry.piece + position % geometry.piece] = held[record]
    return places


@settings(max_examples=30, deadline=None)
@given(orders())
def test_the_measures_match_their_definitions(order: EpochOrder) -> None:
    found, batches = shuffle_quality(order), served(order)
    places = np.flatnonzero(batches.reshape(-1) >= 0)
    records = batches.reshape(-1)[places]
    total = order.geometry.records
    assert found.samples == len(records) == total - order.geometry.dropped
    assert found.displacement == pytest.approx(
        np.mean([abs(p - r) for p, r in zip(places, records, strict=True)]) * 3 / total
    )
    ends = np.cumsum(order.shard_records)
    shards = [len({int(np.searchsorted(ends, r, "right")) for r in batch if r >= 0}) for batch in batches]
    assert found.batch_shards == pytest.approx(np.mean([count for count in shards if count]))
    if order.geometry.batch_size <= total:
        chances = [
            1 - comb(total - own, order.geometry.batch_size) / comb(total, order.geometry.batch_size)
            for own in order.shard_records
        ]
        assert found.full_batch_shards == pytest.approx(sum(chances), abs=1e-6)


def test_the_order_of_the_dataset_is_no_shuffle() -> None:
    geometry = Geometry(records=5000, batch_size=50, streams=1, shuffle=False)
    found = shuffle_quality(EpochOrder(geometry, [100] * 50, seed=1, epoch=0))
    assert (found.displacement, found.batch_shards) == (0, 1)
    assert found.separation < 0.001
    assert found.serial_correlation > 0.99


def test_one_window_of_all_records_is_a_full_shuffle() -> None:
    found = shuffle_quality(order_of(50, 100, 50, 1, window_shards=51))
    assert found.displacement == pytest.approx(1, abs=0.05)
    assert found.separation == pytest.approx(1, abs=0.05)
    assert abs(found.serial_correlation) < 0.05
    assert found.batch_shards == pytest.approx(found.full_batch_shards, rel=0.03)


@pytest.mark.parametrize(("streams", "window_shards"), [(1, 1), (1, 4), (4, 1), (4, 8), (16, 4)])
def test_neighbours_are_spread_over_the_part_of_the_epoch_that_the_streams_windows_take(
    streams: int, window_shards: int
) -> None:
    found = shuffle_quality(order_of(256, 100, 64, streams, window_shards))
    assert found.separation == pytest.approx(streams * window_shards / 256, rel=0.1)


def test_a_long_epoch_is_measured_by_runs_of_its_steps() -> None:
    order = order_of(512, 500, 64, 4, window_shards=4)
    whole, some = shuffle_quality(order), shuffle_quality(order, most_samples=20_000)
    assert some.samples < 21_000 < whole.samples == 512 * 500
    assert some.separation == pytest.approx(whole.separation, rel=0.1)
    assert some.batch_shards == pytest.approx(whole.batch_shards, rel=0.1)
    assert some.serial_correlation == pytest.approx(whole.serial_correlation, abs=0.1)
    assert some.full_batch_shards == whole.full_batch_shards


def test_a_loader_measures_the_order_that_it_delivers_and_opens_no_shard(make_dataset: Callable[..., str]) -> None:
    url = make_dataset(RECORDS)
    loader = Loader(url, batch_size=20, window_shards=2, seed=3)
    found = loader.shuffle_quality(2)
    assert loader.stats()["fetch"].items == 0
    in_order = read(Loader(url, batch_size=20, shuffle=False))["id"].reshape(-1)
    numbers = np.argsort(in_order)[read(loader, 2)["id"].reshape(-1)]
    assert found.displacement == pytest.approx(np.abs(numbers - np.arange(RECORDS)).mean() * 3 / RECORDS)


def test_a_split_that_fills_no_batch_is_measured_in_a_part_of_one(make_dataset: Callable[..., str]) -> None:
    url = make_dataset(60, shards=2)
    options = {"batch_size": 80, "streams": 4, "seed": 3}
    found = Loader(url, balance="uniform", epoch_length=160, **options).shuffle_quality(2)
    assert found == Loader(url, remainder="pad", **options).shuffle_quality(2)
    assert (found.samples, found.batch_shards, found.full_batch_shards) == (60, 2, 2)
