"""Updates of the rows of a table that a gradient touches, by the rules of SGD and Adam.

The other rows rest, and so does what an optimizer keeps of them: where it keeps nothing, as SGD without momentum, this
is the update of the whole table; else its momenta of a row decay only when the row is touched, as in PyTorch's
`SparseAdam` and TensorFlow's sparse momentum. Tested in tests/training/backends/test_row_shards.py.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from .adam import Adam

__all__ = ["update_rows"]

Tensor = Any
Variable = Any


def update_rows(optimizer: Any, variable: Variable, gradient: Any) -> None:
    """Update rows of a variable, without weight decay.

    Args:
        optimizer: Keras' SGD or our `Adam`, built for the variable.
        variable: [rows, ...].
        gradient: `tf.IndexedSlices` that has each row once.
    """
    rule = _adam if isinstance(optimizer, Adam) else _sgd
    place = optimizer._get_variable_index(variable)
    change = rule(optimizer, place, variable.value, gradient)
    variable.value.scatter_add(tf.IndexedSlices(change, gradient.indices))


def _sgd(optimizer: Any, place: int, _: Variable, gradient: Any) -> Tensor:
    step = -optimizer.learning_rate * gradient.values
    if not optimizer.momentum:
        return step
    kept = optimizer.momentums[place].value
    momentum = optimizer.momentum * kept.sparse_read(gradient.indices) + step
    kept.scatter_update(tf.IndexedSlices(momentum, gradient.indices))
    return optimizer.momentum * momentum + step if optimizer.nesterov else momentum


def _adam(optimizer: Adam, place: int, table: Variable, gradient: Any) -> Tensor:
    kept = optimizer._slots[0][place].value  # [2, rows, ...]
    count = tf.size(gradient.indices)
    moment = tf.repeat(tf.constant([0, 1], gradient.indices.dtype), count)
    cells = tf.stack([moment, tf.tile(gradient.indices, [2])], 1)
    shape = tf.concat([[1, 2], tf.shape(gradient.values)], 0)  # a stack of one variable, of these rows
    rows = table.sparse_read(gradient.indices)
    updated, (moments,) = optimizer.updated(
        rows[None],
        gradient.values[None],
        [tf.reshape(kept.gather_nd(cells), shape)],
        tf.cast(optimizer.learning_rate, rows.dtype),
        decays=False,
        adapts=False,
    )
    kept.scatter_nd_update(cells, tf.reshape(moments, tf.concat([[2 * count], tf.shape(rows)[1:]], 0)))
    return updated[0] - rows
