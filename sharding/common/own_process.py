"""Tells whether this process runs a command of ringfeed: a command may do what a library must not.

Tested in tests/pipeline/deliver/test_quiet_tensorflow.py.
"""

from __future__ import annotations

from threading import Event

_is_claimed = Event()


def claim_process() -> None:
    """Say that this process was started for a command of ringfeed, and ends with it."""
    _is_claimed.set()


def is_own_process() -> bool:
    """Whether the process has been claimed."""
    return _is_claimed.is_set()
