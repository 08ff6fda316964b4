"""Options that compare evaluations: when a run has no more to gain, and which of its checkpoints are the best.

Tested in tests/training/config/test_config.py and tests/training/loop/state/test_best.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringfeed.sharding.errors import ConfigError

from .checks import key, require, require_finite
from .outputs import CheckpointConfig, OutputConfig
from .task import DEFAULT_METRICS, is_number, metric_name

__all__ = ["EarlyStoppingConfig", "check_comparisons"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStoppingConfig:
    """Options of the end of a run whose evaluations no longer improve."""

    metric: str | None = key(
        None, "metric of the evaluations that must go on improving, such as loss or auc; null: no early stopping"
    )
    patience: int = key(3, "evaluations in a row without improvement that end the run")
    min_delta: float = key(0.0, "a change of the metric by no more than this is no improvement")

    def __post_init__(self) -> None:
        require(self.patience >= 1, "early_stopping.patience", "at least 1", self.patience)
        require_finite("early_stopping.min_delta", self.min_delta)


def check_comparisons(
    stopping: EarlyStoppingConfig,
    checkpoint: CheckpointConfig,
    output: OutputConfig,
    *,
    task: str,
    metrics: Sequence[str] | None,
    eval_split: str | None,
) -> None:
    """Check that evaluations have the metrics that they are compared by.

    Raises:
        ConfigError: they lack one, or there are no evaluations or no checkpoints.
    """
    needs: Mapping[str, Any] = {
        "early_stopping.metric": stopping.metric,
        "checkpoint.best": checkpoint.best or None,
    }
    compared = {"early_stopping.metric": stopping.metric, "checkpoint.metric": checkpoint.metric}
    for name, value in needs.items():
        require(value is None or eval_split is not None, "data.eval_split", f"a split for {name}={value}", eval_split)
    reported = DEFAULT_METRICS[task] if metrics is None else [metric_name(metric) for metric in metrics]
    numbers = ["loss", *(name for name in reported if is_number(task, name))]
    for name, metric in compared.items():
        if metric is not None and metric not in numbers:
            raise ConfigError(
                f"{name}: evaluations have no number {metric!r} (see metrics); there are: {', '.join(numbers)}"
            )
    if checkpoint.best:
        require(checkpoint.url is not None, "checkpoint.best", "0 without checkpoint.url", checkpoint.best)
    has_best = output.weights == "last" or checkpoint.best >= 1
    require(has_best, "output.weights", "last without checkpoint.best, such as checkpoint.best=1", output.weights)
