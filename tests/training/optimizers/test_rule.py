"""What all optimizers by rules have in common."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf

from ringfeed.training.optimizers.adam import Adam
from ringfeed.training.optimizers.lamb import LAMB
from ringfeed.training.optimizers.lars import LARS
from ringfeed.training.optimizers.rule import Rule


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (LARS, {"variant": "larc", "exclude": ["bias"]}),
        (LAMB, {"variant": "nvlamb", "beta_1": 0.8}),
        (Adam, {"exclude": ["x"], "weight_decay": 0.1}),
    ],
)
def test_its_configuration_makes_the_same_again(optimizer: Any, options: dict[str, Any]) -> None:
    made = optimizer(**options)
    again = optimizer.from_config(made.get_config())
    assert again.get_config() == made.get_config()
    assert again.rule == made.rule


def test_a_rule_is_needed() -> None:
    with pytest.raises(TypeError, match="updated"):
        Rule(None)  # type: ignore[abstract]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_strategy_cannot_scale_all_gradients_together() -> None:
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with strategy.scope():
        variable = keras.Variable(tf.ones((2, 2)))
        scaled, plain = LAMB(variant="nvlamb"), LAMB(0.1)
        for optimizer in (scaled, plain):
            optimizer.build([variable])

        def step(optimizer: Any) -> None:
            strategy.run(lambda: optimizer.apply([tf.ones((2, 2))], [variable]))

        step(plain)
        assert float(variable.value[0, 0]) < 1
        with pytest.raises(ValueError, match="needs all gradients together"):
            step(scaled)
