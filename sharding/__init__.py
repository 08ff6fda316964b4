"""Datasets in, balanced shards and a manifest out. Needs no TensorFlow."""

from .build import BuildPlan, Progress, build, plan_build
from .dataset import Damage, Dataset, open_dataset, read_records, verify
from .errors import (
    ConfigError,
    CorruptionError,
    DatasetError,
    DestinationError,
    RingfeedError,
    SourceError,
    StorageError,
    TrainingError,
)
from .export import Export, ExportOptions, export
from .manifest import Manifest, ShardInfo, SplitInfo
from .plan import BuildOptions
from .schema import Feature, Schema
from .statistics import FeatureStatistics

__all__ = [
    "BuildOptions",
    "BuildPlan",
    "ConfigError",
    "CorruptionError",
    "Damage",
    "Dataset",
    "DatasetError",
    "DestinationError",
    "Export",
    "ExportOptions",
    "Feature",
    "FeatureStatistics",
    "Manifest",
    "Progress",
    "RingfeedError",
    "Schema",
    "ShardInfo",
    "SourceError",
    "SplitInfo",
    "StorageError",
    "TrainingError",
    "build",
    "export",
    "open_dataset",
    "plan_build",
    "read_records",
    "verify",
]
