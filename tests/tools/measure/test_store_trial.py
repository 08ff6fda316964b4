"""A remote store is measured alone, which tells a full link, late answers and too few fetches apart."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import BuildOptions, build, open_dataset
from ringfeed.tools.measure.store_trial import try_store
from ringfeed.tools.profile import Profile, profile
from tests.servers.web import Behaviour, served

RECORDS, RECORD_BYTES = 2000, 4000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """8 MB in 32 shards."""
    root: Path = tmp_path_factory.mktemp("store-trial")
    random = np.random.default_rng(0)
    blobs = pa.array([random.bytes(RECORD_BYTES) for _ in range(RECORDS)])
    pq.write_table(pa.table({"x": blobs, "y": [i % 2 for i in range(RECORDS)]}), root / "s.parquet")
    build(BuildOptions(source=str(root / "s.parquet"), destination=str(root / "d"), label="y", shards=32))
    return root / "d"


@contextmanager
def store(folder: Path, **behaviour: float) -> Iterator[str]:
    with served(folder, behaviour=Behaviour(**behaviour)) as url:  # type: ignore[arg-type]
        yield url


def test_rates_and_latency_are_those_of_the_store(folder: Path) -> None:
    with store(folder, bytes_per_second=1e6, latency_seconds=0.24) as url:  # slow, so that other tests' load is not
        dataset = open_dataset(url)
        trial = try_store(dataset.storage, dataset.shards, 6.0)
    assert trial.latency_seconds >= 0.24
    assert trial.best_bytes_per_second <= 1e6
    assert trial.best_threads > 1  # one read waits 240 ms, and then as long for its bytes


def test_a_full_link_is_named_with_its_rate(folder: Path) -> None:
    with store(folder, bytes_per_second=8e6) as url:
        result = profile(url, batch_size=50, seconds=4.0)
    assert result.slowest_stage == "fetch"
    assert "the store's bandwidth is the limit, it gives " in result.loader_advice
    assert "latency" in str(result)
    assert "--fetch-threads" not in result.loader_advice
    assert knob_options(result).keys() <= {"cache"}


def test_too_few_fetches_are_named_and_the_knob_brings_what_it_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringfeed.tools.measure.other_load.LoadClock.disturbed", lambda _: 0.0)  # other tests
    with store(folder, latency_seconds=0.1) as url:
        result = profile(url, batch_size=50, fetch_threads=1, seconds=6.0, try_knob=True)
    assert result.slowest_stage == "fetch"
    assert "too few fetches run at once" in result.loader_advice
    assert "fetch_threads" in knob_options(result), str(result)
    assert f"--fetch-threads {knob_options(result)['fetch_threads']} " in result.loader_advice
    assert gain(result) > 1.5
    assert f"Tried: {gain(result):.2f} x" in str(result)


def test_latency_is_named_where_more_fetches_bring_nothing(folder: Path) -> None:
    with store(folder, latency_seconds=0.1) as url:
        result = profile(url, batch_size=50, fetch_threads=32, seconds=4.0)
    assert result.slowest_stage == "fetch"
    assert "the store's latency is the limit, 1" in result.loader_advice


def test_a_local_dataset_has_no_store_to_measure(folder: Path) -> None:
    assert profile(str(folder), batch_size=50, seconds=1.0).parts.store is None


def gain(result: Profile) -> float:
    assert result.tried is not None
    return result.tried.gain.value


def knob_options(result: Profile) -> Mapping[str, Any]:
    return {} if result.verdict.knob is None else result.verdict.knob.options
