"""Checks that a dataset's metadata agree with each other.

A sealed file may come from another program, or be forged with a correct checksum. Metadata that pass these checks need
no second look wherever they are used; shards and their indexes are checked against them as they are read.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import pyarrow as pa

from ringfeed.sharding.errors import CorruptionError, DatasetError, RingfeedError
from ringfeed.sharding.formats.example_encode import RecordLayout, is_layout_of
from ringfeed.sharding.formats.shard_encode import COMPRESSIONS
from ringfeed.sharding.messages import brief
from ringfeed.sharding.schema import class_array

from .file_names import MANIFEST_NAME, TABLE_NAMES
from .manifest import Manifest, ShardInfo

_MOST = 1 << 62  # records: sums of a few such numbers fit in 64 bits

_SHARE = re.compile(r"[0-9]+(/[1-9][0-9]*)?")


def check_manifest(manifest: Manifest, where: str) -> None:
    """Refuse a `dataset.json` that contradicts itself (a DatasetError)."""
    problems = (*_of_schema(manifest), *_of_splits(manifest), *_of_generations(manifest))
    if problems:
        raise contradiction_error(where, problems[0])


def check_table(manifest: Manifest, shards: Sequence[ShardInfo], where: str) -> None:
    """Refuse rows of the shard table that contradict each other or the names in `dataset.json` (a DatasetError)."""
    if strange := set(map(attrgetter("split"), shards)).difference(manifest.splits):
        raise contradiction_error(where, f"it has shards of split {min(strange)!r}, unknown to {MANIFEST_NAME}")
    others = (manifest.names.manifest, manifest.shards_path, *manifest.files)
    names = {*others, *map(attrgetter("path"), shards), *map(attrgetter("index_path"), shards)}
    if len(names) < len(others) + 2 * len(shards):
        raise contradiction_error(where, "two of its files have one name")


def check_shards(manifest: Manifest, shards: Sequence[ShardInfo], where: str) -> None:
    """Refuse rows of the shard table that do not add up to the totals in `dataset.json` (a DatasetError)."""
    numbers = Counter(map(attrgetter("split"), shards))
    for name, split in manifest.splits.items():
        records = sum(shard.records for shard in shards if shard.split == name)
        if (numbers[name], records) != (split.shards, split.records):
            raise contradiction_error(
                where,
                f"split {name!r} has {records} records in {numbers[name]} shards, and in {MANIFEST_NAME} "
                f"{split.records} in {split.shards}",
            )


def contradiction_error(where: str, problem: str) -> DatasetError:
    """Return the error for a file whose checksum is right but whose content is impossible."""
    return DatasetError(
        f"{where} is intact but contradicts itself, so ringfeed did not write it: {problem}; build the dataset again"
    )


@contextmanager
def corruption_errors(where: str) -> Iterator[None]:
    """Raise a CorruptionError for a file of the right checksum that cannot be decoded as the manifest describes."""
    try:
        yield
    except RingfeedError:
        raise
    except (ArithmeticError, LookupError, OSError, TypeError, ValueError, zlib.error, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno is not None:  # from the system; Arrow's decoders set no errno
            raise
        raise CorruptionError(
            f"{where} is intact but not what {MANIFEST_NAME} describes: {brief(error)}; find out more with: "
            "shard-dataset verify --deep, or build the dataset again"
        ) from error


def _of_schema(manifest: Manifest) -> Iterator[str]:
    schema = manifest.schema
    if manifest.compression not in COMPRESSIONS.get(manifest.shard_format, ()):
        yield f"there are no shards of format {manifest.shard_format!r} and compression {manifest.compression!r}"
    if not schema.features:
        yield "it has no features"
    if schema.label is None:
        if manifest.classes != (None,):
            yield f"it has {len(manifest.classes)} classes, and no label"
    else:
        yield from _of_classes(manifest)
    for layout in (manifest.layout, *(generation.layout for generation in manifest.generations)):
        if layout is not None and not _fits(manifest, layout):
            yield "its layout does not fit its features"


def _fits(manifest: Manifest, layout: RecordLayout) -> bool:
    return manifest.shard_format == "tfrecord" and is_layout_of(layout, manifest.schema)


def _of_classes(manifest: Manifest) -> Iterator[str]:
    schema, classes = manifest.schema, list(manifest.classes)
    if schema[schema.label or ""].shape != ():
        yield f"its label {schema.label!r} is not a single value"
    try:
        values = class_array(schema, classes)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        yield f"its classes are not values of its label {schema.label!r}: {brief(error)}"
        return
    if values.null_count or len(values.unique()) < len(values):
        yield "it has the same class twice"


def _of_splits(manifest: Manifest) -> Iterator[str]:
    if not manifest.splits:
        yield "it has no splits"
    features = set(manifest.schema.names)
    for name, split in manifest.splits.items():
        if re.fullmatch(r"\w+", name, re.ASCII) is None:
            yield f"{name!r} is not a valid name of a split"
        yield from _of_counts(manifest, f"split {name!r}", split.records, split.class_counts)
        if split.records >= _MOST or not 0 <= split.shards <= split.records:
            yield f"split {name!r} has {split.records} records in {split.shards} shards"
        if set(split.statistics) != features:
            yield f"the statistics of split {name!r} do not match its features"
    for lost in manifest.lost:
        yield from _of_counts(manifest, f"the loss of {lost.path!r}", lost.records, lost.class_counts)
    if TABLE_NAMES.fullmatch(manifest.shards_path) is None:
        yield f"{manifest.shards_path!r} is not a valid name of a shard table"


def _of_counts(manifest: Manifest, what: str, records: int, counts: Sequence[int]) -> Iterator[str]:
    if len(counts) != len(manifest.classes):
        yield f"{what} counts {len(counts)} classes, not {len(manifest.classes)}"
    elif sum(counts) != records:
        yield f"{what} has {records} records, but {sum(counts)} over all classes"


def _has_shares(options: Mapping[str, Any]) -> bool:
    """Whether an append can use these options; it checks the others itself."""
    shares = options.get("splits")
    if not isinstance(shares, Mapping) or not {"label", "shards", "shard_bytes"} <= options.keys():
        return False
    return all(isinstance(share, str) and _SHARE.fullmatch(share) for share in shares.values())


def _of_generations(manifest: Manifest) -> Iterator[str]:
    left = Counter({name: split.records for name, split in manifest.splits.items()})
    shards_left = Counter({name: split.shards for name, split in manifest.splits.items()})
    most, most_shards = left.copy(), shards_left.copy()  # an append does not count what was lost before it
    for entry in manifest.lost:
        most[entry.split] += entry.records
        most_shards[entry.split] += 1
    records: Counter[str] = Counter()
    shards: Counter[str] = Counter()
    for options in (manifest.options, *(generation.options for generation in manifest.generations)):
        if not _has_shares(options):
            yield "its options lack the shares of the splits"
    for number, generation in enumerate(manifest.generations):
        if not 0 < generation.classes <= len(manifest.classes):
            yield f"generation {number} has {generation.classes} classes, the dataset {len(manifest.classes)}"
        if generation.records.keys() != generation.shards.keys():
            yield f"generation {number} has records and shards of different splits"
        if min((*generation.records.values(), *generation.shards.values()), default=0) < 0:
            yield f"generation {number} has a negative number of records or shards"
        shards.update(generation.shards)
        records.update(generation.records)
    for name in records.keys() | left.keys() if manifest.generations else ():
        if not left[name] <= records[name] <= most[name] or not shards_left[name] <= shards[name] <= most_shards[name]:
            yield f"its generations wrote other numbers of records or shards for split {name!r} than it has"
