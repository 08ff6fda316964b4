"""Profiles measure: their tests go before other programs of the machine, where that is allowed."""

import os
from collections.abc import Iterator

import pytest

_NICE = -10


def set_nice(value: int) -> None:
    """Of all threads of this process; those that they start, and processes, inherit it."""
    for thread in os.listdir("/proc/self/task"):
        try:
            os.setpriority(os.PRIO_PROCESS, int(thread), value)
        except (PermissionError, ProcessLookupError):  # only root may; a thread may have ended
            continue


@pytest.fixture(autouse=True, scope="module")
def before_other_programs() -> Iterator[None]:
    """Keep the other tests, and whatever else runs, from taking the cores of what is measured."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    set_nice(_NICE)
    yield
    set_nice(usual)
