"""Chooses where the tasks of a build run: processes of this machine, or an existing Dask or Ray cluster."""

from __future__ import annotations

from concurrent.futures import Executor
from contextlib import AbstractContextManager
from urllib.parse import urlsplit

from ringfeed.sharding.errors import ConfigError

from .dask_engine import dask_executor
from .executors import local_executor
from .ray_engine import ray_executor

ENGINES = ("local", "dask", "ray")


def check_engine(url: str) -> None:
    """Check the name of an engine; raises a ConfigError if it is neither ``local`` nor the address of a cluster."""
    parts = urlsplit(url)
    if url in ("local", "ray://auto"):
        return
    try:
        known = parts.scheme in ENGINES[1:] and bool(parts.hostname) and parts.port is not None and not parts.path
    except ValueError:  # of an invalid port
        known = False
    if not known:
        raise ConfigError(f"the engine must be local, dask://HOST:PORT, ray://HOST:PORT or ray://auto, got {url!r}")


def open_engine(
    url: str, workers: int, *, local_spill: bool = False, leased_destination: str | None = None
) -> AbstractContextManager[Executor]:
    """Open an executor of tasks for the body.

    Args:
        url: ``local``; ``dask://HOST:PORT`` of a scheduler; ``ray://HOST:PORT`` of a Ray client server, or ``ray://auto``
            for the cluster that this machine is part of. The workers of a cluster need ringfeed, access to source,
            destination and spill folder by the same URLs, and the credentials for them in their own environment.
        local_spill: whether tasks leave files in this machine's folder for temporary files; then workers on other
            machines are refused.
        leased_destination: the destination whose lease the caller holds, if any. Workers that do not see it are
            refused, and tasks of an earlier build of it are waited for.

    Raises:
        ConfigError: the cluster's client is not installed, or its workers cannot run the tasks.
        StorageError: it cannot be reached, or has no workers.
    """
    check_engine(url)
    scheme, address = url.partition("://")[::2]
    if not address:
        return local_executor(workers)
    connect = dask_executor if scheme == "dask" else ray_executor
    return connect(address, local_spill=local_spill, leased_destination=leased_destination)
