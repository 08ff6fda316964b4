"""A folder by its URL: its file system, retries and translated errors. `storage.py` adds reading and writing.

Tested in tests/sharding/storage/test_storage.py.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import fsspec

from ringfeed.sharding.errors import ConfigError, DestinationError, RingfeedError, StorageError
from ringfeed.sharding.url_secrets import public_url

from .client_errors import RetriesExhaustedError
from .error_messages import explain
from .filesystems import filesystem
from .retry import RetryPolicy, retry
from .s3.timeouts import NotS3Error
from .timings import StoreTimings
from .urls import OBJECT_STORE_PROTOCOLS, S3_PROTOCOLS, normalize_url

T = TypeVar("T")


@lru_cache(maxsize=64)  # a loader asks eight times for each shard: 0.1 ms
def _absolute_path(path: str) -> Path:
    return Path(os.path.abspath(path))


_INSTALL_HINTS = {
    "hdfs": "ringfeed[hdfs]", "hf": "ringfeed[hf]", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs",
}  # fmt: skip
_CONNECT_SECONDS = 10.0


@dataclass(frozen=True, slots=True, repr=False)
class Location:
    """A folder, by its URL."""

    url: str  # URL or path of the folder
    options: Mapping[str, Any] = field(default_factory=dict)  # options of the fsspec file system
    retries: RetryPolicy = field(default_factory=RetryPolicy)  # how transient errors are retried
    timings: StoreTimings = field(default_factory=StoreTimings)  # how long to wait for it, and for other writers

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", normalize_url(self.url, "a folder"))

    @property
    def protocol(self) -> str:
        """``file``, ``s3``, ``hdfs``, ..."""
        match = re.match(r"([a-zA-Z][a-zA-Z0-9+.-]*)(://|::)", self.url)
        return match.group(1).lower() if match else "file"

    @property
    def local_path(self) -> Path | None:
        """The path of the folder if it is on this machine, else None."""
        if self.protocol != "file":
            return None
        path = re.sub(r"^file:(//)?", "", self.url, flags=re.IGNORECASE)
        return _absolute_path(path) if os.path.isabs(path) else Path(os.path.abspath(os.path.expanduser(path)))

    @property
    def is_object_store(self) -> bool:
        """Whether the store has keys and no folders: a write is atomic there, and nothing can be renamed."""
        return self.protocol in OBJECT_STORE_PROTOCOLS

    def address(self, path: str = "") -> str:
        """The URL of a file in the folder, with its secrets; a local path is absolute."""
        base = str(self.local_path or self.url.rstrip("/"))
        return f"{base}/{path}" if path else base

    def locate(self, path: str = "") -> str:
        """`address` without secrets, for messages and files."""
        return public_url(self.address(path))

    def __str__(self) -> str:
        return self.locate()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.locate()!r})"

    def check_reachable(self) -> None:
        """Fail early where a first request would hang: an HDFS client waits minutes for a NameNode that is down."""
        with self.errors("reach", ""):
            if self.protocol == "hdfs" and (address := urlsplit(self.url)).port:
                socket.create_connection((address.hostname or "", address.port), _CONNECT_SECONDS).close()

    def check_writable(self) -> None:
        """`check_reachable`, and check that the bucket exists, which some S3 servers would create from a mistyped name.

        Raises:
            DestinationError: the path leads to a file, or to a link that leads nowhere.
        """
        self.check_reachable()
        path = self.local_path
        if path is not None and os.path.lexists(path) and not os.path.isdir(path):
            what = "a file" if os.path.exists(path) else "a link that leads nowhere"
            raise DestinationError(f"the destination {path} is {what}; name a folder")
        if self.protocol in S3_PROTOCOLS:
            fs, root = self.filesystem()
            bucket, _, prefix = root.partition("/")
            prefix = f"{prefix}/" if prefix else ""

            def look() -> None:
                reply = fs.call_s3("list_objects_v2", Bucket=bucket, Prefix=prefix, MaxKeys=1)
                if not reply.keys() & {"Name", "IsTruncated", "KeyCount"}:
                    raise NotS3Error("no listing of the bucket")

            self.run("reach", "", look)

    def filesystem(self) -> tuple[fsspec.AbstractFileSystem, str]:
        """The fsspec file system, shared by all threads, and the folder's path in it; use it within `run`."""
        if self.protocol in S3_PROTOCOLS and not self.url.partition("://")[2].partition("/")[0]:
            raise ConfigError(f"{public_url(self.url)} names no bucket; name one, as in {self.protocol}://bucket/path")
        with self.errors("open", ""):
            return filesystem(self.address(), self.protocol, self.options, self.timings)

    @contextmanager
    def errors(self, verb: str, path: str) -> Iterator[None]:
        """Translate the errors of the stores' clients into package errors with one line."""
        try:
            yield
        except RingfeedError:  # translated already
            raise
        except Exception as error:
            cause = (error.__cause__ or error) if isinstance(error, RetriesExhaustedError) else error
            raise self._translated(error, cause, verb, path) from cause

    def _translated(self, error: Exception, cause: BaseException, verb: str, path: str) -> Exception:
        where = self.locate(path)
        if isinstance(error, ImportError):
            package = _INSTALL_HINTS.get(self.protocol, self.protocol)
            return StorageError(f"cannot open {where}: install its client with: pip install '{package}'")
        if isinstance(error, FileExistsError) and verb == "create":
            return FileExistsError(f"there is a file {where} already")
        if isinstance(error, FileNotFoundError) and verb not in ("write", "create") and path:
            return FileNotFoundError(f"there is no file {where}")
        if isinstance(error, RetriesExhaustedError):
            reason = cause if isinstance(cause, RingfeedError) else self._error(verb, where, cause)
            tried = f"{error}; once the store and the network are well again, start the same command again"
            return StorageError(f"{reason} ({tried})")
        return self._error(verb, where, error)

    def _error(self, verb: str, where: str, error: BaseException) -> StorageError:
        verb = "write" if verb == "create" else verb
        reason = explain(error, self.protocol, writing=verb in ("write", "move"), place=self.local_path)
        return StorageError(f"cannot {verb} {where}: {reason}")

    def run(self, verb: str, path: str, operation: Callable[[], T]) -> T:
        """Run an idempotent operation on the `filesystem`, with retries and translated errors."""
        with self.errors(verb, path):
            return retry(operation, self.retries, about=lambda: f"cannot {verb} {self.locate(path)}")
