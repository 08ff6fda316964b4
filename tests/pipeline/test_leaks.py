"""However an epoch ends, the loader leaves no thread, open file or mapped shard behind."""

from __future__ import annotations

import gc
import os
import shutil
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ringfeed.pipeline import Loader
from ringfeed.sharding import CorruptionError

PATIENCE_SECONDS = 60


@dataclass(frozen=True)
class Before:
    """What this process had before a loader: its threads, and the number of its open files."""

    threads: frozenset[threading.Thread]
    files: int

    @classmethod
    def now(cls) -> Before:
        return cls(frozenset(threading.enumerate()), len(os.listdir("/proc/self/fd")))


def left_behind(folder: str, before: Before) -> list[str]:
    """Threads, open files and mapped shards that are new, once all of them had time to end."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        gc.collect()
        new = set(threading.enumerate()) - before.threads
        threads = [thread.name for thread in new if thread.name.startswith("ringfeed")]
        files = [f"file {number}" for number in range(before.files, len(os.listdir("/proc/self/fd")))]
        maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if folder in line]
        if not threads + files + maps or time.monotonic() > deadline:
            return threads + files + maps
        time.sleep(0.01)


def abandon(loader: Loader) -> None:
    next(loader.chunks(0))


def close(loader: Loader) -> None:
    chunks = loader.chunks(0, 3)
    next(chunks)
    chunks.close()  # type: ignore[attr-defined]


def fail_outside(loader: Loader) -> None:
    def consume() -> None:
        for _steps, columns in loader.chunks(0):
            columns["nothing"]

    with pytest.raises(KeyError):
        consume()


def finish(loader: Loader) -> None:
    assert sum(steps for steps, _ in loader.chunks(0)) == loader.steps_per_epoch


def look(loader: Loader) -> None:
    loader.plan()
    loader.sample(5)


def abandon_tensorflow(loader: Loader) -> None:
    next(iter(loader.epoch(0)))


@pytest.mark.parametrize("use", [abandon, close, fail_outside, finish, look, abandon_tensorflow])
def test_nothing_is_left_of_an_epoch(
    make_dataset: Callable[..., str], tmp_path: Path, use: Callable[[Loader], None]
) -> None:
    url = str(shutil.copytree(make_dataset(1000), tmp_path / "copy"))
    if use is abandon_tensorflow:
        use(Loader(make_dataset(1000), batch_size=10))  # TensorFlow opens files of its own, once
    before = Before.now()
    use(Loader(url, batch_size=10, balance="uniform", fetch_threads=3))
    assert left_behind(url, before) == []


def test_nothing_is_left_after_a_damaged_shard_stopped_an_epoch(
    make_dataset: Callable[..., str], tmp_path: Path
) -> None:
    root = Path(shutil.copytree(make_dataset(1000), tmp_path / "copy"))
    victim = root / "train-00005-of-00007.tfrecord"
    victim.write_bytes(victim.read_bytes()[:-1])
    before = Before.now()
    loader = Loader(str(root), batch_size=10)
    with pytest.raises(CorruptionError, match=victim.name):
        list(loader.chunks(0))
    assert left_behind(str(root), before) == []


def test_tensorflow_keeps_no_loader_alive_without_its_epochs(make_dataset: Callable[..., str]) -> None:
    loader = Loader(make_dataset(1000), batch_size=10)
    list(loader.epoch(0))
    next(iter(loader.epoch(1)))
    known = weakref.ref(loader)
    del loader
    deadline = time.monotonic() + PATIENCE_SECONDS
    while known() is not None:  # a thread that has just planned a window may hold it for a moment
        assert time.monotonic() < deadline
        gc.collect()
