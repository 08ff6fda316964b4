"""Joins the ring that this process belongs to, once or again, and gives each rank its share of the host."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from ringfeed.sharding.errors import ConfigError, TrainingError
from ringfeed.training.config.backend import BACKENDS, HOROVOD, MIRRORED, MULTI_WORKER, PARAMETER_SERVER

from .connections import open_sockets
from .horovod import require_horovod
from .horovod_ring import DYNAMIC, HierarchicalRing, HorovodRing
from .replicas import MirroredRing, open_replicas
from .ring import Ring, SoloRing
from .tf_config import local_rank_of_worker, multi_worker_world
from .worker_ring import WorkerRing
from .world import World, world_from_environment


def connect(
    environ: Mapping[str, str] = os.environ,
    backend: str = HOROVOD,
    *,
    hierarchical: bool = False,
    devices: int | None = None,
) -> Ring:
    """Join the ring that this process belongs to.

    A process that no launcher started is a `SoloRing`, whether or not Horovod is installed, and so is one of a backend
    of one process. Each rank of a host uses its own GPU and its share of the cores. Call it before TensorFlow runs
    anything.

    Args:
        environ: environment variables.
        backend: one of the configuration's.
        hierarchical: whether reductions have two levels, within hosts and between them.
        devices: of `MIRRORED`, their number; None: all GPUs.

    Raises:
        ConfigError: the backend has no ring; or it is `MULTI_WORKER`, and ``TF_CONFIG`` names no workers; or
            `hierarchical`, and there are no two levels; or it is `MIRRORED`, and there are fewer than two devices, or
            than `devices`.
        TrainingError: the process was started as a rank, and Horovod is missing, broken, or sees a different number of
            ranks; or the host has fewer GPUs than ranks.

    >>> connect({}, "none").size
    1
    """
    if backend not in BACKENDS or backend == PARAMETER_SERVER:
        known = ", ".join(name for name in BACKENDS if name != PARAMETER_SERVER)
        raise ConfigError(f"the backend of a ring must be one of {known}, got {backend!r}")
    if backend == MULTI_WORKER:
        return _join_workers(environ)
    if backend == MIRRORED:
        return MirroredRing(open_replicas(devices))
    world = world_from_environment(environ) if backend == HOROVOD else None
    if world is None:
        return SoloRing()
    size = world.size
    hvd = prepare(world)
    if hierarchical:
        os.environ[DYNAMIC] = "1"
    ring = join(hvd)
    if ring.size != size:
        raise TrainingError(
            f"the launcher started {size} ranks, but Horovod sees {ring.size}: it was built without the "
            "protocol of this launcher (horovodrun --gloo needs Gloo, mpirun and srun need MPI). See `ringfeed doctor`"
        )
    pin_gpu(ring.local_rank, ring.local_size)
    return HierarchicalRing(hvd) if hierarchical else ring


def _join_workers(environ: Mapping[str, str]) -> WorkerRing:
    world, local_rank = multi_worker_world(environ), local_rank_of_worker(environ)
    share_cores(world.local_size)
    pin_gpu(local_rank, world.local_size)
    return WorkerRing(world, local_rank)


def prepare(world: World) -> Any:
    """Import Horovod, and give this rank its share of the host's cores; call it once. Return the module for `join`."""
    hvd = require_horovod(world.size)
    share_cores(world.local_size)
    return hvd


def join(hvd: Any) -> HorovodRing:
    """Join the ring that the environment describes (a collective), after `HorovodRing.leave` also another one.

    A TrainingError says that Horovod cannot connect the ranks.
    """
    before = open_sockets()
    try:
        hvd.init()
    except Exception as error:
        raise TrainingError(f"Horovod could not connect the ranks: {error}") from error
    return HorovodRing(hvd, open_sockets() - before)


def share_cores(local_size: int) -> int:
    """Limit TensorFlow to this rank's share of the host's cores, and return the share.

    With more threads than cores, ranks wait for each other inside collectives. Call it before TensorFlow's first
    operation.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // local_size)
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, threads))  # a blocked collective needs a second one
    return threads


def pin_gpu(local_rank: int, local_size: int) -> None:
    """Use one GPU of the host, for the life of this process; call it before TensorFlow's first operation."""
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return
    if local_size > len(gpus):
        raise TrainingError(f"{local_size} ranks on this host, but {len(gpus)} GPUs: start one rank per GPU")
    tf.config.set_visible_devices(gpus[local_rank], "GPU")
    tf.config.experimental.set_memory_growth(gpus[local_rank], True)
