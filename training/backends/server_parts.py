"""The parts of a run whose network is on parameter servers, as checkpoints and the model's file need them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from ..checkpoint.snapshot import Parts

__all__ = ["ServerParts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerParts(Parts):
    """The parts of a run on parameter servers.

    Attributes:
        local: the same network with variables in this process, for evaluations and the model's file.
    """

    local: Any

    @contextmanager
    def exported(self) -> Iterator[Any]:
        """Yield `local` with the servers' weights."""
        for own, served in zip(self.local.weights, self.network.weights, strict=True):
            own.assign(np.asarray(tf.convert_to_tensor(served)))
        yield self.local
