"""A manifest in, batches out: which sample goes to which rank at which step, and how its bytes get there."""

from .counters import StageStats
from .loader import Loader
from .plan import ClassMix, LoaderPlan, MissingClass
from .quality import ShuffleQuality
from .remainder import RecordRange

__all__ = ["ClassMix", "Loader", "LoaderPlan", "MissingClass", "RecordRange", "ShuffleQuality", "StageStats"]
