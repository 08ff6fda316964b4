"""Counters as Prometheus parses them, and as TensorFlow's profiler shows them."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from prometheus_client.parser import text_string_to_metric_families

from ringfeed.pipeline import Loader, Mixture, StageStats, prometheus_text
from ringfeed.pipeline.metrics.stage_counters import CACHE_STAGES, FAULT_STAGES, STAGES
from ringfeed.sharding import ConfigError

Make = Callable[..., str]


def test_prometheus_reads_every_counter_of_every_stage(make_dataset: Make) -> None:
    loader = Loader(make_dataset(), batch_size=60)
    list(loader.numpy_epoch(0))
    stats = loader.stats()
    families = {family.name: family for family in text_string_to_metric_families(prometheus_text(stats))}
    assert {name: family.type for name, family in families.items()} == {
        "ringfeed_loader_items": "counter",
        "ringfeed_loader_bytes": "counter",
        "ringfeed_loader_busy_seconds": "counter",
        "ringfeed_loader_cpu_seconds": "counter",
        "ringfeed_loader_wait_seconds": "counter",
        "ringfeed_loader_queue_depth": "gauge",
    }
    assert all(family.documentation for family in families.values())
    read = {
        (sample.name, sample.labels["stage"]): sample.value for family in families.values() for sample in family.samples
    }
    assert len(read) == 6 * len(STAGES)
    assert read["ringfeed_loader_items_total", "deliver"] == 960
    for stage, totals in stats.items():
        assert read["ringfeed_loader_items_total", stage] == totals.items
        assert read["ringfeed_loader_bytes_total", stage] == totals.bytes
        assert read["ringfeed_loader_busy_seconds_total", stage] == totals.busy_seconds
        assert read["ringfeed_loader_cpu_seconds_total", stage] == totals.cpu_seconds
        assert read["ringfeed_loader_wait_seconds_total", stage] == totals.wait_seconds
        assert read["ringfeed_loader_queue_depth", stage] == totals.queue_depth


def test_labels_are_there_whatever_their_values_hold() -> None:
    labels = {"rank": "3", "url": 's3://bucket/"a\\b"\nc'}
    for family in text_string_to_metric_families(prometheus_text({"fetch": StageStats(bytes=1 << 60)}, labels)):
        (sample,) = family.samples
        assert sample.labels == {"stage": "fetch", **labels}
        assert sample.value == (1 << 60 if family.name == "ringfeed_loader_bytes" else 0)


def test_the_counters_of_a_mixture_are_labelled_by_dataset(make_dataset: Make) -> None:
    mixture = Mixture({name: {"url": make_dataset()} for name in ("web", "books")}, batch_size=60)
    list(mixture.numpy_epoch(0))
    stats = mixture.stats()
    text = prometheus_text(stats, {"rank": "0"})
    assert text.count("# TYPE") == 6
    read = {
        (sample.name, sample.labels["dataset"], sample.labels["stage"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels["rank"] == "0"
    }
    assert len(read) == 6 * 3 * len(STAGES)
    assert read["ringfeed_loader_items_total", "mixture", "deliver"] == 1980
    for name, stages in stats.items():
        for stage, totals in stages.items():
            assert read["ringfeed_loader_bytes_total", name, stage] == totals.bytes
    with pytest.raises(ConfigError, match="and is not 'dataset' or 'stage'; got 'dataset'"):
        prometheus_text(stats, {"dataset": "web"})


@pytest.mark.parametrize("name", ["stage", "9", "a-b", "__a", ""])
def test_labels_that_prometheus_rejects_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"a label's name has letters.* got '{name}'"):
        prometheus_text({}, {name: "x"})


@pytest.mark.parametrize(
    ("stats", "message"),
    [
        (None, "stats must be a dict of stage counters, got None"),
        ({"fetch": 3}, r"stats\['fetch'\] must be a dict of stage counters, got 3"),
        ({"web": {"fetch": None}}, r"stats\['web'\]\['fetch'\] must be `StageStats`, got None"),
    ],
)
def test_stats_of_another_kind_are_refused(stats: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prometheus_text(stats)


def test_labels_of_another_kind_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"a label's name has letters.* got 3"):
        prometheus_text({}, {3: "x"})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match=r"labels must be a dict of values by name, got \['rank'\]"):
        prometheus_text({}, ["rank"])  # type: ignore[arg-type]


@pytest.mark.parametrize("read", [lambda loader: loader.epoch(0), lambda loader: loader.numpy_epoch(0)])
def test_a_trace_of_tensorflow_shows_the_stages(
    make_dataset: Make, tmp_path: Path, read: Callable[[Loader], Iterable[Any]]
) -> None:
    loader = Loader(make_dataset(), batch_size=60)
    tf.profiler.experimental.start(str(tmp_path))
    try:
        for _ in read(loader):
            pass
    finally:
        tf.profiler.experimental.stop()
    (trace,) = tmp_path.rglob("*.xplane.pb")
    content = trace.read_bytes()
    for stage in set(STAGES) - set(CACHE_STAGES) - set(FAULT_STAGES):
        assert f"ringfeed:{stage}".encode() in content, stage
