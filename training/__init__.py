"""Training: from batches to a trained model, with optimizers, schedules, precision, ranks and checkpoints.

Names are imported when they are first used, so that a configuration can be read, and refused, without TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backends.multi_worker import MultiWorkerStrategy
    from .checkpoint.store import Checkpoint, CheckpointStore
    from .config.config_file import load_config
    from .config.train_config import TrainConfig
    from .loop.trainer import Trainer
    from .metrics.evaluate import Evaluation
    from .optimizers.adam import Adam
    from .optimizers.lamb import LAMB
    from .optimizers.lars import LARS
    from .optimizers.precision import LossScale, ScaleRule
    from .ring.connect import connect
    from .ring.horovod_ring import HorovodRing
    from .ring.ring import Ring, SoloRing
    from .schedules.learning_rate import WarmUpDecay, scaled_learning_rate

__all__ = [
    "LAMB",
    "LARS",
    "Adam",
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
    "LAMB": "optimizers.lamb",
    "LARS": "optimizers.lars",
    "Adam": "optimizers.adam",
    "Checkpoint": "checkpoint.store",
    "CheckpointStore": "checkpoint.store",
    "Evaluation": "metrics.evaluate",
    "HorovodRing": "ring.horovod_ring",
    "LossScale": "optimizers.precision",
    "MultiWorkerStrategy": "backends.multi_worker",
    "Ring": "ring.ring",
    "ScaleRule": "optimizers.precision",
    "SoloRing": "ring.ring",
    "TrainConfig": "config.train_config",
    "Trainer": "loop.trainer",
    "WarmUpDecay": "schedules.learning_rate",
    "connect": "ring.connect",
    "load_config": "config.config_file",
    "scaled_learning_rate": "schedules.learning_rate",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
