"""The plan of a build or an append: all that the later passes over the source need to know, decided by the first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow as pa

from ringfeed.sharding.assignment.assignment import Assignment
from ringfeed.sharding.assignment.census import Census
from ringfeed.sharding.assignment.label_counts import StratumCounts, first_ordinals
from ringfeed.sharding.assignment.placement import Placement
from ringfeed.sharding.assignment.size_balance import SizeBalance
from ringfeed.sharding.compute.keyed_random import derive_key
from ringfeed.sharding.dataset.file_names import NAMES, FileNames
from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.engines.memory import BLOCK_BYTES, ClassBytes, RecordBytes
from ringfeed.sharding.formats.parquet_types import stored_schema
from ringfeed.sharding.schema import class_array
from ringfeed.sharding.sources import Source
from ringfeed.sharding.sources.base import BadRecord

from .options import BuildOptions

_BLOCK_ROWS = 1 << 16
_SAMPLED_CLASSES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlan:
    """What a build will write, known after the first pass over the labels.

    Attributes:
        options: options of the build, with the classes that were found rare; for an append, those that the dataset
            decides are set.
        source: prepared source, without the records that are dropped.
        classes: labels by class id: those of `base`, then the new ones, sorted.
        counts: records of each stratum (see `Assignment`) in each part.
        assignment: assignment of records to shards.
        record: estimated mean sizes of a record.
        rejected: bad records that are skipped.
        census: notes on the records, if more than the class decides their places; its files last as long as the build.
        groups: number of groups in each split, if there are groups.
        dealt: result of dealing the records by size, if they are.
        digest: digest of the splits by column and of the records dropped as duplicates of the dataset's; empty if
            there are neither.
        base: manifest of the dataset that is appended to; None for a build.

    >>> from ringfeed.sharding import plan_build
    >>> plan = plan_build(source="flights.parquet", destination="shards", label="arrival", shards=4)
    >>> plan.classes
    ('late', 'on time')
    """

    options: BuildOptions
    source: Source
    classes: tuple[Any, ...]
    counts: tuple[StratumCounts, ...]
    assignment: Assignment
    record: RecordBytes
    rejected: tuple[BadRecord, ...] = ()
    census: Census | None = None
    groups: Mapping[str, int] = field(default_factory=dict)
    dealt: SizeBalance | None = None
    digest: str = ""
    base: Manifest | None = None

    @property
    def names(self) -> FileNames:
        """The names of the dataset's files."""
        return NAMES if self.base is None else self.base.names

    @property
    def stored_schema(self) -> pa.Schema:
        """The Arrow schema of Parquet shards."""
        return stored_schema(self.source.schema) if self.base is None else self.base.stored_schema

    @property
    def placements(self) -> Iterator[Placement]:
        """For each part, what decides the places of its records."""
        schema = self.source.schema
        classes = class_array(schema, self.classes)
        for part, firsts in zip(self.counts, first_ordinals(self.counts, self.assignment.strata), strict=True):
            ids = np.unique(part.strata % self.assignment.classes)
            yield Placement(
                assignment=self.assignment,
                label=schema.label,
                classes=classes.take(pa.array(ids)),
                class_ids=ids.astype(np.int32),
                strata=part.strata,
                first_ordinals=firsts,
                census=self.census,
            )

    @property
    def class_bytes(self) -> ClassBytes:
        """Memory that the classes take while the dataset is written."""
        in_parts = [len(part.strata) for part in self.counts]
        first = class_array(self.source.schema, self.classes[:_SAMPLED_CLASSES])
        return ClassBytes.of(
            classes=len(self.classes),
            label_bytes=first.nbytes / max(1, len(first)),
            splits=len(self.assignment.splits),
            entries=sum(in_parts),
            in_part=max(in_parts, default=0),
        )

    @property
    def record_bytes(self) -> float:
        """Estimated mean size of a record on storage."""
        return self.record.stored

    @property
    def shard_records(self) -> int:
        """Number of records in the largest shard."""
        return max(split.shard_records(0) for split in self.assignment.splits)

    @property
    def block_rows(self) -> int:
        """Rows to assemble at a time. Depends on source and format alone, because it sets the row groups of Parquet."""
        return int(np.clip(BLOCK_BYTES / max(self.record_bytes, 1), 1, _BLOCK_ROWS))

    @property
    def fingerprint(self) -> str:
        """A hash of all that shapes the bytes written: builds with one fingerprint write the same bytes."""
        options = self.options
        facts = [
            self.source.fingerprint,
            self.source.schema.to_json(),
            options.recorded(),
            [options.shard_format, options.codec, options.seed],
            [[split.name, split.shards, list(split.class_counts)] for split in self.assignment.splits],
            [str(value) for value in self.classes],
            self.block_rows,
            program_version(),
            *([self.digest] if self.digest else []),
            *([self.dealt.digest] if self.dealt else []),
        ]
        if self.base is not None:
            facts.append([self.assignment.generation, self.base.layout and self.base.layout.to_json()])
        return f"{derive_key(json.dumps(facts)):016x}"


@cache
def program_version() -> str:
    """Name and version of this program, as a manifest records them."""
    return f"ringfeed {version('ringfeed')}"
