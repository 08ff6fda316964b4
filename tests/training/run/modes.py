"""Every way of keeping ranks in step, as real runs on a ring of threads, beside a simulation in NumPy.

The network is batch normalisation and a layer of logits, so its gradients are a line of NumPy. Shares of a batch are
uneven, clients' sizes are 1:10, their last batches are padded, each epoch has an evaluation, and weights have a moving
average where the method allows one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
import tensorflow as tf

from ringfeed.pipeline import Loader
from ringfeed.sharding import build
from ringfeed.training.config.config_file import parse_config
from ringfeed.training.run.stopping import Stopped
from ringfeed.training.run.trainer import Trainer
from tests.helpers.thread_ring import ThreadRing, on_ranks

Floats = npt.NDArray[np.float64]
Batches = list[list[tuple[Floats, npt.NDArray[np.int64]] | None]]  # of each step, by rank; None: it rests
COLUMNS = "abc"
CLIENTS = {"p": 9, "q": 90, "r": 33}
EVERY, EPOCHS, MOMENTUM, RATE, DECAY, BN_MOMENTUM, EPSILON = 5, 2, 0.5, 0.3, 0.9, 0.5, 1e-3

SYNC: dict[str, dict[str, Any]] = {
    "every_step": {},
    "batch_norm": {"batch_norm": True},
    "local_sgd": {"method": "local_sgd"},
    "averaged state": {"method": "local_sgd", "optimizer_state": "average"},
    "post_local_sgd": {"method": "post_local_sgd", "start_step": 7},
    "diloco": {"method": "diloco", "outer_momentum": 0.5},
    "fedavg": {"method": "fedavg"},
    "median": {"method": "fedavg", "aggregate": "median"},
    "gossip": {"method": "gossip"},
    "clients": {"method": "fedavg"},
    "clients, a step a round": {"method": "fedavg", "every": 1},
}
COMPRESSED = {"top_k": {"method": "top_k", "ratio": 0.5, "start_step": 0}, "qsgd": {"method": "qsgd"}}
STOPS = (3, 17)  # within a round; at the end of an epoch, where an evaluation would be due
NETWORK = """
import keras
def network(manifest, config):
    columns = {name: keras.Input((), dtype="float32", name=name) for name in "abc"}
    rows = keras.layers.Concatenate()([keras.ops.expand_dims(column, 1) for column in columns.values()])
    rows = keras.layers.BatchNormalization(momentum=0.5, epsilon=1e-3, center=False, scale=False)(rows)
    return keras.Model(columns, keras.layers.Dense(2, kernel_initializer="zeros")(rows))
"""


def make_dataset(folder: Path) -> None:
    """Write the dataset and the network."""
    rng = np.random.default_rng(0)
    client = np.repeat(list(CLIENTS), list(CLIENTS.values()))
    features = rng.normal(size=(len(client), 3)) + (client == "p")[:, None] * 9
    table = {name: pa.array(features[:, i].astype(np.float32)) for i, name in enumerate(COLUMNS)}
    label = np.where(features @ [1.0, -1.0, 0.5] + rng.normal(size=len(client)) > 0.3, "x", "y")
    table |= {"client": pa.array(client.tolist()), "label": pa.array(label.tolist())}
    source = pa.concat_tables([pa.table(table), pa.table(table).slice(0, 20)])
    splits = ["train"] * len(client) + ["test"] * 20
    source = source.append_column("split", pa.array(splits))
    build(source=source, destination=str(folder / "d"), label="label", split_column="split", shards=2, workers=1)
    (folder / "modes_network.py").write_text(NETWORK)


def batch_size_of(mode: str, ranks: int) -> int:
    """The size of a global batch, which the ranks do not divide, except that of clients."""
    return 4 * ranks if mode.startswith("clients") else 7


def tree_of(mode: str, ranks: int, checkpoints: str | None) -> dict[str, Any]:
    """The configuration of a run."""
    sync = {"every": EVERY, **SYNC.get(mode, {})} if SYNC.get(mode, {}).get("method") else SYNC.get(mode, {})
    if mode.startswith("clients"):
        sync = {**sync, "clients": [f"client == '{name}'" for name in list(CLIENTS)[:ranks]]}
    return {
        "data": {"url": "d", "eval_split": "test", "batch_size": batch_size_of(mode, ranks), "exclude": ["client"]},
        "model": {"name": "modes_network:network"},
        "optimizer": {"name": "sgd", "momentum": MOMENTUM, "learning_rate": RATE, "nesterov": mode == "top_k"},
        "schedule": {"decay": "constant"},
        "ema": {"decay": DECAY, "warmup": False},
        "epochs": EPOCHS,
        "sync": sync,
        "compression": COMPRESSED.get(mode, {}),
        "checkpoint": {"url": checkpoints},
    }


def run(mode: str, ranks: int, folder: str, stops: tuple[int, ...] = ()) -> dict[str, Any]:
    """Train, stopped and resumed after some steps; return the weights' digest, the weights and their averages."""
    config = parse_config(tree_of(mode, ranks, folder if stops else None), "modes")

    def one(ring: ThreadRing, stop: float) -> dict[str, Any]:
        trainer = Trainer(config, ring, lambda: trainer.position.step >= stop)
        digest = trainer.run()["weights_digest"]
        network = trainer.parts.network
        held = {"mean": network.layers[-2].moving_mean, "variance": network.layers[-2].moving_variance}
        held |= {"kernel": network.layers[-1].kernel, "bias": network.layers[-1].bias}
        average = trainer.parts.average.variables if trainer.parts.average else []
        by_path = dict(zip([v.path for v in network.weights], average, strict=False))
        averages = {f"average {name}": by_path[v.path] for name, v in held.items() if v.path in by_path}
        values = {name: np.asarray(tf.convert_to_tensor(v), np.float64) for name, v in {**held, **averages}.items()}
        return {"digest": digest, "step": trainer.position.step, **values}

    for stop in stops:
        with pytest.raises(Stopped):
            on_ranks(ranks, functools.partial(one, stop=stop))
    return on_ranks(ranks, lambda ring: one(ring, float("inf")))[0]


# -- the same in NumPy -------------------------------------------------------------------------------------------------


def batches_of(mode: str, ranks: int) -> Batches:
    """What each rank trains on in each step."""
    size = batch_size_of(mode, ranks)

    def read(**options: Any) -> list[list[tuple[Floats, npt.NDArray[np.int64]]]]:
        loader = Loader("d", split="train", seed=0, **options)
        epochs = []
        for epoch in range(EPOCHS):
            found = []
            for batch in loader.numpy_epoch(epoch):
                real = batch.get("sample_weight", np.ones(len(batch["class_id"]))) > 0
                rows = np.stack([batch[name] for name in COLUMNS], 1).astype(np.float64)
                found.append((rows[real], batch["class_id"][real]))
            epochs.append(found)
        return epochs

    if not mode.startswith("clients"):
        bounds = [rank * size // ranks for rank in range(ranks + 1)]
        return [
            [(rows[a:b], classes[a:b]) for a, b in pairwise(bounds)]
            for epoch in read(batch_size=size)
            for rows, classes in epoch
        ]
    names = list(CLIENTS)[:ranks]
    parts = [read(batch_size=size // ranks, where=f"client == '{name}'", remainder="pad") for name in names]
    result: Batches = []
    for epoch in range(EPOCHS):
        steps = max(len(part[epoch]) for part in parts)
        for step in range(steps):
            places = [(-(-step * len(p[epoch]) // steps), -(-(step + 1) * len(p[epoch]) // steps)) for p in parts]
            result.append([part[epoch][a] if b > a else None for part, (a, b) in zip(parts, places, strict=True)])
    return result


@dataclass
class Rank:
    """The state of one rank, by name of the variable."""

    values: dict[str, Floats]
    average: dict[str, Floats]
    velocity: dict[str, Floats]
    samples: int = 0
    round_samples: int = 0

    @classmethod
    def new(cls) -> Rank:
        values = {"kernel": np.zeros((3, 2)), "bias": np.zeros(2), "mean": np.zeros(3), "variance": np.ones(3)}
        zeros = {"kernel": np.zeros((3, 2)), "bias": np.zeros(2)}
        return cls(values=values, average=dict(values), velocity=zeros)


def gradient(
    rank: Rank, batch: tuple[Floats, npt.NDArray[np.int64]], moments: tuple[Floats, Floats]
) -> dict[str, Floats]:
    """The gradient of the mean cross entropy; also moves the statistics."""
    rows, classes = batch
    mean, variance = moments
    for name, now in (("mean", mean), ("variance", variance)):
        rank.values[name] = BN_MOMENTUM * rank.values[name] + (1 - BN_MOMENTUM) * now
    normal = (rows - mean) / np.sqrt(variance + EPSILON)
    logits = normal @ rank.values["kernel"] + rank.values["bias"]
    share = np.exp(logits - logits.max(1, keepdims=True))
    share /= share.sum(1, keepdims=True)
    share[np.arange(len(classes)), classes] -= 1
    share /= len(classes)
    return {"kernel": normal.T @ share, "bias": share.sum(0)}


def apply(rank: Rank, gradients: Mapping[str, Floats]) -> None:
    """A step of SGD with momentum."""
    for name, value in gradients.items():
        rank.velocity[name] = MOMENTUM * rank.velocity[name] - RATE * value
        rank.values[name] = rank.values[name] + rank.velocity[name]


def averaged(average: Mapping[str, Floats], values: Mapping[str, Floats], steps: int) -> dict[str, Floats]:
    """A moving average once it has taken in values for so many steps."""
    return {name: DECAY**steps * old + (1 - DECAY**steps) * values[name] for name, old in average.items()}


def mean_of(values: list[Floats], weights: list[float] | None = None) -> Floats:
    """The mean over ranks."""
    result: Floats = np.average(values, axis=0, weights=weights)
    return result


class Simulation:
    """One run of a mode."""

    def __init__(self, mode: str, ranks: int) -> None:
        self.mode, self.every = mode, SYNC[mode].get("every", EVERY)
        self.method, self.start = SYNC[mode].get("method", "every_step"), SYNC[mode].get("start_step", 0)
        self.ranks = [Rank.new() for _ in range(ranks)]
        self.outer = {"kernel": np.zeros((3, 2)), "bias": np.zeros(2)}
        self.base = {name: self.ranks[0].values[name] for name in self.outer}
        self.open_steps = 0  # since the moving average took in weights

    def train(self, batches: Batches) -> dict[str, Floats]:
        """Train on all batches; return the agreed values."""
        for step, batch in enumerate(batches):
            self._step(step, batch)
            is_synchronous = self.method == "every_step" or step < self.start
            if not is_synchronous and (step + 1) % self.every == 0:
                self._end_round(step + 1)
            self.open_steps += 1
            if is_synchronous or (step + 1) % self.every == 0:
                for rank in self.ranks:
                    rank.average = averaged(rank.average, rank.values, self.open_steps)
                self.open_steps = 0
        return self._agreed(len(batches))

    def _step(self, step: int, batch: list[tuple[Floats, npt.NDArray[np.int64]] | None]) -> None:
        present = [part for part in batch if part is not None]
        total, gradients = sum(len(part[1]) for part in present), []
        together = np.concatenate([part[0] for part in present])
        for rank, part in zip(self.ranks, batch, strict=True):
            if part is None:
                gradients.append(None)
                continue
            seen = together if self.mode == "batch_norm" else part[0]
            scaled = self.method != "fedavg"
            factor = len(part[1]) * len(self.ranks) / total if scaled else 1.0
            found = gradient(rank, part, (seen.mean(0), seen.var(0)))
            gradients.append({name: factor * value for name, value in found.items()})
            rank.samples, rank.round_samples = rank.samples + len(part[1]), rank.round_samples + len(part[1])
        if self.method == "every_step" or step < self.start:
            same = {name: mean_of([g[name] for g in gradients if g]) for name in self.base}
            gradients = [same] * len(self.ranks)
        for rank, own in zip(self.ranks, gradients, strict=True):
            if own is not None:
                apply(rank, own)

    def _outcome(self) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """Weights and outer momentum at the end of a round."""
        weights, outer = {}, dict(self.outer)
        for name, base in self.base.items():
            changes = [rank.values[name] - base for rank in self.ranks]
            if self.mode == "median":
                change: Floats = np.median(changes, axis=0)
            elif self.method == "fedavg":
                change = mean_of(changes, [rank.round_samples for rank in self.ranks])
            else:
                change = mean_of(changes)
            if self.method == "diloco":
                outer[name] = 0.5 * self.outer[name] + change
                change = 0.7 * (change + 0.5 * outer[name])
            weights[name] = base + change
        return weights, outer

    def _end_round(self, done: int) -> None:
        if self.method == "gossip":
            order = [(done // self.every + i) % len(self.ranks) for i in range(len(self.ranks))]
            for a, b in zip(order[::2], order[1::2], strict=False):
                for name in self.base:
                    self.ranks[a].values[name] = self.ranks[b].values[name] = mean_of(
                        [self.ranks[a].values[name], self.ranks[b].values[name]]
                    )
            return
        self.base, self.outer = self._outcome()
        for rank in self.ranks:
            rank.values |= self.base
            rank.round_samples = 0
        if self.mode == "averaged state":
            same = {name: mean_of([rank.velocity[name] for rank in self.ranks]) for name in self.base}
            for rank in self.ranks:
                rank.velocity = dict(same)

    def _agreed(self, done: int) -> dict[str, Floats]:
        samples = [float(rank.samples) for rank in self.ranks]
        result = {name: mean_of([rank.values[name] for rank in self.ranks], samples) for name in ("mean", "variance")}
        is_together = self.method != "gossip" and (done % self.every == 0 or self.method == "every_step")
        result |= {name: self.ranks[0].values[name] for name in self.base} if is_together else self._outcome()[0]
        average = {name: mean_of([rank.average[name] for rank in self.ranks], samples) for name in result}
        return result | {f"average {n}": value for n, value in averaged(average, result, self.open_steps).items()}
