# What this package offers, by module. `__init__.py` reads it, and imports a name when it is first used.

from .checkpoint.store import Checkpoint, CheckpointStore
from .config.config_file import load_config
from .config.train_config import TrainConfig
from .keras.multi_worker import MultiWorkerStrategy
from .optimizers.adam import Adam
from .optimizers.lamb import LAMB
from .optimizers.lars import LARS
from .optimizers.precision import LossScale, ScaleRule
from .reports.tracker import Tracker
from .ring.connect import connect
from .ring.horovod_ring import HorovodRing
from .ring.ring import Ring, SoloRing
from .run.trainer import Trainer
from .schedules.learning_rate import WarmUpDecay, scaled_learning_rate
from .serving.trained import TrainedModel, open_trained
from .sync.synchronizer import EveryStep, Exchange, Synchronizer

__all__ = [
    "LAMB",
    "LARS",
    "Adam",
    "Checkpoint",
    "CheckpointStore",
    "EveryStep",
    "Exchange",
    "HorovodRing",
    "LossScale",
    "MultiWorkerStrategy",
    "Ring",
    "ScaleRule",
    "SoloRing",
    "Synchronizer",
    "Tracker",
    "TrainConfig",
    "TrainedModel",
    "Trainer",
    "WarmUpDecay",
    "connect",
    "load_config",
    "open_trained",
    "scaled_learning_rate",
]
