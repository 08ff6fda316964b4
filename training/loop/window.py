"""The steps since the last report.

Tested in tests/training/loop/test_shares.py.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

from ringfeed.training.models.networks.packing import padding_of

from .step import StepMetrics

__all__ = ["Window"]


@dataclass(slots=True, kw_only=True)
class Window:
    """The steps since the last report; their metrics stay on the device until they are read together."""

    metrics: list[StepMetrics] = field(default_factory=list)
    wait_seconds: float = 0.0
    started: float = field(default_factory=lambda: time.perf_counter())
    timed_steps: int = 0
    padding: list[tuple[Any, int]] = field(default_factory=list)

    def add_padding(self, inputs: Any) -> None:
        """Take note of the padding of a step's inputs, if they are rows of tokens."""
        if (found := padding_of(inputs)) is not None:
            self.padding.append(found)

    def restart_clock(self) -> None:
        """Time the steps from here on: those before say nothing about throughput."""
        self.started, self.wait_seconds, self.timed_steps = time.perf_counter(), 0.0, 0

    def skipped_steps(self, end: int) -> list[int]:
        """Return the numbers of the steps whose gradients were not finite; `end` is that after the window's last."""
        first = end - len(self.metrics)
        return [first + i for i, metrics in enumerate(self.metrics) if not bool(metrics.is_finite)]

    def steps_without_loss(self, end: int) -> list[int]:
        """Return those of `skipped_steps` whose loss was not finite either: no loss scale is to blame for that."""
        first = end - len(self.metrics)
        return [step for step in self.skipped_steps(end) if not math.isfinite(self.metrics[step - first].loss)]

    def was_sent_finite(self, step: int, end: int) -> bool:
        """Whether the gradients of a step were finite before ranks exchanged them."""
        return bool(self.metrics[step - end].is_sent_finite)

    def has_overflowed(self, every: int) -> bool:
        """Whether one of the last `every` steps was skipped; looked up once in as many steps."""
        due = len(self.metrics) % every == 0
        return due and not all(bool(metrics.is_finite) for metrics in self.metrics[-every:])

    def reduce_seconds(self) -> float:
        """Return the time that this rank spent in collectives of gradients, waits included; needs a clock."""
        timed = self.metrics[len(self.metrics) - self.timed_steps :]
        return sum(float(done - ready) for ready, done in (metrics.stamps.numpy() for metrics in timed))

    def summary(self, batch_size: float) -> dict[str, Any]:
        """Return loss, gradient norm, rate and waits of the window, in JSON's types.

        Args:
            batch_size: samples of a step, over all ranks; the mean if they differ.
        """
        losses = [float(metrics.loss) for metrics in self.metrics]
        seconds = time.perf_counter() - self.started
        counted = [loss for loss, metrics in zip(losses, self.metrics, strict=True) if bool(metrics.is_finite)]
        tokens = sum(total for _, total in self.padding)
        padding = {"padding_fraction": sum(int(part) for part, _ in self.padding) / tokens} if tokens else {}
        return {
            "steps": len(losses),
            "loss": sum(counted) / len(counted) if counted else float("nan"),
            "gradient_norm": float(self.metrics[-1].gradient_norm),
            "seconds": seconds,
            "samples_per_second": self.timed_steps * batch_size / max(seconds, 1e-9),
            "input_wait_seconds": self.wait_seconds,
            "input_wait_fraction": min(1.0, self.wait_seconds / max(seconds, 1e-9)),
            **padding,
        }
