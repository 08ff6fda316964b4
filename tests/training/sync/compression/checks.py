"""What three ranks are tried on: their collectives, each method of synchronisation, Keras' `fit`, clients of their own.

A check runs on each rank of any ring, asserts, and returns what is compared: with the rule of the method, and between
the ring of threads and Horovod's.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ringfeed.training.checkpoint.snapshot import (
    Parts,
    Position,
    capture,
    gather_rank_state,
    rank_state,
    restore,
    restore_rank_state,
)
from ringfeed.training.checkpoint.store import decode, encode
from ringfeed.training.config.config_file import parse_config
from ringfeed.training.optimizers.build import build_schedule
from ringfeed.training.optimizers.precision import LossScale
from ringfeed.training.ring.horovod import require_horovod
from ringfeed.training.ring.horovod_ring import HierarchicalRing
from ringfeed.training.ring.metered import MeteredRing
from ringfeed.training.ring.ring import Ring
from ringfeed.training.ring.same_weights import assert_same_weights
from ringfeed.training.run.trainer import Trainer
from ringfeed.training.step.train_step import make_train_step
from ringfeed.training.sync.agreement import Agreement
from ringfeed.training.sync.batch_norm import synchronise_batch_norm
from ringfeed.training.sync.build import build_run_optimizer, build_synchronizer
from ringfeed.training.sync.compression.onebit import SignMomentum
from ringfeed.training.sync.epoch_plan import EpochPlan
from ringfeed.training.sync.synchronizer import Exchange, SyncRun
from tests.helpers.sync_runs import sync_run
from tests.training.keras.ranks import fit_as_one_process, fit_with_statistics
from tests.training.ring.ranks import check_collectives

HIERARCHICAL = "hierarchical"  # the only check that needs Horovod
STEPS, RANKS = 16, 3
SGD = {"name": "sgd", "learning_rate": 0.1, "momentum": 0.0}
METHODS: dict[str, dict[str, Any]] = {
    "every_step": {},
    "fp16": {"compression": {"method": "fp16"}},
    "bf16": {"compression": {"method": "bf16"}},
    "top_k": {"compression": {"method": "top_k", "ratio": 0.05, "start_step": 0}},
    "dgc": {"compression": {"method": "dgc", "ratio": 0.02, "warmup_epochs": 0.5, "local_clip_norm": 10.0}},
    "powersgd": {"compression": {"method": "powersgd", "rank": 2, "start_step": 3}},
    "qsgd": {"compression": {"method": "qsgd"}},
    "terngrad": {"compression": {"method": "terngrad"}},
    "onebit": {"compression": {"method": "onebit", "start_step": 0}},
    "onebit, adamw": {
        "compression": {"method": "onebit", "start_step": 4},
        "optimizer": {"name": "adamw", "learning_rate": 0.02, "weight_decay": 0.01},
    },
    "plain": {"optimizer": SGD},
    "local_sgd, 1": {"sync": {"method": "local_sgd", "every": 1}, "optimizer": SGD},
    "local_sgd, 4": {"sync": {"method": "local_sgd", "every": 4}},
    "post_local_sgd": {"sync": {"method": "post_local_sgd", "every": 3, "start_step": 5, "optimizer_state": "average"}},
    "diloco": {"sync": {"method": "diloco", "every": 3}},
    "fedavg": {"sync": {"method": "fedavg", "every": 4}},
    "median": {"sync": {"method": "fedavg", "every": 4, "aggregate": "median"}},
    "gossip": {"sync": {"method": "gossip", "every": 2}},
    "batch_norm": {"sync": {"batch_norm": True}},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where checks run.

    Attributes:
        url: the dataset of flights.
        folder: an empty one.
        has_sleeps: whether ranks arrive at each step in another order.
    """

    url: str
    folder: str
    has_sleeps: bool = False


def train_by(ring: Ring, options: Mapping[str, Any], *, has_sleeps: bool = False) -> dict[str, Any]:
    """Train a small network twice to the same bits; the second time, all is lost half-way but the checkpoint."""
    run = _Run(ring, options, has_sleeps=has_sleeps)
    once, again = run.train(is_interrupted=False), run.train(is_interrupted=True)
    assert once == again, (once, again)
    return once


class _Run:
    """Trains for `STEPS` steps from the same start, on samples that differ between ranks."""

    def __init__(self, ring: Ring, options: Mapping[str, Any], *, has_sleeps: bool) -> None:
        tree = {"data": {"url": "x"}, "optimizer": SGD | {"momentum": 0.5}, "epochs": 4, **options}
        self._config = config = parse_config(tree, "test")
        self._ring, self._has_sleeps, self._wire = ring, has_sleeps, MeteredRing(ring)
        network = _network(self._wire, has_norm=config.sync.batch_norm)
        samples = STEPS * (1 + ring.rank)
        epoch_plan = EpochPlan(batches=STEPS, steps=STEPS, samples=samples, batch_size=1 + ring.rank, step_samples=6)
        run = SyncRun(config=config, ring=self._wire, steps_per_epoch=STEPS, samples_before=epoch_plan.samples_before)
        synchronizer = build_synchronizer(run)
        optimizer = build_run_optimizer(config, build_schedule(config, STEPS), network.trainable_variables, STEPS)
        synchronizer.build(network.trainable_variables, optimizer)
        self._step = make_train_step(network, optimizer, synchronizer, LossScale(None))
        self._agreement = Agreement(ring, network, synchronizer)
        self._parts = Parts(
            network=network,
            optimizer=optimizer,
            scale=LossScale(None),
            synchronizer=synchronizer,
            agreement=self._agreement,
        )
        own = [*synchronizer.rank_variables, *self._agreement.variables, self._wire.wire_bytes]
        self._variables = [*self._parts.variables().values(), *own]
        self._start = [np.asarray(tf.convert_to_tensor(v)) for v in self._variables]

    def train(self, *, is_interrupted: bool) -> dict[str, Any]:
        """Train from the start on; return losses, bytes and weights."""
        ring, synchronizer, network = self._ring, self._parts.synchronizer, self._parts.network
        for variable, value in zip(self._variables, self._start, strict=True):
            variable.assign(value)
        synchronizer.begin()
        rng = np.random.default_rng(7)
        truth = rng.normal(size=(40, 3))
        losses = []
        for number in range(STEPS):
            features = rng.normal(size=(RANKS, 16, 40)).astype(np.float32)
            classes = (features @ truth).argmax(-1).astype(np.int32)
            if self._has_sleeps:  # ranks arrive in another order each time
                time.sleep(0.002 * ((number + ring.rank) % 3))
            if number == STEPS // 2:
                with self._agreement.applied(number):
                    data = self._saved()
                if is_interrupted:
                    self._resume(data)
            if ring.size == 1:  # all samples of three
                features, classes = features.reshape(1, -1, 40), classes.reshape(1, -1)
            losses.append(float(self._step(features[ring.rank], classes[ring.rank], tf.ones(len(classes[0]))).loss))
            synchronizer.after_step(number + 1)
        self._agreement.settle(STEPS)
        digest = assert_same_weights(ring, network.weights)
        weights = network.weights[0].numpy()[0].tolist()
        received = float(self._wire.wire_bytes) / STEPS
        return {"first": losses[0], "last": losses[-1], "bytes": received, "digest": digest, "weights": weights}

    def _saved(self) -> bytes:
        """The checkpoint of rank 0, while all ranks hold the weights that they agree on."""
        of_ranks = gather_rank_state(self._ring, self._parts)
        checkpoint = capture(self._parts, Position(), self._config, "", {}, of_ranks)
        return encode(checkpoint) if self._ring.rank == 0 else b""

    def _resume(self, data: bytes) -> None:
        for variable, value in zip(self._variables[:-1], self._start, strict=False):
            variable.assign(value + 1)
        arrays = {}
        if self._ring.rank == 0:
            arrays = dict(decode(data).arrays)
            restore(self._parts, arrays)
        self._ring.broadcast(list(self._parts.variables().values()))
        restore_rank_state(self._ring, self._parts, rank_state(arrays))


def _network(wire: Ring, *, has_norm: bool) -> Any:
    keras.utils.set_random_seed(3)
    inputs = keras.Input((40,))
    hidden = keras.layers.Dense(30, activation="tanh")(inputs)
    if has_norm:
        hidden = keras.layers.BatchNormalization()(hidden)
    network = keras.Model(inputs, keras.layers.Dense(3)(hidden))
    if has_norm:
        synchronise_batch_norm(network, wire)
    return network


def train_clients(ring: Ring, place: Place) -> dict[str, Any]:
    """Train on uneven and non-IID parts of a dataset twice, the second time in two runs; the second begins at rest."""
    tree = {
        "data": {"url": place.url, "batch_size": 96, "eval_split": None},
        "model": {"hidden": [8]},
        "optimizer": SGD | {"momentum": 0.9},
        "sync": {"method": "fedavg", "every": 5, "clients": ["late == 'late'", "carrier == 'UA' and hour < 9", "test"]},
        "checkpoint": {"url": f"{place.folder}/once", "every_steps": 13},
        "epochs": 2,
    }
    config = parse_config(tree, "test")
    trainer = Trainer(config, ring)
    once = trainer.run()
    in_parts = replace(config, checkpoint=replace(config.checkpoint, url=f"{place.folder}/twice"))
    Trainer(replace(in_parts, max_steps=13), ring).run()
    again = Trainer(in_parts, ring).run()
    assert again["resumed_from_step"] == 13
    assert once["weights_digest"] == again["weights_digest"]
    epoch_plan = trainer.epoch_plan
    sizes = [epoch_plan.batches, epoch_plan.samples, int(trainer.parts.optimizer.iterations), epoch_plan.trains(13)]
    return {name: once[name] for name in ("steps_per_epoch", "total_steps", "train_samples")} | {
        "ranks": ring.allgather_object(sizes)
    }


def average_a_small_matrix(ring: Ring) -> None:
    """Average a matrix of which some ranks have no part: they take part in the all-to-all all the same."""
    method = SignMomentum(sync_run(ring), momentum=0.0)
    method.build([tf.Variable(tf.zeros([4, 2]))])
    first = tf.constant(0, tf.int64)
    reduce = tf.function(lambda value, loss: method.reduce(Exchange([value], loss=loss), first), autograph=False)
    (mean,) = reduce(tf.fill([4, 2], 1.0 + ring.rank), tf.constant(0.0)).gradients
    np.testing.assert_allclose(mean, (1 + ring.size) / 2)


def _train_on_two_levels(ring: Ring, place: Place) -> dict[str, Any]:
    levels = HierarchicalRing(require_horovod(RANKS), host="ab"[ring.rank // 2])
    return train_by(levels, METHODS["every_step"], has_sleeps=place.has_sleeps)


def _method(name: str, ring: Ring, place: Place) -> dict[str, Any]:
    return train_by(ring, METHODS[name], has_sleeps=place.has_sleeps)


CHECKS: Mapping[str, Callable[[Ring, Place], Any]] = MappingProxyType(
    {
        "collectives": lambda ring, place: check_collectives(ring),
        "a small matrix": lambda ring, place: average_a_small_matrix(ring),
        "clients": train_clients,
        "fit": lambda ring, place: fit_as_one_process(ring, place.url),
        "fit with statistics": lambda ring, place: fit_with_statistics(ring, place.url),
        **{name: functools.partial(_method, name) for name in METHODS},
        HIERARCHICAL: _train_on_two_levels,  # the last: Horovod's groups of ranks have work for its threads ever after
    }
)
