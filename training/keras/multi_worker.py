"""The strategy with which Keras trains a model on several workers of `tf.distribute`.

`ringfeed train` does not use it, but a Horovod ring (`distributed`).
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_MEAN = ("MEAN", tf.distribute.ReduceOp.MEAN)


class MultiWorkerStrategy(tf.distribute.MultiWorkerMirroredStrategy):  # type: ignore[misc]  # TensorFlow ships no types
    """A `tf.distribute.MultiWorkerMirroredStrategy` under which Keras can `fit`, `evaluate` and `predict`.

    Keras 3.15 asks a strategy of several workers for two means that TensorFlow 2.21 refuses: of a batch, which is a
    structure, before the first step; and of the step's metrics, which are scalars, along an axis. `reduce`
    returns both, and is otherwise unchanged.

    Args:
        cluster_resolver: as in TensorFlow; the default reads ``TF_CONFIG``.
        communication_options: as in TensorFlow.

    >>> strategy = MultiWorkerStrategy()  # one worker, unless TF_CONFIG names others
    >>> float(strategy.reduce("MEAN", tf.constant(3.0), axis=0))
    3.0
    """

    def reduce(self, reduce_op: Any, value: Any, axis: int | None) -> Any:
        """Reduce a value across replicas, as TensorFlow's strategies do, with two additions.

        Args:
            reduce_op: ``"SUM"``, ``"MEAN"`` or a `tf.distribute.ReduceOp`.
            value: value of each replica. Scalars, which have no axis 0, are reduced across replicas only. Instead of
                the mean of a structure, the value of this worker's first replica is returned: Keras only looks at its
                shapes and dtypes, and strings and ragged features have no mean.
            axis: axis to reduce along within each replica, too; None: none.

        Returns:
            A tensor, or for a structure the same structure of tensors.
        """
        if axis is None and reduce_op in _MEAN and tf.nest.is_nested(value):
            return tf.nest.map_structure(self._first, value)
        if axis == 0 and self._first(value).shape.rank == 0:
            axis = None
        return super().reduce(reduce_op, value, axis)

    def _first(self, value: Any) -> Any:
        return self.experimental_local_results(value)[0]
