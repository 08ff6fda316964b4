"""A manifest in, batches out: which sample goes to which rank at which step, and how its bytes get there."""

from .counters import StageStats
from .images import CentreCrop, ColourJitter, ImageTransform, Normalisation, RandomCrop
from .loader import Loader
from .plan import ClassMix, LoaderPlan, MissingClass
from .tabular import TabularPlan, TabularTransform, plan_columns

__all__ = [
    "CentreCrop",
    "ClassMix",
    "ColourJitter",
    "ImageTransform",
    "Loader",
    "LoaderPlan",
    "MissingClass",
    "Normalisation",
    "RandomCrop",
    "StageStats",
    "TabularPlan",
    "TabularTransform",
    "plan_columns",
]
