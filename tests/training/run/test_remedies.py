"""Errors of a run that cannot train, and their remedies: with what the error says, the run goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ringfeed.sharding.errors import CorruptionError, RingfeedError, TrainingError
from ringfeed.tools.shard_dataset.program import main as shard_dataset
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


UNEVALUATED = {"eval_split": None, "test_split": None}
SMALL = {"hidden": [4], "norm": "none", "dropout": 0.0}
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
        data=UNEVALUATED,
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
    path = write_config(data=UNEVALUATED, schedule={"warmup_epochs": 0.0}, model=SMALL, max_steps=3)

    def train(overrides: list[str]) -> None:
        words = [word.format(folder=tmp_path, pictures=pictures) for word in overrides]
        Trainer(load_config(str(path), ["deterministic=false", "output.metrics=null", *words]), SoloRing()).run()

    if KEPT[0] in changes:
        train(KEPT)
    with pytest.raises(RingfeedError, match=message):
        train(changes)
    train(remedy)


UNLABELLED = ["data.url={folder}/unlabelled", "task=regression", "data.target=hour"]


@pytest.mark.parametrize(
    ("changes", "message", "remedies"),
    [
        (["data.train_split=trian"], "no split 'trian'; the dataset has 'train', 'test'", [["data.train_split=train"]]),
        (["data.eval_split=val"], "has 'train', 'test'; to train without evaluation: data.eval_split: null",
         [["data.eval_split=test"], ["data.eval_split=null"]]),
        (["data.exclude=[delya]"], "did you mean .delay.. The columns are: delay,", [["data.exclude=[delay]"]]),
        (["data.categorical=[delay]"], "must hold one integer or text per record", [["data.categorical=[hour]"]]),
        (["data.where='delay >'"], "an expression may hold == != < <= >", [["data.where='delay > 1'"]]),
        (["data.where='dely > 1'"], "did you mean .delay.. The columns here are: delay", [["data.where='delay > 1'"]]),
        (["data.where='hour > 99'"], "none of the 3000 records passes", [["data.where='hour > 9'"]]),
        (["data.balance=unifrm"], "must be 'natural', 'uniform', 'power:A'", [["data.balance=uniform"]]),
        (["data.balance={{early: 1}}"], "there is no class 'early'; the classes are: late, on time",
         [["data.balance={{late: 1, on time: 1}}"]]),
        (["data.cache=s3://bucket/cache"], "the path of a folder on a local disk", [["data.cache={folder}/cache"]]),
        (["data.streams=7"], "data.streams must divide the global batch of 60", [["data.streams=6"]]),
        (["data.url={folder}/none"], "make one with: shard-dataset build SRC DST --label COL",
         [["data.url={folder}/built"]]),
        (["data.url={folder}/unlabelled"], "build with --label, or name another target: data.target with task=binary, "
         "multilabel or regression", [UNLABELLED, ["data.url={folder}/built"]]),
        ([*UNLABELLED, "data.target=distance"], "drop such records: shard-dataset build --filter",
         [["data.url={folder}/built-filtered", *UNLABELLED[1:], "data.target=distance"]]),
    ],
)  # fmt: skip
def test_the_remedy_of_an_error_about_the_data_lets_the_run_go_on(
    changes: list[str],
    message: str,
    remedies: list[list[str]],
    tmp_path: Path,
    flights: str,
    write_config: Callable[..., Path],
) -> None:
    path = write_config(data=UNEVALUATED, schedule={"warmup_epochs": 0.0}, model=SMALL, max_steps=3)

    def train(overrides: list[str]) -> None:
        words = [word.format(folder=tmp_path) for word in overrides]
        Trainer(load_config(str(path), ["deterministic=false", "output.metrics=null", *words]), SoloRing()).run()

    source = str(Path(flights).parent / "source.parquet")
    if any("unlabelled" in word for word in changes):
        assert shard_dataset(["build", source, str(tmp_path / "unlabelled"), "--workers", "1"]) == 0
    with pytest.raises(RingfeedError, match=message):
        train(changes)
    if any("built" in word for remedy in remedies for word in remedy):
        words = ["build", source, "--label", "late", "--workers", "1"]
        assert shard_dataset([*words, str(tmp_path / "built")]) == 0
        assert shard_dataset([*words, str(tmp_path / "built-filtered"), "--filter", "distance is not null"]) == 0
    for remedy in remedies:
        train(remedy)


@pytest.mark.parametrize("damage", ["bits", "cut", "missing"])
def test_a_run_goes_on_once_its_damaged_shard_is_repaired_as_the_error_says(
    damage: str, tmp_path: Path, flights: str, write_config: Callable[..., Path]
) -> None:
    shutil.copytree(flights, tmp_path / "damaged")
    shard = sorted((tmp_path / "damaged").glob("train-*"))[0]
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "missing":
        shard.unlink()
    else:
        shard.write_bytes(content if damage == "bits" else content[: len(content) // 2])
    path = write_config(data={"url": str(tmp_path / "damaged"), **UNEVALUATED}, model=SMALL)
    config = load_config(path, ["deterministic=false", f"checkpoint.url={tmp_path}/run", "epochs=1"])
    with pytest.raises(CorruptionError, match=r"repair it with: shard-dataset repair .*damaged") as raised:
        Trainer(config, SoloRing()).run()
    _, command, folder = str(raised.value).rpartition("repair it with: ")[2].split()
    assert shard_dataset([command, folder, "--source", str(Path(flights).parent / "source.parquet")]) == 0
    Trainer(config, SoloRing()).run()
