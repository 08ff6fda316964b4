"""The trackers that a configuration names.

Tested in tests/training/trackers/test_trackers.py.
"""

from __future__ import annotations

from ringfeed.training.config.track import TrackConfig

from .tracker import Tracker

__all__ = ["open_trackers"]


def open_trackers(options: TrackConfig) -> list[Tracker]:
    """Return the trackers of a run; only rank 0 has any.

    Raises:
        ConfigError: a library is missing.
    """
    found: list[Tracker] = []
    if options.jsonl is not None or options.csv is not None:
        from .files import CSVFiles, JSONLines

        found += [] if options.jsonl is None else [JSONLines(options.jsonl)]
        found += [] if options.csv is None else [CSVFiles(options.csv)]
    if options.tensorboard is not None:
        from .tensorboard import TensorBoard

        found.append(TensorBoard(options.tensorboard))
    if options.mlflow is not None:
        from .mlflow import MLflow

        found.append(MLflow(options.mlflow, options.mlflow_experiment, options.mlflow_run))
    if options.profile is not None:
        from .profiler import Profiler

        found.append(Profiler(options.profile, *options.profile_steps))
    return found
