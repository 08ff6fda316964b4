"""Optimizers by name, and those of Keras and of users by `module:function`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from ringfeed.sharding.errors import ConfigError, TrainingError
from ringfeed.training.config.config_file import changed_keys, parse_config, to_tree
from ringfeed.training.config.optimizers import OPTIMIZERS, OwnOptimizerConfig
from ringfeed.training.optimizers.build import build_optimizer, user_optimizer
from ringfeed.training.optimizers.sgd import SGD
from ringfeed.training.schedules.learning_rate import WarmUpDecay

RATE = WarmUpDecay(0.5, 0, 10, decay="constant")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"variant": "nvlamb"},
            "optimizer.variant must be one of optax, .*, or null, got 'nvlamb'",
        ),
        ({"name": "adam", "variant": "paper"}, "optimizer.variant is a key of lars, lamb, not of adam: leave it out"),
        ({"name": "lamb", "nesterov": True}, "optimizer.nesterov is a key of lars, sgd, not of lamb: leave it out"),
        ({"name": "adam", "weight_decay": 0.1}, "optimizer.weight_decay is a key of lars, lamb, sgd, adamw"),
        ({"name": "sgd", "exclude_ratio": ("x",)}, "optimizer.exclude_ratio is a key of lars, lamb, not of sgd"),
        ({"name": "sgd", "options": {"a": 1}}, "optimizer.options is a key of module:function, not of sgd"),
        ({"name": "lion"}, "optimizer.name must be one of lars, lamb, .* or module:function, got 'lion'"),
        ({"scaling": "cubic"}, "optimizer.scaling must be one of linear, sqrt, got 'cubic'"),
    ],
)
def test_keys_that_an_optimizer_does_not_have_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OPTIMIZERS.made(options)


def test_the_lamb_of_the_paper_takes_an_eps() -> None:
    tree = {"data": {"url": "x"}, "optimizer": {"name": "lamb", "variant": "paper", "eps": 0.5}}
    assert parse_config(tree, "test").optimizer.epsilon == 0.5


def test_a_class_of_keras_gets_its_options_and_the_mask() -> None:
    kernel, bias = keras.Variable(np.ones((2, 2))), keras.Variable(np.ones(2))
    config = OwnOptimizerConfig(name="keras.optimizers:Lion", weight_decay=0.1, options={"beta_1": 0.5})
    optimizer = build_optimizer(config, RATE, [kernel, bias])
    assert config.builder() is user_optimizer
    assert (type(optimizer), optimizer.beta_1, optimizer.weight_decay) == (keras.optimizers.Lion, 0.5, 0.1)
    optimizer.apply([tf.zeros((2, 2)), tf.zeros(2)])
    assert (float(kernel[0, 0]), float(bias[0])) == (pytest.approx(0.95), 1.0)


def test_a_function_of_the_user_builds_the_optimizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own_optimizers.py").write_text(
        "import keras\n"
        "def build(schedule, config):\n    return keras.optimizers.Nadam(schedule, beta_1=config.beta_1)\n"
        "def wrong(schedule, config):\n    return schedule\n"
        "def fails(schedule, config):\n    return {}['beta']\n"
        "def scaled(schedule, config):\n    return keras.optimizers.LossScaleOptimizer(build(schedule, config))\n"
        "class Own(keras.optimizers.Optimizer):\n"
        "    def update_step(self, gradient, variable, learning_rate):\n        raise ValueError('no rule')\n"
    )
    options = OwnOptimizerConfig(name="own_optimizers:build", beta_1=0.7)
    optimizer = build_optimizer(options, RATE, [keras.Variable(np.ones(2))])
    assert (type(optimizer), optimizer.beta_1) == (keras.optimizers.Nadam, 0.7)
    with pytest.raises(ConfigError, match=r"must return a keras.optimizers.Optimizer, got WarmUpDecay"):
        build_optimizer(OwnOptimizerConfig(name="own_optimizers:wrong"), RATE, [])
    with pytest.raises(ConfigError, match=r"optimizer.options: keras.optimizers:Lion refuses \{'beta_9': 1\}"):
        build_optimizer(OwnOptimizerConfig(name="keras.optimizers:Lion", options={"beta_9": 1}), RATE, [])
    with pytest.raises(ConfigError, match=r"keras.optimizers:Lion has use_ema, .*: set ema.decay instead"):
        build_optimizer(OwnOptimizerConfig(name="keras.optimizers:Lion", options={"use_ema": True}), RATE, [])
    steps = {"gradient_accumulation_steps": 2}
    with pytest.raises(ConfigError, match=r"gradient_accumulation_steps, .*: set optimizer.accumulate instead"):
        build_optimizer(OwnOptimizerConfig(name="keras.optimizers:SGD", options=steps), RATE, [])
    with pytest.raises(ConfigError, match=r"own_optimizers:scaled is a LossScaleOptimizer, .*precision=float16"):
        build_optimizer(OwnOptimizerConfig(name="own_optimizers:scaled"), RATE, [])
    with pytest.raises(TrainingError, match=r"optimizers:fails: .*own_optimizers.py:7: KeyError: 'beta'"):
        build_optimizer(OwnOptimizerConfig(name="own_optimizers:fails"), RATE, [])
    weights = keras.Variable(np.ones(2))
    optimizer = build_optimizer(OwnOptimizerConfig(name="own_optimizers:Own"), RATE, [weights])
    with pytest.raises(TrainingError, match=r"optimizers:Own: .*own_optimizers.py:12: ValueError: no rule"):
        optimizer.apply([tf.ones(2)], [weights])


def test_sgd_is_that_of_keras_by_one_kernel_a_variable() -> None:
    options = {"name": "sgd", "momentum": 0.5, "nesterov": True, "weight_decay": 0.1}
    found = []
    for kind in (SGD, keras.optimizers.SGD):
        weights = keras.Variable(np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3))
        optimizer = (
            build_optimizer(OPTIMIZERS.made(options), RATE, [weights])
            if kind is SGD
            else kind(RATE, 0.5, nesterov=True, weight_decay=0.1)
        )
        assert type(optimizer) is kind
        for step in range(3):
            optimizer.apply([tf.fill([2, 3], 0.5 - step)], [weights])
        found.append(weights.numpy())
    np.testing.assert_allclose(*found, rtol=1e-6)


def test_a_checkpoint_from_before_a_key_has_its_default() -> None:
    config = parse_config({"data": {"url": "x"}, "optimizer": {"name": "lars", "momentum": 0.8}}, "test")
    before = to_tree(config)
    before["optimizer"] |= {"beta_1": 0.9, "options": {}}  # as when all optimizers shared their keys
    for name in ("variant", "scaling", "exclude_ratio"):
        del before["optimizer"][name]
    assert changed_keys(config, before) == []
