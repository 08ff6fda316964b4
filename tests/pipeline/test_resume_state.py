"""A loader's state survives JSON, and is accepted by loaders that give the same batches, and by no others."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringfeed.pipeline import Loader, Mixture, Ramp
from ringfeed.sharding import BuildOptions, ConfigError, build, open_dataset

Make = Callable[..., str]
OPTIONS: dict[str, Any] = {"batch_size": 12, "seed": 3, "balance": "uniform->natural:3"}


def test_another_rank_count_resumes_where_the_state_says(make_dataset: Make) -> None:
    url = make_dataset(1000)
    whole = list(Loader(url, **OPTIONS).numpy_epoch(1))
    kept = json.dumps(Loader(url, rank=1, world_size=2, **OPTIONS).state(1, 70))
    ranks = [Loader(url, rank=rank, world_size=3, cache="memory", **OPTIONS) for rank in range(3)]
    parts = [list(rank.numpy_epoch(*rank.resume(json.loads(kept)))) for rank in ranks]
    for batch, *shares in zip(whole[70:], *parts, strict=True):
        np.testing.assert_array_equal(batch["id"], np.concatenate([share["id"] for share in shares]))
    assert len(kept) < 1000


def test_numpy_integers_are_kept_as_python_ones(make_dataset: Make) -> None:
    url = make_dataset(1000)
    numpys: dict[str, Any] = {"shuffle": np.bool_(True), "bucket_steps": np.int64(32), "window_shards": np.int32(1)}
    kept = json.dumps(Loader(url, batch_size=np.int64(12), seed=np.int64(3), **numpys).state(np.int64(1), np.int64(7)))
    assert Loader(url, batch_size=12, seed=3).resume(json.loads(kept)) == (1, 7)
    longer: dict[str, Any] = {"batch_size": 12, "balance": "uniform"}
    kept = json.dumps(Loader(url, epoch_length=np.int64(2000), **longer).state(0, 1))  # type: ignore[arg-type]
    assert Loader(url, epoch_length=2000, **longer).resume(json.loads(kept)) == (0, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 4}, "the state is of seed=3, this loader has 4: its batches would differ"),
        ({"batch_size": 24}, "the state is of batch_size=12, this loader has 24"),
        ({"batch_size": 240}, "the state is of batch_size=12, this loader has 240"),  # of which there are fewer steps
        ({"balance": "uniform"}, "the state is of shares="),
        (
            {"where": "id < 500"},
            'the state is of records=1000, this loader has 500|where=null, this loader has "id < 500"',
        ),
        ({"window_shards": 2}, "the state is of window_shards=1, this loader has 2"),
    ],
)
def test_other_batches_are_refused(make_dataset: Make, change: dict[str, Any], message: str) -> None:
    url = make_dataset(1000)
    state = json.loads(json.dumps(Loader(url, **OPTIONS).state(1, 7)))
    with pytest.raises(ConfigError, match=message):
        Loader(url, **OPTIONS | change).resume(state)


def test_another_dataset_and_other_mappings_are_refused(make_dataset: Make) -> None:
    loader = Loader(make_dataset(1000), **OPTIONS)
    with pytest.raises(ConfigError, match="the state is of dataset="):
        Loader(make_dataset(1000, shards=3), **OPTIONS).resume(loader.state(0, 0))
    for wrong, message in [
        ({}, "this is not the state of a loader: it has no epoch"),
        ({"epoch": 0, "step": 0}, "this is not the state of a loader: it has no seed"),
        ({**loader.state(0, 0), "order": 3}, "the state is of order=3, this loader has 2: its batches would differ"),
        ({k: v for k, v in loader.state(0, 0).items() if k != "order"}, "the state is of order=1, this loader has 2"),
        ({**loader.state(0, 0), "step": 10**6}, "an epoch has steps 0 to"),
        ({**loader.state(0, 0), "epoch": -1}, "an epoch has steps 0 to"),
        ({**loader.state(0, 0), "step": "x"}, "step must be an integer"),
    ]:
        with pytest.raises(ConfigError, match=message):
            loader.resume(wrong)


def test_the_same_records_found_elsewhere_are_the_same_dataset(make_dataset: Make, tmp_path: Path) -> None:
    first = make_dataset(1000)
    shutil.copy(Path(first).parent / "source.parquet", tmp_path / "copy.parquet")
    second = str(tmp_path / "shards")
    options = BuildOptions(source=str(tmp_path / "copy.parquet"), destination=second, label="label", shards=7)
    build(replace(options, splits={"train": Fraction(1)}, min_class_records=1))
    manifests = [open_dataset(url).manifest for url in (first, second)]
    assert manifests[0].shards_checksum != manifests[1].shards_checksum
    assert manifests[0].identity == manifests[1].identity
    states = [json.loads(json.dumps(Loader(url, **OPTIONS).state(1, 7))) for url in (first, second)]
    assert states[0] == states[1]
    former = {**states[0], "dataset": manifests[0].shards_checksum}
    with pytest.raises(ConfigError, match="the state is of dataset="):
        Loader(second, **OPTIONS).resume(former)
    mixtures = [Mixture({"a": {"url": url}, "b": {"url": make_dataset(90)}}, batch_size=12) for url in (first, second)]
    state = json.loads(json.dumps(mixtures[0].state(2, 5)))
    assert mixtures[1].resume(state) == (2, 5)
    state["datasets"]["a"]["dataset"] = "another"
    with pytest.raises(ConfigError, match=r"the state is of a\.dataset="):
        mixtures[1].resume(state)


def test_shards_in_quarantine_are_kept(make_dataset: Make) -> None:
    url, path = make_dataset(1000), "train-00001-of-00007.tfrecord"
    state = Loader(url, quarantined=[path], **OPTIONS).state(0, 5)
    assert Loader(url, quarantined=state["quarantined"], **OPTIONS).resume(state) == (0, 5)
    with pytest.raises(ConfigError, match=rf"make the loader with quarantined=\['{path}'\]"):
        Loader(url, **OPTIONS).resume(state)
    with pytest.raises(ConfigError, match="quarantined of a state must be a list of paths"):
        Loader(url, **OPTIONS).resume({**state, "quarantined": [[path]]})


def test_in_a_mixture_the_differing_dataset_is_named(make_dataset: Make) -> None:
    sources: dict[str, Any] = {"a": {"url": make_dataset(1000)}, "b": {"url": make_dataset(90)}}
    state = json.loads(json.dumps(Mixture(sources, batch_size=12).state(2, 5)))
    assert Mixture(sources, batch_size=12, world_size=2).resume(state) == (2, 5)
    changed = {**sources, "b": {**sources["b"], "balance": "uniform"}}
    with pytest.raises(ConfigError, match=r"the state is of b\.shares=null"):
        Mixture(changed, batch_size=12).resume(state)
    with pytest.raises(ConfigError, match="this is not the state of a loader: it has no dataset"):
        Loader(sources["a"]["url"], batch_size=12).resume(state)
    with pytest.raises(ConfigError, match=r"datasets\.a of a state must be a dict of what `state` returned, got 3"):
        Mixture(sources, batch_size=12).resume({**state, "datasets": {"a": 3, "b": 4}})
    with pytest.raises(ConfigError, match="it has no epoch"):
        Mixture(sources, batch_size=12).resume({})
    resorted = json.loads(json.dumps(state, sort_keys=True))
    assert Mixture(sources, batch_size=12).resume(resorted) == (2, 5)


SHARES = {0: 0.2, 1: 0.2, 2: 0.6}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"swapped": True}, r'the state is of sources=\["a", "b"\], this loader has \["b", "a"\]'),
        ({"weights": Ramp(start={"a": 0.9, "b": 0.1}, end="uniform", epochs=2)}, "the state is of shares="),
        ({"balance": Ramp(start=SHARES, end="uniform", epochs=1)}, r"the state is of b\.shares="),
        ({"balance": lambda epoch: SHARES if epoch < 5 else "uniform"}, r"the state is of b\.shares="),
    ],
    ids=["order", "weights before", "balance to come", "balance of a function"],
)
def test_a_mixture_with_other_batches_is_refused(make_dataset: Make, change: dict[str, Any], message: str) -> None:
    sources: dict[str, Any] = {"a": {"url": make_dataset(1000)}, "b": {"url": make_dataset(90), "balance": SHARES}}
    how: dict[str, Any] = {"batch_size": 12, "weights": "uniform"}
    state = json.loads(json.dumps(Mixture(sources, **how).state(3, 5)))
    assert Mixture(sources, world_size=3, rank=2, **how).resume(state) == (3, 5)
    other = {**sources, "b": {**sources["b"], "balance": change.pop("balance", SHARES)}}
    if change.pop("swapped", False):
        other = dict(reversed(other.items()))
    with pytest.raises(ConfigError, match=message):
        Mixture(other, **how | change).resume(state)
