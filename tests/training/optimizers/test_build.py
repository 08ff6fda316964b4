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
from ringfeed.training.config.optimizer import OptimizerConfig
from ringfeed.training.optimizers.build import build_optimizer
from ringfeed.training.schedules.learning_rate import WarmUpDecay

RATE = WarmUpDecay(0.5, 0, 10, decay="constant")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"variant": "nvlamb"},
            "must be one of optax, .* for lars, got 'nvlamb'; nvlamb is one of optimizer.name=lamb",
        ),
        ({"name": "adam", "variant": "paper"}, "optimizer.variant must be null for adam, got 'paper'"),
        ({"name": "lamb", "nesterov": True}, r"optimizer.nesterov must be false for lamb \(lars and sgd have it\)"),
        ({"variant": "paper", "eps": 1e-9}, "optimizer.eps must be null or 0 for the variant paper"),
        ({"name": "sgd", "exclude_ratio": ("x",)}, "optimizer.exclude_ratio must be null for sgd"),
        ({"name": "sgd", "options": {"a": 1}}, "optimizer.options must be empty for sgd"),
        ({"name": "lion"}, "optimizer.name must be one of lars, lamb, .* or module:function, got 'lion'"),
        ({"scaling": "cubic"}, "optimizer.scaling must be one of linear, sqrt, got 'cubic'"),
    ],
)
def test_pairs_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OptimizerConfig(**options)


def test_a_class_of_keras_gets_its_options_and_the_mask() -> None:
    kernel, bias = keras.Variable(np.ones((2, 2))), keras.Variable(np.ones(2))
    config = OptimizerConfig(name="keras.optimizers:Lion", weight_decay=0.1, options={"beta_1": 0.5})
    optimizer = build_optimizer(config, RATE, [kernel, bias])
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
    optimizer = build_optimizer(
        OptimizerConfig(name="own_optimizers:build", beta_1=0.7), RATE, [keras.Variable(np.ones(2))]
    )
    assert (type(optimizer), optimizer.beta_1) == (keras.optimizers.Nadam, 0.7)
    with pytest.raises(ConfigError, match=r"must return a keras.optimizers.Optimizer, got WarmUpDecay"):
        build_optimizer(OptimizerConfig(name="own_optimizers:wrong"), RATE, [])
    with pytest.raises(ConfigError, match=r"optimizer.options: keras.optimizers:Lion refuses \{'beta_9': 1\}"):
        build_optimizer(OptimizerConfig(name="keras.optimizers:Lion", options={"beta_9": 1}), RATE, [])
    with pytest.raises(ConfigError, match=r"keras.optimizers:Lion has use_ema, .*: set ema.decay instead"):
        build_optimizer(OptimizerConfig(name="keras.optimizers:Lion", options={"use_ema": True}), RATE, [])
    options = {"gradient_accumulation_steps": 2}
    with pytest.raises(ConfigError, match=r"gradient_accumulation_steps, .*: set optimizer.accumulate instead"):
        build_optimizer(OptimizerConfig(name="keras.optimizers:SGD", options=options), RATE, [])
    with pytest.raises(ConfigError, match=r"own_optimizers:scaled is a LossScaleOptimizer, .*precision=float16"):
        build_optimizer(OptimizerConfig(name="own_optimizers:scaled"), RATE, [])
    with pytest.raises(TrainingError, match=r"optimizers:fails: .*own_optimizers.py:7: KeyError: 'beta'"):
        build_optimizer(OptimizerConfig(name="own_optimizers:fails"), RATE, [])
    weights = keras.Variable(np.ones(2))
    optimizer = build_optimizer(OptimizerConfig(name="own_optimizers:Own"), RATE, [weights])
    with pytest.raises(TrainingError, match=r"optimizers:Own: .*own_optimizers.py:12: ValueError: no rule"):
        optimizer.apply([tf.ones(2)], [weights])


def test_a_checkpoint_from_before_a_key_has_its_default() -> None:
    config = parse_config({"data": {"url": "x"}, "optimizer": {"name": "lars", "momentum": 0.8}}, "test")
    before = to_tree(config)
    for name in ("variant", "scaling", "exclude_ratio", "options"):
        del before["optimizer"][name]
    assert changed_keys(config, before) == []
