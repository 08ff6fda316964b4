"""The options of a build: validated at construction, and recorded in `dataset.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from ringfeed.sharding.common.split_shares import exact_shares
from ringfeed.sharding.common.validation import fit_fields
from ringfeed.sharding.dataset.file_names import check_split_name
from ringfeed.sharding.engines.engine import check_engine
from ringfeed.sharding.engines.memory import MemoryShare
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.formats.shard_encode import COMPRESSIONS, default_compression
from ringfeed.sharding.prepare import PrepareOptions, restore_options
from ringfeed.sharding.prepare.rare_classes import parse_rare_classes
from ringfeed.sharding.prepare.screening.bad_records import Budget, parse_budget
from ringfeed.sharding.sources import KINDS
from ringfeed.sharding.sources.records.in_memory import is_in_memory
from ringfeed.sharding.storage.urls import normalize_url_fields

_BALANCES = ("records", "bytes")
ONE_SPLIT = {"train": Fraction(1)}  # the default
THREE_SPLITS = {"train": Fraction(8, 10), "val": Fraction(1, 10), "test": Fraction(1, 10)}  # where a column divides
_RECORDED = {
    "label", "shards", "shard_bytes", "splits", "source_kind", "split_column", "split_files", "group_by",
    "split_by_time", "balance", "prepare", "on_bad_record", "dali_index",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """Options of a build.

    Attributes:
        source: URL or path of the data; or records in memory: a DataFrame of pandas or Polars, an Arrow table or
            reader or whatever exports an Arrow stream, or an iterable of dicts, or of Arrow batches of one schema.
        destination: URL or path of the folder to write.
        label: label column, or None.
        source_kind: see `sources.open_source`.
        shard_format: ``tfrecord`` or ``parquet``.
        compression: compression of the shards; None: the default of the format.
        shards: number of shards in the largest split, or None; the others get as many as make shards equal in size.
        shard_bytes: approximate size of each shard, or None. Not together with `shards`.
        splits: share of each split by name: fractions, or text that reads as a decimal; the shares add up to 1,
            but for rounding.
        split_column: column whose value names the split of each record, or None. Not together with `splits`.
        split_files: name, folder or glob of the files of each split, below `source`, by name of the split; or none. Not
            together with `splits`, `split_column` or `group_by`.
        group_by: column whose values are kept in one split each, or None. Where `splits` is not given: train=0.8,
            val=0.1, test=0.1.
        split_by_time: column of times, or None: the first of `splits` gets the earliest records, the last the latest,
            and records of one time stay together. Where `splits` is not given: train=0.8, val=0.1, test=0.1.
        balance: ``records``, or ``bytes`` to make the shards of a split alike in size too, as far as records allow.
        seed: seed of split, shard and order.
        workers: number of processes; does not affect the result.
        memory_bytes: approximate memory of all processes together; None: 1 GiB for each, and at least 2 GiB. On a
            cluster, memory of each task where it runs; None: 1 GiB.
        engine: engine of the tasks, see `engine.open_engine`.
        spill: URL or path of a folder for spill files; None: this machine's folder for temporary files.
        on_bad_record: ``fail``, ``skip:N`` or ``skip:P%``: how many unreadable records to skip.
        overwrite: replace a dataset at the destination.
        min_class_records: classes with fewer records are rare, and so are those with fewer than splits.
        rare_classes: what to do about rare classes: ``error``, ``drop`` or ``merge:NAME``.
        dali_index: write an index for NVIDIA DALI beside each TFRecord shard.
        prepare: preparation of the records.

    Raises:
        ConfigError: a value violates its rule.

    >>> options = BuildOptions(source="flights.csv", destination="shards", splits={"train": "0.8", "test": "0.2"})
    >>> options.splits["test"]
    Fraction(1, 5)
    """

    source: Any
    destination: str
    label: str | None = None
    source_kind: str = "auto"
    shard_format: str = "tfrecord"
    compression: str | None = None
    shards: int | None = None
    shard_bytes: int | None = None
    splits: Mapping[str, Fraction] = field(default_factory=lambda: dict(ONE_SPLIT))
    split_column: str | None = None
    split_files: Mapping[str, str] = field(default_factory=dict)
    group_by: str | None = None
    split_by_time: str | None = None
    balance: str = "records"
    seed: int = 0
    workers: int = 1
    memory_bytes: int | None = None
    spill: str | None = None
    engine: str = "local"
    on_bad_record: str = "fail"
    overwrite: bool = False
    min_class_records: int = 2
    rare_classes: str = "error"
    dali_index: bool = False
    prepare: PrepareOptions = field(default_factory=PrepareOptions)

    def __post_init__(self) -> None:
        normalize_places(self)
        fit_fields(self)
        if self.source_kind not in ("auto", *KINDS):
            raise ConfigError(f"source_kind must be one of auto, {', '.join(KINDS)}, got {self.source_kind!r}")
        if self.shard_format not in COMPRESSIONS:
            raise ConfigError(f"the format must be one of {', '.join(COMPRESSIONS)}, got {self.shard_format!r}")
        if self.codec not in COMPRESSIONS[self.shard_format]:
            allowed = ", ".join(COMPRESSIONS[self.shard_format])
            raise ConfigError(f"compression of {self.shard_format} must be one of {allowed}, got {self.compression!r}")
        if self.dali_index and (self.shard_format, self.codec) != ("tfrecord", "none"):
            raise ConfigError(
                f"a DALI index needs uncompressed TFRecord shards, and these are {self.shard_format} ({self.codec}); "
                "write them with --format tfrecord --compression none"
            )
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
        parse_budget(self.on_bad_record)
        parse_rare_classes(self.rare_classes)
        try:
            object.__setattr__(self, "splits", exact_shares(self.splits))
        except ValueError as error:
            raise ConfigError(str(error)) from error
        for name in (*self.splits, *self.split_files):
            check_split_name(name)
        if self.balance not in _BALANCES:
            raise ConfigError(f"--balance must be one of {', '.join(_BALANCES)}, got {self.balance!r}")
        self._check_division()

    def _check_division(self) -> None:
        if self.split_by_time is not None:
            others = {
                "--split-column": self.split_column,
                "--split-files": self.split_files,
                "--group-by": self.group_by,
            }
            if other := next((flag for flag, value in others.items() if value), ""):
                raise ConfigError(f"give --split-by-time or {other}, not both: each decides the splits of the records")
        if self.split_column is not None and self.group_by is not None:
            raise ConfigError(
                f"give --split-column or --group-by, not both: the column {self.split_column!r} names the split of "
                "each record already"
            )
        if self.split_column is not None and self.splits != ONE_SPLIT:
            raise ConfigError("give --split or --split-column, not both: the column names the splits")
        if self.split_files:
            given = {
                "--split": self.splits != ONE_SPLIT,
                "--split-column": self.split_column,
                "--group-by": self.group_by,
            }
            if is_in_memory(self.source):
                raise ConfigError("split_files names files, and the source is in memory; give split_column or splits")
            if other := next((flag for flag, value in given.items() if value), ""):
                raise ConfigError(f"give --split-files or {other}, not both: the files are in their splits already")
        if (self.split_by_time or self.group_by) and self.splits == ONE_SPLIT:
            object.__setattr__(self, "splits", dict(THREE_SPLITS))
        if self.group_by is not None and len(self.splits) < 2:
            raise ConfigError(
                "--group-by keeps each group in one of several splits, and there is only one; add --split "
                "train=0.9,test=0.1"
            )

    @property
    def codec(self) -> str:
        """The compression, or the default of the format."""
        return default_compression(self.shard_format) if self.compression is None else self.compression

    @property
    def memory_budget(self) -> int:
        """Approximate memory of all processes together, in bytes."""
        return max(2 << 30, self.workers << 30) if self.memory_bytes is None else self.memory_bytes

    @property
    def memory(self) -> MemoryShare:
        """The memory budget and the workers that share it."""
        return MemoryShare(budget=self.memory_budget, workers=self.workers)

    @property
    def bad_records(self) -> Budget:
        """How many bad records to skip."""
        return parse_budget(self.on_bad_record)

    @property
    def deciding_column(self) -> str | None:
        """The column whose value decides the split of each record, if one does."""
        return self.split_column or self.group_by or self.split_by_time

    @property
    def needs_census(self) -> bool:
        """Whether more than the class decides the place of a record."""
        return self.deciding_column is not None or self.balance == "bytes"

    def recorded(self) -> dict[str, Any]:
        """The options that shape the bytes of the shards, as recorded in `dataset.json`."""
        has_shares = not self.split_column and not self.split_files
        recorded: dict[str, Any] = {
            "label": self.label,
            "shards": self.shards,
            "shard_bytes": self.shard_bytes,
            "splits": {name: str(share) for name, share in self.splits.items()} if has_shares else {},
        }
        not_default = {
            "source_kind": self.source_kind.removeprefix("auto"),
            "split_column": self.split_column,
            "split_files": dict(self.split_files),
            "group_by": self.group_by,
            "split_by_time": self.split_by_time,
            "balance": self.balance.removeprefix("records"),
            "prepare": self.prepare.recorded(),
            "on_bad_record": self.on_bad_record.removeprefix("fail"),
            "dali_index": self.dali_index,
        }
        return recorded | {name: value for name, value in not_default.items() if value}

    @classmethod
    def restored(cls, recorded: Mapping[str, Any], source: str, destination: str, folder: str) -> BuildOptions:
        """The inverse of `recorded`, for a build of the same source; options that are not recorded get their defaults.

        Args:
            recorded: options as recorded in `dataset.json`.
            source: URL of the data.
            destination: URL of the dataset.
            folder: folder that is searched first for the modules of `--map` functions.

        Raises:
            ConfigError: this version does not know a recorded option.
        """
        unknown = sorted(set(recorded) - _RECORDED)
        if unknown:
            raise ConfigError(
                f"{destination} was built with options that this version does not know ({', '.join(unknown)}); upgrade "
                "with: pip install --upgrade ringfeed"
            )
        return cls(
            source=source,
            destination=destination,
            splits={name: Fraction(share) for name, share in recorded["splits"].items()} or ONE_SPLIT,
            min_class_records=1,  # the dataset passed this check when it was built
            prepare=restore_options(recorded.get("prepare", {}), folder),
            **{name: value for name, value in recorded.items() if name not in ("splits", "prepare")},
        )


def normalize_places(options: Any) -> None:
    """Check and normalize source, destination and spill folder; a ConfigError if one is no URL, path or records."""
    if isinstance(options.source, Mapping):
        raise ConfigError(
            "source must be a URL, a path or records, got a dict; make a table of its columns with pyarrow.table(...)"
        )
    if callable(options.source):
        name = getattr(options.source, "__name__", "source")
        raise ConfigError(f"source must be a URL, a path or records, got the function {name}; call it: source={name}()")
    urls = ["destination"] if is_in_memory(options.source) else ["source", "destination"]
    normalize_url_fields(options, *urls, optional="spill")
