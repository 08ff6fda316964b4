"""Runs that have trained a model, in this process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from ringfeed.training.train import main


class Run(NamedTuple):
    """A run that has ended: its outputs, its checkpoints and its metrics."""

    model: str
    checkpoints: str
    metrics: Mapping[str, Any]


def trained(folder: Path, tree: Mapping[str, Any]) -> Run:
    """Train; the model goes to model.keras, the checkpoints to a folder."""
    output = {"model": str(folder / "model.keras"), "metrics": str(folder / "metrics.json")}
    checkpoint = {"url": str(folder / "checkpoints")}
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({**tree, "output": output, "checkpoint": checkpoint, "deterministic": False}))
    assert main(["--config", str(path), "--quiet"]) == 0
    return Run(output["model"], checkpoint["url"], json.loads((folder / "metrics.json").read_text()))


@pytest.fixture(scope="session")
def flights_run(tmp_path_factory: pytest.TempPathFactory, flights: str) -> Run:
    """A run on flights, whose weights are averaged."""
    return trained(
        tmp_path_factory.mktemp("flights-run"),
        {
            "data": {"url": flights, "batch_size": 100, "categorical": ["hour"]},
            "model": {"hidden": [8]},
            "optimizer": {"name": "sgd", "learning_rate": 0.05},
            "ema": {"decay": 0.9},
        },
    )
