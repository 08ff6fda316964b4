"""A program of three ranks: collectives; every method of synchronisation trains a small network twice to the same bits.

The second time it loses everything half-way but its checkpoint.
Started by test_methods.py under `horovodrun`; rank 0 prints a JSON object: for each method its losses and bytes.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ringfeed.training.averaging.batch_norm import synchronise_batch_norm
from ringfeed.training.averaging.pace import Pace
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
from ringfeed.training.compression.sign_momentum import SignMomentum
from ringfeed.training.config.config_file import parse_config
from ringfeed.training.loop.step import make_train_step
from ringfeed.training.loop.synchronisation import build_run_optimizer, build_synchronizer
from ringfeed.training.loop.trainer import Trainer
from ringfeed.training.optimizers.build import build_schedule
from ringfeed.training.optimizers.precision import LossScale
from ringfeed.training.ring.connect import connect
from ringfeed.training.ring.hierarchical_ring import HierarchicalRing
from ringfeed.training.ring.horovod import require_horovod
from ringfeed.training.ring.metered import MeteredRing
from ringfeed.training.ring.ring import Ring, SoloRing
from ringfeed.training.ring.same_weights import assert_same_weights
from tests.training.keras.ranks import fit_as_one_process, fit_with_statistics
from tests.training.ring.ranks import check_collectives

STEPS, RANKS = 16, 3
SGD = {"name": "sgd", "learning_rate": 0.1, "momentum": 0.0}
METHODS: dict[str, dict[str, Any]] = {
    "every_step": {},
    "hierarchical": {},
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


def build(ring: Ring, options: dict[str, Any]) -> Callable[[bool], dict[str, Any]]:
    """Return a function that trains for `STEPS` steps from the same start, on samples that differ between ranks."""
    config = parse_config({"data": {"url": "x"}, "optimizer": SGD | {"momentum": 0.5}, "epochs": 4, **options}, "test")
    keras.utils.set_random_seed(3)
    inputs = keras.Input((40,))
    hidden = keras.layers.Dense(30, activation="tanh")(inputs)
    wire = MeteredRing(ring)
    if config.sync.batch_norm:
        hidden = keras.layers.BatchNormalization()(hidden)
    network = keras.Model(inputs, keras.layers.Dense(3)(hidden))
    if config.sync.batch_norm:
        synchronise_batch_norm(network, wire)
    samples = STEPS * (1 + ring.rank)
    pace = Pace(batches=STEPS, steps=STEPS, samples=samples, batch_size=1 + ring.rank, step_samples=6)
    synchronizer = build_synchronizer(config, wire, total_steps=STEPS, pace=pace)
    schedule = build_schedule(config, STEPS)
    keras_optimizer = build_run_optimizer(config, schedule, network.trainable_variables, STEPS)
    synchronizer.build(network.trainable_variables, keras_optimizer.variables)
    step = make_train_step(network, keras_optimizer, synchronizer, LossScale(None), None)
    parts = Parts(network=network, optimizer=keras_optimizer, scale=LossScale(None), synchronizer=synchronizer)
    variables = [*parts.variables().values(), *synchronizer.rank_variables, wire.wire_bytes]
    start = [np.asarray(tf.convert_to_tensor(v)) for v in variables]

    def resume() -> None:
        of_ranks = gather_rank_state(ring, synchronizer)
        data = encode(capture(parts, Position(), config, "", {}, of_ranks)) if ring.rank == 0 else b""
        for variable, value in zip(variables[:-1], start, strict=False):
            variable.assign(value + 1)
        arrays = {}
        if ring.rank == 0:
            arrays = dict(decode(data).arrays)
            restore(parts, arrays)
        ring.broadcast(list(parts.variables().values()))
        restore_rank_state(ring, synchronizer, rank_state(arrays))
        synchronizer.begin()

    def train(interrupt: bool) -> dict[str, Any]:
        for variable, value in zip(variables, start, strict=True):
            variable.assign(value)
        synchronizer.begin()
        rng = np.random.default_rng(7)
        truth = rng.normal(size=(40, 3))
        losses = []
        for number in range(STEPS):
            features = rng.normal(size=(RANKS, 16, 40)).astype(np.float32)
            classes = (features @ truth).argmax(-1).astype(np.int32)
            time.sleep(0.002 * ((number + ring.rank) % 3))  # ranks arrive in another order each time
            if number == STEPS // 2:
                synchronizer.settle()
                if interrupt:
                    resume()
            if ring.size == 1:  # all samples of three
                features, classes = features.reshape(1, -1, 40), classes.reshape(1, -1)
            losses.append(float(step(features[ring.rank], classes[ring.rank], tf.ones(len(classes[0]))).loss))
            synchronizer.after_step(number + 1)
        synchronizer.settle()
        digest = assert_same_weights(ring, network.weights)
        weights = network.weights[0].numpy()[0].tolist()
        received = float(wire.wire_bytes) / STEPS
        return {"first": losses[0], "last": losses[-1], "bytes": received, "digest": digest, "weights": weights}

    return train


def train_clients(ring: Ring, url: str, folder: str) -> dict[str, Any]:
    """Train on uneven and non-IID parts of a dataset twice, the second time in two runs; the second begins at rest."""
    tree = {
        "data": {"url": url, "batch_size": 96, "eval_split": None},
        "model": {"hidden": [8]},
        "optimizer": SGD | {"momentum": 0.9},
        "sync": {"method": "fedavg", "every": 5, "clients": ["late == 'late'", "carrier == 'UA' and hour < 9", "test"]},
        "checkpoint": {"url": f"{folder}/once", "every_steps": 13},
        "epochs": 2,
    }
    config = parse_config(tree, "test")
    trainer = Trainer(config, ring)
    once = trainer.run()
    in_parts = replace(config, checkpoint=replace(config.checkpoint, url=f"{folder}/twice"))
    Trainer(replace(in_parts, max_steps=13), ring).run()
    again = Trainer(in_parts, ring).run()
    assert again["resumed_from_step"] == 13
    assert once["weights_digest"] == again["weights_digest"]
    pace = trainer.pace
    sizes = [pace.batches, pace.samples, int(trainer.parts.optimizer.iterations), pace.trains(13)]
    return {name: once[name] for name in ("steps_per_epoch", "total_steps", "train_samples")} | {
        "ranks": ring.allgather_object(sizes)
    }


def average_a_small_matrix(ring: Ring) -> None:
    """Average a matrix of which some ranks have no part: they take part in the all-to-all all the same."""
    method = SignMomentum(ring, momentum=0.0)
    method.build([tf.Variable(tf.zeros([4, 2]))])
    reduce = tf.function(lambda gradient, loss: method.reduce([gradient], [loss], tf.constant(0, tf.int64)))
    (mean,), _ = reduce(tf.fill([4, 2], 1.0 + ring.rank), tf.constant(0.0))
    np.testing.assert_allclose(mean, (1 + ring.size) / 2)


def main() -> None:
    """Train by each method twice, the second time with a restart."""
    tf.config.experimental.enable_op_determinism()
    ring = connect()
    check_collectives(ring)
    average_a_small_matrix(ring)
    results = {"clients": train_clients(ring, *sys.argv[1:])}
    levels = HierarchicalRing(require_horovod(RANKS), host="ab"[ring.rank // 2])
    fit_as_one_process(ring, sys.argv[1])
    fit_with_statistics(ring, sys.argv[1])
    for name, options in METHODS.items():
        train = build(levels if name == "hierarchical" else ring, options)
        once, again = train(False), train(True)
        assert once == again, (name, once, again)
        results[name] = once
    results["batch_norm, alone"] = build(SoloRing(), METHODS["batch_norm"])(False)
    if ring.rank == 0:
        sys.stdout.write(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
