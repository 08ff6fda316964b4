"""A manifest in, batches out: which sample goes to which rank at which step, and how its bytes get there."""

from .counters import StageStats
from .exposition import prometheus_text
from .loader import Loader
from .numpy_batches import Ragged
from .plan import ClassMix, LoaderPlan, MissingClass
from .selection import FilterPlan

__all__ = [
    "ClassMix",
    "FilterPlan",
    "Loader",
    "LoaderPlan",
    "MissingClass",
    "Ragged",
    "StageStats",
    "prometheus_text",
]
