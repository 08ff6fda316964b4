"""The guarantees of `Loader`, as properties over its configurations."""

import shutil
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringfeed.pipeline import Loader
from ringfeed.pipeline.decode.columns import Columns, copy_columns
from ringfeed.pipeline.metrics.stage_counters import Counters
from ringfeed.pipeline.select.sample_columns import CLASS_ID
from ringfeed.pipeline.streams import stream_reader as streams
from ringfeed.pipeline.streams import window_opener
from ringfeed.pipeline.streams.borrowed_records import BorrowedRecords
from ringfeed.pipeline.streams.shard_fetcher import ShardFetcher
from ringfeed.sharding import BuildOptions, ConfigError, CorruptionError, DatasetError, build, open_dataset
from tests.helpers.numbered_records import RECORDS
from tests.helpers.reading import loader_with, read

Make = Callable[..., str]
GOLDEN_NATURAL = [490, 600, 618, 641, 14, 748, 775, 676, 291, 6, 310, 541]
GOLDEN_UNIFORM = [400, 82, 855, 250, 786, 560, 200, 117, 670, 100, 7, 545]


configurations = st.fixed_dictionaries(
    {
        "batch_size": st.sampled_from([12, 24, 48, 60]),
        "seed": st.integers(0, 1000),
        "streams": st.sampled_from([1, 2, 3, 4, 6, 12]),
        "window_shards": st.integers(1, 3),
        "balance": st.sampled_from(["natural", "uniform", {0: 0.1, 2: 0.9}, {0: 0.35, 1: 0.35, 2: 0.3}]),
    }
)
many = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@many
@given(configurations, st.integers(0, 3), st.sampled_from([2, 3, 4, 6, 12]))
def test_global_batches_do_not_depend_on_the_number_of_ranks(
    make_dataset: Make, options: dict[str, Any], epoch: int, world_size: int
) -> None:
    url = make_dataset(RECORDS)
    whole = read(Loader(url, **options), epoch)
    ranks = [Loader(url, rank=rank, world_size=world_size, **options) for rank in range(world_size)]
    assert {loader.steps_per_epoch for loader in ranks} == {len(whole["id"])}
    parts = [read(loader, epoch) for loader in ranks]
    for name, values in whole.items():
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts], axis=1), values)


@many
@given(configurations, st.integers(0, 3), st.sampled_from([1, 2, 3]), st.data())
def test_resuming_at_a_step_equals_continuing(
    make_dataset: Make, options: dict[str, Any], epoch: int, world_size: int, data: st.DataObject
) -> None:
    url = make_dataset(RECORDS)
    loader = Loader(url, rank=world_size - 1, world_size=world_size, **options)
    step = data.draw(st.integers(0, loader.steps_per_epoch - 1))
    whole, rest = read(loader, epoch), read(loader, epoch, step)
    for name, values in whole.items():
        np.testing.assert_array_equal(rest[name], values[step:])


@many
@given(configurations.filter(lambda options: options["balance"] != "natural"), st.sampled_from([1, 2, 3]), st.data())
def test_draws_in_small_chunks_are_the_same_draws(
    make_dataset: Make, options: dict[str, Any], world_size: int, data: st.DataObject
) -> None:
    loader = Loader(make_dataset(RECORDS), rank=world_size - 1, world_size=world_size, **options)
    step = data.draw(st.integers(0, loader.steps_per_epoch - 1))
    whole = read(loader)
    how = {"rank": world_size - 1, "world_size": world_size, **options}
    alone = loader_with({"most_steps": 1}, make_dataset(RECORDS), **how)
    for name, values in read(alone, 0, step).items():
        np.testing.assert_array_equal(values, whole[name][step:])


@many
@given(configurations, st.integers(0, 3))
def test_every_sample_holds_what_was_written(make_dataset: Make, options: dict[str, Any], epoch: int) -> None:
    samples = read(Loader(make_dataset(RECORDS), **options), epoch)
    ids = samples["id"]
    np.testing.assert_array_equal(samples["vector"], np.repeat(ids[..., None], 3, axis=-1).astype(np.float32))
    expected = np.where(ids % 50 == 0, 2, np.where(ids % 5 == 0, 1, 0))
    np.testing.assert_array_equal(samples["label"], expected)
    np.testing.assert_array_equal(samples["class_id"], expected)


def test_balance_may_change_from_epoch_to_epoch(make_dataset: Make) -> None:
    url = make_dataset(RECORDS)
    loader = Loader(url, batch_size=48, streams=12, balance="uniform->natural:2")
    shares = [np.bincount(read(loader, epoch)["label"].reshape(-1), minlength=3) for epoch in range(3)]
    expected = [np.array([1, 1, 1]) / 3, None, None]
    expected[1] = (expected[0] + np.array([0.8, 0.18, 0.02])) / 2
    for share, target in zip(shares[:2], expected[:2], strict=True):
        np.testing.assert_allclose(share, target * loader.steps_per_epoch * 48, atol=1)
    np.testing.assert_array_equal(read(loader, 2)["id"], read(Loader(url, batch_size=48, streams=12), 2)["id"])
    np.testing.assert_array_equal(
        read(loader)["id"], read(Loader(url, batch_size=48, streams=12, balance="uniform"))["id"]
    )


@pytest.mark.parametrize("world_size", [1, 3])
def test_an_epoch_may_be_longer_or_shorter_than_the_dataset(make_dataset: Make, world_size: int) -> None:
    def ids_of(**options: Any) -> list[int]:
        loaders = [
            Loader(make_dataset(RECORDS), batch_size=12, streams=4, rank=rank, world_size=world_size, **options)
            for rank in range(world_size)
        ]
        assert {loader.plan(1).steps for loader in loaders} == {loaders[0].steps_per_epoch}
        parts = [read(loader, 1)["id"] for loader in loaders]
        assert {len(part) for part in parts} == {loaders[0].steps_per_epoch}
        return [int(i) for part in parts for i in part.reshape(-1)]

    def records(value: int) -> set[int]:
        return {i for i in range(RECORDS) if value == (2 if i % 50 == 0 else i % 5 == 0)}

    over, under = (ids_of(balance="uniform", epoch_length=length) for length in ("oversample", "undersample"))
    assert len(over) == 2400
    assert len(records(0) - set(over)) <= 7  # a window rounds, and there is one for each shard
    assert np.ptp(np.bincount(over, minlength=RECORDS)[list(records(0))]) <= 2
    assert len(under) == 60
    assert np.bincount(under).max() <= 2
    assert len(records(2) & set(under)) >= 16
    assert len(ids_of(balance="uniform", epoch_length=5000)) == 4992
    in_proportion = ids_of(balance="uniform->natural:1", epoch_length=3000)  # natural from epoch 1 on
    assert [len([i for i in in_proportion if i in records(value)]) for value in range(3)] == [2400, 540, 60]
    part = ids_of(epoch_length=250)
    assert len(set(part)) == len(part) == 240
    with pytest.raises(ConfigError, match="the split has 1000 records, an epoch cannot have 1200"):
        ids_of(epoch_length=1200)


@pytest.mark.parametrize("steps", [range(3), range(20_000, 20_003)])
def test_a_long_epoch_takes_no_more_memory(make_dataset: Make, steps: range) -> None:
    url = make_dataset(RECORDS, shards=2, shard_format="parquet")
    loader = Loader(url, batch_size=60, streams=1, balance="uniform", epoch_length=2_000_000)
    tracemalloc.start()
    try:
        chunks = loader.chunks(0, steps.start)
        next(chunks)
        chunks.close()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20  # where 8 bytes for each sample of a window are 8 MB


@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (1, 3)])
@pytest.mark.parametrize("step", [0, 217, 1660])
def test_any_part_of_a_long_epoch_is_the_same(
    make_dataset: Make, monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int, step: int
) -> None:
    url, options = make_dataset(RECORDS), {"batch_size": 12, "streams": 4, "balance": "uniform", "epoch_length": 20_000}
    whole = read(Loader(url, **options))["id"]
    monkeypatch.setattr(window_opener, "_SAMPLE_BLOCK", 1)  # then as many are drawn at a time as the window has records
    part = read(Loader(url, rank=rank, world_size=world_size, **options), 0, step)["id"]
    np.testing.assert_array_equal(part, np.split(whole, world_size, axis=1)[rank][step:])


def test_a_short_epoch_reads_only_the_shards_that_it_needs(make_dataset: Make) -> None:
    loader = Loader(make_dataset(RECORDS), batch_size=50, streams=1, epoch_length=250)
    whole = Loader(make_dataset(RECORDS), batch_size=50, streams=1)
    assert sum(loader.plan().bytes_per_rank) < sum(whole.plan().bytes_per_rank) / 3
    read(loader)
    assert loader.stats()["open"].items <= 3


@many
@given(configurations.filter(lambda options: options["balance"] == "natural"), st.integers(0, 3))
def test_natural_order_gives_each_sample_once_except_the_announced_remainder(
    make_dataset: Make, options: dict[str, Any], epoch: int
) -> None:
    loader = Loader(make_dataset(RECORDS), **options)
    ids = read(loader, epoch)["id"].reshape(-1)
    assert len(set(ids.tolist())) == len(ids) == RECORDS - loader.plan(epoch).dropped


@many
@given(configurations, st.integers(0, 3))
def test_balanced_batches_are_within_one_of_the_target(make_dataset: Make, options: dict[str, Any], epoch: int) -> None:
    if options["balance"] == "natural":
        return
    weights = {0: 1 / 3, 1: 1 / 3, 2: 1 / 3} if options["balance"] == "uniform" else options["balance"]
    loader = Loader(make_dataset(RECORDS), **options)
    labels = read(loader, epoch)["label"]
    mix = loader.plan(epoch).class_mix
    for value in range(3):
        per_batch = (labels == value).sum(axis=1)
        target = weights.get(value, 0.0) * options["batch_size"]
        assert np.abs(per_batch - target).max() < 1 + 1e-6
        assert mix[value].per_batch == (per_batch.min(), per_batch.max())
        assert mix[value].samples == per_batch.sum()


@many
@given(st.integers(1, 60), st.sampled_from([1, 2, 3, 4, 6, 12]), st.integers(0, 20), st.sampled_from([1, 2, 3]))
def test_padding_gives_every_sample_exactly_once(
    make_dataset: Make, records: int, streams: int, seed: int, world_size: int
) -> None:
    records += 12
    url = make_dataset(records - records % 6, shards=3)
    options: dict[str, Any] = {"batch_size": 12, "streams": streams, "seed": seed, "remainder": "pad"}
    parts = [read(Loader(url, rank=rank, world_size=world_size, **options)) for rank in range(world_size)]
    weights = np.concatenate([part["sample_weight"].reshape(-1) for part in parts])
    ids = np.concatenate([part["id"].reshape(-1) for part in parts])
    assert sorted(ids[weights == 1].tolist()) == list(range(records - records % 6))
    assert set(weights.tolist()) <= {0.0, 1.0}
    assert (weights == 0).sum() == Loader(url, **options).plan().padded


@pytest.mark.parametrize("fixed", [True, False])
def test_formats_hold_the_same_samples_in_the_same_order(make_dataset: Make, fixed: bool) -> None:
    batches = []
    for shard_format in ("tfrecord", "parquet"):
        url = make_dataset(RECORDS, shard_format=shard_format, fixed=fixed)
        loader = Loader(url, batch_size=48, seed=3, balance="uniform")
        batches.append([{n: v.numpy().tolist() for n, v in batch.items()} for batch in loader.epoch(1, start_step=7)])
    assert batches[0] == batches[1]
    assert len(batches[0]) == RECORDS // 48 - 7


def test_a_tensorflow_dataset_knows_its_length_and_can_be_read_again(make_dataset: Make) -> None:
    dataset = Loader(make_dataset(RECORDS), batch_size=60).epoch(0)
    assert int(dataset.cardinality()) == RECORDS // 60
    first, second = ([batch["id"].numpy().tolist() for batch in dataset] for _ in range(2))
    assert first == second


def test_a_class_that_windows_lack_is_borrowed_and_announced(make_dataset: Make) -> None:
    url = make_dataset(400, shards=16)  # 8 rare records in 16 shards
    loader = Loader(url, batch_size=16, streams=8, balance="uniform", seed=5)
    plan = loader.plan()
    assert {entry.class_value for entry in plan.missing} == {2}
    labels = read(loader)["label"]
    assert ((labels == 2).sum(axis=1) >= 5).all()
    assert loader.plan().missing == plan.missing
    assert Loader(url, batch_size=16, streams=8, seed=5).plan().missing == ()


@pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
@pytest.mark.parametrize("fixed", [True, False])
def test_a_shard_that_lends_is_fetched_once_for_all_windows(
    make_dataset: Make, monkeypatch: pytest.MonkeyPatch, shard_format: str, fixed: bool
) -> None:
    url = make_dataset(800, shards=64, fixed=fixed, shard_format=shard_format)  # 16 rare records in 64 shards
    loader = Loader(url, batch_size=16, streams=2, balance="uniform", seed=5, prefetch_bytes=0)
    lacking = [entry.donor for entry in loader.plan().missing]
    assert len(lacking) > 2 * len(set(lacking)) > 8
    batches = numpy_batches(loader)
    fetched = loader.stats()["fetch"].items
    # Files: of all shards, of one that the cut between the streams divides, and of those that lend before they are due.
    assert fetched <= 2 * (64 + 1 + len(set(lacking)))
    monkeypatch.setattr(BorrowedRecords, "get", lambda *_: None)
    other = Loader(url, batch_size=16, streams=2, balance="uniform", seed=5, prefetch_bytes=0)
    assert numpy_batches(other) == batches
    assert other.stats()["fetch"].items > 1.2 * fetched


def numpy_batches(loader: Loader) -> list[dict[str, Any]]:
    """Of the first epoch, by value."""
    columns = [dict(batch) for batch in loader.numpy_epoch(0)]
    return [{name: np.asarray(values, object).tolist() for name, values in each.items()} for each in columns]


def test_classes_that_one_shard_lends_are_borrowed_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids, shards = np.arange(240), 6
    pq.write_table(pa.table({"id": ids, "label": ids % 120}), tmp_path / "source.parquet")
    options = BuildOptions(source=str(tmp_path / "source.parquet"), destination=str(tmp_path / "shards"))
    build(replace(options, label="label", shards=shards, min_class_records=1))
    asked = []
    request = ShardFetcher.request
    monkeypatch.setattr(ShardFetcher, "request", lambda *given: asked.append(given) or request(*given))  # type: ignore[func-returns-value]
    loader = Loader(tmp_path / "shards", batch_size=60, streams=6, balance="uniform")
    batches = list(loader.numpy_epoch(0))
    assert len(asked) <= 6 * (1 + shards)  # a window lacks some 80 classes
    assert all((np.asarray(batch["id"]) % 120 == batch["label"]).all() for batch in batches)
    assert len({missing.class_value for missing in loader.plan().missing}) == 120


def test_borrowing_counts_as_planning_but_waiting_for_a_lender_does_not(
    make_dataset: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = make_dataset(400, shards=16)  # 8 rare records in 16 shards
    stages: list[str] = []
    seen = set()
    busy = Counters.busy

    @contextmanager
    def noted(self: Counters, stage: str, **given: int) -> Iterator[None]:
        stages.append(stage)
        with busy(self, stage, **given):
            yield
        stages.remove(stage)

    def seeing(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: seen.add((name, "plan" in stages)) or call(*given)  # type: ignore[func-returns-value]

    monkeypatch.setattr(Counters, "busy", noted)
    monkeypatch.setattr(BorrowedRecords, "keep", seeing("keep", BorrowedRecords.keep))
    monkeypatch.setattr(ShardFetcher, "wait", seeing("wait", ShardFetcher.wait))
    list(Loader(url, batch_size=16, streams=8, balance="uniform", seed=5).numpy_epoch(0))
    assert seen == {("keep", True), ("wait", False)}


@pytest.mark.parametrize(("balance", "remainder"), [("natural", "drop"), ("natural", "pad"), ("uniform", "drop")])
def test_ranks_that_divide_the_streams_read_each_byte_once(make_dataset: Make, balance: str, remainder: str) -> None:
    url = make_dataset(RECORDS, shards=12, fixed=False)
    total = sum(shard.bytes + shard.index_bytes for shard in open_dataset(url).shards)
    for ranks in (1, 2, 3, 6):
        loaders = [
            Loader(url, batch_size=216, streams=6, remainder=remainder, balance=balance, rank=rank, world_size=ranks)  # type: ignore[arg-type]
            for rank in range(ranks)
        ]
        assert sum(loaders[0].plan().bytes_per_rank) <= 1.05 * total
        for loader in loaders:
            for _ in loader.numpy_epoch(0):
                pass
        assert sum(loader.stats()["fetch"].bytes for loader in loaders) <= 1.05 * total


def test_streams_that_share_a_shard_read_it_once_even_late(make_dataset: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    url = make_dataset(RECORDS, shards=2)
    total = sum(shard.bytes + shard.index_bytes for shard in open_dataset(url).shards)
    request = ShardFetcher.request

    def late(*asked: Any) -> Any:
        time.sleep(0.05)  # by then the windows of the streams before are open
        return request(*asked)

    monkeypatch.setattr(ShardFetcher, "request", late)
    loader = Loader(url, batch_size=60, streams=4)
    assert list(loader.numpy_epoch(0))
    assert loader.stats()["fetch"].bytes == total


def test_sums_over_classes_are_kept_in_the_announced_mix(make_dataset: Make) -> None:
    natural = Loader(make_dataset(RECORDS), batch_size=60).plan().class_mix
    assert {value: mix.records for value, mix in natural.items()} == {0: 800, 1: 180, 2: 20}
    assert sum(mix.samples for mix in natural.values()) == pytest.approx(960)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"world_size": 0}, r"rank must lie in \[0, world_size\), got rank 0 of 0"),
        ({"rank": 2, "world_size": 2}, "rank must lie in"),
        ({"balance": "uniform", "remainder": "pad"}, "needs balance='natural': a balanced epoch has no rest to pad"),
        ({"balance": "uniform", "remainder": "wrap"}, "has no rest to wrap"),
        ({"balance": "uniform", "shuffle": False}, "shuffle=False needs balance='natural'"),
        ({"batch_size": 6e1}, "batch_size must be an integer, got 60.0"),
        ({"seed": None}, "seed must be an integer, got None"),
        ({"rank": "0"}, "rank must be an integer, got '0'"),
        ({"window_shards": 1.5}, "window_shards must be an integer, got 1.5"),
        ({"fetch_threads": 0}, "fetch_threads must be at least 1, got 0"),
        ({"fill": {"nowhere": 0}}, "fill names 'nowhere', which is no feature; they are: id, vector, label"),
        ({"fill": {"id": 2**63}}, "fill of feature 'id' must be one int64 value, got 9223372036854775808"),
        ({"fill": {"id": 1.5}}, "must be one int64 value, got 1.5"),
        ({"fill": {"id": None}}, "must be one int64 value, got None"),
        ({"fill": {"vector": [1, 2, 3]}}, r"must be one float32 value, got \[1, 2, 3\]"),
    ],
)
def test_impossible_arguments_are_refused(make_dataset: Make, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Loader(make_dataset(RECORDS), **{"batch_size": 60, **options})


@pytest.mark.parametrize("name", ["class_id", "soft_label", "sample_weight", "sample_key"])
def test_a_column_with_a_reserved_name_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    pq.write_table(pa.table({name: range(9), "x": range(9)}), tmp_path / "x.parquet")
    options = BuildOptions(source=str(tmp_path / "x.parquet"), destination=str(tmp_path / "out"))
    with pytest.raises(ConfigError, match=f"a column is called '{name}', .* --rename {name}={name}_1, or leave it out"):
        build(options)
    monkeypatch.setattr("ringfeed.sharding.building.survey.RESERVED_NAMES", ())  # as older versions built it
    build(options)
    with pytest.raises(ConfigError, match=f"a feature is called '{name}', .*reshard --rename {name}=NAME"):
        Loader(str(tmp_path / "out"), batch_size=3)
    assert Loader(str(tmp_path / "out"), batch_size=3, columns=["x"]).schema.names == ("x",)


def test_a_missing_split_and_a_missing_dataset_are_named(make_dataset: Make, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no split 'val'; the dataset has 'train'"):
        Loader(make_dataset(RECORDS), split="val", batch_size=60)
    with pytest.raises(DatasetError, match="no dataset at"):
        Loader(str(tmp_path), batch_size=60)


def test_numpy_integers_mean_the_same_as_python_ones(make_dataset: Make) -> None:
    plain = Loader(make_dataset(RECORDS), batch_size=60, seed=3, sample_keys=True, balance="uniform")
    options: Any = {"batch_size": np.int64(60), "seed": np.int64(3), "sample_keys": True, "balance": "uniform"}
    loader = Loader(make_dataset(RECORDS), **options)
    for mine, other in zip(loader.numpy_epoch(np.int64(2), np.int32(10)), plain.numpy_epoch(2, 10), strict=True):
        np.testing.assert_array_equal(mine["id"], other["id"])
        np.testing.assert_array_equal(mine["sample_key"], other["sample_key"])
    assert loader.plan(np.int64(2)) == plain.plan(2)
    assert loader.shuffle_quality(np.int64(2)) == plain.shuffle_quality(2)
    with pytest.raises(ConfigError, match=r"epoch must be an integer, got 2\.0"):
        plain.plan(2.0)  # type: ignore[arg-type]


def test_a_step_beyond_the_epoch_is_refused(make_dataset: Make) -> None:
    loader = Loader(make_dataset(RECORDS), batch_size=60)
    with pytest.raises(ConfigError, match="steps 0 to 16, got epoch 0, start_step 17"):
        loader.epoch(0, 17)


def test_a_damaged_shard_stops_the_epoch_and_is_named(make_dataset: Make, tmp_path: Path) -> None:
    shutil.copytree(make_dataset(RECORDS), tmp_path / "copy")
    victim = tmp_path / "copy" / "train-00003-of-00007.tfrecord"
    data = bytearray(victim.read_bytes())
    data[100] ^= 1
    victim.write_bytes(data)
    loader = Loader(str(tmp_path / "copy"), batch_size=60)
    with pytest.raises(CorruptionError, match=r"train-00003-of-00007\.tfrecord is damaged"):
        read(loader)
    with pytest.raises(tf.errors.UnknownError, match=r"CorruptionError: .*train-00003-of-00007\.tfrecord is damaged"):
        list(loader.epoch(0))
    with pytest.raises(CorruptionError, match=r"train-00003-of-00007\.tfrecord is damaged"), loader.own_errors():
        list(loader.epoch(0))
    with pytest.raises(CorruptionError, match=r"train-00003-of-00007\.tfrecord is damaged"):
        list(loader.batches(0))
    with pytest.raises(ZeroDivisionError), loader.own_errors():
        raise ZeroDivisionError


def test_stages_are_counted(make_dataset: Make) -> None:
    loader = Loader(make_dataset(RECORDS), batch_size=60)
    read(loader)
    stats = loader.stats()
    assert stats["deliver"].items == stats["gather"].items == 960
    assert stats["verify"].bytes > 0
    assert stats["fetch"].queue_depth == 0


def test_shards_that_were_never_fetched_are_not_waited_for(make_dataset: Make) -> None:
    loader = Loader(make_dataset(RECORDS, shards=60), batch_size=4, streams=1, fetch_threads=1, prefetch_bytes=1 << 30)
    chunks = loader.chunks(0)
    next(chunks)
    chunks.close()
    deadline = time.monotonic() + 60
    while loader.stats()["fetch"].queue_depth and time.monotonic() < deadline:
        time.sleep(0.01)
    assert loader.stats()["fetch"].queue_depth == 0


def test_each_of_many_windows_in_a_chunk_is_copied_once(make_dataset: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []

    def noted(columns: Columns) -> Columns:
        rows.append(len(columns[CLASS_ID]))
        return copy_columns(columns)

    monkeypatch.setattr(streams, "copy_columns", noted)
    read(Loader(make_dataset(RECORDS, shards=60), batch_size=100, streams=1))
    assert RECORDS / 2 < sum(rows) < RECORDS


def test_windows_that_serve_nothing_are_not_in_the_plan(make_dataset: Make) -> None:
    loader = Loader(make_dataset(RECORDS, shards=60), batch_size=600, streams=1)
    plan = loader.plan()
    read(loader)
    assert loader.stats()["fetch"].bytes == plan.bytes_per_rank[0]


@pytest.mark.parametrize(("balance", "expected"), [("natural", GOLDEN_NATURAL), ("uniform", GOLDEN_UNIFORM)])
def test_the_order_is_the_same_in_every_version_of_the_code(
    make_dataset: Make, balance: str, expected: list[int]
) -> None:
    """Ids of step 5 of epoch 1, recorded 2026-11-25. A change ends older runs, and needs a new ORDER_VERSION."""
    loader = Loader(make_dataset(RECORDS), batch_size=12, seed=7, balance=balance)
    assert read(loader, 1, 5, 6)["id"][0].tolist() == expected


def test_an_index_is_refused_with_what_to_write_for_pytorch(make_dataset: Callable[..., str]) -> None:
    """PyTorch's `DataLoader(loader)` asks for `loader[0]`."""
    loader = Loader(make_dataset(), split="train", batch_size=64)
    with pytest.raises(ConfigError, match=r"write DataLoader\(ringfeed.pipeline.torch.TorchDataset\(loader\), "):
        loader[0]
