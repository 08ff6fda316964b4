"""Plan classes, splits and shards before anything is written: pure functions of counts and options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.assignment.assignment import (
    NO_RECORDS,
    Assignment,
    SplitLayout,
    shards_per_split,
    split_class_counts,
)
from ringfeed.sharding.assignment.label_counts import ValueCounts
from ringfeed.sharding.compute.class_counts import ClassCounts
from ringfeed.sharding.errors import ConfigError, SourceError
from ringfeed.sharding.messages import counted
from ringfeed.sharding.schema import Schema

from .options import BuildOptions

_FEWEST_SHARDS = (16, 8, 4)  # by default: 16 for as many streams of a loader, 4 for the ranks of a machine
_LEAST_SHARD_BYTES = 1 << 20  # with more than 4 shards: a store takes longer to answer than to send less
_DEFAULT_SHARD_BYTES = 256 << 20
_MAX_SHARD_BYTES = 1 << 30  # below the 2 GiB of an Arrow string column, with a margin for wrong estimates
_RARE_REMEDY = "leave such classes out with --rare-classes drop, or merge them with --rare-classes merge:NAME"
_ONE_HOT = " (of one-hot vectors: give the column one length with --schema)"
_MAX_COUNTS = 1 << 28  # counts of a class in a shard: 0.25 to 2 GiB in a reader's memory


def check_label(schema: Schema) -> None:
    """Refuse a label that makes no classes, one of bytes or lists, before reading it (a SourceError)."""
    if schema.label is None:
        return
    label = schema[schema.label]
    if label.shape:
        size = "of any length" if label.elements is None else f"of shape {list(label.shape)}"
        raise SourceError(
            f"the label column {label.name!r} holds lists of {label.dtype} {size}, which make no classes; a record has "
            f"one label, a string, an integer or a bool: make it with --map{_ONE_HOT * label.numeric} or, to keep the "
            "lists, omit --label"
        )
    if label.dtype == "binary":
        raise SourceError(
            f"the label column {label.name!r} holds bytes, which make no classes; a label is a string, an integer or a "
            f"bool: cast it with --cast {label.name}=string"
        )


def sort_classes(
    tally: ValueCounts, source: str, min_records: int, *, labelled: bool = True, order: Sequence[Any] = ()
) -> pa.Array:
    """The classes in a given order, then all others by their values; their positions are the class ids.

    Args:
        labelled: whether there is a label; if not, the one class has no name.
        order: values in their order, such as the label's ordered categories. Those without a record are no classes.

    Raises:
        SourceError: there are no records, or a class has too few.
    """
    if not tally.records:
        raise SourceError(f"{source} holds no records")
    places = pc.index_in(tally.values, pa.array(order, tally.values.type))
    keys = pa.table({"place": places, "value": tally.values})  # a null place comes last
    indices = pc.sort_indices(keys, [("place", "ascending"), ("value", "ascending")])
    values, counts = tally.values.take(indices), tally.counts[indices.to_numpy()]
    rare = np.flatnonzero(counts < min_records)
    if rare.size:
        count = int(counts[rare[0]])
        number = counted(count, "record")
        if not labelled:
            raise SourceError(f"{source} has {number}, fewer than {min_records}; pass --min-class-records {count}")
        more = f" (and {counted(rare.size - 1, 'more class/more classes')})" if rare.size > 1 else ""
        raise SourceError(
            f"class {values[rare[0]].as_py()!r} has {number}, fewer than {min_records}{more}: it can be neither "
            f"balanced nor split; {_RARE_REMEDY}, or pass --min-class-records 1"
        )
    return values


def plan_split_counts(
    classes: Sequence[Any],
    class_counts: Sequence[int],
    splits: Mapping[str, Fraction],
    *,
    existing_counts: Mapping[str, Sequence[int]] = NO_RECORDS,
) -> dict[str, ClassCounts]:
    """Records of each class by split.

    Args:
        classes: labels by class id.
        existing_counts: by split, the records of each class that the dataset holds already; its classes come first.

    Raises:
        SourceError: a new class has fewer records than there are splits.
    """
    per_split = split_class_counts(class_counts, splits, existing_counts=existing_counts)
    known_classes = max(map(len, existing_counts.values()), default=0)
    for name, counts in per_split.items():
        if 0 in counts[known_classes:]:
            i = counts.index(0, known_classes)
            number = counted(class_counts[i], "record")
            few = f"too few for one in each of {len(per_split)} splits ({name!r} gets none)"
            if classes[i] is None:
                raise SourceError(f"the source has {number}, {few}; add records, or ask for fewer splits")
            raise SourceError(f"class {classes[i]!r} has {number}, {few}; {_RARE_REMEDY}")
    return per_split


def default_shards(split_bytes: float) -> int:
    """The number of shards of a split: of about 256 MiB, but at least 16, or 8 or 4 if those have less than 1 MiB.

    >>> [default_shards(mebibytes << 20) for mebibytes in (0, 7, 8, 16, 4096, 4097)]
    [4, 4, 8, 16, 16, 17]
    """
    *most, least = _FEWEST_SHARDS
    fewest = next((shards for shards in most if split_bytes >= shards * _LEAST_SHARD_BYTES), least)
    return max(fewest, ceil(split_bytes / _DEFAULT_SHARD_BYTES))


def plan_assignment(
    options: BuildOptions,
    per_split: Mapping[str, Sequence[int]],
    record_bytes: float,
    *,
    presplit: bool = False,
    generation: int = 0,
) -> Assignment:
    """Plan splits, shards and class counts. A split without records gets no shard.

    Args:
        record_bytes: estimated mean size of a record on storage.
        presplit: whether a column decides the split of each record.

    Raises:
        ConfigError: there are more shards than records, too large shards, or too many counts for a reader's memory.
    """
    records = {name: sum(counts) for name, counts in per_split.items() if any(counts)}
    largest = max(records.values())
    shards = options.shards
    if shards is None:
        size = largest * record_bytes
        wanted = default_shards(size) if options.shard_bytes is None else max(1, ceil(size / options.shard_bytes))
        shards = min(wanted, largest)
    if largest * record_bytes / shards > _MAX_SHARD_BYTES:
        raise ConfigError(
            f"a shard may have at most {_MAX_SHARD_BYTES >> 20} MiB, because it is assembled in memory; {shards} "
            f"shards would have about {largest * record_bytes / shards / (1 << 20):.0f} MiB each; ask for more"
        )
    sizes = shards_per_split(records, shards)
    classes = max(map(len, per_split.values()))
    cells = classes * sum(sizes.values())
    if cells > _MAX_COUNTS:
        raise ConfigError(
            f"{classes:,} classes in {sum(sizes.values()):,} shards make {cells:,} counts, which every reader holds in "
            f"memory; at most {_MAX_COUNTS:,} are allowed; ask for fewer shards, or a label with fewer values"
        )
    splits = tuple(SplitLayout(name=n, shards=sizes[n], class_counts=per_split[n]) for n in records)
    return Assignment(seed=options.seed, splits=splits, presplit=presplit, generation=generation)
