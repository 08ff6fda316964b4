"""Pickled loaders and mixtures give the same batches in other processes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from ringfeed.pipeline import Cache, Loader, MemoryCache, Mixture
from ringfeed.sharding import DatasetError

Make = Callable[..., str]
BAD = "train-00001-of-00007.tfrecord"


def ids_of(made: Loader | Mixture) -> list[Any]:
    return [batch["id"].tolist() for batch in made.numpy_epoch(1, 3)]


def ids_elsewhere(made: Loader | Mixture) -> list[Any]:
    os.chdir("/")
    assert "tensorflow" not in sys.modules
    return ids_of(made)


@pytest.fixture
def relative(make_dataset: Make, monkeypatch: pytest.MonkeyPatch) -> str:
    """A dataset by a path that means nothing in another folder."""
    url = Path(make_dataset(1000))
    monkeypatch.chdir(url.parent)
    return url.name


def test_another_process_reads_the_same_batches(relative: str, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    where = (pc.field("id") >= 100) & pc.field("label").isin([1, 2])
    made: list[Loader | Mixture] = [
        Loader(relative, batch_size=12, rank=1, world_size=2, seed=5, balance="uniform", cache=cache),
        Loader(relative, batch_size=12, where=where, columns={"id": 1}.keys(), cache="memory"),  # type: ignore[arg-type]
        Loader(relative, batch_size=12, on_bad_shard="quarantine", quarantined=[BAD]),
        Mixture({"one": {"url": relative, "cache": cache}, "two": {"url": relative}}, batch_size=12),
    ]
    expected = list(map(ids_of, made))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert [pool.submit(ids_elsewhere, each).result() for each in made] == expected


def test_shards_found_bad_are_pickled_too(make_dataset: Make, tmp_path: Path) -> None:
    root = Path(shutil.copytree(make_dataset(1000), tmp_path / "copy"))
    (root / BAD).write_bytes(b"")
    loader = Loader(str(root), batch_size=12, on_bad_shard="quarantine")
    mixture = Mixture({"one": {"url": str(root), "on_bad_shard": "quarantine"}}, batch_size=12)
    for made, known in ((loader, (BAD,)), (mixture, {"one": (BAD,)})):
        expected = ids_of(made)
        again = pickle.loads(pickle.dumps(made))
        assert again.quarantined == known
        assert ids_of(again) == expected


def test_a_cache_is_pickled_as_the_folder_or_the_limit_that_it_is(tmp_path: Path) -> None:
    cache, memory = pickle.loads(pickle.dumps((Cache(tmp_path / "cache", 1 << 20), MemoryCache(1 << 21))))
    assert cache.path == tmp_path / "cache"
    assert (cache._limit_bytes, memory._limit_bytes) == (1 << 20, 1 << 21)


def test_a_rewritten_dataset_is_refused(make_dataset: Make, tmp_path: Path) -> None:
    root = Path(shutil.copytree(make_dataset(1000), tmp_path / "copy"))
    loaders = [Loader(str(root), batch_size=12), Mixture({"one": {"url": str(root)}}, batch_size=12)]
    pickled = list(map(pickle.dumps, loaders))
    shutil.rmtree(root)
    shutil.copytree(make_dataset(1000, shards=3), root)
    for data in pickled:
        with pytest.raises(DatasetError, match="its dataset was rewritten since"):
            pickle.loads(data)


def test_a_lambda_fails_with_the_error_of_pickle(make_dataset: Make) -> None:
    loader = Loader(make_dataset(1000), batch_size=12, balance=lambda epoch: "uniform")
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(loader)
    assert np.ndim(ids_of(loader)) == 2
