"""The simulator against arithmetic, where one resource is the limit, and against the loader's own decisions."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfeed.pipeline import Loader
from ringfeed.pipeline.streams.shard_fetcher import ShardFetcher
from ringfeed.sharding import BuildOptions, ConfigError, build
from ringfeed.tools.measure.loader_costs import shape_of
from ringfeed.tools.predict.loader_model import LoaderModel
from ringfeed.tools.predict.resources import Buffer
from ringfeed.tools.simulation import (
    Costs,
    DatasetShape,
    Prices,
    RingCosts,
    Setup,
    StepCosts,
    StoreCosts,
    fit_ring,
    simulate,
    simulate_ranks,
)  # fmt: skip


def equal_shards(shards: int = 32, records: int = 100, size: int = 1_000_000) -> DatasetShape:
    """Shards of records so large that a chunk is one step."""
    return DatasetShape(
        records=np.full(shards, records), data_bytes=np.full(shards, size), index_bytes=np.full(shards, 0),
        record_bytes=1 << 20,
    )  # fmt: skip


def setup(**options: Any) -> Setup:
    return Setup(**{"batch_size": 100, "streams": 4, "cores": 1, "prefetch_bytes": 8_000_000} | options)


STEP = StepCosts(seconds=(0.5,), core_seconds=0.0, samples=100)


@pytest.mark.parametrize(
    ("costs", "seconds"),
    [
        (Costs(store=StoreCosts(bytes_per_second=1e6)), 32.0),  # 32 MB
        (Costs(store=StoreCosts(bytes_per_second=1e9, connection_bytes_per_second=1e6), start_seconds=1.0), 9.0),
        (Costs(store=StoreCosts(latency_seconds=(0.25,), is_local=True)), 4.0),  # 64 files, 4 at a time
        (Costs(byte_seconds=(1e-6,)), 32.0),
        (Costs(file_seconds=0.5), 32.0),
        (Costs(plan_seconds=0.01), 32.0),
        (Costs(gather_seconds=0.01), 32.0),
        (Costs(handover_seconds=1.0), 32.0),
        (Costs(transform_seconds=0.01), 32.0),
        (Costs(step=STEP), 16.0),
        (Costs(step=replace(STEP, core_seconds=0.5)), 16.0),
    ],
    ids=lambda value: "" if isinstance(value, float) else str(value)[:60],
)
def test_where_one_resource_is_the_limit_the_rate_is_its_own(costs: Costs, seconds: float) -> None:
    """An epoch of 3,200 records in 32 shards of 1 MB; fixed threads, so that no trial of the limit disturbs it."""
    epoch = simulate(equal_shards(), costs, setup(fetch_threads=4)).epochs[0]
    assert epoch.seconds == pytest.approx(seconds, rel=0.02)
    assert epoch.samples == 3200


def test_the_cores_are_shared_by_all_that_computes() -> None:
    """The gathering thread and the program's own have 16 s of work each: two cores run both at once, one does not."""
    costs = Costs(gather_seconds=0.005, handover_seconds=0.5)
    one, two = (simulate(equal_shards(), costs, setup(cores=cores)).epochs[0] for cores in (1, 2))
    assert one.seconds == pytest.approx(32.0, rel=0.01)
    assert one.core_share == pytest.approx(1.0)
    assert two.seconds < 18
    ranks = simulate(equal_shards(), costs, setup(cores=2, ranks=2)).epochs[0]  # each has half the samples to gather
    assert ranks.core_share > 0.9


def test_the_first_batch_waits_for_a_window_of_every_stream() -> None:
    costs = Costs(store=StoreCosts(bytes_per_second=1e6))
    first = {
        streams: simulate(equal_shards(), costs, setup(streams=streams, fetch_threads=1, prefetch_bytes=0))
        for streams in (1, 2, 4)
    }
    assert {n: each.epochs[0].first_batch_seconds for n, each in first.items()} == pytest.approx(
        {1: 1.0, 2: 2.0, 4: 4.0}
    )
    wide = simulate(equal_shards(), costs, setup(window_shards=3, fetch_threads=1, prefetch_bytes=0))
    assert wide.epochs[0].first_batch_seconds == pytest.approx(12.0, rel=0.1)


@given(
    records=st.lists(st.integers(1, 60), min_size=2, max_size=20),
    streams=st.sampled_from([1, 2, 4, 8]),
    ranks=st.sampled_from([1, 2, 4, 8]),
    window=st.integers(1, 4),
    prefetch=st.sampled_from([0, 500, 1 << 20]),
    threads=st.sampled_from([None, 1, 3]),
    is_cached=st.booleans(),
)
@settings(max_examples=60)
def test_bytes_are_conserved_and_all_batches_come(
    records: list[int],
    streams: int,
    ranks: int,
    window: int,
    prefetch: int,
    threads: int | None,
    is_cached: bool,  # Hypothesis passes it by name
) -> None:
    """Ranks that divide the streams read each record that is served once; a cache makes it once for all epochs."""
    sizes = np.array(records)
    shape = DatasetShape(records=sizes, data_bytes=sizes * 64, index_bytes=np.zeros_like(sizes))
    if sizes.sum() < 8:
        return
    options = setup(
        batch_size=8, streams=streams, ranks=ranks, window_shards=window, prefetch_bytes=prefetch,
        fetch_threads=threads, cache_bytes=1 << 30 if is_cached else None, epochs=2,
    )  # fmt: skip
    costs = Costs(store=StoreCosts(latency_seconds=(0.01, 0.05), bytes_per_second=1e4), byte_seconds=(1e-5,), step=STEP)
    result = simulate(shape, costs, options)
    for epoch in result.epochs:
        assert epoch.steps == sizes.sum() // 8
        assert all(0 <= wait <= epoch.seconds for wait in epoch.wait_seconds)
        assert 0 <= epoch.core_share <= 1 + 1e-9
    first, second = (epoch.fetched_bytes for epoch in result.epochs)
    if is_cached:
        assert first <= result.dataset_bytes  # each shard once for the host
        assert first + second <= result.dataset_bytes
    elif streams % ranks == 0:
        assert first <= result.dataset_bytes
        assert first >= result.epochs[0].samples * 64 * 0.9 - 64 * streams


def test_time_does_not_depend_on_the_blocks_that_steps_are_taken_in(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = Costs(
        store=StoreCosts(latency_seconds=(0.02, 0.1), bytes_per_second=4e6), gather_seconds=1e-4,
        step=StepCosts(seconds=(0.05, 0.07), core_seconds=0.02, samples=50),
    )  # fmt: skip
    shape = equal_shards(shards=64, records=1000)
    fine, coarse = [], []
    for most, result in ((10**9, fine), (200, coarse)):
        monkeypatch.setattr("ringfeed.tools.predict.simulator._MOST_BLOCKS", most)
        result.append(simulate(shape, costs, setup(ranks=2, cores=2)))
    assert coarse[0].samples_per_second == pytest.approx(fine[0].samples_per_second, rel=0.03)


def test_a_smaller_share_of_a_batch_takes_its_part_of_what_is_not_fixed() -> None:
    step = replace(STEP, fixed_share=0.5)
    alone, halved = (simulate(equal_shards(), Costs(step=step), setup(ranks=ranks)).epochs[0] for ranks in (1, 2))
    assert halved.seconds == pytest.approx(0.75 * alone.seconds)
    with pytest.raises(ConfigError, match=r"step.fixed_share must lie in \[0, 1\], got 2"):
        replace(STEP, fixed_share=2)


def test_all_ranks_wait_for_the_slowest_and_for_the_ring() -> None:
    ring = RingCosts(latency_seconds=0.01, bytes_per_second=1e6, gradient_bytes=400_000)
    assert ring.seconds(4) == pytest.approx(6 * (0.01 + 0.1))
    step = StepCosts(seconds=(1.0, 3.0), core_seconds=0.0, samples=25)
    epoch = simulate(equal_shards(shards=16), Costs(step=step, ring=ring), setup(ranks=4)).epochs[0]
    # The longest of four draws of 1 or 3 s is 3 s but for 1 in 16.
    assert epoch.seconds / epoch.steps == pytest.approx(3 - 2 / 16 + ring.seconds(4), rel=0.15)
    assert max(epoch.wait_seconds) < 0.01  # which is no wait for input


def test_a_ring_takes_cores_that_steps_need() -> None:
    step = StepCosts(seconds=(1.0,), core_seconds=1.0, samples=50)
    ring = RingCosts(latency_seconds=0.2, core_seconds=0.3)  # 0.4 s, of two ranks, if there are two cores
    free, shared = (
        simulate(equal_shards(), Costs(step=step, ring=ring), setup(ranks=2, cores=cores)).epochs[0] for cores in (2, 1)
    )
    assert free.seconds / free.steps == pytest.approx(1.4)
    assert shared.seconds / shared.steps == pytest.approx(2 * 1.3)


def test_a_ring_is_fitted_to_measured_times() -> None:
    true = RingCosts(latency_seconds=2e-4, bytes_per_second=5e8)
    measured = {(n, size): replace(true, gradient_bytes=size).seconds(n) for n in (2, 4) for size in (1024, 1 << 24)}
    fitted = fit_ring(measured, 1 << 20)
    assert fitted.latency_seconds == pytest.approx(2e-4, rel=1e-6)
    assert fitted.bytes_per_second == pytest.approx(5e8, rel=1e-6)
    with pytest.raises(ConfigError, match="two sizes or more"):
        fit_ring({(2, 1024): 1.0}, 1024)


def test_a_cache_too_small_finds_what_the_formula_says() -> None:
    """docs/cache.md: of random orders, least recently used finds 1 - a + a ln a, if the part a does not fit."""
    shape = equal_shards(shards=800, records=10, size=1000)
    for a in (0.25, 0.5):
        options = setup(cache_bytes=int(shape.bytes * (1 - a)), epochs=4, is_warm=True, batch_size=80)
        result = simulate(shape, Costs(), options)
        share = sum(epoch.cache_hits for epoch in result.epochs[1:]) / (3 * 800)
        assert share == pytest.approx(1 - a + a * math.log(a), abs=0.06)


def test_ranks_of_a_host_share_a_cache_and_a_shard_on_its_way() -> None:
    costs = Costs(store=StoreCosts(latency_seconds=(0.2,)))
    for hosts, times in ((1, 1), (2, 2)):
        options = setup(ranks=2, hosts=hosts, streams=1, cache_bytes=1 << 30, epochs=2)  # both ranks read all records
        first, second = simulate(equal_shards(), costs, options).epochs
        assert first.fetched_bytes == times * 32_000_000
        assert (second.fetched_bytes, second.hit_share) == (0, 1.0)


def test_ranks_fetch_for_themselves_what_a_cache_cannot_keep_and_what_others_keep_in_memory() -> None:
    costs = Costs(store=StoreCosts(latency_seconds=(0.2,)))
    alone, *of_three = (
        simulate(equal_shards(), costs, setup(batch_size=99, ranks=ranks, streams=1, **cache)).epochs[0]
        for ranks, cache in (
            (1, {"cache_bytes": 1 << 30}),
            (3, {"cache_bytes": 1 << 30, "cache_in_memory": True}),
            (3, {"cache_bytes": 1}),
        )
    )
    assert [epoch.fetched_bytes for epoch in of_three] == [3 * alone.fetched_bytes] * 2
    assert of_three[0].seconds == pytest.approx(alone.seconds)  # nobody waits for another's memory
    assert of_three[1].first_batch_seconds == pytest.approx(3 * alone.first_batch_seconds)  # one after the other


def test_hosts_have_links_and_cores_of_their_own() -> None:
    costs = Costs(store=StoreCosts(bytes_per_second=1e6), byte_seconds=(1e-7,))
    one, two = (simulate(equal_shards(), costs, setup(ranks=2, hosts=hosts)).epochs[0] for hosts in (1, 2))
    assert one.seconds == pytest.approx(2 * two.seconds, rel=0.05)


def test_prices_are_of_bytes_requests_and_hours() -> None:
    costs = Costs(store=StoreCosts(bytes_per_second=1e6))
    options = setup(ranks=2, hosts=2)
    result = simulate(equal_shards(), costs, options, Prices(per_gb=1.0, per_thousand_requests=10, per_host_hour=100))
    assert result.cost == pytest.approx(0.032 + 0.64 + 200 * result.epochs[0].seconds / 3600)


def test_a_scaling_curve_keeps_the_batch_or_that_of_each_rank() -> None:
    costs = Costs(step=StepCosts(seconds=(0.1,), core_seconds=0.0, samples=8))
    shape = equal_shards(shards=64)
    strong = simulate_ranks(shape, costs, setup(batch_size=64), (1, 2, 4), ranks_per_host=2)
    assert [(each.setup.hosts, each.setup.batch_size) for each in strong] == [(1, 64), (1, 64), (2, 64)]
    assert strong[2].samples_per_second == pytest.approx(4 * strong[0].samples_per_second, rel=0.01)
    many = simulate_ranks(equal_shards(shards=64), costs, Setup(batch_size=64, cores=1), (16, 32), ranks_per_host=8)
    assert [each.streams for each in many] == [16, 32]
    assert many[1].epochs[0].fetched_bytes == many[1].dataset_bytes
    weak = simulate_ranks(shape, costs, setup(), (1, 2, 4), ranks_per_host=2, local_batch=8)
    assert [each.setup.batch_size for each in weak] == [8, 16, 32]
    assert weak[2].samples_per_second == pytest.approx(4 * weak[0].samples_per_second, rel=0.01)


def test_other_shards_hold_the_same_records_and_bytes() -> None:
    shape = equal_shards()
    other = shape.resharded(7)
    assert (other.records.sum(), len(other.records)) == (3200, 7)
    assert other.bytes == pytest.approx(shape.bytes, abs=7)
    assert shape.repeated(320_000).records.sum() == 320_000
    with pytest.raises(ConfigError, match="3200 records make 1 to 3200 shards, got 0"):
        shape.resharded(0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranks": 3, "hosts": 2}, "hosts must divide the 3 ranks, got 2"),
        ({"cores": 0}, "cores must be at least 1, got 0"),
        ({"streams": 3}, "streams must divide the global batch of 100, got 3"),
        ({"ranks": 128}, "a batch of 100 has no sample for some of 128 ranks"),
    ],
)
def test_impossible_setups_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        simulate(equal_shards(), Costs(), setup(**options))


def test_costs_survive_json() -> None:
    costs = Costs(step=STEP, store=StoreCosts(latency_seconds=(0.1, 0.2), bytes_per_second=1e6))
    assert Costs.from_json(costs.to_json()) == costs
    with pytest.raises(ConfigError, match="unknown key 'speed'"):
        Costs.from_json({"store": {}, "ring": {}, "speed": 1})
    with pytest.raises(ConfigError, match="no costs as `ringfeed simulate --save-costs` writes them"):
        Costs.from_json([])


@pytest.mark.parametrize(("shards", "streams"), [(1, 16), (3, 8), (8, 16), (24, 4), (24, 7)])
def test_as_many_files_and_bytes_are_fetched_as_by_the_loader(shards: int, streams: int, tmp_path: Path) -> None:
    table = pa.table({"x": [bytes(2000)] * 800, "y": np.arange(800) % 2})
    pq.write_table(table, tmp_path / "s.parquet")
    build(BuildOptions(source=str(tmp_path / "s.parquet"), destination=str(tmp_path / "d"), label="y", shards=shards))
    loader = Loader(tmp_path / "d", batch_size=112 if streams == 7 else 80, streams=streams)
    for _ in loader.numpy_epoch(0):
        pass
    real = loader.stats()["fetch"]
    costs, options = Costs(store=StoreCosts(is_local=True)), loader.arguments
    epoch = simulate(shape_of(loader), costs, Setup(batch_size=options["batch_size"], streams=streams)).epochs[0]
    assert epoch.requests == real.items
    assert epoch.fetched_bytes == pytest.approx(real.bytes, rel=0.02)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 48},
        {"batch_size": 48, "streams": 4, "window_shards": 2},
        {"batch_size": 48, "streams": 8, "prefetch_bytes": 3000},
        {"batch_size": 48, "streams": 8, "prefetch_bytes": 0, "rank": 1, "world_size": 2},
        {"batch_size": 40, "streams": 5, "rank": 0, "world_size": 2},
    ],
)
def test_the_model_requests_shards_in_the_order_of_the_loader(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table({"x": np.arange(1000.0), "y": np.arange(1000) % 2})
    pq.write_table(table, tmp_path / "s.parquet")
    build(BuildOptions(source=str(tmp_path / "s.parquet"), destination=str(tmp_path / "d"), label="y", shards=24))
    requested: list[int] = []
    request = ShardFetcher.request
    monkeypatch.setattr(
        ShardFetcher, "request",
        lambda self, segment, *step: (requested.append(segment.shard), request(self, segment, *step))[1],
    )  # fmt: skip
    loader = Loader(tmp_path / "d", seed=3, **options)
    for _ in loader.chunks(0):
        pass
    modelled: list[tuple[LoaderModel, int]] = []
    hold = LoaderModel._hold
    monkeypatch.setattr(
        LoaderModel, "_hold",
        lambda self, shard, *rest: (modelled.append((self, shard)), hold(self, shard, *rest))[1],
    )  # fmt: skip
    rank, ranks = options.pop("rank", 0), options.pop("world_size", 1)
    costs = Costs(store=StoreCosts(is_local=True))
    simulate(shape_of(loader), costs, Setup(seed=3, ranks=ranks, **options))
    models: Sequence[Any] = list(dict.fromkeys(model for model, _ in modelled))
    assert [shard for model, shard in modelled if model is models[rank]] == requested
    assert len(set(requested)) >= 12


@pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
@pytest.mark.parametrize("kind", ["numbers", "texts", "long texts", "ragged", "ragged texts"])
def test_the_model_hands_over_chunks_of_the_loaders_sizes(kind: str, shard_format: str, tmp_path: Path) -> None:
    """Whatever a loader decodes, locates or leaves to TensorFlow; a first batch waits for the first chunk alone."""
    column = {
        "numbers": pa.array(np.arange(800.0)), "texts": pa.array([bytes(500 + i % 2) for i in range(800)]),
        "long texts": pa.array([bytes(20_000 + i % 2) for i in range(800)]),
        "ragged": pa.array([[1.0] * (i % 7) for i in range(800)]),
        "ragged texts": pa.array([["a"] * (i % 7) for i in range(800)]),
    }[kind]  # fmt: skip
    pq.write_table(pa.table({"x": column, "y": np.arange(800) % 2}), tmp_path / "s.parquet")
    options = BuildOptions(
        source=str(tmp_path / "s.parquet"), destination=str(tmp_path / "d"), label="y", shards=8,
        shard_format=shard_format,
    )  # fmt: skip
    build(options)
    loader = Loader(tmp_path / "d", batch_size=16)
    shape = shape_of(loader)
    assert [shape.chunk_sizes] == loader._chunk_sizes
    real = [steps for steps, _ in loader.chunks(0)]
    modelled: list[int] = []
    put = Buffer.put
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Buffer, "put", lambda self, steps: (modelled.append(steps), put(self, steps))[1])
        simulate(shape, Costs(store=StoreCosts(is_local=True)), Setup(batch_size=16))
    assert modelled == real
