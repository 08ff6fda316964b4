"""Lets a Keras optimizer update the variables of the replica that calls it, from gradients that are already reduced.

Under a strategy of `tf.distribute` Keras would sum the gradients again, and leave the replica for the update, which a
branch of a graph cannot.
Tested in tests/training/ring/test_replicas.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from .keras_doors import replace_method
from .rule import RuleOptimizer

__all__ = ["update_own_replica"]

Tensor = Any
Variable = Any


def update_own_replica(optimizer: Any) -> Any:
    """Change an optimizer, and return it: see the module's docstring."""

    def update(gradients: Sequence[Tensor], variables: Sequence[Variable], rate: Tensor) -> None:
        for gradient, variable in zip(gradients, variables, strict=True):
            optimizer.update_step(gradient, variable, rate)

    def decay(variables: Sequence[Variable]) -> None:
        for variable in variables if optimizer.weight_decay is not None else ():
            if optimizer._use_weight_decay(variable):
                rate = tf.cast(optimizer.learning_rate, variable.dtype)
                variable.assign_sub(variable * rate * tf.cast(optimizer.weight_decay, variable.dtype))

    if isinstance(optimizer, RuleOptimizer):
        optimizer.updates_own_replica = True
    else:
        replace_method(optimizer, "_backend_update_step", update)
        replace_method(optimizer, "_apply_weight_decay", decay)
    return optimizer
