"""Snapshots: after a restore, the next steps are the same bit by bit."""

from __future__ import annotations

import json
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from ringfeed.sharding.errors import TrainingError
from ringfeed.training.checkpoint import decode, encode
from ringfeed.training.config import TrainConfig
from ringfeed.training.config_file import parse_config
from ringfeed.training.distributed import SoloRing
from ringfeed.training.optimizers import build_optimizer, build_schedule
from ringfeed.training.precision import LossScale, ScaleRule
from ringfeed.training.snapshot import (
    Parts,
    Position,
    capture,
    check_resumable,
    restore,
    seed_variables,
    set_rank_seeds,
)
from ringfeed.training.step import make_train_step


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
    step = make_train_step(parts.network, parts.optimizer, SoloRing(), parts.scale, None)
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
        restore(_parts(seed=2, optimizer="adam"), saved.arrays)
    for a, b in zip(before, other.network.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_checkpoint_of_another_run_is_refused_with_the_keys_that_differ() -> None:
    saved = capture(_parts(seed=1), Position(), _config(seed=1), "abc", {})
    state = json.loads(json.dumps(saved.state))
    check_resumable(state, _config(seed=1, checkpoint={"keep": 9}), "abc")
    changed = _config(seed=2, data={"url": "x", "batch_size": 7})
    with pytest.raises(TrainingError, match=r"different data\.batch_size, seed, the dataset's shards: undo the change"):
        check_resumable(state, changed, "another")
    del state["loader"]["order"]  # as the first checkpoints had none
    with pytest.raises(
        TrainingError, match=r"different order of samples \(that of another version of ringfeed\): undo"
    ):
        check_resumable(state, _config(seed=1), "abc")


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
