"""A run of MLflow with the configuration as parameters and the history as metrics."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

from ringfeed.sharding.errors import ConfigError, TrainingError
from ringfeed.sharding.messages import brief

from .events import RunBegan, RunEnded
from .tracker import GROUPS, EntryTracker, scalars

_MOST_PARAMETERS = 100  # a request holds no more
_LONGEST = 500  # characters of a parameter, in older servers


class MLflow(EntryTracker):
    """One run of MLflow, which a resumed run continues: checkpoints hold its number.

    `uri` names a tracking server, `http://...`, or a folder. The experiment is created if need be.
    """

    name = "mlflow"

    def __init__(self, uri: str, experiment: str, run: str | None) -> None:
        if "://" not in uri:  # MLflow 3 asks for this where it is a folder that was asked for
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        try:
            from mlflow import entities
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise ConfigError("track.mlflow needs MLflow; install it with: pip install 'ringfeed[mlflow]'") from error
        self._client: Any
        self._entities: Any = entities
        self._make_client, self._uri, self._experiment, self._run = MlflowClient, uri, experiment, run
        self._id: str | None = None

    def begin(self, event: RunBegan) -> None:
        """Continue the run of an earlier process, or create one; a TrainingError if the server refuses."""
        try:
            self._client = self._make_client(tracking_uri=self._uri, registry_uri=self._uri)
            self._id = event.states.get(self.name)
            if self._id is None:
                self._id = self._create(event)
            else:
                self._client.update_run(self._id, status="RUNNING")
        except Exception as error:
            raise TrainingError(f"track.mlflow={self._uri}: {brief(error)}") from error

    def _create(self, event: RunBegan) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        experiment = found.experiment_id if found else self._client.create_experiment(self._experiment)
        run: str = self._client.create_run(experiment, run_name=self._run).info.run_id
        texts = _flat({"ranks": event.ranks, **event.config})
        parameters = [self._entities.Param(name, text[:_LONGEST]) for name, text in texts]
        for first in range(0, len(parameters), _MOST_PARAMETERS):
            self._client.log_batch(run, params=parameters[first : first + _MOST_PARAMETERS])
        return run

    def state(self) -> str | None:
        return self._id

    def write(self, kind: str, entry: Mapping[str, Any]) -> None:
        now = int(time.time() * 1000)
        values = scalars(entry).items()
        make = self._entities.Metric
        metrics = [make(f"{GROUPS[kind]}/{name}", value, now, entry["step"]) for name, value in values]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self, event: RunEnded) -> None:
        self._client.set_terminated(self._id, "FINISHED" if event.is_finished else "KILLED")


def _flat(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key, value in tree.items():
        if isinstance(value, Mapping) and value and not prefix:
            found += _flat(value, f"{key}.")
        else:
            found.append((f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value)))
    return found
