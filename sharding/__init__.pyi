# What this package offers, by module. `__init__.py` reads it, and imports a name when it is first used.

from .building.append import AppendOptions, append, plan_append
from .building.build import build, plan_build
from .building.build_plan import BuildPlan
from .building.options import BuildOptions
from .building.writer import Writer
from .dataset.damage import Damage, Note
from .dataset.dataset import Dataset, open_dataset, read_records
from .dataset.manifest import Generation, LostRecords, Manifest, ShardInfo, SplitInfo
from .dataset.statistics import FeatureStatistics
from .destination.clean import clean
from .errors import (
    ConfigError,
    CorruptionError,
    DatasetError,
    DestinationError,
    RepeatedError,
    RingfeedError,
    SourceError,
    StorageError,
    TrainingError,
    WorkerError,
)
from .exporting.export import Export, ExportOptions, export
from .formats.images.statistics import ImageStatistics
from .progress import Progress
from .repairing.rebuild_plan import Original
from .repairing.remedy import Remedy
from .repairing.repair import RepairReport, apply_repair, repair
from .repairing.repair_plan import RepairPlan, plan_repair
from .schema import Feature, Schema
from .storage.file_contents import FileInfo
from .storage.storage import Storage
from .verifying.verify import Verification, VerifyProgress, check_dataset, verify

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
    "RepeatedError",
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
    "Writer",
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
