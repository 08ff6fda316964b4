"""A manifest in, batches out: which sample goes to which rank at which step, and how its bytes get there."""

from .cache import Cache, MemoryCache
from .counters import StageStats
from .loader import Loader
from .plan import ClassMix, LoaderPlan, MissingClass

__all__ = ["Cache", "ClassMix", "Loader", "LoaderPlan", "MemoryCache", "MissingClass", "StageStats"]
