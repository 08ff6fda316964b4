"""Commits: states of a run that a process keeps in memory, to resume from when another rank dies.

Tested in tests/training/test_launch.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .store import Checkpoint

__all__ = ["Memory"]


class Memory:
    """The newest commit of this process.

    Attributes:
        newest: the commit; None before the first.
    """

    def __init__(self) -> None:
        self.newest: Checkpoint | None = None

    @property
    def step(self) -> int:
        """The step of the newest commit; -1 before the first."""
        return -1 if self.newest is None else self.newest.step

    def keep(self, commit: Checkpoint) -> None:
        """Keep a copy of a commit, in place of the one before."""
        self.newest = replace(commit, arrays={name: np.array(array) for name, array in commit.arrays.items()})
