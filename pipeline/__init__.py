"""A manifest in, batches out: which sample goes to which rank at which step, and how its bytes get there."""

from .counters import StageStats
from .loader import Loader
from .numpy_batches import Ragged
from .plan import ClassMix, LoaderPlan, MissingClass

__all__ = ["ClassMix", "Loader", "LoaderPlan", "MissingClass", "Ragged", "StageStats"]
