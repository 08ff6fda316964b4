"""The ring of ranks: the only module that uses Horovod, as a plain library of collectives.

Gradients are reduced as ordinary tensors. Horovod's Keras wrappers are not used: with Keras 3 they fail, or train each
rank by itself without an error. Nothing here decides what is reduced, or when. Its collectives are tested in
tests/training/test_distributed.py.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
import xxhash

from ..sharding.errors import TrainingError
from .launch import world_from_environment

__all__ = ["HorovodRing", "Ring", "SoloRing", "assert_same_weights", "connect"]

Tensor = Any
Variable = Any

_CARRIERS = {
    tf.bfloat16: tf.uint16,
    tf.uint32: tf.int32,
    tf.uint64: tf.int64,
}  # Horovod does not broadcast these dtypes


class Ring(Protocol):
    """The ranks of one run. Every method is a collective: all ranks call it, in the same order."""

    @property
    def rank(self) -> int:
        """The number of this process, in [0, size)."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    @property
    def local_rank(self) -> int:
        """The number of this process among those of its host."""

    @property
    def local_size(self) -> int:
        """Number of ranks on this host."""

    def allreduce_mean(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the mean over ranks of each tensor, by one grouped operation; works inside `tf.function`."""

    def allreduce_sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the sum over ranks of each tensor."""

    def broadcast(self, variables: Sequence[Variable]) -> None:
        """Assign to each variable, on every rank, its value on rank 0."""

    def allgather(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Concatenate the ranks' arrays along the first dimension, in rank order; lengths may differ."""

    def allgather_object(self, value: Any) -> list[Any]:
        """Return every rank's value, in rank order. Values are of JSON's types."""

    def barrier(self) -> None:
        """Wait until all ranks have called it."""


class SoloRing:
    """A ring of one process: each collective is the identity.

    >>> ring = SoloRing()
    >>> ring.rank, ring.size, ring.allgather_object({"a": 1})
    (0, 1, [{'a': 1}])
    """

    rank = 0
    size = 1
    local_rank = 0
    local_size = 1

    def allreduce_mean(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors themselves, dense."""
        return [dense(t) for t in tensors]

    def allreduce_sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors themselves, dense."""
        return [dense(t) for t in tensors]

    def broadcast(self, variables: Sequence[Variable]) -> None:
        """Nothing to do."""

    def allgather(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The array itself."""
        return array

    def allgather_object(self, value: Any) -> list[Any]:
        """The value alone."""
        return [value]

    def barrier(self) -> None:
        """Nothing to do."""


class HorovodRing:
    """The ring of an initialised `horovod.tensorflow`.

    Args:
        hvd: the module `horovod.tensorflow`, after `hvd.init()`.
    """

    def __init__(self, hvd: Any) -> None:
        self._hvd = hvd
        self.rank: int = hvd.rank()
        self.size: int = hvd.size()
        self.local_rank: int = hvd.local_rank()
        self.local_size: int = hvd.local_size()

    def _grouped(self, tensors: Sequence[Tensor], op: Any) -> list[Tensor]:
        """Run one grouped allreduce per dtype (Horovod groups one dtype only); bfloat16 travels as float32."""
        sent = [dense(t) for t in tensors]
        sent = [tf.cast(t, tf.float32) if t.dtype == tf.bfloat16 else t for t in sent]
        received: list[Tensor] = [None] * len(sent)
        for dtype in sorted({t.dtype.name for t in sent}):
            places = [i for i, t in enumerate(sent) if t.dtype.name == dtype]
            for place, tensor in zip(
                places, self._hvd.grouped_allreduce([sent[i] for i in places], op=op), strict=True
            ):
                tensor.set_shape(sent[place].shape)
                received[place] = tensor
        return [tf.cast(r, t.dtype) for r, t in zip(received, tensors, strict=True)]

    def allreduce_mean(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The mean over ranks of each tensor."""
        return self._grouped(tensors, self._hvd.Average)

    def allreduce_sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sum over ranks of each tensor."""
        return self._grouped(tensors, self._hvd.Sum)

    def broadcast(self, variables: Sequence[Variable]) -> None:
        """Give each variable, on every rank, the value it has on rank 0."""
        for index, variable in enumerate(variables):
            value = tf.convert_to_tensor(variable)
            carrier = _CARRIERS.get(value.dtype)
            sent = value if carrier is None else tf.bitcast(value, carrier)
            received = self._hvd.broadcast(sent, root_rank=0, name=f"ringfeed.broadcast.{index}")
            variable.assign(received if carrier is None else tf.bitcast(received, value.dtype))

    def allgather(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The ranks' arrays one after another along the first dimension."""
        return np.asarray(self._hvd.allgather(tf.constant(array)).numpy())

    def allgather_object(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order."""
        data = np.frombuffer(json.dumps(value).encode(), np.uint8)
        sizes = self.allgather(np.array([data.size], np.int64))
        joined = self.allgather(data)
        return [json.loads(part.tobytes()) for part in np.split(joined, np.cumsum(sizes)[:-1])]

    def barrier(self) -> None:
        """Wait for all ranks by a sum, which needs every rank: Horovod has no barrier for TensorFlow."""
        self._hvd.allreduce(tf.zeros(1), op=self._hvd.Sum)


def dense(tensor: Tensor) -> Tensor:
    """Return a plain tensor: `tf.IndexedSlices` would become two allgathers, whose memory grows with the ranks (#554).

    >>> slices = tf.IndexedSlices(tf.constant([[1.0], [2.0]]), tf.constant([0, 0]), tf.constant([2, 1]))
    >>> dense(slices).numpy().ravel().tolist()
    [3.0, 0.0]
    """
    return tf.convert_to_tensor(tensor)


def _require_horovod(size: int) -> Any:
    try:
        return importlib.import_module("horovod.tensorflow")
    except Exception as error:  # a broken build raises more than ImportError
        reason = (str(error).splitlines() or ["no message"])[0]
        raise TrainingError(
            f"this process was started as one of {size} ranks, but Horovod does not work here "
            f"({type(error).__name__}: {reason}); training is refused, "
            "since the ranks would never synchronise. See `ringfeed doctor`, or run one process without a launcher"
        ) from error


def connect(environ: Mapping[str, str] = os.environ) -> Ring:
    """Join the ring that this process belongs to.

    A process that no launcher started is a `SoloRing`, whether or not Horovod is installed. Each rank of a host uses
    its own GPU and its share of the cores. Call it before TensorFlow runs anything.

    Raises:
        TrainingError: the process was started as a rank, and Horovod is missing, broken, or sees a different number of
            ranks; or the host has fewer GPUs than ranks.
    """
    world = world_from_environment(environ)
    if world is None:
        return SoloRing()
    size = world.size
    hvd = _require_horovod(size)
    share_cores(world.local_size)
    try:
        hvd.init()
    except Exception as error:
        raise TrainingError(f"Horovod could not connect the {size} ranks: {error}") from error
    if hvd.size() != size:
        raise TrainingError(
            f"the launcher started {size} ranks, but Horovod sees {hvd.size()}: it was built without the "
            "protocol of this launcher (horovodrun --gloo needs Gloo, mpirun and srun need MPI). See `ringfeed doctor`"
        )
    ring = HorovodRing(hvd)
    _pin_gpu(ring)
    return ring


def share_cores(local_size: int) -> int:
    """Limit TensorFlow to this rank's share of the host's cores, and return the share.

    With more threads than cores, ranks wait for each other inside collectives. Call it before TensorFlow's first
    operation.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // local_size)
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, threads))  # a blocked collective needs a second one
    return threads


def _pin_gpu(ring: Ring) -> None:
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return
    if ring.local_size > len(gpus):
        raise TrainingError(f"{ring.local_size} ranks on this host, but {len(gpus)} GPUs: start one rank per GPU")
    tf.config.set_visible_devices(gpus[ring.local_rank], "GPU")
    tf.config.experimental.set_memory_growth(gpus[ring.local_rank], True)


def weights_digest(variables: Sequence[Variable]) -> list[str]:
    """Return the xxh3-128 of each variable's dtype, shape and bytes, as hexadecimal text."""
    digests = []
    for variable in variables:
        array = np.asarray(tf.convert_to_tensor(variable))
        digests.append(xxhash.xxh3_128_hexdigest(f"{array.dtype}{array.shape}".encode() + array.tobytes()))
    return digests


def assert_same_weights(ring: Ring, variables: Sequence[Variable]) -> str:
    """Check that all ranks hold the same weights, bit for bit.

    Returns:
        One digest of all weights.

    Raises:
        TrainingError: they differ; the message names the ranks that differ from rank 0, and the first variable.
    """
    gathered = ring.allgather_object(weights_digest(variables))
    others = [rank for rank, digests in enumerate(gathered) if digests != gathered[0]]
    if others:
        pairs = zip(variables, gathered[0], gathered[others[0]], strict=True)
        name = next(getattr(v, "path", v.name) for v, mine, other in pairs if mine != other)
        raise TrainingError(
            f"rank{'s' if len(others) > 1 else ''} {', '.join(map(str, others))} of {ring.size} ended with different "
            f"weights than rank 0 (first difference: {name}): the ranks did not train the same model"
        )
    return xxhash.xxh3_128_hexdigest("".join(gathered[0]).encode())
