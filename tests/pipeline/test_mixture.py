"""Mixtures keep the guarantees of a loader, for any shares of any datasets.

Covers `mixture`, `mixture_loaders` and `mixture_streams`.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringfeed.pipeline import Loader, Mixture, Ramp, mixture_streams
from ringfeed.pipeline.decode.columns import Columns, copy_columns
from ringfeed.pipeline.order.class_balance import ClassSchedule
from ringfeed.pipeline.select.sample_columns import CLASS_ID
from ringfeed.pipeline.streams.prefetch_budget import PrefetchBudget
from ringfeed.sharding import BuildOptions, ConfigError, DatasetError, build
from tests.helpers.reading import read

Make = Callable[..., str]
RECORDS = {"large": 1000, "small": 90}


@pytest.fixture(scope="module")
def sources(make_dataset: Make) -> dict[str, dict[str, Any]]:
    return {
        "large": {"url": make_dataset(RECORDS["large"])},
        "small": {"url": make_dataset(RECORDS["small"], shards=2, shard_format="parquet"), "balance": "uniform"},
    }


configurations = st.fixed_dictionaries(
    {
        "batch_size": st.sampled_from([12, 24, 48]),
        "seed": st.integers(0, 1000),
        "streams": st.sampled_from([1, 2, 3, 4, 12]),
        "weights": st.sampled_from(
            [
                "natural",
                "uniform",
                "power:0.5",
                "uniform->natural:2",
                {"large": 0.85, "small": 0.15},
                {"large": 0, "small": 1.0},
            ]
        ),
    }
)
some = settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@some
@given(configurations, st.integers(0, 2), st.sampled_from([2, 3, 4, 5]), st.data())
def test_batches_depend_neither_on_ranks_nor_on_the_first_step(
    sources: Any, options: dict[str, Any], epoch: int, world_size: int, data: st.DataObject
) -> None:
    mixture = Mixture(sources, **options)
    whole = read(mixture, epoch)
    step = data.draw(st.integers(0, mixture.steps_per_epoch - 1))
    parts = [read(Mixture(sources, rank=r, world_size=world_size, **options), epoch, step) for r in range(world_size)]
    for name, values in whole.items():
        served = np.concatenate([part[name] for part in parts], axis=1)
        if "sample_weight" in parts[0]:
            counts = np.concatenate([part["sample_weight"] for part in parts], axis=1) == 1
            served = served[counts].reshape(values[step:].shape)
        np.testing.assert_array_equal(served, values[step:])


@some
@given(configurations, st.integers(0, 2))
def test_every_batch_holds_the_shares_and_each_sample_what_was_written(
    sources: Any, options: dict[str, Any], epoch: int
) -> None:
    mixture = Mixture(sources, **options)
    samples, plan = read(mixture, epoch), mixture.plan(epoch)
    per_batch = (samples["source_id"] == 0).sum(axis=1)
    mix = plan.sources["large"]
    assert per_batch.sum() == mix.samples
    assert (per_batch.min(), per_batch.max()) == mix.per_batch
    assert np.ptp(per_batch) <= 1
    assert sum(source.samples for source in plan.sources.values()) == plan.steps * plan.batch_size
    np.testing.assert_array_equal(samples["vector"][..., 0], samples["id"].astype(np.float32))
    np.testing.assert_array_equal(samples["class_id"], samples["label"])


@pytest.mark.parametrize("streams", [1, 4, 12])
@pytest.mark.parametrize(
    "weights", [{"large": 0.9, "small": 0.1}, {"large": 0.03, "small": 0.97}, "uniform->natural:2"]
)
def test_a_dataset_is_served_whole_before_any_of_its_records_comes_again(
    sources: Any, streams: int, weights: Any
) -> None:
    """Its epoch_length changes nothing."""
    small = {"url": sources["small"]["url"], "epoch_length": 50}
    options: dict[str, Any] = {"batch_size": 36, "streams": streams, "weights": weights, "steps_per_epoch": 25}
    mixture = Mixture({"large": {**sources["large"], "where": "id < 300"}, "small": small}, **options)
    drawn: dict[int, list[int]] = {0: [], 1: []}
    for epoch in range(5):
        samples = read(mixture, epoch)
        for source, served in drawn.items():
            served += samples["id"][samples["source_id"] == source].tolist()
    for source, records in enumerate((300, RECORDS["small"])):
        passes = [drawn[source][start : start + records] for start in range(0, len(drawn[source]), records)]
        assert all(len(set(ids)) == len(ids) for ids in passes)


def test_a_rank_reads_its_own_part_but_for_the_ends_of_passes(make_dataset: Make) -> None:
    options: dict[str, Any] = {"batch_size": 48, "streams": 12, "weights": {"large": 0.4, "small": 0.6}}
    mixed = {"large": {"url": make_dataset(RECORDS["large"])}, "small": {"url": make_dataset(RECORDS["small"])}}
    parts = []
    for rank in range(4):
        samples = read(Mixture(mixed, rank=rank, world_size=4, **options))
        parts.append(set(samples["id"][samples["source_id"] == 0].tolist()))
    assert len(set.union(*parts)) == sum(map(len, parts)) > 400


def test_classes_are_those_of_all_datasets(make_dataset: Make, sources: Any) -> None:
    other = make_dataset(300, fixed=False, shard_format="parquet")
    with pytest.raises(ConfigError, match=r"'large' has 'label' of int64\[\], 'words' has 'label' of string\[\]"):
        Mixture({**sources, "words": {"url": other}}, batch_size=12)
    texts = {"first": {"url": other}, "second": {"url": make_dataset(200, fixed=False, shard_format="parquet")}}
    mixture = Mixture(texts, batch_size=12)
    samples = read(mixture)
    names = np.array(mixture.classes)
    np.testing.assert_array_equal(names[samples["class_id"]], samples["label"].astype(str))


def test_a_late_epoch_continues_where_earlier_ones_ended(sources: Any) -> None:
    """Shares that stay as they are from some epoch on are not counted epoch by epoch."""
    options: dict[str, Any] = {"batch_size": 24, "steps_per_epoch": 5}
    ramp = "uniform->natural:3"
    steady, function = (Mixture(sources, weights=weights, **options) for weights in (ramp, _ramp))
    for epoch in (2, 3, 4, 7, 18, 19, 37):
        np.testing.assert_array_equal(read(steady, epoch)["id"], read(function, epoch)["id"])
    begun = time.process_time()
    for weights in (ramp, "natural"):
        read(Mixture(sources, weights=weights, **options), 10**6)
    assert time.process_time() - begun < 20


def test_a_function_of_the_epoch_is_called_once_for_each_served_epoch(sources: Any) -> None:
    asked: list[int] = []

    def weights(epoch: int) -> Any:
        asked.append(epoch)
        return {"large": 0.5 + 0.01 * epoch, "small": 0.5 - 0.01 * epoch}

    mixture = Mixture(sources, batch_size=12, streams=12, weights=weights)
    asked.clear()
    next(mixture.numpy_epoch(20, 3, prefetch_bytes=0))
    assert sorted(set(asked)) == list(range(21))
    assert len(asked) <= 21 + 1  # once more for the one that is read


def test_epochs_beyond_64_bits_of_samples_are_refused(sources: Any) -> None:
    mixture = Mixture(sources, batch_size=10, streams=2)
    last = (2**63 - 1) // mixture.plan().steps // 10 - 1
    assert len(next(mixture.numpy_epoch(last))["id"]) == 10
    kept = mixture.state(last, 3)
    assert mixture.resume(kept) == (last, 3)
    refused: list[Callable[[], Any]] = [
        lambda: next(mixture.numpy_epoch(last + 1)),
        lambda: mixture.plan(2**64),
        lambda: mixture.state(2**70, 0),
        lambda: mixture.resume({**kept, "epoch": last + 1}),
    ]
    for call in refused:
        with pytest.raises(ConfigError, match=r"together must have fewer than 2\*\*63 samples, got epoch \d+ of 1090"):
            call()


def test_a_share_of_less_than_a_seat_an_epoch_is_met_over_many(sources: Any) -> None:
    rare = Mixture(sources, batch_size=24, weights={"large": 0.99, "small": 0.01}, steps_per_epoch=1)
    served = [rare.plan(epoch).sources["small"].samples for epoch in range(160)]
    assert set(served) == {0, 1}
    assert abs(sum(served) - 0.24 * 160) < 10  # of every 16 epochs one seat too many or too few, at most


def _ramp(epoch: int) -> Any:
    return Ramp(start="uniform", end="natural", epochs=3) if epoch < 3 else "natural"


def test_batches_cross_into_tensorflow(make_dataset: Make, sources: Any) -> None:
    mixture = Mixture(sources, batch_size=24, weights="uniform")
    dataset = mixture.epoch(0, 2)
    assert dataset.cardinality().numpy() == mixture.steps_per_epoch - 2
    expected = read(mixture, 0, 2)
    for number, batch in enumerate(dataset):
        for name, values in expected.items():
            np.testing.assert_array_equal(batch[name].numpy(), values[number])
    undecoded = {name: {"url": make_dataset(size, fixed=False)} for name, size in (("one", 300), ("two", 200))}
    batches = list(Mixture(undecoded, batch_size=20).epoch(0))
    assert len(batches) == 25
    assert set(batches[0]) == {"id", "vector", "label", "class_id", "source_id"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"weights": {"large": 0.5, "medium": 0.5}},
            "weights: there is no dataset 'medium'; the datasets are: 'large', 'small'",
        ),
        ({"weights": {"large": 1.0}}, "weights has no share for the dataset 'small'; give it one, or 0 to serve none"),
        ({"weights": {"large": -0.5}}, "the shares of weights must be numbers from 0 up"),
        ({"weights": lambda epoch: {"small": "all"}}, "the share of 'small' in weights must be a number, got 'all'"),
        ({"weights": np.array([0.5, 0.5])}, r"weights must be 'natural', .* or a share by dataset, got array\("),
        ({"weights": "uniform->natural"}, "weights 'uniform->natural' does not say over how many epochs"),
        ({"sources": {}}, "needs at least one dataset"),
        ({"sources": {"mixture": {}}}, "no dataset of a mixture may be called 'mixture'"),
        ({"rank": 2, "world_size": 2}, "rank must lie in"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"steps_per_epoch": 0}, "at least one global batch of 24 samples"),
        ({"steps_per_epoch": 2.0}, "steps_per_epoch must be an integer, got 2.0"),
        ({"seed": 1.5}, "seed must be an integer, got 1.5"),
    ],
)
def test_an_impossible_mixture_is_refused(sources: Any, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Mixture(**{"sources": sources, "batch_size": 24, **change})
    with pytest.raises(ConfigError, match="'large' of the mixture has its own seed"):
        Mixture({"large": {**sources["large"], "seed": 3}}, batch_size=24)
    with pytest.raises(ConfigError, match="'large' of the mixture has its own sample_keys"):
        Mixture({"large": {**sources["large"], "sample_keys": True}}, batch_size=24)
    with pytest.raises(
        ConfigError, match="'small' of the mixture: the split has 90 records, fewer than its 96 streams"
    ):
        Mixture(sources, batch_size=96, streams=96)
    with pytest.raises(DatasetError, match="'large' of the mixture: there is no split 'val'; the dataset has 'train'"):
        Mixture({"large": {**sources["large"], "split": "val"}}, batch_size=24)
    with pytest.raises(ConfigError, match="'large' of the mixture has a bucket_by"):
        Mixture({"large": {**sources["large"], "bucket_by": "vector"}}, batch_size=24)


def test_a_balance_that_fails_in_a_later_epoch_names_the_dataset(sources: Any) -> None:
    balance = lambda epoch: "uniform" if epoch < 20 else {"none": 1.0}  # noqa: E731
    mixture = Mixture({**sources, "small": {**sources["small"], "balance": balance}}, batch_size=24)
    mixture.plan(0)
    for ask in (lambda: mixture.plan(50), lambda: mixture.state(50, 0), lambda: list(mixture.numpy_epoch(50))):
        with pytest.raises(ConfigError, match="dataset 'small' of the mixture: balance: there is no class 'none'"):
            ask()


def test_a_filter_or_a_short_epoch_leaves_as_many_streams_as_there_are_samples(sources: Any) -> None:
    few = {"large": {**sources["large"], "where": "id < 5"}, "small": {"url": sources["small"]["url"]}}
    assert Mixture(few, batch_size=24).plan().streams == 4
    few["large"] = {**sources["large"], "epoch_length": 3}
    assert Mixture(few, batch_size=24).plan().streams == 3


def test_missing_values_are_filled_where_records_of_all_datasets_are_parsed_together(tmp_path: Path) -> None:
    table = pa.table({"count": pa.array([None, 1, 2, 3] * 10, pa.int64()), "word": ["a", "bcd"] * 20})
    pq.write_table(table, tmp_path / "source.parquet")
    build(BuildOptions(source=str(tmp_path / "source.parquet"), destination=str(tmp_path / "made"), shards=2))
    given = {"url": str(tmp_path / "made"), "fill": {"count": 9}}
    mixture = Mixture({"one": given, "two": given}, batch_size=8, sample_keys=True)
    batches = zip(mixture.epoch(0), mixture.numpy_epoch(0), strict=True)
    counts = []
    for batch, arrays in batches:
        assert set(batch) == {"count", "word", "class_id", "source_id", "sample_key"}
        for name, values in arrays.items():
            np.testing.assert_array_equal(batch[name].numpy(), values)
        counts += arrays["count"].tolist()
    assert set(counts) == {1, 2, 3, 9}
    with pytest.raises(ConfigError, match="give all of them the same `fill`"):
        Mixture({"one": given, "two": {**given, "fill": {"count": 0}}}, batch_size=8)


@pytest.fixture
def budgets(monkeypatch: pytest.MonkeyPatch) -> list[PrefetchBudget]:
    """What looks ahead for each dataset of an epoch."""
    made: list[PrefetchBudget] = []

    class Noted(PrefetchBudget):
        def __init__(self, limit_bytes: int) -> None:
            super().__init__(limit_bytes)
            made.append(self)

    monkeypatch.setattr("ringfeed.pipeline.loader.PrefetchBudget", Noted)
    return made


def test_one_window_per_stream_is_fetched_ahead(sources: Any, budgets: list[PrefetchBudget]) -> None:
    sources = {name: {**source, "cache": "memory"} for name, source in sources.items()}  # no files that are mapped
    next(Mixture(sources, batch_size=24).chunks(0))
    next(Loader(**sources["large"], batch_size=24).chunks(0))
    large, _, alone = budgets
    assert large.limit_bytes == alone.limit_bytes
    assert 0 < alone.limit_bytes < 32 << 20


def test_finished_epochs_of_a_dataset_hold_no_memory(make_dataset: Make, budgets: list[PrefetchBudget]) -> None:
    small: dict[str, Any] = {"url": make_dataset(90, shards=15), "prefetch_bytes": 5000}  # a few windows
    sources: dict[str, Any] = {"small": small, "large": {"url": make_dataset(RECORDS["large"])}}
    mixture = Mixture(sources, batch_size=48, weights="uniform", streams=1, rank=0, world_size=4, steps_per_epoch=200)
    for _ in mixture.chunks(0):  # of 53 epochs of the small one, of which this rank passes over most windows
        assert len(budgets[0]._streams) <= 2
        assert budgets[0]._held_bytes <= 5000
    assert len(budgets) == 2


def test_each_of_many_dataset_epochs_in_a_chunk_is_copied_once(
    make_dataset: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []

    def noted(columns: Columns) -> Columns:
        rows.append(len(columns[CLASS_ID]))
        return copy_columns(columns)

    monkeypatch.setattr(mixture_streams, "copy_columns", noted)
    read(Mixture({"small": {"url": make_dataset(90)}}, batch_size=90, streams=1, steps_per_epoch=20))
    assert 900 < sum(rows) < 1800


def test_scattered_samples_are_not_sorted_beforehand(sources: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(
        "ringfeed.pipeline.streams.open_window._columns_to_gather"
    )  # which takes memory, as much as the windows' numbers
    next(Mixture(sources, batch_size=24).chunks(0))


def test_shards_in_quarantine_are_reported_by_dataset(make_dataset: Make, sources: Any) -> None:
    path = "train-00001-of-00007.tfrecord"
    mixture = Mixture({**sources, "large": {**sources["large"], "quarantined": [path]}}, batch_size=24)
    assert mixture.quarantined == {"large": (path,), "small": ()}


@given(st.integers(0, 300), st.sampled_from([1, 2, 3, 4, 6, 12]))
def test_seats_before_a_step_are_those_of_all_earlier_steps(step: int, streams: int) -> None:
    schedule = ClassSchedule(np.array([0.61, 0.3, 0.09]), 12, 300, key=5)
    before = schedule.seats_before(step, streams)
    for stream, counts in enumerate(before):
        positions = range(stream * 12 // streams, (stream + 1) * 12 // streams)
        counted = np.bincount(schedule.classes_at(np.arange(step), positions).reshape(-1).astype(int), minlength=3)
        np.testing.assert_array_equal(counts, counted)
