"""An epoch holds the same samples, read at once or in parts by changing numbers of ranks, and ends as planned."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringfeed.pipeline import Loader, RecordRange
from tests.helpers.numbered_records import RECORDS
from tests.helpers.reading import read

Make = Callable[..., str]
few = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    streams, piece = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    balance = draw(st.sampled_from(["natural", "uniform", {0: 0.35, 1: 0.35, 2: 0.3}]))
    natural = balance == "natural"
    return {
        "batch_size": streams * piece,
        "streams": streams,
        "window_shards": draw(st.integers(1, 3)),
        "seed": draw(st.integers(0, 99)),
        "balance": balance,
        "remainder": draw(st.sampled_from(["drop", "pad", "wrap"])) if natural else "drop",
        "shuffle": draw(st.booleans()) if natural else True,
    }


def shares(url: str, world_size: int, epoch: int, start: int, stop: int, **options: Any) -> npt.NDArray[np.int64]:
    """The ids of the global batches, put together from what all ranks read; -1 for padding."""
    batches = []
    for rank in range(world_size):
        loader = Loader(url, rank=rank, world_size=world_size, **options)
        part = read(loader, epoch, start, stop)
        assert part["id"].shape == (stop - start, -(-options["batch_size"] // world_size))
        own = len(range(rank * options["batch_size"] // world_size, (rank + 1) * options["batch_size"] // world_size))
        weights = part.get("sample_weight", np.ones(part["id"].shape, np.float32))
        assert ("sample_weight" in part) == (options["remainder"] == "pad" or options["batch_size"] % world_size > 0)
        assert not weights[:, own:].any()
        batches.append(np.where(weights == 1, part["id"], -1)[:, :own])
    return np.concatenate(batches, axis=1)


@few
@given(configurations(), st.integers(0, 3), st.lists(st.integers(1, 9), min_size=2, max_size=3), st.data())
def test_a_change_of_ranks_in_mid_epoch_changes_no_sample(
    make_dataset: Make, options: dict[str, Any], epoch: int, world_sizes: list[int], data: st.DataObject
) -> None:
    url = make_dataset(RECORDS)
    steps = Loader(url, **options).steps_per_epoch
    whole = shares(url, 1, epoch, 0, steps, **options)
    cuts = sorted(data.draw(st.lists(st.integers(0, steps), min_size=len(world_sizes) - 1, max_size=2)))
    bounds = [0, *cuts[: len(world_sizes) - 1], steps]
    parts = [
        shares(url, world_size, epoch, start, stop, **options)
        for world_size, start, stop in zip(world_sizes, bounds[:-1], bounds[1:], strict=True)
        if start < stop
    ]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@few
@given(configurations().filter(lambda options: options["balance"] == "natural"), st.integers(0, 3), st.integers(1, 9))
def test_an_epoch_holds_each_record_once_except_the_planned_remainder(
    make_dataset: Make, options: dict[str, Any], epoch: int, world_size: int
) -> None:
    url = make_dataset(RECORDS)
    plan = Loader(url, world_size=world_size, **options).plan(epoch)
    ids = shares(url, world_size, epoch, 0, plan.steps, **options)
    times = np.bincount(ids[ids >= 0], minlength=RECORDS)
    again, never = ids_in(url, plan.wrapped_records), ids_in(url, plan.dropped_records)
    np.testing.assert_array_equal(
        times, 1 + np.bincount(again, minlength=RECORDS) - np.bincount(never, minlength=RECORDS)
    )
    assert (plan.wrapped, plan.dropped) == (len(again), len(never))
    assert round(sum(mix.samples for mix in plan.class_mix.values())) == np.count_nonzero(ids >= 0)
    assert plan.padded == np.count_nonzero(ids < 0)
    assert plan.filled == plan.steps * (-options["batch_size"] % world_size)
    if options["remainder"] == "wrap" and plan.wrapped:
        assert set(again.tolist()) <= set(ids[0].tolist())


def ids_in(url: str, ranges: tuple[RecordRange, ...]) -> npt.NDArray[np.int64]:
    """The ids of the records of some ranges."""
    loader = Loader(url, batch_size=1, shuffle=False)
    ids = read(loader)["id"].reshape(-1)
    firsts = dict(
        zip((s.path for s in loader._shards), np.cumsum([0, *(s.records for s in loader._shards)]), strict=False)
    )
    empty = np.empty(0, np.int64)
    return np.concatenate([empty, *(ids[firsts[r.shard] + r.start : firsts[r.shard] + r.stop] for r in ranges)])


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_batch_larger_than_the_dataset_wraps_around_it_more_than_once(make_dataset: Make, world_size: int) -> None:
    url = make_dataset(12, shards=3)
    options: dict[str, Any] = {"batch_size": 40, "streams": 2, "remainder": "wrap", "balance": "natural"}
    ids = shares(url, world_size, 0, 0, 1, **options)
    times = np.bincount(ids[0], minlength=12)
    assert set(times.tolist()) == {3, 4}
    assert Loader(url, **options).plan().wrapped == 28
    np.testing.assert_array_equal(times - 1, np.bincount(ids_in(url, Loader(url, **options).plan().wrapped_records)))


def test_ranks_beyond_the_samples_make_equal_steps_with_weight_0(make_dataset: Make) -> None:
    options: dict[str, Any] = {"batch_size": 2, "streams": 1, "remainder": "pad"}
    ids = shares(make_dataset(12, shards=3), 5, 0, 0, 6, **options)
    assert sorted(ids.reshape(-1).tolist()) == list(range(12))


def test_uneven_shares_reach_tensorflow_in_batches_of_one_static_size(make_dataset: Make) -> None:
    loader = Loader(make_dataset(RECORDS), batch_size=16, rank=0, world_size=3)
    dataset = loader.epoch(0, loader.steps_per_epoch - 1)
    assert dataset.element_spec["id"].shape == (6,)
    (batch,) = dataset
    assert batch["sample_weight"].numpy().tolist() == [1, 1, 1, 1, 1, 0]


@pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
def test_without_shuffling_records_come_in_the_order_of_the_dataset(make_dataset: Make, shard_format: str) -> None:
    url = make_dataset(RECORDS, shard_format=shard_format)
    one = read(Loader(url, batch_size=10, shuffle=False))["id"]
    again = read(Loader(url, batch_size=20, shuffle=False, seed=5), epoch=2)["id"]
    assert sorted(one.reshape(-1).tolist()) == list(range(RECORDS))
    np.testing.assert_array_equal(one.reshape(-1), again.reshape(-1))
    streams = read(Loader(url, batch_size=10, shuffle=False, streams=2))["id"].reshape(-1, 2, 5)
    np.testing.assert_array_equal(
        np.concatenate([streams[:, 0].reshape(-1), streams[:, 1].reshape(-1)]), one.reshape(-1)
    )
