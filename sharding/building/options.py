"""What is asked of a build: held against its rules when it is made, and recorded in `dataset.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from ..common.validation import fit_fields
from ..dataset.file_names import check_split_name
from ..engines.engine import check_engine
from ..engines.memory import MemoryShare
from ..errors import ConfigError
from ..formats.shard_encode import COMPRESSIONS, default_compression
from ..prepare import PrepareOptions, restore_options
from ..prepare.screening.bad_records import Budget, parse_budget
from ..sources import KINDS
from ..storage.urls import normalize_url_fields

__all__ = [
    "ONE_SPLIT",
    "BuildOptions",
]

_BALANCES = ("records", "bytes")
ONE_SPLIT = {"train": Fraction(1)}  # where nothing is said of splits
_RECORDED = {
    "label", "shards", "shard_bytes", "splits", "source_kind", "split_column", "group_by", "balance", "prepare",
    "on_bad_record", "dali_index",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """What is asked of a build.

    Attributes:
        source: URL or path of the data.
        destination: URL or path of the folder to write.
        label: column of the classes, or None.
        source_kind: see `sources.open_source`.
        shard_format: ``tfrecord`` or ``parquet``.
        compression: of the shards, or None for the format's habit.
        shards: how many in the largest split; the others get as many as make shards of equal size. Or None.
        shard_bytes: about how large each shard should be. Or None; not together with `shards`.
        splits: share of each split, by name; they add up to 1. Fractions, or what is written as a decimal.
        split_column: column whose value names the split of each record; not together with `splits`. Or None.
        group_by: column no value of which may be in two splits. Or None.
        balance: ``records``, or ``bytes``: shards of a split are alike in size too, as far as records' sizes allow.
        seed: of split, shard and order.
        workers: processes. The result does not depend on it. A script that builds with several does so under
            ``if __name__ == "__main__":``, for each process imports it.
        memory_bytes: that all of them may use together, about; None: 1 GiB for each, and 2 GiB at least. On a cluster,
            that each task may use where it runs; None: 1 GiB.
        engine: where tasks run, see `engine.open_engine`.
        spill: URL or path of a folder for what lies between two passes; None: this machine's folder for temporary
            files.
        on_bad_record: ``fail``, ``skip:N`` or ``skip:P%``: how many records that cannot be read are passed over.
        overwrite: replace a dataset at the destination.
        min_class_records: refuse classes with fewer records.
        dali_index: write an index for NVIDIA DALI beside each TFRecord shard.
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
    splits: Mapping[str, Fraction] = field(default_factory=lambda: dict(ONE_SPLIT))
    split_column: str | None = None
    group_by: str | None = None
    balance: str = "records"
    seed: int = 0
    workers: int = 1
    memory_bytes: int | None = None
    spill: str | None = None
    engine: str = "local"
    on_bad_record: str = "fail"
    overwrite: bool = False
    min_class_records: int = 2
    dali_index: bool = False
    prepare: PrepareOptions = field(default_factory=PrepareOptions)

    def __post_init__(self) -> None:
        normalize_url_fields(self, "source", "destination", optional="spill")
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
                f"DALI indexes plain TFRecord shards, these are {self.shard_format} ({self.codec}); write them with "
                "--format tfrecord --compression none"
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
        if not self.splits or sum(self.splits.values()) != 1 or min(self.splits.values()) <= 0:
            shares = ", ".join(f"{name}={float(share):g}" for name, share in self.splits.items())
            raise ConfigError(f"the shares of the splits must be positive and add up to 1, got {shares}")
        for name in self.splits:
            check_split_name(name)
        if self.balance not in _BALANCES:
            raise ConfigError(f"--balance must be one of {', '.join(_BALANCES)}, got {self.balance!r}")
        self._check_division()

    def _check_division(self) -> None:
        if self.split_column is not None and self.group_by is not None:
            raise ConfigError(
                "give --split-column or --group-by, not both: the column "
                f"{self.split_column!r} names the split of each record already"
            )
        if self.split_column is not None and self.splits != ONE_SPLIT:
            raise ConfigError("give --split or --split-column, not both: the column names the splits")
        if self.group_by is not None and len(self.splits) < 2:
            raise ConfigError(
                "--group-by keeps groups apart in several splits, and there is one; add --split train=0.9,test=0.1"
            )

    @property
    def codec(self) -> str:
        """The compression, decided."""
        return default_compression(self.shard_format) if self.compression is None else self.compression

    @property
    def memory_budget(self) -> int:
        """Bytes that all processes may use together, about."""
        return max(2 << 30, self.workers << 30) if self.memory_bytes is None else self.memory_bytes

    @property
    def memory(self) -> MemoryShare:
        """How that is shared out."""
        return MemoryShare(budget=self.memory_budget, workers=self.workers)

    @property
    def bad_records(self) -> Budget:
        """How many bad records are passed over."""
        return parse_budget(self.on_bad_record)

    @property
    def deciding_column(self) -> str | None:
        """The column whose value decides the split of each record, if one does."""
        return self.group_by if self.split_column is None else self.split_column

    @property
    def needs_census(self) -> bool:
        """Whether more than its class decides the place of a record."""
        return self.deciding_column is not None or self.balance == "bytes"

    def recorded(self) -> dict[str, Any]:
        """What shapes the bytes of the shards, as it stands in `dataset.json`."""
        recorded: dict[str, Any] = {
            "label": self.label,
            "shards": self.shards,
            "shard_bytes": self.shard_bytes,
            "splits": {} if self.split_column else {name: str(share) for name, share in self.splits.items()},
        }
        asked = {
            "source_kind": self.source_kind.removeprefix("auto"),
            "split_column": self.split_column,
            "group_by": self.group_by,
            "balance": self.balance.removeprefix("records"),
            "prepare": self.prepare.recorded(),
            "on_bad_record": self.on_bad_record.removeprefix("fail"),
            "dali_index": self.dali_index,
        }
        return recorded | {name: value for name, value in asked.items() if value}

    @classmethod
    def restored(cls, recorded: Mapping[str, Any], source: str, destination: str, folder: str) -> BuildOptions:
        """The inverse of `recorded`, for a build of the same source; what that does not tell is as by default.

        Args:
            recorded: as it stands in `dataset.json`.
            source: URL of the data.
            destination: URL of the folder of the dataset.
            folder: where the modules of a preparation's functions are looked for first.

        Raises:
            ConfigError: it holds what this version does not know.
        """
        strange = sorted(set(recorded) - _RECORDED)
        if strange:
            raise ConfigError(
                f"{destination} was built with options that this version does not know ({', '.join(strange)}); upgrade "
                "with: pip install --upgrade ringfeed"
            )
        return cls(
            source=source,
            destination=destination,
            label=recorded["label"],
            source_kind=recorded.get("source_kind", "auto"),
            shards=recorded["shards"],
            shard_bytes=recorded["shard_bytes"],
            splits={name: Fraction(share) for name, share in recorded["splits"].items()} or ONE_SPLIT,
            split_column=recorded.get("split_column"),
            group_by=recorded.get("group_by"),
            balance=recorded.get("balance", "records"),
            on_bad_record=recorded.get("on_bad_record", "fail"),
            dali_index=recorded.get("dali_index", False),
            min_class_records=1,  # what was built had enough
            prepare=restore_options(recorded.get("prepare", {}), folder),
        )
