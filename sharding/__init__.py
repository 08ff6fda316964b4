"""Datasets in, balanced shards and a manifest out. Needs no TensorFlow."""

from .append import AppendOptions, append, plan_append
from .build import build
from .build_options import BuildOptions
from .build_plan import BuildPlan
from .cleaning import clean
from .damage import Damage, Note
from .dataset import Dataset, open_dataset, read_records
from .errors import (
    ConfigError,
    CorruptionError,
    DatasetError,
    DestinationError,
    RingfeedError,
    SourceError,
    StorageError,
    TrainingError,
    WorkerError,
)
from .export import Export, ExportOptions, export
from .image_statistics import ImageStatistics
from .manifest import FileInfo, Generation, LostRecords, Manifest, ShardInfo, SplitInfo
from .planning import plan_build
from .progress import Progress
from .rebuild import Original
from .remedies import Remedy, RepairPlan, plan_repair
from .repair import RepairReport, apply_repair, repair
from .schema import Feature, Schema
from .statistics import FeatureStatistics
from .storage import Storage
from .verify import Verification, VerifyProgress, check_dataset, verify

__all__ = [
    "AppendOptions",
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
    "FileInfo",
    "Generation",
    "ImageStatistics",
    "LostRecords",
    "Manifest",
    "Note",
    "Original",
    "Progress",
    "Remedy",
    "RepairPlan",
    "RepairReport",
    "RingfeedError",
    "Schema",
    "ShardInfo",
    "SourceError",
    "SplitInfo",
    "Storage",
    "StorageError",
    "TrainingError",
    "Verification",
    "VerifyProgress",
    "WorkerError",
    "append",
    "apply_repair",
    "build",
    "check_dataset",
    "clean",
    "export",
    "open_dataset",
    "plan_append",
    "plan_build",
    "plan_repair",
    "read_records",
    "repair",
    "verify",
]
