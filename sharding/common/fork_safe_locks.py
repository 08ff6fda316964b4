"""Fresh locks in forked processes, where a lock may be held forever by a thread that was not forked.

Tested in tests/pipeline/fetch/test_shard_cache.py.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class _Locked(Protocol):
    _lock: threading.RLock


_all: weakref.WeakSet[_Locked] = weakref.WeakSet()


def renew_lock_in_forks(owner: _Locked) -> None:
    """Replace the `_lock` of an object in every process forked from this one during the object's life."""
    _all.add(owner)


def _renew() -> None:
    for owner in _all:
        owner._lock = threading.RLock()


os.register_at_fork(after_in_child=_renew)
