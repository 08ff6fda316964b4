"""Tasks: what a network learns to predict, and the metrics of its evaluations.

Tested in tests/training/config/test_config.py and tests/training/metrics/test_evaluate.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.messages import did_you_mean

from .checks import is_function, require

DEFAULT_METRICS = {
    "multiclass": ("accuracy", "balanced_accuracy", "recall", "auc", "confusion"),
    "binary": ("accuracy", "balanced_accuracy", "recall", "auc", "average_precision", "confusion"),
    "multilabel": ("micro_f1", "macro_f1", "micro_average_precision", "macro_average_precision"),
    "regression": ("rmse", "mae", "r2"),
}
_FURTHER_METRICS = {
    "multiclass": ("average_precision", "precision_recall"),
    "binary": ("precision_recall",),
    "multilabel": ("f1", "average_precision", "auc", "macro_auc"),
    "regression": (),
}
TASKS = tuple(DEFAULT_METRICS)
_TOP = re.compile(r"top_([1-9]\d{0,8})")


def top_k(metric: str) -> int | None:
    """Return the k of a metric named `top_K`; None for another.

    >>> top_k("top_5"), top_k("top_0"), top_k("accuracy")
    (5, None, None)
    """
    found = _TOP.fullmatch(metric)
    return None if found is None else int(found[1])


def metric_name(metric: str) -> str:
    """Return the name of a metric in evaluations, without the module of a function.

    >>> metric_name("my_metrics:gain"), metric_name("auc")
    ('gain', 'auc')
    """
    return metric.rpartition(":")[2]


def is_number(task: str, metric: str) -> bool:
    """Return whether a metric of a task is a single number, and not one for each class or a curve.

    >>> is_number("multiclass", "auc"), is_number("multilabel", "auc"), is_number("binary", "confusion")
    (True, False, False)
    """
    parts = {"recall", "confusion", "precision_recall"}
    return metric not in (parts | {"f1", "average_precision", "auc"} if task == "multilabel" else parts)


def check_metrics(task: str, metrics: Sequence[str] | None) -> None:
    """Raise a ConfigError unless a task has the metrics."""
    known = [*DEFAULT_METRICS[task], *_FURTHER_METRICS[task]]
    names = [metric_name(metric) for metric in metrics or ()]
    for name in metrics or ():
        if is_function(name):
            is_free = metric_name(name) not in (*known, "loss", "samples") and names.count(metric_name(name)) == 1
            require(is_free, f"metrics: the function of {name}", "named like no other metric", metric_name(name))
        elif name not in known and not (task == "multiclass" and top_k(name)):
            every = [*known, "top_K"] if task == "multiclass" else known
            hint = did_you_mean(name, known, f"there are: {', '.join(every)}")
            raise ConfigError(f"metrics: task={task} has no metric {name!r}; {hint}")
