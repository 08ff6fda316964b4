"""Sample keys depend on seed, epoch and position alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ringfeed.pipeline import Loader
from ringfeed.pipeline.select.sample_columns import SAMPLE_KEY, sample_keys

Make = Callable[..., str]
GOLDEN = [[-1340096343422961710, 1835301799202265487], [2824776976995628427, -7096516708743518718]]


def keys_of(loader: Loader, epoch: int, start_step: int = 0) -> Any:
    parts = [
        columns[SAMPLE_KEY].reshape(steps, loader.local_batch_size, 2)
        for steps, columns in loader.chunks(epoch, start_step)
    ]
    return np.concatenate(parts)


@pytest.mark.parametrize("balance", ["natural", "uniform"])
def test_keys_do_not_depend_on_ranks_and_resume(make_dataset: Make, balance: str) -> None:
    options: dict[str, Any] = {"batch_size": 60, "balance": balance, "seed": 3, "sample_keys": True}
    whole = keys_of(Loader(make_dataset(), **options), 1)
    for world_size in (2, 3):
        parts = [
            keys_of(Loader(make_dataset(), rank=r, world_size=world_size, **options), 1) for r in range(world_size)
        ]
        np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)
    np.testing.assert_array_equal(keys_of(Loader(make_dataset(), **options), 1, 5), whole[5:])


def test_no_two_samples_share_a_key() -> None:
    keys = np.concatenate([sample_keys(seed, epoch, np.arange(5000)) for seed in (0, 1) for epoch in (0, 1)])
    assert len(np.unique(keys, axis=0)) == len(keys)
    for half in (0, 1):
        bits = np.unpackbits(keys[:, half].copy().view(np.uint8))
        assert abs(bits.mean() - 0.5) < 0.005


def test_keys_are_the_same_in_every_version_of_the_code() -> None:
    """Recorded 2026-11-21. A change would break the resuming of older runs."""
    assert sample_keys(7, 1, np.array([0, 123456789])).tolist() == GOLDEN


def test_batches_have_keys_only_on_request(make_dataset: Make) -> None:
    for shard_format, fixed in (("tfrecord", True), ("tfrecord", False), ("parquet", True)):
        url = make_dataset(shard_format=shard_format, fixed=fixed)
        plain = next(iter(Loader(url, batch_size=60).epoch(0)))
        keyed = next(iter(Loader(url, batch_size=60, sample_keys=True).epoch(0)))
        assert set(keyed) - set(plain) == {SAMPLE_KEY}
        assert keyed[SAMPLE_KEY].shape == (60, 2)
        np.testing.assert_array_equal(keyed[SAMPLE_KEY], sample_keys(0, 0, np.arange(60)))
        np.testing.assert_array_equal(keyed["id"], plain["id"])
