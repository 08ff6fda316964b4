"""The ring of TensorFlow's own collectives, between the workers of a `tf.distribute.MultiWorkerMirroredStrategy`.

Variables are plain, outside of the strategy, which does no more than all-reduce.
"""

from __future__ import annotations

import json
import logging
import signal
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ringfeed.training.optimizers.keras_doors import Tensor, Variable

from .ring import reduced_by_dtype
from .world import World

_SUM = tf.distribute.ReduceOp.SUM


def _take_sigterm_back() -> None:
    """Set the handler of SIGTERM again: TensorFlow's coordination service has set its own, which swallows it."""
    handler = signal.getsignal(signal.SIGTERM)  # as Python knows it
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


class WorkerRing:
    """The workers that ``TF_CONFIG`` names, among them this process. Construct it before TensorFlow's first operation.

    TensorFlow numbers collectives as a process traces or calls them, so all workers must trace the
    same ones: the training step is compiled once for batches of any size.
    """

    def __init__(self, world: World, local_rank: int) -> None:
        logging.getLogger("tensorflow").setLevel(logging.ERROR)  # the strategy logs each collective
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy()
        _take_sigterm_back()
        self.rank, self.size, self.local_rank, self.local_size = world.rank, world.size, local_rank, world.local_size

    def _sums(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        def reduce() -> Any:
            placed = [tf.identity(tensor) for tensor in tensors]  # on the replica's device, which it looks at
            return tf.distribute.get_replica_context().all_reduce(_SUM, placed)

        return list(self._strategy.run(reduce))

    def allreduce_sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return reduced_by_dtype(tensors, self._sums)

    def allreduce_mean(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [total / tf.cast(self.size, total.dtype) for total in self.allreduce_sum(tensors)]

    def gather(self, tensor: Tensor) -> Tensor:
        """Not built, nor are the next two: `compression` and `sync.method` need them, which this backend refuses."""
        raise NotImplementedError("the workers of backend=multi_worker only reduce")

    def alltoall(self, tensor: Tensor) -> Tensor:
        return self.gather(tensor)

    def sendrecv(self, tensor: Tensor, partner: int) -> Tensor:
        return self.gather(tensor)

    def broadcast(self, variables: Sequence[Variable]) -> None:
        for variable in variables:
            value = np.asarray(tf.convert_to_tensor(variable))
            data = self._joined(value.tobytes() if self.rank == 0 else b"", value.nbytes, 0)
            variable.assign(np.frombuffer(data, value.dtype).reshape(value.shape))

    def _joined(self, part: bytes, length: int, start: int) -> bytes:
        """Return bytes that ranks know parts of, by a sum of 32-bit integers, which keeps every bit."""
        words = np.zeros(-(-length // 4) * 4, np.uint8)
        words[start : start + len(part)] = np.frombuffer(part, np.uint8)
        if not length:
            return b""
        (total,) = self._sums([tf.constant(words.view(np.int32))])
        return bytes(total.numpy().tobytes()[:length])

    def _each(self, part: bytes) -> list[bytes]:
        lengths = np.zeros(self.size, np.int64)
        lengths[self.rank] = len(part)
        (total,) = self._sums([tf.constant(lengths)])
        ends = np.cumsum(total.numpy())
        data = self._joined(part, int(ends[-1]), int(ends[self.rank]) - len(part))
        return [data[end - size : end] for end, size in zip(ends, total.numpy(), strict=True)]

    def allgather(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        parts = self._each(np.ascontiguousarray(array).tobytes())
        return np.frombuffer(b"".join(parts), array.dtype).reshape([-1, *array.shape[1:]])

    def allgather_object(self, value: Any) -> list[Any]:
        return [json.loads(part) for part in self._each(json.dumps(value).encode())]

    def barrier(self) -> None:
        """Wait for all ranks by a sum, which needs every rank."""
        self._sums([tf.zeros(1)])
