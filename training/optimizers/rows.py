"""Updates of the rows of a table that a gradient touches, by the rules of SGD and Adam.

The other rows rest, and so does what an optimizer keeps of them: where it keeps nothing, as SGD without momentum, this
is the update of the whole table; else its momenta of a row decay only when the row is touched, as in PyTorch's
`SparseAdam` and TensorFlow's sparse momentum.
Tested in tests/training/servers/test_row_shards.py.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from .keras_doors import Tensor, Variable, variable_index
from .rule import RuleOptimizer, RuleStep


def update_rows(optimizer: Any, variable: Variable, gradient: Any) -> None:
    """Update rows of a variable, without weight decay, by Keras' SGD or an optimizer by the rule of Adam.

    The gradient, `tf.IndexedSlices`, has each row once.
    """
    change = (_by_rule if isinstance(optimizer, RuleOptimizer) else _sgd)(optimizer, variable, gradient)
    variable.value.scatter_add(tf.IndexedSlices(change, gradient.indices))


def _sgd(optimizer: Any, variable: Variable, gradient: Any) -> Tensor:
    step = -optimizer.learning_rate * gradient.values
    if not optimizer.momentum:
        return step
    kept = optimizer.momentums[variable_index(optimizer, variable)].value
    momentum = optimizer.momentum * kept.sparse_read(gradient.indices) + step
    kept.scatter_update(tf.IndexedSlices(momentum, gradient.indices))
    return optimizer.momentum * momentum + step if optimizer.nesterov else momentum


def _by_rule(optimizer: RuleOptimizer, variable: Variable, gradient: Any) -> Tensor:
    kept = optimizer.slots_of(variable)
    rows = variable.value.sparse_read(gradient.indices)
    rate, number = tf.cast(optimizer.learning_rate, rows.dtype), optimizer.iterations.value
    updated, moments = optimizer.rule.updated(  # a stack of one variable, which are these rows
        rows[None],
        gradient.values[None],
        [moment.sparse_read(gradient.indices)[None] for moment in kept],
        RuleStep(rate=rate, number=number, decays=False, adapts=False),
    )
    for moment, value in zip(kept, moments, strict=True):
        moment.scatter_update(tf.IndexedSlices(value[0], gradient.indices))
    return updated[0] - rows
