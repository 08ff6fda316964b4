"""Several epochs in one reading: the batches of each alone, begun before the last one ends, errors in their turn."""

import os
import pickle
import shutil
import time
from collections.abc import Callable, Generator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringfeed.pipeline import Loader, Mixture, Ramp
from ringfeed.pipeline.epochs_ahead import EpochsAhead
from ringfeed.sharding import ConfigError, CorruptionError

Make = Callable[..., str]
STEPS = 5
OPTIONS: dict[str, dict[str, Any]] = {
    "natural": {},
    "uniform": {"balance": "uniform"},
    "ramp": {"balance": Ramp(start="natural", end="uniform", epochs=3)},
    "short": {"epoch_length": 600},
    "pad": {"remainder": "pad", "batch_size": 300, "sample_keys": True},
    "wrap": {"remainder": "wrap", "batch_size": 300},
    "a rank": {"rank": 1, "world_size": 3},
    "unshuffled": {"shuffle": False},
    "nothing ahead": {"prefetch_bytes": 0},
}


def digest(batch: Any) -> dict[str, Any]:
    return {name: np.asarray(values).tolist() for name, values in batch.items()}


def same_in_one_reading(loader: Any, start_step: int) -> None:
    expected = [digest(batch) for epoch in (1, 2, 3) for batch in loader.numpy_epoch(epoch, start_step * (epoch == 1))]
    assert len(expected) == 3 * loader.steps_per_epoch - start_step
    assert [digest(batch) for batch in loader.numpy_epoch(1, start_step, epochs=3)] == expected
    assert [digest(batch) for batch in loader.numpy_epoch(1, start_step, epochs=3, prefetch_bytes=0)] == expected
    assert [digest(batch) for batch in loader.batches(1, start_step, epochs=3)] == expected


@pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
@pytest.mark.parametrize("name", OPTIONS)
def test_batches_are_those_of_each_epoch_alone(make_dataset: Make, name: str, shard_format: str) -> None:
    loader = Loader(
        make_dataset(1000, shard_format=shard_format), **{"batch_size": 200, "seed": 3, "streams": 4, **OPTIONS[name]}
    )
    same_in_one_reading(loader, start_step=2)
    if name == "natural":
        same_in_one_reading(loader, start_step=loader.steps_per_epoch)


@pytest.mark.parametrize("weights", ["natural", "uniform", "uniform->natural:3", {"web": 0.9, "books": 0.1}])
def test_so_are_those_of_a_mixture(make_dataset: Make, weights: Any) -> None:
    sources = {"web": {"url": make_dataset(1000)}, "books": {"url": make_dataset(90, shards=2), "balance": "uniform"}}
    same_in_one_reading(Mixture(sources, weights=weights, batch_size=60, seed=3, streams=4), start_step=7)


def test_keras_reads_the_epochs_in_one_reading(make_dataset: Make) -> None:
    loader = Loader(make_dataset(1000), batch_size=200, seed=3)
    labels = [labels.numpy().tolist() for _, labels in loader.keras(epochs=3)]
    assert labels == [batch["class_id"].tolist() for epoch in range(3) for batch in loader.numpy_epoch(epoch)]


@pytest.mark.parametrize(("ahead", "more"), [(1 << 30, True), (0, False)])
def test_the_next_epochs_windows_are_there_when_an_epoch_ends(make_dataset: Make, ahead: int, more: bool) -> None:
    loader = Loader(make_dataset(1000), batch_size=200, streams=4, seed=3, prefetch_bytes=ahead)
    list(loader.numpy_epoch(0))
    an_epoch = loader.stats()["fetch"].items
    batches = loader.numpy_epoch(1, epochs=2, prefetch_bytes=0)
    for _ in range(STEPS):
        next(batches)
    deadline = time.monotonic() + (60 if more else 0.2)
    while loader.stats()["fetch"].items <= 2 * an_epoch and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (loader.stats()["fetch"].items > 2 * an_epoch) == more
    batches.close()


@pytest.fixture
def damaged(make_dataset: Make, tmp_path: Path) -> tuple[str, int]:
    """A dataset with a damaged shard, and an epoch of 600 samples that does not need it before one that does."""
    folder = Path(shutil.copytree(make_dataset(1000), tmp_path / "damaged"))
    for shard in sorted(folder.glob("*.tfrecord")):
        whole = shard.read_bytes()
        shard.write_bytes(whole[:-100] + bytes(100))
        needs = [fails(str(folder), epoch) for epoch in range(12)]
        if (False, True) in pairwise(needs):
            return str(folder), next(epoch for epoch in range(11) if needs[epoch : epoch + 2] == [False, True])
        shard.write_bytes(whole)
    raise AssertionError("no epoch follows one that needs less")


def short_epochs(url: str) -> Loader:
    return Loader(url, batch_size=60, epoch_length=300, streams=1, seed=3)


def fails(url: str, epoch: int) -> bool:
    try:
        list(short_epochs(url).numpy_epoch(epoch))
    except CorruptionError:
        return True
    return False


@pytest.mark.parametrize("method", ["numpy_epoch", "batches"])
def test_an_error_of_the_next_epoch_comes_in_its_turn(damaged: tuple[str, int], method: str) -> None:
    url, epoch = damaged
    batches = getattr(short_epochs(url), method)(epoch, epochs=2)
    for _ in range(5):
        next(batches)
    with pytest.raises(CorruptionError):
        list(batches)


@pytest.mark.parametrize("method", ["numpy_epoch", "batches"])
def test_so_does_an_error_in_planning_it(make_dataset: Make, method: str) -> None:
    def balance(epoch: int) -> str:
        if epoch == 1:
            raise ConfigError("no balance for epoch 1")
        return "uniform"

    loader = Loader(make_dataset(1000), batch_size=200, balance=balance)
    batches = getattr(loader, method)(0, epochs=2)
    for _ in range(STEPS):
        next(batches)
    with pytest.raises(ConfigError, match="no balance for epoch 1"):
        next(batches)


def test_there_is_at_least_one_epoch(make_dataset: Make) -> None:
    loader = Loader(make_dataset(1000), batch_size=200)
    for read in (loader.numpy_epoch, loader.batches):
        with pytest.raises(ConfigError, match="epochs must be at least 1"):
            list(read(0, epochs=0))


class Readings:
    """A source of ``(epoch, step)`` that notes its readings and whether they were closed."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, int, int]] = []
        self.closed: list[int] = []
        self.ahead = EpochsAhead()

    def read(self, epoch: int, start_step: int, *, epochs: int) -> Generator[tuple[int, int], None, None]:
        self.begun.append((epoch, start_step, epochs))
        number = len(self.begun)
        try:
            yield from ((epoch + step // STEPS, step % STEPS) for step in range(start_step, epochs * STEPS))
        finally:
            self.closed.append(number)

    def epoch(self, epoch: int, start_step: int = 0, *, stop: int = 4) -> Any:
        return self.ahead.epoch(
            partial(self.read, epoch, start_step), self, epoch, start_step,
            steps_per_epoch=STEPS, stop_epoch=stop,
        )  # fmt: skip


def test_epochs_in_order_are_one_reading() -> None:
    source = Readings()
    assert list(source.epoch(1, 2)) == [(1, step) for step in (2, 3, 4)]
    assert [list(source.epoch(epoch)) for epoch in (2, 3)] == [[(epoch, s) for s in range(STEPS)] for epoch in (2, 3)]
    assert (source.begun, source.closed) == ([(1, 2, 3)], [1])
    assert list(source.epoch(9)) == [(9, step) for step in range(STEPS)]  # beyond the epoch to stop before
    assert (source.begun[1:], source.closed) == ([(9, 0, 1)], [1, 2])


def test_other_epochs_and_unfinished_ones_begin_anew() -> None:
    source = Readings()
    next(source.epoch(0))
    assert len(list(source.epoch(1))) == STEPS
    assert list(source.epoch(3)) == [(3, step) for step in range(STEPS)]
    assert (source.begun, source.closed) == ([(0, 0, 4), (1, 0, 3), (3, 0, 1)], [1, 2, 3])


def test_a_copy_has_a_reading_of_its_own() -> None:
    source = Readings()
    list(source.epoch(0))
    assert pickle.loads(pickle.dumps(source.ahead))._reading is None


def test_a_fork_has_a_reading_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Readings()
    list(source.epoch(0))
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    assert list(source.epoch(1)) == [(1, step) for step in range(STEPS)]
    assert source.begun == [(0, 0, 4), (1, 0, 3)]
