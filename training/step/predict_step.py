"""The compiled inference step.

Tested in tests/training/step/test_train_step.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ringfeed.training.models.losses import wide_outputs

__all__ = ["make_predict_step"]

Tensor = Any


def make_predict_step(network: Any) -> Callable[[Any], Tensor]:
    """Compile the inference step: from the inputs of a batch to logits, float32 [batch, classes].

    Predictions of a regression may be float64 [batch, 1].
    """

    @tf.function(reduce_retracing=True, autograph=False)  # type: ignore[untyped-decorator]  # TensorFlow ships no types
    def predict(inputs: Any) -> Tensor:
        return wide_outputs(network(inputs, training=False))

    step: Callable[[Any], Tensor] = predict
    return step
