"""Replicas of a network on the devices of one process, by `tf.distribute.MirroredStrategy`.

Each device has a copy of every variable, as a rank of a ring has: the strategy only reduces gradients. To the loop the
process is alone, and trains on the whole global batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import tensorflow as tf

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.optimizers.keras_doors import Tensor, Variable

from .ring import SoloRing, dense

_MEAN = tf.distribute.ReduceOp.MEAN
_COPIED = {
    "synchronization": tf.VariableSynchronization.ON_READ,  # a replica reads and assigns its own copy
    "aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA,
}


class _ReplicaRing(SoloRing):
    """What replicas do together, within `Replicas.spread`."""

    def __init__(self, size: int) -> None:
        self.size = self.local_size = size

    def allreduce_mean(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The mean over replicas of each tensor; bfloat16 travels as float32."""
        sent = [dense(t) for t in tensors]
        sent = [tf.cast(t, tf.float32) if t.dtype == tf.bfloat16 else tf.identity(t) for t in sent]  # on its device
        means = tf.distribute.get_replica_context().all_reduce(_MEAN, sent)
        return [tf.cast(mean, t.dtype) for mean, t in zip(means, tensors, strict=True)]


class Replicas:
    """Replicas on some devices."""

    def __init__(self, devices: Sequence[str]) -> None:
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
        self._strategy = tf.distribute.MirroredStrategy(list(devices))
        self.size = len(devices)
        self.ring = _ReplicaRing(self.size)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Give each replica a copy of the variables that are created in the body."""

        def creator(next_creator: Callable[..., Variable], **arguments: Any) -> Variable:
            return next_creator(**{**arguments, **_COPIED})

        with self._strategy.scope(), tf.variable_creator_scope(creator):
            yield

    def spread(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return a step, for `tf.function`, that gives each replica a part of the batch.

        Parts differ by a sample where they must; weights of samples then make their mean the mean of the batch. The
        step, a function of `(inputs, target, weight, stopping)`, returns the same on all replicas.
        """

        def spread_step(inputs: Any, target: Tensor, weight: Tensor, stopping: Any = 0.0) -> Any:
            rows = tf.shape(weight)[0]
            bounds = [index * rows // self.size for index in range(self.size + 1)]
            parts = []
            for start, stop in pairwise(bounds):
                share = tf.cast((stop - start) * self.size / rows, weight.dtype)
                own_inputs, own_target, own_weight = tf.nest.map_structure(
                    lambda tensor, a=start, b=stop: tensor[a:b], (inputs, target, weight)
                )
                parts.append((own_inputs, own_target, own_weight * share))

            def one() -> Any:
                place = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
                return step(*parts[int(place)], stopping)

            results = self._strategy.run(one)
            return tf.nest.map_structure(lambda value: self._strategy.experimental_local_results(value)[0], results)

        return spread_step


class MirroredRing(SoloRing):
    """The ring of a process that has replicas."""

    def __init__(self, replicas: Replicas) -> None:
        self.replicas = replicas


def replicas_of(ring: object) -> Replicas | None:
    """Return the replicas of this process; None if it has none."""
    return ring.replicas if isinstance(ring, MirroredRing) else None


def open_replicas(count: int | None) -> Replicas:
    """Open replicas on all GPUs of this machine, or on some; without GPUs, on as many logical devices of the CPU.

    Call it before TensorFlow's first operation. A ConfigError says that there are fewer devices, or only one.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if count is None and not gpus:
        raise ConfigError(
            "backend=mirrored trains on the GPUs of this machine, and there are none: set mirrored.devices=2 for two "
            "logical devices of the CPU, as a trial, or backend=none"
        )
    wanted = len(gpus) if count is None else count
    if gpus and wanted > len(gpus):
        raise ConfigError(f"mirrored.devices={wanted}, but there are {len(gpus)} GPUs: lower it")
    if wanted == 1:
        raise ConfigError("backend=mirrored needs two GPUs, and there is one: set backend=none")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if not gpus:
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * wanted)
    return Replicas([f"{'GPU' if gpus else 'CPU'}:{index}" for index in range(wanted)])
