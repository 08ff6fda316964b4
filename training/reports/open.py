"""The subscribers that a configuration names."""

from __future__ import annotations

from collections.abc import Sequence

from ringfeed.training.config.own_code import own_object
from ringfeed.training.config.track import TrackConfig
from ringfeed.training.config.train_config import TrainConfig

from .console import Console
from .tracker import Tracker


def open_reports(config: TrainConfig, *, is_chief: bool, others: Sequence[Tracker] = ()) -> list[Tracker]:
    """Return what subscribes to a run on one rank; rank 0 alone, the chief, shows the run and has trackers.

    A ConfigError says that a library is missing, or that a function is or returns no tracker; a TrainingError that it
    fails.
    """
    found: list[Tracker] = []
    if is_chief:
        mixture = [] if config.data.mixture is None else list(config.data.urls.values())
        found += [*_trackers(config.track), *others, Console(mixture)]
    if config.output.records is not None or config.output.prometheus_port is not None:
        from .recorder import Recorder

        found.append(Recorder(config.output.records, config.output.prometheus_port))
    return found


def _trackers(options: TrackConfig) -> list[Tracker]:
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
    for name in options.own or ():
        found.append(own_object("track.own", name, lambda function: function(), Tracker, "ringfeed.training.Tracker"))
    return found
