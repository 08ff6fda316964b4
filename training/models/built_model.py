"""What every builder of a network returns, and the check of its outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...sharding.errors import ConfigError
from .preprocess import Preprocess

__all__ = ["BuiltModel", "check_logits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModel:
    """A network, and the functions from a loader's element to its inputs: `augmented` is for training, if not None."""

    network: Any
    preprocess: Preprocess
    augmented: Preprocess | None = None


def check_logits(network: Any, name: str, classes: int) -> None:
    """Check that a network, which `model.name` names, ends in one logit for each class.

    Raises:
        ConfigError: it does not.
    """
    shape = network.output_shape
    if not isinstance(shape, tuple) or shape[-1] != classes:
        raise ConfigError(
            f"model.name: {name} must return a model of {classes} logits, one per class, got an output of shape {shape}"
        )
