"""Locks in a forked process, where a thread that is not there may hold them, for ever."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

__all__ = ["renew_in_forks"]


class _Locked(Protocol):
    _lock: threading.RLock


_all: weakref.WeakSet[_Locked] = weakref.WeakSet()


def renew_in_forks(owner: _Locked) -> None:
    """Make the `_lock` of an object anew in any process that is forked from this one while the object is there."""
    _all.add(owner)


def _renew() -> None:
    for owner in _all:
        owner._lock = threading.RLock()


os.register_at_fork(after_in_child=_renew)
