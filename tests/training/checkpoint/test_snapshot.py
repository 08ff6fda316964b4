"""Snapshots: after a restore, the next steps are the same bit by bit."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import xxhash

from ringfeed.pipeline.order.epoch_order import ORDER_VERSION as ORDER
from ringfeed.sharding.errors import CorruptionError, TrainingError
from ringfeed.training.checkpoint.snapshot import (
    Parts,
    Position,
    capture,
    check_resumable,
    check_servers,
    check_state,
    restore,
    seed_variables,
    set_rank_seeds,
)
from ringfeed.training.checkpoint.store import CheckpointStore, decode, encode
from ringfeed.training.config.config_file import parse_config, to_tree
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.optimizers.build import build_optimizer, build_schedule
from ringfeed.training.optimizers.precision import LossScale, ScaleRule
from ringfeed.training.ring.ring import SoloRing
from ringfeed.training.step.train_step import make_train_step
from ringfeed.training.sync.synchronizer import EveryStep


def _config(**groups: Any) -> TrainConfig:
    return parse_config({"data": {"url": "x"}, **groups}, "test")


def _parts(seed: int, units: int = 4, optimizer: str = "lars") -> Parts:
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((3,))
    features = keras.layers.BatchNormalization()(keras.layers.Dense(units)(inputs))
    features = keras.layers.Dropout(0.5)(features)
    network = keras.Model(inputs, keras.layers.Dense(2)(features))
    config = _config(optimizer={"name": optimizer, "learning_rate": 0.1}, epochs=4)
    schedule = build_schedule(config, 10)
    return Parts(
        network=network,
        optimizer=build_optimizer(config.optimizer, schedule, network.trainable_variables),
        scale=LossScale(ScaleRule(initial=64.0, growth_interval=3)),
    )


def _train(parts: Parts, steps: int) -> None:
    rng = np.random.default_rng(2)
    step = make_train_step(parts.network, parts.optimizer, EveryStep(SoloRing()), parts.scale)
    for _ in range(steps):
        step(tf.constant(rng.normal(size=(8, 3)).astype(np.float32)), tf.constant(rng.integers(0, 2, 8)), tf.ones(8))


@pytest.mark.parametrize("optimizer", ["lars", "sgd", "adam", "adamw"])
def test_training_resumes_bit_by_bit_from_a_checkpoint(optimizer: str) -> None:
    original = _parts(seed=1, optimizer=optimizer)
    _train(original, 5)
    saved = decode(encode(capture(original, Position(step=5), _config(), "abc", {})))
    again = _parts(seed=99, optimizer=optimizer)
    restore(again, saved.arrays)
    _train(original, 4)
    _train(again, 4)
    for (name, a), (_, b) in zip(original.variables().items(), again.variables().items(), strict=True):
        np.testing.assert_array_equal(np.asarray(tf.convert_to_tensor(a)), np.asarray(tf.convert_to_tensor(b)), name)
    assert float(original.scale.scale) > 64.0  # it moved, and was restored in the midst of its interval


def test_another_model_or_optimizer_is_refused_before_anything_is_assigned() -> None:
    saved = capture(_parts(seed=1), Position(), _config(), "abc", {})
    other = _parts(seed=2, units=5)
    before = other.network.get_weights()
    with pytest.raises(TrainingError, match=r"is float32 of shape \(3, 4\), the model's is float32 of shape \(3, 5\)"):
        restore(other, saved.arrays)
    with pytest.raises(TrainingError, match=r"the checkpoint holds \d+ variables, this model and optimizer have \d+"):
        restore(_parts(seed=2, optimizer="keras.optimizers:Adam"), saved.arrays)
    for a, b in zip(before, other.network.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_checkpoint_of_another_number_of_parameter_servers_is_refused_with_that_number() -> None:
    parts = replace(_parts(seed=1), servers=2)
    state = json.loads(json.dumps(capture(parts, Position(), _config(), "abc", {}).state))
    check_servers(state, parts, "run")
    with pytest.raises(TrainingError, match=r"run with 2 parameter servers.* this one has 3: start it with --ps 2"):
        check_servers(state, replace(parts, servers=3), "run")


def test_a_checkpoint_of_another_run_is_refused_with_the_keys_that_differ() -> None:
    saved = capture(_parts(seed=1), Position(), _config(seed=1), "abc", {})
    state = json.loads(json.dumps(saved.state))
    check_resumable(state, _config(seed=1, checkpoint={"keep": 9}), ["abc"])
    changed = _config(seed=2, data={"url": "x", "batch_size": 7})
    with pytest.raises(TrainingError, match=r"different data\.batch_size, seed, the dataset's shards: undo the change"):
        check_resumable(state, changed, ["another"])
    del state["loader"]["order"]  # as the first checkpoints had none
    with pytest.raises(
        TrainingError, match=r"different order of samples \(that of another version of ringfeed\): undo"
    ):
        check_resumable(state, _config(seed=1), ["abc"])


def _forged(data: bytes) -> Iterator[bytes]:
    """Files of other programs, made of one of ours: other bytes, headers, metadata and state."""
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]

    def of(header: object, body: bytes = body) -> bytes:
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + body

    values: tuple[Any, ...] = (None, True, -1, 2**70, 1e300, "", "x", [], [[]], {}, {"a": 1}, "[" * 9000)
    yield from (
        b"",
        b"\0" * 8,
        b"\xff" * 99,
        data[:20],
        data[: 8 + size],
        data[:-1],
        data + b"x",
        b"PK\3\4" + data,
        data[8:],
    )
    yield from (of(value) for value in values)
    for key, value in itertools.product(("__metadata__", next(name for name in header if "/" in name)), values):
        yield of({**header, key: value})
    for key, value in itertools.product(
        ("dtype", "shape", "data_offsets"), (*values, "F8_E4M3", "I3", [2, 2**62], [-1, 1])
    ):
        name = next(name for name in header if "/" in name)
        yield of({**header, name: {**header[name], key: value}})
    metadata = header["__metadata__"]
    for key, value in itertools.product(
        ("step", "state", "order"), ("", "x", "-1", "[" * 9000, "null", "[[1]]", '["x"]', "{}", "7")
    ):
        yield of({**header, "__metadata__": {**metadata, key: value}})
        yield of({**header, "__metadata__": {name: text for name, text in metadata.items() if name != key}})
    state = json.loads(metadata["state"])
    for key, value in itertools.product(state, values):
        yield of({**header, "__metadata__": {**metadata, "state": json.dumps({**state, key: value})}})
    for inner, value in itertools.product(("step", "epoch", "epoch_step"), values):
        position = {**state["position"], inner: value}
        yield of({**header, "__metadata__": {**metadata, "state": json.dumps({**state, "position": position})}})


def test_forged_checkpoints_are_refused_in_one_line(tmp_path: Path) -> None:
    parts, config = _parts(seed=1), _config()
    history = {"steps": [], "evaluations": [{"step": 5}]}
    saved = capture(parts, Position(step=5, epoch=1), config, "abc", history)
    refused, tried = 0, 0
    for number, data in enumerate(_forged(encode(saved))):
        store = CheckpointStore(str(tmp_path / f"{number}"), check=check_state, on_damage="previous")
        previous = store.save(capture(parts, Position(step=4), config, "abc", history))
        (tmp_path / f"{number}" / f"step-{5:010}-{xxhash.xxh3_128_hexdigest(data)}.safetensors").write_bytes(data)
        tried += 1
        newest = store.newest()
        assert newest is not None
        if newest.step == 4:  # the one before, as on_damage says
            refused += 1
            Path(previous).unlink()
            with pytest.raises(
                CorruptionError, match="has the hash in its name, but ringfeed did not write it"
            ) as told:
                store.newest()
            assert "\n" not in str(told.value)
            assert len(str(told.value)) < 700
            continue
        with suppress(TrainingError):  # of another run or model
            check_resumable(newest.state, config, ["abc"])
            restore(parts, newest.arrays)
    assert tried > 200
    assert refused > tried * 0.85


def test_each_rank_gets_its_own_dropout_and_rank_0_keeps_its_own() -> None:
    network = _parts(seed=1).network
    (variable,) = seed_variables(network)
    start = variable.numpy().copy()
    keys = set()
    for rank in range(8):
        variable.assign(start)
        set_rank_seeds(network, rank)
        keys.add(int(variable.numpy()[0]))
        assert variable.numpy()[1] == start[1]
        assert (int(variable.numpy()[0]) == int(start[0])) == (rank == 0)
    assert len(keys) == 8


def test_positions_cross_epochs() -> None:
    position = Position()
    for _ in range(7):
        position = position.advanced(3)
    assert position == Position(step=7, epoch=2, epoch_step=1)


@pytest.mark.parametrize("decay", ["cosine", "polynomial", "one-cycle"])
def test_more_epochs_do_not_stretch_a_schedule_without_a_word(decay: str) -> None:
    schedule = {"decay": decay, "warmup_steps": 2}
    first = {"config": to_tree(_config(epochs=3, schedule=schedule)), "dataset": "abc", "loader": {"order": ORDER}}
    remedy = f"its {decay} schedule ends after 3 epochs, this one after 6 epochs.* schedule.total_epochs=3, or set"
    with pytest.raises(TrainingError, match=remedy):
        check_resumable(first, _config(epochs=6, schedule=schedule), ["abc"])
    longer = _config(epochs=6, schedule={**schedule, "total_epochs": 3})
    check_resumable(first, longer, ["abc"])
    assert build_schedule(longer, 10)(29) == build_schedule(_config(epochs=3, schedule=schedule), 10)(29)
    with pytest.raises(TrainingError, match="after 3 epochs, this one after 50 steps"):
        check_resumable(first, _config(epochs=6, schedule={**schedule, "total_steps": 50}), ["abc"])


def test_more_epochs_of_a_rate_that_knows_no_end_are_no_change() -> None:
    schedule = {"decay": "step", "boundaries": [1]}
    first = {"config": to_tree(_config(epochs=3, schedule=schedule)), "dataset": "abc", "loader": {"order": ORDER}}
    del first["config"]["schedule"]["total_epochs"]
    check_resumable(first, _config(epochs=6, schedule=schedule), ["abc"])
