"""What a build will do, decided before a byte is written: pure functions of counts and options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import Any

from .assign import NOTHING_THERE, Assignment, SplitLayout, shards_per_split, split_class_counts
from .engine import check_engine
from .errors import ConfigError, SourceError
from .formats.encode import COMPRESSIONS, default_compression
from .prepare import PrepareOptions
from .schema import Schema

__all__ = ["DEFAULT_SHARDS", "DEFAULT_SHARD_BYTES", "BuildOptions", "check_label", "plan_assignment", "sort_classes"]

DEFAULT_SHARD_BYTES = 256 << 20
MAX_SHARD_BYTES = 1 << 30  # below the 2 GiB of one Arrow string column, with room for an estimate that is wrong
DEFAULT_SHARDS = 16  # at least so many by default: enough for ranks to share and to read in parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """What is asked of a build.

    Attributes:
        source: URL of the data.
        destination: URL of the folder to write.
        label: column of the classes, or None.
        source_kind: see `sources.open_source`.
        shard_format: ``tfrecord`` or ``parquet``.
        compression: of the shards, or None for the format's habit.
        shards: how many in the largest split; the others get as many as make shards of equal size. Or None.
        shard_bytes: about how large each shard should be. Or None; not together with `shards`.
        splits: share of each split, by name; they add up to 1.
        seed: of split, shard and order.
        workers: processes. The result does not depend on it.
        memory_bytes: that all of them may use together, about; None: 1 GiB for each, and 2 GiB at least.
        engine: where tasks run, see `engine.open_engine`.
        spill: URL of a folder for what lies between two passes; None: this machine's folder for temporary files.
        overwrite: replace a dataset at the destination.
        min_class_records: refuse classes with fewer records.
        prepare: what is done to the records first.

    Raises:
        ConfigError: a value its rule forbids.
    """

    source: str
    destination: str
    label: str | None = None
    source_kind: str = "auto"
    shard_format: str = "tfrecord"
    compression: str | None = None
    shards: int | None = None
    shard_bytes: int | None = None
    splits: Mapping[str, Fraction] = field(default_factory=lambda: {"train": Fraction(1)})
    seed: int = 0
    workers: int = 1
    memory_bytes: int | None = None
    spill: str | None = None
    engine: str = "local"
    overwrite: bool = False
    min_class_records: int = 2
    prepare: PrepareOptions = field(default_factory=PrepareOptions)

    def __post_init__(self) -> None:
        if self.shard_format not in COMPRESSIONS:
            raise ConfigError(f"the format must be one of {', '.join(COMPRESSIONS)}, got {self.shard_format!r}")
        if self.codec not in COMPRESSIONS[self.shard_format]:
            allowed = ", ".join(COMPRESSIONS[self.shard_format])
            raise ConfigError(f"compression of {self.shard_format} must be one of {allowed}, got {self.compression!r}")
        if self.shards is not None and self.shard_bytes is not None:
            raise ConfigError("give --shards or --shard-size, not both")
        for name, value in (
            ("shards", self.shards),
            ("shard size", self.shard_bytes),
            ("workers", self.workers),
            ("memory", self.memory_bytes),
        ):
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        check_engine(self.engine)
        if not self.splits or sum(self.splits.values()) != 1 or min(self.splits.values()) <= 0:
            shares = ", ".join(f"{name}={float(share):g}" for name, share in self.splits.items())
            raise ConfigError(f"the shares of the splits must be positive and add up to 1, got {shares}")
        for name in self.splits:
            if not name.replace("_", "").isalnum() or not name.isascii():
                raise ConfigError(f"a split's name consists of ASCII letters, digits and _, got {name!r}")

    @property
    def codec(self) -> str:
        """The compression, decided."""
        return default_compression(self.shard_format) if self.compression is None else self.compression

    @property
    def memory_budget(self) -> int:
        """Bytes that all processes may use together, about."""
        return max(2 << 30, self.workers << 30) if self.memory_bytes is None else self.memory_bytes

    def recorded(self) -> dict[str, Any]:
        """What shapes the bytes of the shards, as it stands in `dataset.json`."""
        return {
            "label": self.label,
            "shards": self.shards,
            "shard_bytes": self.shard_bytes,
            "splits": {name: str(share) for name, share in self.splits.items()},
        } | ({"prepare": prepare} if (prepare := self.prepare.recorded()) else {})


def check_label(schema: Schema) -> None:
    """Refuse a label that makes no classes, before any of it is read.

    Raises:
        SourceError: it is a number with a fraction, bytes, or a list.
    """
    if schema.label is None:
        return
    label = schema[schema.label]
    if label.shape != () or label.dtype == "binary" or label.dtype.startswith("float"):
        what = f"lists of {label.dtype}" if label.shape else f"{label.dtype} values"
        raise SourceError(
            f"the label column {label.name!r} holds {what}, which make no classes: a label is a string, an integer or "
            "a bool; for regression, leave out --label"
        )


def sort_classes(counts: Mapping[Any, int], source: str, min_records: int) -> list[Any]:
    """The classes in order of their values; their positions are the class ids.

    Raises:
        SourceError: there are no records, or a class has too few.
    """
    if not sum(counts.values()):
        raise SourceError(f"{source} holds no records")
    rare = [value for value, count in counts.items() if count < min_records]
    if rare:
        number = f"{counts[rare[0]]} record" + "s" * (counts[rare[0]] != 1)
        more = f" (and {len(rare) - 1} more classes)" if len(rare) > 1 else ""
        raise SourceError(
            f"class {rare[0]!r} has {number}, fewer than {min_records}{more}: it can be neither balanced "
            "nor split; drop it, merge it with another, or pass --min-class-records 1"
        )
    return sorted(counts, key=lambda value: (value is not None, value))


def plan_assignment(
    options: BuildOptions,
    classes: Sequence[Any],
    class_counts: Sequence[int],
    record_bytes: float,
    *,
    generation: int = 0,
    known_classes: int = 0,
    there: Mapping[str, int] = NOTHING_THERE,
) -> Assignment:
    """Splits, shards and class counts. A split that gets no record gets no shard.

    Args:
        options: of the build.
        classes: the values of the label.
        class_counts: records of each class.
        record_bytes: estimated mean size of a record on storage.
        generation: of the dataset that is appended to; 0 is a build.
        known_classes: so many of the classes, the first, the dataset has already.
        there: records that it has in each split.

    Raises:
        SourceError: a new class has fewer records than there are splits.
        ConfigError: there are more shards than records, or shards that are too large.
    """
    per_split = split_class_counts(class_counts, options.splits, there=there, known_classes=known_classes)
    for name, counts in per_split.items():
        if 0 in counts[known_classes:]:
            i = counts.index(0, known_classes)
            raise SourceError(
                f"class {classes[i]!r} has {class_counts[i]} record{'s' * (class_counts[i] != 1)}, too few for one in "
                f"each of {len(per_split)} splits ({name!r} gets none); drop it, or merge it with another"
            )
    records = {name: sum(counts) for name, counts in per_split.items() if any(counts)}
    largest = max(records.values())
    shards = options.shards
    if shards is None:
        wanted = max(1, ceil(largest * record_bytes / (options.shard_bytes or DEFAULT_SHARD_BYTES)))
        shards = min(wanted if options.shard_bytes else max(wanted, DEFAULT_SHARDS), largest)
    if largest * record_bytes / shards > MAX_SHARD_BYTES:
        raise ConfigError(
            f"shards must be of at most {MAX_SHARD_BYTES >> 20} MiB, for each is put together in memory; {shards} "
            f"would have about {largest * record_bytes / shards / (1 << 20):.0f} MiB; ask for more of them"
        )
    sizes = shards_per_split(records, shards)
    splits = tuple(SplitLayout(name=n, shards=sizes[n], class_counts=per_split[n]) for n in records)
    return Assignment(seed=options.seed, splits=splits, generation=generation)
