"""Errors of a run that cannot train, and their remedies: with what the error says, the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ringfeed.sharding.errors import TrainingError
from ringfeed.training.config.config_file import load_config
from ringfeed.training.loop.trainer import Trainer
from ringfeed.training.ring.ring import SoloRing

NETWORKS = """
import keras
import tensorflow as tf

def _network(after, dtype="float32"):
    column = keras.Input((), dtype="int32", name="hour")
    known = keras.layers.Lambda(lambda t: tf.cast(t, tf.float32)[:, None])(column)
    return keras.Model({"hour": column}, after(keras.layers.Dense(2, dtype=dtype)(known)))

def plain(manifest, config):
    return _network(keras.layers.Activation("linear", dtype="float32"))

def cut(manifest, config):
    return _network(keras.layers.Lambda(tf.stop_gradient, dtype="float32"))

def rounded(manifest, config):
    return _network(keras.layers.Lambda(lambda t: tf.cast(tf.cast(t, tf.int32), tf.float32), dtype="float32"))

def large(manifest, config):
    return _network(keras.layers.Rescaling(3e5, dtype="float32"))

def huge(manifest, config):
    return _network(keras.layers.Lambda(lambda t: 1e38 * (t + 10.0) * 1e2, dtype="float32"))
"""


@pytest.mark.parametrize(
    ("network", "changes", "message", "remedy"),
    [
        ("cut", [], "no gradient for any variable of the network: leave out .* tf.stop_gradient", ["plain"]),
        ("rounded", [], "no gradient for any variable of the network: .* cast to integers", ["plain"]),
        ("large", ["compression.method=fp16"], "finite, but compression.method=fp16 .* beyond 65504: set compression.m"
         "ethod=bf16, or none", ["compression.method=bf16"]),
        ("large", ["compression.method=fp16"], "or none", ["compression.method=none"]),
        ("huge", [], "step 0 are not finite in float32: the weights are still the initial ones", ["plain"]),
    ],
)  # fmt: skip
def test_the_remedy_of_an_error_lets_the_run_go_on(
    network: str,
    changes: list[str],
    message: str,
    remedy: list[str],
    tmp_path: Path,
    write_config: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "remedy_networks.py").write_text(NETWORKS)
    monkeypatch.syspath_prepend(tmp_path)
    path = write_config(
        data={"eval_split": None},
        optimizer={"name": "sgd", "learning_rate": 1e-12, "weight_decay": 0.0},
        schedule={"warmup_epochs": 0.0},
        max_steps=3,
    )

    def train(name: str, overrides: list[str]) -> None:
        words = ["deterministic=false", "output.metrics=null", f"model.name=remedy_networks:{name}"]
        Trainer(load_config(str(path), [*words, *overrides]), SoloRing()).run()

    with pytest.raises(TrainingError, match=message):
        train(network, changes)
    if "plain" in remedy:
        train("plain", changes)
    else:
        train(network, remedy)
