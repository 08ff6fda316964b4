"""A ring whose ranks are threads of this process and take turns: collectives in milliseconds, the same in each run.

A rank runs until it calls a collective, then the next one runs: the order never changes, and each rank has Python's
and NumPy's global generators for itself, as a process has. Reductions add in rank order, with NumPy.
`tests/training/sync/compression` compares it with Horovod's ring.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from ringfeed.training.ring.ring import reduced_by_dtype

MOST_RANKS = 8  # a waiting rank holds a thread of TensorFlow's pool: tests/conftest.py makes that large enough
_WAIT_SECONDS = 240.0

Array = np.ndarray[Any, Any]
Result = TypeVar("Result")
Tensor = Any
Variable = Any


class RingBroken(Exception):
    """Another rank has failed, or ended, or called another collective."""


@dataclass(slots=True)
class _Turns:
    """Passes the turn round, from the last rank to the first.

    Attributes:
        may_run: released for the rank whose turn it is.
        generators: state of the global generators of each rank that waits.
        calls, values: what the ranks have brought to the current collective.
        has_ended: ranks that make no more calls.
        failure: the first exception of a rank.
    """

    size: int
    may_run: list[threading.Semaphore] = field(init=False)
    generators: list[Any] = field(init=False)
    calls: list[str] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    has_ended: set[int] = field(default_factory=set)
    failure: BaseException | None = None

    def __post_init__(self) -> None:
        self.may_run = [threading.Semaphore(0) for _ in range(self.size)]
        self.generators = [_generators()] * self.size

    def wait(self, rank: int) -> None:
        """Wait for the turn of this rank."""
        if not self.may_run[rank].acquire(timeout=_WAIT_SECONDS):
            raise RingBroken(f"rank {rank} got no turn for {_WAIT_SECONDS:.0f} s")
        _restore(self.generators[rank])

    def give_on(self, rank: int) -> None:
        """Let the next rank run that has not ended; a rank alone goes on itself."""
        self.generators[rank] = _generators()
        others = [(rank + step) % self.size for step in range(1, self.size + 1)]
        for other in others:
            if other not in self.has_ended:
                self.may_run[other].release()
                return

    def meet(self, rank: int, call: str, value: Any) -> list[Any]:
        """Bring a value to a collective, and return those of all ranks."""
        if rank == 0:
            self.calls, self.values = [], []
        calls, values = self.calls, self.values
        calls.append(call)
        values.append(value)
        self.give_on(rank)
        self.wait(rank)
        if self.failure is not None:
            raise RingBroken("another rank has failed") from self.failure
        if len(values) != self.size:
            raise RingBroken(f"rank {rank} waits in {call}, other ranks have ended")
        if len(set(calls)) > 1:
            raise RingBroken(f"ranks call different collectives: {', '.join(calls)}")
        return list(values)


def _generators() -> Any:
    return random.getstate(), np.random.get_state()  # noqa: NPY002  # Keras draws seeds from them


def _restore(state: Any) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])  # noqa: NPY002


class ThreadRing:
    """One of some ranks in threads, made by `on_ranks`.

    Attributes:
        sent: the arrays that this rank has brought to the last reduction.
    """

    def __init__(self, rank: int, turns: _Turns) -> None:
        self.rank = self.local_rank = rank
        self.size = self.local_size = turns.size
        self.sent: list[Array] = []
        self._turns = turns

    def _collective(self, call: str, tensor: Tensor, combine: Callable[[list[Array]], Array]) -> Tensor:
        def run(own: Array) -> Array:
            return np.asarray(combine(self._turns.meet(self.rank, call, own)), own.dtype)

        return tf.numpy_function(run, [tensor], tensor.dtype)

    def _reduced(self, call: str, tensors: Sequence[Tensor], scale: float) -> list[Tensor]:
        """Reduce tensors of one dtype, as one collective."""

        def run(*own: Array) -> list[Array]:
            self.sent = list(own)
            rows = zip(*self._turns.meet(self.rank, f"{call} of {len(own)}", own), strict=True)
            return [sum(row[1:], start=row[0]) * row[0].dtype.type(scale) for row in rows]

        reduced: list[Tensor] = tf.nest.flatten(tf.numpy_function(run, list(tensors), [t.dtype for t in tensors]))
        return reduced

    def allreduce_mean(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sum over ranks of each tensor, times a rank's share of 1."""
        return reduced_by_dtype(tensors, lambda sent: self._reduced("allreduce_mean", sent, 1 / self.size))

    def allreduce_sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sum over ranks of each tensor."""
        return reduced_by_dtype(tensors, lambda sent: self._reduced("allreduce_sum", sent, 1))

    def gather(self, tensor: Tensor) -> Tensor:
        """The ranks' tensors as rows."""
        gathered = self._collective("gather", tensor, np.stack)
        gathered.set_shape([self.size, *tensor.shape])
        return gathered

    def alltoall(self, tensor: Tensor) -> Tensor:
        """The rows that the ranks sent to this one."""
        received = self._collective("alltoall", tensor, lambda rows: np.stack([row[self.rank] for row in rows]))
        received.set_shape(tensor.shape)
        return received

    def sendrecv(self, tensor: Tensor, partner: int) -> Tensor:
        """The partner's vector."""
        received = self._collective("sendrecv", tensor, lambda rows: rows[partner])
        received.set_shape(tensor.shape)
        return received

    def broadcast(self, variables: Sequence[Variable]) -> None:
        """Assign rank 0's values."""
        own = [tf.convert_to_tensor(variable).numpy() for variable in variables]
        rows = self._turns.meet(self.rank, f"broadcast of {len(own)}", own)
        for variable, value in zip(variables, rows[0], strict=True):
            variable.assign(value)

    def allgather(self, array: Array) -> Array:
        """The ranks' arrays one after another."""
        return np.concatenate(self._turns.meet(self.rank, "allgather", array))

    def allgather_object(self, value: Any) -> list[Any]:
        """Every rank's value, as it comes back from JSON."""
        return [json.loads(text) for text in self._turns.meet(self.rank, "allgather_object", json.dumps(value))]

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._turns.meet(self.rank, "barrier", None)


def on_ranks(size: int, work: Callable[[Any], Result], ring: type[ThreadRing] = ThreadRing) -> list[Result]:
    """Call a function on each rank of a ring, and return what it returns, by rank.

    Args:
        size: number of ranks, at most `MOST_RANKS`.
        work: a function of the ring.
        ring: class of the ring.

    Raises:
        Exception: the first that a rank raised.
    """
    assert size <= MOST_RANKS
    turns = _Turns(size)
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            turns.wait(rank)
            results[rank] = work(ring(rank, turns))
        except BaseException as error:
            turns.failure = turns.failure or error
        turns.has_ended.add(rank)
        turns.give_on(rank)

    threads = [threading.Thread(target=run, args=(rank,), name=f"rank {rank}", daemon=True) for rank in range(size)]
    before = _generators()
    for thread in threads:
        thread.start()
    turns.may_run[0].release()
    for thread in threads:
        thread.join()
    _restore(before)
    if turns.failure is not None:
        raise turns.failure
    return results
