"""Options that compare evaluations: when a run has no more to gain, and which of its checkpoints are the best.

Tested in tests/training/config/test_config.py and tests/training/run/state/test_best.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ringfeed.sharding.errors import ConfigError

from .checks import Options, key
from .outputs import CheckpointConfig
from .task import DEFAULT_METRICS, is_number, metric_name


@dataclass(frozen=True, kw_only=True)
class EarlyStoppingConfig(Options, group="early_stopping"):
    """Options of the end of a run whose evaluations no longer improve."""

    metric: str | None = key(
        None, "metric of the evaluations that must go on improving, such as loss or auc; null: no early stopping"
    )
    patience: int = key(3, "evaluations in a row without improvement that end the run", at_least=1)
    min_delta: float = key(0.0, "a change of the metric by no more than this is no improvement", at_least=0)


def check_comparisons(
    stopping: EarlyStoppingConfig, checkpoint: CheckpointConfig, task: str, metrics: Sequence[str] | None
) -> None:
    """Raise a ConfigError unless evaluations have the metrics that they are compared by."""
    reported = DEFAULT_METRICS[task] if metrics is None else [metric_name(metric) for metric in metrics]
    numbers = ["loss", *(name for name in reported if is_number(task, name))]
    for name, metric in (("early_stopping.metric", stopping.metric), ("checkpoint.metric", checkpoint.metric)):
        if metric is not None and metric not in numbers:
            raise ConfigError(
                f"{name}: evaluations have no number {metric!r} (see metrics); there are: {', '.join(numbers)}"
            )
