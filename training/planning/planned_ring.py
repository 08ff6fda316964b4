"""A ring of which only rank 0 exists: its collectives give the shapes that they would have, for what is counted.

Tested in tests/training/planning/test_plan.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ringfeed.training.ring.ring import SoloRing

__all__ = ["PlannedRing"]

Tensor = Any


class PlannedRing(SoloRing):
    """Rank 0 of `size` ranks on one host; the others are taken to send what it sends.

    Args:
        size: number of ranks.
    """

    def __init__(self, size: int) -> None:
        self.size = self.local_size = size
        self._has_exchanged = False

    def gather(self, tensor: Tensor) -> Tensor:
        """One row that stands for all, which are only added up; after an exchange all rows, which are put together."""
        return tf.repeat(tensor[None], self.size if self._has_exchanged else 1, axis=0)

    def exchange(self, tensor: Tensor) -> Tensor:
        """The tensor itself."""
        self._has_exchanged = True
        return tensor

    def allgather_object(self, value: Any) -> list[Any]:
        """The value for each rank."""
        return [value] * self.size

    def allreduce_sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors times the ranks."""
        return [tf.convert_to_tensor(t) * self.size for t in tensors]
