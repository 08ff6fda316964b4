# What this package offers, by module. `__init__.py` reads it, and imports a name when it is first used.

from .deliver.example_parsing import parse_batch
from .deliver.to_numpy import Ragged
from .fetch.shard_cache import Cache, MemoryCache
from .loader import Loader
from .metrics.stage_counters import StageStats
from .mixture import Mixture, MixturePlan, SourceMix
from .order.class_shares import Balance, Ramp
from .order.epoch_plan import ClassMix, FilterPlan, LoaderPlan
from .order.missing_classes import MissingClass
from .order.remainder import RecordRange
from .order.shuffle_quality import ShuffleQuality
from .transforms.image_options import CentreCrop, ColourJitter, Normalisation, RandomCrop
from .transforms.images import ImageTransform
from .transforms.mixup import CutMix, Mixup
from .transforms.padding import Pad
from .transforms.tabular import TabularTransform, plan_columns
from .transforms.tabular_plan import TabularPlan

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
    "parse_batch",
    "plan_columns",
]
