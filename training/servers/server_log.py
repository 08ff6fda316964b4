"""Turns what workers report of their updates into the entries of the log and the metrics.

An update has a share of the global batch, and so of the learning rate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import keras

from ringfeed.sharding.errors import TrainingError
from ringfeed.training.config.backend import ParameterServerConfig
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.reports.events import StepsLogged
from ringfeed.training.reports.reports import Reports
from ringfeed.training.schedules.learning_rate import scaled_learning_rate

from .board.board import Done


class UpdateRate(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]  # Keras ships no types
    """A schedule by step, as one by update: `updates` of them make a step, and each has a share of its batch.

    So each has a share of its rate, too, by the scaling rule of the run: after a step's updates, SGD has moved as far
    as by one update of the whole batch.

    >>> rate = UpdateRate(lambda step: 0.8 - 0.1 * step, 4, "linear")
    >>> round(float(rate(8)), 4)  # a quarter of 0.6
    0.15
    """

    def __init__(self, schedule: Any, updates: int, scaling: str) -> None:
        self._schedule, self._updates = schedule, updates
        self._share = scaled_learning_rate(1.0, 1, updates, scaling)

    def __call__(self, step: Any) -> Any:
        return self._schedule(keras.ops.cast(step, "float32") / self._updates) * self._share

    def at_step(self, step: int) -> float:
        """The learning rate of the step that the updates make up."""
        return float(self._schedule(step))


def step_samples(options: ParameterServerConfig, batch_size: int, workers: int) -> float:
    """Return the samples that a step trains on: gradients of backup workers are dropped.

    >>> step_samples(ParameterServerConfig(mode="sync", backup_workers=1), 120, 4)
    90.0
    """
    return batch_size * (workers - options.backup_workers) / workers


class ServerLog:
    """The updates since the last entry, which goes to the reports; `first_step` steps were done before this process."""

    def __init__(self, config: TrainConfig, reports: Reports, workers: int, rate: UpdateRate, first_step: int) -> None:
        self._config, self._reports, self._workers, self._rate = config, reports, workers, rate
        self._updates: list[Done] = []
        self._started = time.perf_counter()
        self._reported_step, self._untimed = first_step, 0
        self._count, self._dropped, self._staleness, self._stalest, self._most_ahead = 0, 0, 0, 0, 0

    def add(self, reports: Sequence[Done], step: int) -> None:
        """Add what workers reported; a TrainingError if a loss or gradient, after so many steps, was not finite."""
        for done in reports:
            if not (math.isfinite(done.loss) and math.isfinite(done.gradient_norm)):
                raise TrainingError(
                    f"the loss or the gradients of an update after step {step} are not finite in "
                    f"{self._config.precision}: lower optimizer.learning_rate, warm up for longer, or set "
                    "optimizer.clip_norm"
                )
            if done.sent_share == 0.0 and self._config.parameter_server.mode == "sync":
                self._dropped += 1
                continue
            if not self._count:
                self._untimed, self._started = 1, time.perf_counter()  # it compiled: it says nothing about throughput
            self._updates.append(done)
            self._count += 1
            self._staleness += done.staleness
            self._stalest = max(self._stalest, done.staleness)

    def is_due(self, step: int) -> bool:
        """Whether as many steps are done as `output.log_every` says."""
        every = self._config.output.log_every
        return step // every > self._reported_step // every

    def report(self, step: int, epoch: int, most_ahead: int) -> None:
        """Report the updates since the last entry; `most_ahead` is the largest lead of a worker so far."""
        updates, seconds = self._updates, time.perf_counter() - self._started
        self._most_ahead = max(self._most_ahead, most_ahead)
        if not updates:
            return
        count, timed = len(updates), updates[self._untimed :]
        waited = sum(done.wait_seconds for done in timed) / self._workers
        samples = len(timed) * self._config.data.batch_size / self._workers
        entry = {
            "step": step,
            "epoch": epoch,
            "steps": step - self._reported_step,
            "loss": sum(done.loss for done in updates) / count,
            "gradient_norm": updates[-1].gradient_norm,
            "seconds": seconds,
            "samples_per_second": samples / max(seconds, 1e-9),
            "input_wait_seconds": waited,
            "input_wait_fraction": min(1.0, waited / max(seconds, 1e-9)),
            "learning_rate": self._rate.at_step(max(step - 1, 0)),
            "loss_scale": 1.0,
            "skipped_steps": 0,
            "staleness": sum(done.staleness for done in updates) / count,
            "most_ahead": most_ahead,
            "sent_share": sum(done.sent_share for done in updates) / count,
        }
        self._reports.emit(StepsLogged(entry))
        self._updates, self._untimed = [], 0
        self._reported_step, self._started = step, time.perf_counter()

    def totals(self) -> dict[str, Any]:
        """Return what the metrics say of all updates since the run was started or resumed."""
        return {
            "updates": self._count,
            "dropped_updates": self._dropped,
            "staleness": {"mean": self._staleness / max(self._count, 1), "largest": self._stalest},
            "most_ahead": self._most_ahead,
        }
