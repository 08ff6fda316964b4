"""The life of a rank in an elastic run: it trains in one ring after another, from one commit to the next.

When a rank dies, the collectives of the others fail. Each then leaves the ring, waits for a place in the next one, and
resumes from the commit of rank 0, which has the newest. Graphs hold rank and size, so all parts of a run are built
anew; what remains is the process, with its TensorFlow, and the commit.

Horovod's own wrapper (`horovod.common.elastic.run_fn`) is not used: it knows how to reset, but not when the next ranks
are ready, and its translation of errors ends a run as if it were done (horovod#1994).
Tested in tests/training/test_launch.py.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ringfeed.sharding.errors import TrainingError
from ringfeed.sharding.storage.temporary_folder import end_process
from ringfeed.training.checkpoint.background import Memory
from ringfeed.training.ring.connect import join, pin_gpu, prepare
from ringfeed.training.ring.horovod_ring import HorovodRing
from ringfeed.training.ring.world import world_from_environment
from ringfeed.training.run.stopping import Stopped

from .members import Members

log = logging.getLogger(__name__)

_SLOT = "RINGFEED_SLOT"
_LOST = (
    tf.errors.UnknownError,
    tf.errors.AbortedError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.CancelledError,
)

Run = Callable[[HorovodRing, Memory], dict[str, Any]]


def is_of_collective(error: BaseException) -> bool:
    """Return whether an error says that a collective failed, as it does when a rank dies."""
    return isinstance(error, _LOST) and "orovod" in str(error)


def survive(members: Members, run: Run, is_terminating: Callable[[], bool]) -> dict[str, Any] | None:
    """Train until the run ends, in one ring after another; return its metrics, or None if this rank has to go.

    `run` trains in a ring, resumes from the commits in a memory, and keeps its own there; `is_terminating` says whether
    this process was asked to end. Raises `Stopped` once a rank was asked to end, and all have saved a checkpoint.
    """
    world, memory = world_from_environment(os.environ), Memory()
    assert world is not None
    hvd = prepare(world)
    gc.freeze()  # what imports made stays: each `gc.collect` would take a second to scan it
    is_first = True
    while members.wait(memory.step):
        ring = _rejoin(hvd, members)
        if is_first:
            pin_gpu(int(os.environ.get(_SLOT, ring.local_rank)), ring.local_size)
        is_first = False
        metrics = _train(run, ring, memory, is_terminating)
        if metrics is not None:
            return metrics
        ring.leave()
        keras.utils.clear_session(free_memory=False)
        gc.collect()
    return None


def _rejoin(hvd: Any, members: Members) -> HorovodRing:
    try:
        ring = join(hvd)
    except TrainingError as error:  # another rank died meanwhile; Horovod cannot try again in this process
        log.warning("%s", error)
        end_process(1)
    members.joined(ring.rank, ring.size)
    return ring


def _train(run: Run, ring: HorovodRing, memory: Memory, is_terminating: Callable[[], bool]) -> dict[str, Any] | None:
    """Train in a ring; return None where the ranks leave it for another one."""
    try:
        try:
            return run(ring, memory)
        except Stopped:
            (asked,) = ring.allreduce_sum([tf.constant(float(is_terminating()))])
            if asked > 0.0:
                raise
    except tf.errors.OpError as error:
        if not is_of_collective(error):
            raise
        log.debug("a collective failed: %s", error)
    return None
