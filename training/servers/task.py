"""A worker or a parameter server: a TensorFlow server, and the Python functions that the chief's graph calls in it.

The chief traces the steps; TensorFlow runs them in the workers' processes. There `tf.raw_ops.PyFunc` finds a Python
function by its token. So every task declares the same functions, in the same order, before anything else does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from ringfeed.pipeline import Loader, Mixture
from ringfeed.sharding.errors import RingfeedError
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.models.build import build_model
from ringfeed.training.optimizers.keras_doors import declare_functions, function_token
from ringfeed.training.ring.world import World
from ringfeed.training.run.inputs import open_loader, traced

from .board.client import BoardClient, ChiefLine
from .cluster import PS, Cluster, task_name
from .significance import Significance

NEXT_TOKEN, DONE_TOKEN, MEET_TOKEN, VOTE_TOKEN, ADDED_TOKEN, SIFT_TOKEN, FLUSH_TOKEN = map(function_token, range(7))

_POLL_SECONDS = 0.2


def part_loader(config: TrainConfig, part: int, parts: int) -> Loader | Mixture:
    return open_loader(config, World(rank=part, size=parts, local_size=1))


def batch_spec(batches: Any) -> list[tf.TensorSpec]:
    """Return the tensors that a batch consists of, lists of varying length taken apart."""
    return list(tf.nest.flatten(batches.element_spec, expand_composites=True))


class _Reader:
    """Reads batches of any part as the board hands them out: mostly the batches of one part."""

    def __init__(self, config: TrainConfig, part: int, parts: int) -> None:
        self._config, self._parts = config, parts
        self._loaders = {part: part_loader(config, part, parts)}
        model = build_model(self._loaders[part].manifest, config)
        self._preprocess = traced(model.augmented or model.preprocess)
        self.spec = batch_spec(self._loaders[part].epoch(0, transform=self._preprocess))
        self._place: tuple[int, int, int] | None = None
        self._batches: Iterator[Any] = iter(())

    def batch(self, epoch: int, part: int, step: int) -> list[Any]:
        if part not in self._loaders:
            self._loaders[part] = part_loader(self._config, part, self._parts)
        if self._place != (epoch, part, step):
            self._batches = self._loaders[part].batches(epoch, step, transform=self._preprocess)
        batch = next(self._batches)
        self._place = (epoch, part, step + 1)
        return [tensor.numpy() for tensor in tf.nest.flatten(batch, expand_composites=True)]

    def nothing(self) -> list[Any]:
        """Return arrays without samples, of a batch's dtypes."""
        return [np.zeros([size or 0 for size in spec.shape], spec.dtype.as_numpy_dtype) for spec in self.spec]


class Task:
    """The functions that the chief's graph calls, and the state between their calls.

    `chief` is the connection to the chief, None until that connects; `graph` keeps the functions alive: see
    `declare_functions`.
    """

    def __init__(self, config: TrainConfig, cluster: Cluster, *, ends_with_chief: bool) -> None:
        self._config, self._cluster = config, cluster
        self._board: BoardClient | None = None
        self._reader: _Reader | None = None
        self._waited = 0.0
        self.significance = Significance(config.parameter_server.threshold)
        self.chief: ChiefLine | None = None
        self.graph: tf.Graph | None = None
        self._ends_with_chief = ends_with_chief
        self._lock = threading.Lock()

    def next(self, address: bytes) -> list[Any]:
        """Return whether there is a step, the number of its update, and its batch."""
        try:
            if self._board is None:
                self.meet(address)
                self._board = BoardClient(address.decode(), self._cluster.index)
            if self._reader is None:
                self._reader = _Reader(self._config, self._cluster.index, self._cluster.workers)
            step = self._board.ask({"take": True})
            if "over" in step:
                return [np.bool_(False), np.int64(0), *self._reader.nothing()]
            requested = time.monotonic()
            batch = self._reader.batch(step["epoch"], step["part"], step["step"])
            self._waited = time.monotonic() - requested
            return [np.bool_(True), np.int64(step["update"]), *batch]
        except Exception as error:
            if not self._tell(error) or self._reader is None:
                raise
            return [np.bool_(False), np.int64(0), *self._reader.nothing()]  # the chief ends the run

    def done(self, loss: Any, norm: Any, staleness: Any, sent_share: Any) -> Any:
        report = {
            "loss": float(loss),
            "gradient_norm": float(norm),
            "staleness": int(staleness),
            "wait_seconds": self._waited,
            "sent_share": float(sent_share),
        }
        self._ask({"done": report})
        return np.bool_(True)

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self._board is not None  # the graph calls `next` first
        return self._board.ask(message)

    def vote(self, _: Any) -> Any:
        return np.bool_(self._ask({"vote": True})["counts"])

    def added(self, _: Any) -> Any:
        """Report that the gradient is added to the others' gradients; return whether to apply their mean."""
        return np.bool_(self._ask({"added": True})["applies"])

    def sift(self, step: Any, rate: Any, *tensors: Any) -> list[Any]:
        """Return the significant entries of gradients: indices and values of each variable."""
        half = len(tensors) // 2
        return _flat(self.significance.sift(int(step), float(rate), tensors[:half], tensors[half:]))

    def flush(self, count: Any, rate: Any) -> list[Any]:
        return _flat(self.significance.flush(int(count), float(rate)))

    def meet(self, address: bytes) -> Any:
        """End this process with the chief."""
        with self._lock:
            if self.chief is None and self._ends_with_chief:
                name = task_name(self._cluster.kind, self._cluster.index)
                self.chief = ChiefLine(address.decode(), name, self._config.watchdog_seconds)
        return np.bool_(True)

    def _tell(self, error: Exception) -> bool:
        """Tell the chief of an error, and return whether it knows."""
        text = str(error) if isinstance(error, RingfeedError) else f"{type(error).__name__}: {error}"
        if self._board is not None:
            with suppress(OSError):  # the chief has ended
                self._board.ask({"error": " ".join(text.split())[:1000]})
                return True
        return False


def _flat(entries: Sequence[tuple[Any, Any]]) -> list[Any]:
    return [array for pair in entries for array in pair]


def declare(config: TrainConfig, cluster: Cluster, *, ends_with_chief: bool = True) -> Task:
    """Give this process's functions the tokens that the chief calls them by."""
    task = Task(config, cluster, ends_with_chief=ends_with_chief)
    functions = (task.next, task.done, task.meet, task.vote, task.added, task.sift, task.flush)  # by token
    task.graph = declare_functions(functions)
    return task


def serve_task(config: TrainConfig, cluster: Cluster, is_terminating: Callable[[], bool]) -> NoReturn:
    """Serve as this process's task until the chief ends, which ends this process.

    A scheduler sends SIGTERM to all tasks of a job, and the chief needs the others to save: they serve on. A server
    asks the chief to save; a worker, which the others can do without, does not. From the second call of
    `is_terminating` on, SIGTERM no longer ends this process.
    """
    logging.getLogger("tensorflow").setLevel(logging.CRITICAL)
    task = declare(config, cluster)
    server = tf.distribute.Server(
        {kind: list(addresses) for kind, addresses in cluster.tasks.items()},
        job_name=cluster.kind,
        task_index=cluster.index,
        protocol="grpc",
        start=True,
    )
    logging.getLogger(__name__).debug("%s serves at %s", task_name(cluster.kind, cluster.index), server.target)
    while task.chief is None or not is_terminating():
        time.sleep(_POLL_SECONDS)
    if cluster.kind == PS:
        with suppress(OSError):  # the chief has ended
            task.chief.ask_to_stop()
    while True:
        time.sleep(_POLL_SECONDS)
