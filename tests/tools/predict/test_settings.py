"""What settings are expected to bring: the measured epoch changes by as much as the simulated one."""

from dataclasses import replace

import numpy as np
import pytest

from ringfeed.tools.measure.costs import Costs, StoreCosts
from ringfeed.tools.measure.dataset_shape import DatasetShape
from ringfeed.tools.measure.estimates import exactly
from ringfeed.tools.measure.store_trial import StoreTrial
from ringfeed.tools.predict import settings
from ringfeed.tools.predict.gains import MeasuredEpoch
from ringfeed.tools.predict.settings import LoaderFacts, LoaderSimulation, LoaderTrials, candidate_settings
from ringfeed.tools.predict.setup import Setup

LATENCY, SHARDS, RECORDS, SHARD_BYTES = 0.1, 32, 32_000, 400_000
STORE = StoreTrial(latency_seconds=LATENCY, bytes_per_second={1: 4e6, 8: 32e6}, sizes={}, read_seconds=())
FACTS = LoaderFacts(
    streams=8, local_streams=8, threads=1, shards=SHARDS, shard_bytes=SHARD_BYTES,
    window_bytes=SHARD_BYTES, epoch_bytes=SHARDS * SHARD_BYTES, record_bytes=400.0, batch_size=800,
    local_batch_size=800, is_local=False, has_cache=False,
    fetch_bytes_per_second=4e6,
)  # fmt: skip
SIMULATION = LoaderSimulation(
    shape=DatasetShape(
        records=np.full(SHARDS, RECORDS // SHARDS), data_bytes=np.full(SHARDS, SHARD_BYTES),
        index_bytes=np.full(SHARDS, 100),
    ),
    costs=Costs(store=StoreCosts(latency_seconds=(LATENCY,)), gather_seconds=1e-6),
    setup=Setup(batch_size=800, streams=8, cores=2, fetch_threads=1, prefetch_bytes=64 << 20),
)  # fmt: skip
SECONDS = 20.0  # as measured, though the simulation says 6.4: two requests for each shard, one after the other
FIGURES = MeasuredEpoch(
    samples=RECORDS, first_batch_seconds=5.0, loader=exactly(RECORDS / (SECONDS - 5.0)), loader_seconds=SECONDS
)


def test_an_epoch_of_many_shards_is_prolonged_from_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = SIMULATION.epoch()
    assert whole.seconds == pytest.approx(2 * LATENCY * SHARDS, rel=0.02)
    monkeypatch.setattr(settings, "_SIMULATED_SHARDS", SHARDS // 2)
    half = SIMULATION.epoch()
    assert (half.steps, half.samples) == (whole.steps, whole.samples)
    assert half.first_batch_seconds == whole.first_batch_seconds
    assert half.seconds == pytest.approx(whole.seconds, rel=0.1)


@pytest.mark.parametrize(
    ("limit", "is_suggested", "options", "gain", "first"),
    [
        ("too_few_fetches", True, {"fetch_threads": 8}, 7.8, 5.0 / 8),
        ("shuffle_fill", False, {"streams": 4}, 1.0, 5.0 / 2),
        ("hand_over", True, {"batch_size": 1600}, 1.0, 5.0),
        ("hand_over", True, {"batch_size": 1500}, 0.93, None),  # by 6 streams, which cut shards
        ("store_latency", False, {}, 5.2, 3.75),  # 12 requests, not 64: of 4 indexes, and of half a shard each stream
    ],
)
def test_the_measured_epoch_changes_by_the_factor_of_the_simulated_one(
    limit: str, is_suggested: bool, options: dict[str, int], gain: float, first: float | None
) -> None:
    suggested = options if is_suggested else {}
    found = candidate_settings(limit, suggested, FACTS, FIGURES, LoaderTrials(store=STORE), SIMULATION)[0]
    assert found.options == options
    assert found.gain is not None
    assert found.gain.value == pytest.approx(gain, rel=0.06)
    assert found.first_batch_seconds[0] == 5.0
    assert first is None or found.first_batch_seconds[1] == pytest.approx(first, rel=0.1)


def test_the_gain_of_what_the_simulator_does_not_know_is_unknown() -> None:
    for options, trials in (({"window_shards": 2}, LoaderTrials(store=STORE)), ({"fetch_threads": 8}, LoaderTrials())):
        (found,) = candidate_settings("planning", options, FACTS, FIGURES, trials, SIMULATION)
        assert (found.options, found.gain, found.first_batch_seconds) == (options, None, (5.0, 5.0))


def test_with_all_at_hand_only_the_cores_count() -> None:
    costly = replace(SIMULATION, costs=replace(SIMULATION.costs, start_seconds=0.5, handover_seconds=0.01))
    warm = costly.at_hand()
    assert warm.first_batch_seconds == pytest.approx(0.5, rel=0.1)
    assert warm.rate.value == pytest.approx(800 / 0.01, rel=0.2)
    assert (warm.steps, warm.cached) == (0, True)
