"""A manifest in, batches out: which sample goes to which rank at which step, and how its bytes get there."""

from .cache import Cache, MemoryCache
from .counters import StageStats
from .loader import Loader
from .mixing import Mixture, MixturePlan, SourceMix
from .plan import ClassMix, LoaderPlan, MissingClass
from .remainder import RecordRange
from .targets import Balance, Ramp

__all__ = [
    "Balance",
    "Cache",
    "ClassMix",
    "Loader",
    "LoaderPlan",
    "MemoryCache",
    "MissingClass",
    "Mixture",
    "MixturePlan",
    "Ramp",
    "RecordRange",
    "SourceMix",
    "StageStats",
]
