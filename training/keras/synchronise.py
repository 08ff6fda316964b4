"""The callback that gives the ranks of a ring the same weights and the same metrics while Keras fits."""

from __future__ import annotations

from typing import Any

import keras

from ringfeed.sharding.errors import TrainingError
from ringfeed.training.optimizers.keras_doors import assign_all
from ringfeed.training.ring.ring import Ring
from ringfeed.training.sync.agreement import Agreement

from .optimizer import ring_of


class Synchronise(keras.callbacks.Callback):  # type: ignore[misc]  # Keras ships no types
    """Starts all ranks from rank 0's weights, and gives their callbacks the metrics of all samples.

    Name it first among the callbacks, on every rank: those after it, such as `EarlyStopping`, `ReduceLROnPlateau` or
    rank 0's `ModelCheckpoint`, then see the same `logs` at the end of an epoch. The states of metrics are added up over
    the ranks, which is exact for means, counts, and what is computed from them, such as AUC; a metric of your own whose
    state is not a sum, such as a maximum, has no meaning here. The statistics of batch normalisation are averaged
    before each validation, and at the end of each epoch.

    Args:
        ring: the ranks, from `ringfeed.training.connect`.

    >>> model.fit(loader.keras(), epochs=2, callbacks=[Synchronise(ring)])  # doctest: +SKIP
    """

    def __init__(self, ring: Ring) -> None:
        super().__init__()
        self._ring = ring
        self._statistics: Agreement | None = None
        self._logs: dict[str, Any] = {}

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Start from rank 0's weights; a TrainingError if the model would train unsynchronised, or not at all."""
        model, optimizer = self.model, self.model.optimizer
        if ring_of(optimizer) is not self._ring:
            inner = getattr(optimizer, "inner_optimizer", None)
            whole = "optimizer" if inner is None else "keras.optimizers.LossScaleOptimizer(optimizer)"
            remedy = f"distribute({whole}, ring)"
            raise TrainingError(f"the ranks would train apart: compile the model with {remedy}")
        if model.jit_compile and self._ring.size > 1:
            raise TrainingError(
                "XLA cannot compile the exchange of gradients: compile the model with jit_compile=False"
            )
        if not model.built:
            raise TrainingError("the model has no weights yet that ranks could share: begin it with a keras.Input")
        self._ring.broadcast([*model.weights, *optimizer.variables])
        self._statistics = Agreement(self._ring, model)

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Keep the metrics of the epoch, which validation sets to zero."""
        if self._statistics is not None:
            self._statistics.settle()
            self._logs = self._metrics()

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Keep the metrics of the validation."""
        if self._statistics is not None:
            self._logs |= {f"val_{name}": value for name, value in self._metrics().items()}

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Put the metrics of all ranks in the place of this rank's."""
        assert self._statistics is not None
        assert logs is not None
        self._statistics.settle()
        found, self._logs = self._logs or self._metrics(), {}
        logs.update(found)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Leave later evaluations alone."""
        self._statistics = None

    def _metrics(self) -> dict[str, Any]:
        states = [variable for metric in self.model.metrics for variable in metric.variables]
        assign_all(states, self._ring.allreduce_sum([v.value for v in states]))
        return {name: float(value) for name, value in self.model.get_metrics_result().items()}
