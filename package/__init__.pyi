# What this package offers, by module. `__init__.py` reads it, and imports a name when it is first used.

from .pipeline import Loader, Mixture
from .sharding import build, open_dataset
from .training import open_trained
from .training.run.train import train

__version__: str

__all__ = [
    "Loader",
    "Mixture",
    "build",
    "open_dataset",
    "open_trained",
    "train",
]
