"""What every builder of a network returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .preprocess import Preprocess

__all__ = ["BuiltModel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModel:
    """A network, and the functions from a loader's element to its inputs: `augmented` is for training, if not None."""

    network: Any
    preprocess: Preprocess
    augmented: Preprocess | None = None
