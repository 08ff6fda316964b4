"""Where the tasks of a build run: processes of this machine, or a Dask or Ray cluster that is there already."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from .errors import ConfigError, StorageError
from .execute import local_executor

__all__ = ["ENGINES", "check_engine", "open_engine"]

ENGINES = ("local", "dask", "ray")
_RETRIES = 3  # of a task whose worker was lost: tasks may run twice, and write the same bytes


def check_engine(url: str) -> None:
    """Refuse what is no engine.

    Raises:
        ConfigError: it is neither ``local`` nor the address of a cluster.
    """
    parts = urlsplit(url)
    if url != "local" and (parts.scheme not in ENGINES[1:] or not parts.netloc):
        raise ConfigError(f"the engine must be local, dask://HOST:PORT or ray://HOST:PORT, got {url!r}")


@contextmanager
def open_engine(url: str, workers: int) -> Iterator[Executor]:
    """An executor of tasks, until the body ends.

    Args:
        url: ``local``; ``dask://HOST:PORT`` of a scheduler; ``ray://HOST:PORT`` of a Ray client server, or ``ray://auto``
            for the cluster that this machine is part of. The workers of a cluster need ringfeed, and reach source,
            destination and spill folder by the same URLs.
        workers: processes of the local engine.

    Raises:
        ConfigError: its client is not installed.
        StorageError: it cannot be reached.
    """
    check_engine(url)
    scheme, address = url.partition("://")[::2]
    if scheme == "dask":
        with _dask(address) as executor:
            yield executor
    elif scheme == "ray":
        with _ray(address) as executor:
            yield executor
    else:
        with local_executor(workers) as executor:
            yield executor


@contextmanager
def _dask(address: str) -> Iterator[Executor]:
    try:
        from dask.distributed import Client
    except ImportError as error:
        raise ConfigError("--engine dask:// needs Dask; install it with: pip install 'ringfeed[dask]'") from error
    try:
        client: Any = Client(f"tcp://{address}", timeout="10s", set_as_default=False)
    except OSError as error:
        raise StorageError(f"no Dask scheduler answers at {address}; check the address, and that it runs") from error
    with client, client.get_executor(retries=_RETRIES, pure=False) as executor:
        yield executor


@contextmanager
def _ray(address: str) -> Iterator[Executor]:
    try:
        import ray
    except ImportError as error:
        raise ConfigError("--engine ray:// needs Ray; install it with: pip install 'ringfeed[ray]'") from error
    try:
        ray.init(
            address=address if address == "auto" else f"ray://{address}",
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, OSError) as error:
        raise StorageError(f"no Ray cluster answers at {address}; check the address, and that it runs") from error
    try:
        yield _RayExecutor(ray)
    finally:
        ray.shutdown()


class _RayExecutor(Executor):
    """`concurrent.futures` over Ray's tasks."""

    def __init__(self, ray: Any) -> None:
        self._run = ray.remote(max_retries=_RETRIES, num_cpus=1)(_call)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function on the cluster."""
        future: Future[Any] = self._run.remote(fn, args, kwargs).future()
        return future


def _call(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return function(*args, **kwargs)
