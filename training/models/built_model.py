"""What every builder of a network returns, and the check of its outputs.

Tested in tests/training/models/test_models.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ringfeed.sharding.errors import ConfigError

from .preprocess import Preprocess
from .target import Target

__all__ = ["BuiltModel", "check_outputs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModel:
    """A network, and the functions from a loader's element to its inputs: `augmented` is for training, if not None."""

    network: Any
    preprocess: Preprocess
    augmented: Preprocess | None = None


def check_outputs(network: Any, name: str, target: Target) -> None:
    """Check that a network, which `model.name` names, ends in the outputs of its task.

    Raises:
        ConfigError: it does not.
    """
    shape, wanted = network.output_shape, target.outputs
    if not isinstance(shape, tuple) or shape[-1] != wanted:
        each = {"multiclass": f"{wanted} logits, one per class", "multilabel": f"{wanted} logits, one per label"}
        of = each.get(target.task, "1 logit" if target.task == "binary" else "1 number")
        raise ConfigError(f"model.name: {name} must return a model of {of}, got an output of shape {shape}")
