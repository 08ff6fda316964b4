"""Storage that checks before each attempt at a write whether its process may still write there.

A process that was suspended, or whose store was, may have lost its lease. Its pending writes must then not happen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import pyarrow as pa

from ringfeed.sharding.errors import DestinationError

from .atomic_files import Bytes, Draft
from .lease import Lease, describe_loss, read_holder
from .storage import Storage

T = TypeVar("T")
_READS = ("read", "list", "look for", "reach", "open")
_seen: dict[str, float] = {}  # when this process last saw the lease file of a token


class Fence(Protocol):
    """Decides whether a process may write."""

    def guard(self) -> None:
        """Raise a DestinationError if it may not."""


@dataclass(frozen=True, slots=True, repr=False)
class FencedStorage(Storage):
    """A folder in which each change first has to pass a fence."""

    fence: Fence = field(kw_only=True, compare=False)

    def run(self, verb: str, path: str, operation: Callable[[], T]) -> T:
        if verb in _READS:
            return Storage.run(self, verb, path, operation)

        def attempt() -> T:
            self.fence.guard()
            return operation()

        return Storage.run(self, verb, path, attempt)

    def create(self, path: str, data: bytes) -> None:
        self.fence.guard()
        Storage.create(self, path, data)

    def write_all(self, files: Mapping[str, bytes | pa.Buffer]) -> None:
        self.fence.guard()  # once, and not in each thread
        Storage.write_all(self, files)

    def _draft(self, path: str, *, durable: bool = True) -> Draft:
        return _FencedDraft(Storage._draft(self, path, durable=durable), self.fence)


@dataclass(frozen=True)
class _FencedDraft:
    draft: Draft
    fence: Fence

    def write(self, data: Bytes) -> None:
        self.draft.write(data)

    def commit(self, *, exclusive: bool = False) -> None:
        self.fence.guard()
        self.draft.commit(exclusive=exclusive)

    def discard(self) -> None:
        self.draft.discard()


@dataclass(frozen=True, slots=True)
class _LeaseFile:
    """The fence of processes that work for the holder of a lease: they look at its file."""

    storage: Storage
    token: str

    def guard(self) -> None:
        seen = _seen.get(self.token)
        if seen is not None and time.monotonic() - seen < self.storage.timings.check_seconds:
            return
        begun = time.monotonic()
        if lost := describe_loss(self.storage, read_holder(self.storage), self.token):
            raise DestinationError(lost)
        _seen[self.token] = begun


def fence_storage(storage: Storage, lease: Lease) -> FencedStorage:
    """The storage of a process that holds a lease."""
    return FencedStorage(storage.url, storage.options, storage.retries, storage.timings, fence=lease)


def fence_for_workers(storage: Storage, destination: Storage, lease: Lease) -> FencedStorage:
    """The storage of processes that work for the holder of a lease, on this machine or others."""
    # An absolute path, because they may have another working directory.
    place = Storage(destination.address(), destination.options, destination.retries, destination.timings)
    fence = _LeaseFile(place, lease.token)
    return FencedStorage(storage.address(), storage.options, storage.retries, storage.timings, fence=fence)
