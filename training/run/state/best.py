"""Compares the evaluations of a run: the best of them, and whether they still improve.

Both follow from the history alone, which checkpoints hold, so a resumed run decides as if it had not been killed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.config.early_stopping import EarlyStoppingConfig
from ringfeed.training.config.train_config import TrainConfig

Evaluation = Mapping[str, Any]

_LOWER_IS_BETTER = {"loss", "rmse", "mae"}


def best_evaluations(evaluations: Sequence[Evaluation], metric: str, count: int = 1) -> list[Evaluation]:
    """Return the evaluations with the best values of a metric, best first; of equal ones the earlier is better.

    >>> seen = [{"step": 1, "auc": 0.7}, {"step": 2, "auc": None}, {"step": 3, "auc": 0.9}, {"step": 4, "auc": 0.7}]
    >>> [entry["step"] for entry in best_evaluations(seen, "auc", 2)]
    [3, 1]
    """
    defined = [entry for entry in evaluations if _is_defined(metric, entry)]
    return sorted(defined, key=lambda entry: -_goodness(metric, entry))[:count]


def is_patience_over(evaluations: Sequence[Evaluation], options: EarlyStoppingConfig) -> bool:
    """Return whether the last `patience` evaluations were no better than the best one before, by `min_delta`.

    >>> options = EarlyStoppingConfig(metric="loss", patience=2, min_delta=0.1)
    >>> runs = [3, 2, 2], [3, 2, 2, 1.9], [3, 4, 2, 5]
    >>> [is_patience_over([{"loss": loss} for loss in run], options) for run in runs]
    [False, True, False]
    """
    metric = options.metric
    if metric is None:
        return False
    best, waited = -float("inf"), 0
    for entry in evaluations:
        if _is_defined(metric, entry) and _goodness(metric, entry) > best + options.min_delta:
            best, waited = _goodness(metric, entry), 0
        else:
            waited += 1
    return waited >= options.patience


def check_defined(config: TrainConfig, classes: int) -> None:
    """Raise a ConfigError if evaluations would be compared by the AUC of more than two classes.

    It takes time, so it has to be asked for.
    """
    if config.task != "multiclass" or config.metrics is not None or classes <= 2:
        return
    for name, metric in {
        "early_stopping.metric": config.early_stopping.metric,
        "checkpoint.metric": config.checkpoint.metric,
    }.items():
        if metric == "auc":
            raise ConfigError(
                f"{name}: by default evaluations of {classes} classes have no auc; ask for it, such as by "
                "metrics=[accuracy, auc]"
            )


def _is_defined(metric: str, entry: Evaluation) -> bool:
    return entry.get(metric) is not None and not math.isnan(entry[metric])


def _goodness(metric: str, entry: Evaluation) -> float:
    return -float(entry[metric]) if metric in _LOWER_IS_BETTER else float(entry[metric])
