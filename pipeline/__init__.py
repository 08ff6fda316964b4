"""A manifest in, batches out: which sample goes to which rank at which step, and how its bytes get there."""

from .blend import CutMix, Mixup
from .cache import Cache, MemoryCache
from .counters import StageStats
from .exposition import prometheus_text
from .images import CentreCrop, ColourJitter, ImageTransform, Normalisation, RandomCrop
from .loader import Loader
from .mixing import Mixture, MixturePlan, SourceMix
from .numpy_batches import Ragged
from .padding import Pad
from .plan import ClassMix, LoaderPlan, MissingClass
from .quality import ShuffleQuality
from .remainder import RecordRange
from .selection import FilterPlan
from .tabular import TabularPlan, TabularTransform, plan_columns
from .targets import Balance, Ramp

__all__ = [
    "Balance",
    "Cache",
    "CentreCrop",
    "ClassMix",
    "ColourJitter",
    "CutMix",
    "FilterPlan",
    "ImageTransform",
    "Loader",
    "LoaderPlan",
    "MemoryCache",
    "MissingClass",
    "Mixture",
    "MixturePlan",
    "Mixup",
    "Normalisation",
    "Pad",
    "Ragged",
    "Ramp",
    "RandomCrop",
    "RecordRange",
    "ShuffleQuality",
    "SourceMix",
    "StageStats",
    "TabularPlan",
    "TabularTransform",
    "plan_columns",
    "prometheus_text",
]
