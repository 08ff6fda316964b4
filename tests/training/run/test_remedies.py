"""Errors of a run that cannot train, and their remedies: with what the error says, the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ringfeed.sharding.errors import RingfeedError, TrainingError
from ringfeed.training.config.config_file import load_config
from ringfeed.training.ring.ring import SoloRing
from ringfeed.training.run.trainer import Trainer

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

def gentle(manifest, config):  # overflows in float16 at large scales of the loss alone
    return _network(keras.layers.Rescaling(3e2, dtype="float32"), dtype=None)

def large(manifest, config):
    return _network(keras.layers.Rescaling(3e5, dtype="float32"))

def low(manifest, config):  # of the run's precision, not float32
    return _network(keras.layers.Rescaling(3e5, dtype="float32"), dtype=None)

def huge(manifest, config):
    return _network(keras.layers.Lambda(lambda t: 1e38 * (t + 10.0) * 1e2, dtype="float32"))
"""


RATE, STEEP, LOWER = (f"optimizer.learning_rate={rate}" for rate in ("1e35", "1e30", "1e-12"))
HALF = "precision=float16"


@pytest.mark.parametrize(
    ("network", "changes", "message", "remedy"),
    [
        ("cut", [], "no gradient for any variable of the network: leave out .* tf.stop_gradient", ["plain"]),
        ("rounded", [], "no gradient for any variable of the network: .* cast to integers", ["plain"]),
        ("large", ["compression.method=fp16"], "finite, but compression.method=fp16 .* beyond 65504: set compression.m"
         "ethod=bf16, or none", ["compression.method=bf16"]),
        ("large", ["compression.method=fp16"], "or none", ["compression.method=none"]),
        ("huge", [], "step 0 are not finite in float32: the weights are still the initial ones", ["plain"]),
        ("large", [RATE, "max_steps=1"], "after step 1 weights are not finite, .* lower optimizer.learn", [LOWER]),
        ("large", [RATE, "max_steps=1"], "or set optimizer.clip_norm", [RATE, "optimizer.clip_norm=1e-30"]),
        ("large", [STEEP], "gradients of step 1 are not finite in float32: lower optimizer.learning_rate", [LOWER]),
        ("large", [STEEP], "or set optimizer.clip_norm", [STEEP, "optimizer.clip_norm=1e-30"]),
        ("low", [HALF, "loss_scale.initial=1"], "finite in float16: set precision=bfloat16", ["precision=bfloat16"]),
        ("low", [HALF, "loss_scale.initial=1"], "or float32", ["precision=float32"]),
        ("gentle", [HALF, "loss_scale.initial=65536"], "all 3 steps overflowed in float16, .* lower loss_scale.initial",
         [HALF, "loss_scale.initial=1"]),
        ("gentle", [HALF, "loss_scale.initial=65536"], "or train for longer",
         [HALF, "loss_scale.initial=65536", "max_steps=20"]),
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


IMAGES = ["model.name=convnet", "model.dropout=0", "data.categorical=[]"]
MIXED = [*IMAGES, "model.image_shape=[8, 8, 3]", "augment.mixup=0.2", "augment.mix_group=8"]
CLIENTS = ["sync.method=fedavg", "sync.clients=[a]"]
KEPT = ["checkpoint.url={folder}/kept"]
OTHER = ["checkpoint.url={folder}/other"]


@pytest.mark.parametrize(
    ("changes", "message", "remedy"),
    [
        (["data.batch_size=3001"], "use at most 3000", ["data.batch_size=3000", "max_steps=1"]),
        (["optimizer.accumulate=61"], "more than the 60 samples .* lower it", ["optimizer.accumulate=60"]),
        (["optimizer.accumulate=61"], "or raise data.batch_size", ["optimizer.accumulate=61", "data.batch_size=61"]),
        (["sync.method=post_local_sgd", "sync.start_step=9"], "sync.start_step=9 .* lower it",
         ["sync.method=post_local_sgd", "sync.start_step=1"]),
        (["compression.method=top_k", "compression.start_step=9"], "set it to about a tenth of them",
         ["compression.method=top_k", "compression.start_step=1"]),
        (["model.freeze=['.*']"], "leave no weight to train; leave out a layer", []),
        (["schedule.warmup_epochs=0", "schedule.warmup_steps=100"], "lower schedule.warmup_steps",
         ["schedule.warmup_epochs=0", "schedule.warmup_steps=1"]),
        (["schedule.warmup_epochs=0", "schedule.warmup_steps=100"], "or raise epochs or schedule.total_epochs",
         ["schedule.warmup_epochs=0", "schedule.warmup_steps=100", "schedule.total_epochs=3"]),
        ([*KEPT, "optimizer.learning_rate=0.3"], "different optimizer.learning_rate: undo the change", KEPT),
        ([*KEPT, "optimizer.learning_rate=0.3"], "or set another checkpoint.url",
         [*OTHER, "optimizer.learning_rate=0.3"]),
        ([*KEPT, "max_steps=2"], "ends at step 2: raise epochs or max_steps", [*KEPT, "max_steps=4"]),
        ([*KEPT, "max_steps=2"], "or set another checkpoint.url", [*OTHER, "max_steps=2"]),
        ([*KEPT, "checkpoint.resume=false"], "remove them, or set another checkpoint.url",
         [*OTHER, "checkpoint.resume=false"]),
        (["data.url={pictures}", *IMAGES], "give model.image_shape, such as", ["data.url={pictures}", *MIXED[:4]]),
        (["data.url={pictures}", *MIXED], "use a multiple of 8", ["data.url={pictures}", *MIXED, "data.batch_size=56"]),
        (["data.url={pictures}", *MIXED, "data.batch_size=56", *CLIENTS], "sync.clients=.* does not go with augm",
         ["data.url={pictures}", *MIXED, "data.batch_size=56", CLIENTS[0], "sync.clients=null"]),
    ],
)  # fmt: skip
def test_the_remedy_of_a_refused_configuration_lets_the_run_go_on(
    changes: list[str],
    message: str,
    remedy: list[str],
    tmp_path: Path,
    pictures: str,
    write_config: Callable[..., Path],
) -> None:
    path = write_config(data={"eval_split": None}, schedule={"warmup_epochs": 0.0}, model={"hidden": [4]}, max_steps=3)

    def train(overrides: list[str]) -> None:
        words = [word.format(folder=tmp_path, pictures=pictures) for word in overrides]
        Trainer(load_config(str(path), ["deterministic=false", "output.metrics=null", *words]), SoloRing()).run()

    if KEPT[0] in changes:
        train(KEPT)
    with pytest.raises(RingfeedError, match=message):
        train(changes)
    train(remedy)
