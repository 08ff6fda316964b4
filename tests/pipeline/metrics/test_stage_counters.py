"""Counters of the stages, and how TensorFlow's profiler shows them."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from ringfeed.pipeline import Loader, Mixture
from ringfeed.pipeline.metrics.stage_counters import CACHE_STAGES, FAULT_STAGES, STAGES

Make = Callable[..., str]


def test_every_stage_is_counted_and_those_of_a_mixture_by_dataset(make_dataset: Make) -> None:
    loader = Loader(make_dataset(), batch_size=60)
    list(loader.numpy_epoch(0))
    assert loader.stats().keys() == set(STAGES)
    assert loader.stats()["deliver"].items == 960
    mixture = Mixture({name: {"url": make_dataset()} for name in ("web", "books")}, batch_size=60)
    list(mixture.numpy_epoch(0))
    stats = mixture.stats()
    assert stats.keys() == {"web", "books", "mixture"}
    assert all(stages.keys() == set(STAGES) for stages in stats.values())
    assert stats["mixture"]["deliver"].items == 1980


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
