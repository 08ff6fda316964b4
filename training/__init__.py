"""Training: from batches to a trained model, with optimizers, schedules, precision, ranks and checkpoints.

Names are imported when they are first used, so that a configuration can be read, and refused, without TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checkpoint import Checkpoint, CheckpointStore
    from .config import TrainConfig
    from .config_file import load_config
    from .distributed import HorovodRing, Ring, SoloRing, connect
    from .evaluate import Evaluation
    from .lars import LARS
    from .multi_worker import MultiWorkerStrategy
    from .precision import LossScale, ScaleRule
    from .schedules import WarmUpDecay, scaled_learning_rate
    from .trainer import Trainer

__all__ = [
    "LARS",
    "Checkpoint",
    "CheckpointStore",
    "Evaluation",
    "HorovodRing",
    "LossScale",
    "MultiWorkerStrategy",
    "Ring",
    "ScaleRule",
    "SoloRing",
    "TrainConfig",
    "Trainer",
    "WarmUpDecay",
    "connect",
    "load_config",
    "scaled_learning_rate",
]

_MODULES = {
    "LARS": "lars",
    "Checkpoint": "checkpoint",
    "CheckpointStore": "checkpoint",
    "Evaluation": "evaluate",
    "HorovodRing": "distributed",
    "LossScale": "precision",
    "MultiWorkerStrategy": "multi_worker",
    "Ring": "distributed",
    "ScaleRule": "precision",
    "SoloRing": "distributed",
    "TrainConfig": "config",
    "Trainer": "trainer",
    "WarmUpDecay": "schedules",
    "connect": "distributed",
    "load_config": "config_file",
    "scaled_learning_rate": "schedules",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
