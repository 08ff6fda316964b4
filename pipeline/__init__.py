"""A manifest in, batches out: which sample goes to which rank at which step, and how its bytes get there."""

from .blend import CutMix, Mixup
from .counters import StageStats
from .images import CentreCrop, ColourJitter, ImageTransform, Normalisation, RandomCrop
from .loader import Loader
from .padding import Pad
from .plan import ClassMix, LoaderPlan, MissingClass
from .tabular import TabularPlan, TabularTransform, plan_columns

__all__ = [
    "CentreCrop",
    "ClassMix",
    "ColourJitter",
    "CutMix",
    "ImageTransform",
    "Loader",
    "LoaderPlan",
    "MissingClass",
    "Mixup",
    "Normalisation",
    "Pad",
    "RandomCrop",
    "StageStats",
    "TabularPlan",
    "TabularTransform",
    "plan_columns",
]
