"""Training with `tf.distribute` and Keras: every replica gets its own part of the global batch."""

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from ringfeed.pipeline import Loader, Mixup, TabularTransform, plan_columns
from ringfeed.sharding import BuildOptions, ConfigError, build
from tests.helpers import distributed_worker
from tests.helpers.lean import lean_environment
from tests.servers.process import free_ports

Make = Callable[..., str]
OPTIONS = {"batch_size": 120, "seed": 3}


def start(kind: str, url: str, options: dict[str, Any], env: dict[str, str] | None = None) -> "subprocess.Popen[str]":
    command = [sys.executable, "-W", "error::UserWarning", distributed_worker.__file__, kind, url, json.dumps(options)]
    return subprocess.Popen(
        command, env=lean_environment(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def result(process: "subprocess.Popen[str]") -> dict[str, Any]:
    out, errors = process.communicate(timeout=280)
    assert process.returncode == 0, errors[-3000:]
    value: dict[str, Any] = json.loads(out)
    return value


def global_batches(url: str) -> list[Any]:
    return [batch["id"].tolist() for batch in Loader(url, **OPTIONS).numpy_epoch(1, 2)]


def test_keras_fits_an_epoch_as_it_is(make_dataset: Make) -> None:
    loader = Loader(make_dataset(), batch_size=60, columns=["vector"])
    layers = [keras.Input((3,)), keras.layers.Rescaling(1e-3), keras.layers.Dense(3)]
    model = keras.Sequential(layers)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(loader.epoch(0, as_supervised=True), verbose=0, shuffle=False)
    assert int(model.optimizer.iterations.numpy()) == loader.steps_per_epoch


def test_supervised_elements_are_features_class_and_weight(make_dataset: Make) -> None:
    url = make_dataset(500, shard_format="parquet", fixed=False)
    loader = Loader(url, batch_size=60, remainder="pad")
    for batch, (features, class_id, weight) in zip(loader.epoch(0), loader.epoch(0, as_supervised=True), strict=True):
        assert set(features) == {"id", "vector"}
        for name, value in features.items():
            np.testing.assert_array_equal(value, batch[name])
        np.testing.assert_array_equal(class_id, batch["class_id"])
        np.testing.assert_array_equal(weight, batch["sample_weight"])
    with pytest.raises(ConfigError, match="as_supervised needs a feature beside the label"):
        Loader(url, batch_size=60, columns=["label"]).epoch(0, as_supervised=True)


def test_supervised_elements_hold_what_transforms_left_and_added(make_dataset: Make) -> None:
    loader = Loader(make_dataset(), batch_size=60, sample_keys=True)
    mixed = Mixup(features=("vector",), classes=3, group=2)
    batch = next(iter(loader.epoch(0, transform=mixed)))
    features, target = next(iter(loader.epoch(0, transform=mixed, as_supervised=True)))
    np.testing.assert_array_equal(target, batch["soft_label"])
    np.testing.assert_array_equal(features["vector"], batch["vector"])
    inputs = TabularTransform(plan=plan_columns(loader.manifest))
    features, target = next(iter(loader.epoch(0, transform=inputs, as_supervised=True)))
    assert set(features) == {"id", "vector", "numeric"}
    np.testing.assert_array_equal(target, batch["class_id"])

    def only(element: Any) -> Any:
        return {"twice": element["id"] * 2, "class_id": element["class_id"]}

    (twice, _) = next(iter(loader.epoch(0, transform=only, as_supervised=True)))
    np.testing.assert_array_equal(twice, batch["id"] * 2)
    for unpaired in (lambda element: {"id": element["id"]}, lambda element: (element["id"], element["class_id"])):
        with pytest.raises(ConfigError, match="pairs features with 'class_id', which the last transform does not"):
            loader.epoch(0, transform=unpaired, as_supervised=True)


def test_without_a_label_there_is_no_target(make_dataset: Make, tmp_path: Path) -> None:
    source = str(Path(make_dataset()).parent / "source.parquet")
    build(BuildOptions(source=source, destination=str(tmp_path / "out"), shards=2))
    with pytest.raises(ConfigError, match="the dataset has no label; pair them by a transform"):
        Loader(str(tmp_path / "out"), batch_size=60).epoch(0, as_supervised=True)


def test_transforms_come_before_the_strategy(make_dataset: Make) -> None:
    loader = Loader(make_dataset(), batch_size=60, columns=["vector"], sample_keys=True)
    mixed = Mixup(features=("vector",), classes=3, group=2)
    given: dict[str, Any] = {"transform": [mixed, dict], "num_parallel_calls": 1, "as_supervised": True}
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    distributed = loader.distributed_epoch(strategy, 0, 14, **given)
    for here, plain in zip(distributed, loader.epoch(0, 14, **given), strict=True):
        for one, other in zip(here, plain, strict=True):
            np.testing.assert_array_equal(one, other)


def test_the_replicas_of_a_mirrored_strategy_share_each_batch(make_dataset: Make) -> None:
    url = make_dataset(1000)
    seen = result(start("mirrored", url, OPTIONS))
    assert [[*first, *second] for first, second in seen["ids"]] == global_batches(url)
    assert {len(part) for replicas in seen["ids"] for part in replicas} == {60}
    assert seen["sums"] == [-sum(batch) for batch in global_batches(url)]
    assert seen["steps"] == 8


def test_two_workers_share_each_global_batch_as_ranks(make_dataset: Make) -> None:
    url = make_dataset(1000)
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    workers = [
        start(
            "workers",
            url,
            {**OPTIONS, "rank": rank, "world_size": 2},
            {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})},
        )
        for rank in range(2)
    ]
    try:
        first, second = map(result, workers)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert [[*a, *b] for (a,), (b,) in zip(first["ids"], second["ids"], strict=True)] == global_batches(url)
    assert first["sums"] == second["sums"] == [-sum(batch) for batch in global_batches(url)]


def test_other_objects_than_strategies_are_refused(make_dataset: Make) -> None:
    with pytest.raises(ConfigError, match=r"strategy must be a tf\.distribute\.Strategy, got None"):
        Loader(make_dataset(), batch_size=60).distributed_epoch(None, 0)  # type: ignore[arg-type]


def test_a_strategy_whose_workers_are_not_the_ranks_is_refused(make_dataset: Make) -> None:
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    loader = Loader(make_dataset(), batch_size=60, rank=1, world_size=2)
    with pytest.raises(ConfigError, match="worker 0 of 1, the loader rank 1 of 2; use Loader"):
        loader.distributed_epoch(strategy, 0)
