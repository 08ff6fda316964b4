"""Turns the steps since the last entry of the log into the next one, and judges those that were skipped.

Tested in tests/training/run/test_shares.py.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

from ringfeed.pipeline import Loader, Mixture
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.models.networks.packing import padding_of
from ringfeed.training.reports.events import StepsLogged
from ringfeed.training.reports.reports import Reports
from ringfeed.training.ring.ring import Ring
from ringfeed.training.step.train_step import StepMetrics

from .assembly import Assembly
from .overflows import check_records, check_wire, is_at_floor, overflow_error

_WATCH_STEPS = 50  # overflows are looked up so often: a run that cannot train ends within 100 steps


@dataclass(slots=True, kw_only=True)
class StepWindow:
    """The steps since the last entry; their metrics stay on the device until they are read together."""

    metrics: list[StepMetrics] = field(default_factory=list)
    wait_seconds: float = 0.0
    started: float = field(default_factory=lambda: time.perf_counter())
    timed_steps: int = 0
    padding: list[tuple[Any, int]] = field(default_factory=list)

    def add(self, metrics: StepMetrics, inputs: Any, wait_seconds: float) -> None:
        """Add a step, with the padding of its inputs if they are rows of tokens."""
        self.metrics.append(metrics)
        self.wait_seconds += wait_seconds
        self.timed_steps += 1
        if (found := padding_of(inputs)) is not None:
            self.padding.append(found)

    def restart_clock(self) -> None:
        """Time the steps from here on: those before say nothing about throughput."""
        self.started, self.wait_seconds, self.timed_steps = time.perf_counter(), 0.0, 0

    def skipped(self, end: int) -> dict[int, StepMetrics]:
        """Return the steps whose gradients were not finite, by number; `end` is that after the window's last."""
        numbered = enumerate(self.metrics, end - len(self.metrics))
        return {step: metrics for step, metrics in numbered if not bool(metrics.is_finite)}

    def has_overflowed(self) -> bool:
        """Whether one of the last `_WATCH_STEPS` was skipped; looked up once in as many steps."""
        due = len(self.metrics) % _WATCH_STEPS == 0
        return due and not all(bool(metrics.is_finite) for metrics in self.metrics[-_WATCH_STEPS:])

    def reduce_seconds(self) -> float:
        """Return the time that this rank spent in collectives of gradients, waits included; needs a clock."""
        timed = self.metrics[len(self.metrics) - self.timed_steps :]
        return sum(float(done - ready) for ready, done in (metrics.stamps.numpy() for metrics in timed))

    def summary(self, batch_size: float) -> dict[str, Any]:
        """Return loss, gradient norm, rate and waits of the window, in JSON's types; the batch size may be a mean."""
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


class StepLog:
    """The log of the steps of one rank, whose entries go to the reports.

    `skipped_steps` counts the steps so far whose gradients were not finite, also those before this process.
    """

    def __init__(
        self, config: TrainConfig, ring: Ring, assembly: Assembly, reports: Reports, skipped_steps: int
    ) -> None:
        self._config, self._ring, self._assembly, self._reports = config, ring, assembly, reports
        self.skipped_steps = skipped_steps
        self._window = StepWindow()
        self._has_compiled = False
        self._wire_bytes = 0.0  # received by the last entry

    def restart(self) -> None:
        self._window = StepWindow()

    def add(self, metrics: StepMetrics, inputs: Any, wait_seconds: float) -> None:
        """Add a step that waited so long for its inputs."""
        self._window.add(metrics, inputs, wait_seconds)
        if not self._has_compiled:  # this step has: it says nothing about throughput
            self._has_compiled = True
            metrics.loss.numpy()
            self._window.restart_clock()

    def is_due(self, step: int) -> bool:
        """Whether a new entry is due after so many steps; also soon after one that was skipped."""
        return step % self._config.output.log_every == 0 or self._window.has_overflowed()

    def report(self, step: int, epoch: int, loader: Loader | Mixture) -> None:
        """Report the steps since the last entry, if there are any, whose batches the loader has read.

        It is a collective if steps were skipped. A TrainingError says that the reason for that will not pass.
        """
        window, self._window = self._window, StepWindow()
        if not window.metrics:
            return
        summary = window.summary(self._assembly.epoch_plan.step_samples)
        if self._config.sync.shares == "speed":
            self._assembly.shares.add(window.timed_steps, summary["seconds"] - window.reduce_seconds())
        self._judge(window, step, loader)
        scale, iterations = self._assembly.parts.scale, self._assembly.parts.optimizer.iterations
        before, self._wire_bytes = self._wire_bytes, float(self._assembly.wire.wire_bytes.numpy())
        self._reports.emit(
            StepsLogged(
                {
                    "step": step,
                    "epoch": epoch,
                    **summary,
                    "learning_rate": float(self._assembly.schedule(max(int(iterations.numpy()) - 1, 0))),
                    "loss_scale": float(scale.scale.numpy()),
                    "skipped_steps": self.skipped_steps,
                    "bytes_per_step": (self._wire_bytes - before) / summary["steps"],
                }
            )
        )

    def _judge(self, window: StepWindow, end: int, loader: Loader | Mixture) -> None:
        """Count the steps that were skipped, and refuse to go on where they will be again."""
        skipped = window.skipped(end)
        if not skipped:
            return
        config, assembly, scale = self._config, self._assembly, self._assembly.parts.scale
        self.skipped_steps += len(skipped)
        first = min(skipped)
        check_wire(first, bool(skipped[first].is_sent_finite), config.compression.method)
        suspects = list(skipped)
        if not is_at_floor(scale):  # a smaller loss scale may help, unless the loss itself is not finite
            suspects = [step for step, metrics in skipped.items() if not math.isfinite(metrics.loss)]
        check_records(suspects, self._ring, loader, assembly.epoch_plan, assembly.augment, config.data.place)
        if is_at_floor(scale):
            raise overflow_error(first, config)
