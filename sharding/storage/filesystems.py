"""The fsspec file system of a URL: shared by the threads of a process, and without retries of its own.

Tested in tests/sharding/storage/test_storage.py and tests/pipeline/test_stores.py.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakSet

import fsspec

from ringfeed.sharding.errors import StorageError

from .hdfs import BoundedClient
from .s3.timeouts import limit_requests
from .timings import StoreTimings
from .urls import S3_PROTOCOLS, WEB_PROTOCOLS

_RPC_TIMEOUT = "ipc.client.rpc-timeout.ms"  # Hadoop's setting for the time a NameNode may take to answer
_ENVIRONMENT = ("AWS_", "HADOOP_", "HDFS_")  # variables that the clients below read
# The clients' own retries would multiply ours: s3fs makes 5 attempts of botocore's 5, and HDFS waits for 3 minutes.
_OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {
        "use_listings_cache": False,
        "max_concurrency": 1,  # otherwise each read first asks for the size
        "config_kwargs": {
            "retries": {"total_max_attempts": 1},
            "max_pool_connections": 32,
            "signature_version": "s3v4",  # the default, except of presigned URLs: see `fast_uploads.py`
        },
    },
    "hdfs": {
        "dfs.client.failover.max.attempts": "3",
        "dfs.client.failover.sleep.max.millis": "500",
        "dfs.client.socket-timeout": "15000",  # as in s3fs; a minute by default
        _RPC_TIMEOUT: "30000",  # the client ignores it: `hdfs.py` applies it
    },
}


_hdfs_pids: set[int] = set()  # processes that used HDFS: calls hang in a fork of one
_hdfs_clients: WeakSet[fsspec.AbstractFileSystem] = WeakSet()


def filesystem(
    url: str, protocol: str, options: Mapping[str, Any], timings: StoreTimings
) -> tuple[fsspec.AbstractFileSystem, str]:
    """Return the file system of a URL and the path in it.

    fsspec's own cache keeps one client per thread, which takes 0.1 s to create for S3, and ignores the environment.

    Raises:
        StorageError: on HDFS, if this process was forked from one that has used it.
    """
    kind = "s3" if protocol in S3_PROTOCOLS else protocol
    if kind in WEB_PROTOCOLS:
        from .http import WebFileSystem  # aiohttp takes 0.1 s to import

        return WebFileSystem(timings=timings, **options), url.rstrip("/")
    if kind not in _OPTIONS:
        fs, path = fsspec.url_to_fs(url, **options)
        return fs, path.rstrip("/")
    place = ""
    if kind == "hdfs":
        place = urlsplit(url).netloc
        _hdfs_pids.add(os.getpid())
        if len(_hdfs_pids) > 1:
            raise StorageError(
                f"cannot open {url}: this process was forked from one that has used HDFS, and the client's threads do "
                "not exist in it; start such processes afresh, as with multiprocessing.get_context('spawn')"
            )
    environment = tuple(item for item in sorted(os.environ.items()) if item[0].startswith(_ENVIRONMENT))
    fs = _connect(kind, place, _Options(options), timings, environment, os.getpid())
    return fs, fs._strip_protocol(url).rstrip("/")


class _Options:
    """Options as a hashable key."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options
        self._key = repr(sorted(options.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Options) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@lru_cache(maxsize=16)
def _connect(
    kind: str,
    place: str,
    options: _Options,
    timings: StoreTimings,
    environment: tuple[tuple[str, str], ...],
    pid: int,
) -> fsspec.AbstractFileSystem:
    """Create a client; the environment and the process are only part of the cache key."""
    merged = {**_OPTIONS[kind], **options.options}
    if kind == "s3":
        config = options.options.get("config_kwargs", {})
        merged["config_kwargs"] = {**_OPTIONS[kind]["config_kwargs"], **config}
    fs, _ = fsspec.url_to_fs(f"{kind}://{place}", skip_instance_cache=True, **merged)
    if kind == "s3":
        # s3fs's own defaults, which docs/faults.md counts on. Not options: `fast_reads.is_supported` judges by those.
        fs.connect_timeout, fs.read_timeout = 5, 15
        fs.retries = 1
        limit_requests(fs, timings)
    if kind == "hdfs":
        _register_at_fork()
        _hdfs_clients.add(fs)
        fs._strip_protocol = _hdfs_path
        fs.client.inner = BoundedClient(fs.client.inner, int(merged[_RPC_TIMEOUT]) / 1000)
    return fs


def _hdfs_path(path: str) -> str:
    """The path of an HDFS URL; the client's own parser would cut it at ``#``, ``?`` or ``;``.

    >>> _hdfs_path("hdfs://namenode:8020/photos/a.jpg?w=200#2"), _hdfs_path("hdfs://namenode"), _hdfs_path("/a;b")
    ('/photos/a.jpg?w=200#2', '/', '/a;b')
    """
    return "/" + path.partition("://")[2].partition("/")[2] if "://" in path else path or "/"


@lru_cache(maxsize=1)
def _register_at_fork() -> None:
    os.register_at_fork(after_in_child=_leave_clients_to_the_parent)


def _leave_clients_to_the_parent() -> None:
    """Never free an HDFS client in a fork: that would wait for threads of the parent."""
    for fs in _hdfs_clients:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(fs))
    gc.freeze()
