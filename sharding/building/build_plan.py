"""What a build, or an append, will write: known after the first pass over the source, and enough for the others."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow as pa

from ..assignment.assignment import Assignment
from ..assignment.census import Census
from ..assignment.label_counts import StratumCounts, first_ordinals
from ..assignment.placement import Placement
from ..assignment.size_balance import SizeBalance
from ..compute.keyed_random import derive_key
from ..dataset.manifest import Manifest
from ..engines.memory import BLOCK_BYTES, ClassBytes, RecordBytes
from ..schema import class_array
from ..sources import Source
from ..sources.base import BadRecord
from .options import BuildOptions

__all__ = ["BuildPlan", "program_version"]

_BLOCK_ROWS = 1 << 16
_CLASSES_LOOKED_AT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlan:
    """What a build will write, known after the first pass over the labels.

    Attributes:
        source: opened.
        classes: values of the label: those of `base`, then the others, sorted.
        counts: records of each stratum (see `Assignment`) in each part.
        assignment: of records to shards.
        record: estimated mean size of one.
        rejected: records that are passed over, for they cannot be read.
        census: where more than the class decides the places of records; its files last as long as the build.
        groups: how many groups each split has, where there are groups.
        dealt: what came of dealing by size, if that was asked for.
        digest: of what the column that decides the splits says, if there is one.
        base: what the dataset that is appended to says of itself; None in a build.
    """

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
        """What is held of the classes while the dataset is written."""
        in_parts = [len(part.strata) for part in self.counts]
        first = class_array(self.source.schema, self.classes[:_CLASSES_LOOKED_AT])
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
        """Records in the largest shard."""
        return max(split.shard_records(0) for split in self.assignment.splits)

    @property
    def block_rows(self) -> int:
        """Rows that are assembled at a time: a function of the source and the format alone, as it shapes Parquet."""
        return int(np.clip(BLOCK_BYTES / max(self.record_bytes, 1), 1, _BLOCK_ROWS))

    def fingerprint(self, options: BuildOptions) -> str:
        """A hash of all that shapes what is written: builds of one fingerprint write the same bytes."""
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


def program_version() -> str:
    """Name and version of this program, as a dataset tells them."""
    return f"ringfeed {version('ringfeed')}"
