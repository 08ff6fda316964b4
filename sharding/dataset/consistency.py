"""Whether what a dataset says of itself agrees: a sealed file may be another program's, or forged with right checksums.

So what opens needs no second look wherever it is used. Shards and their indexes are held against it as they are read.
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

from ..errors import CorruptionError, DatasetError, RingfeedError
from ..formats.example_encode import RecordLayout, is_layout_of
from ..formats.shard_encode import COMPRESSIONS
from ..messages import brief
from ..schema import class_array
from .file_names import TABLE_NAMES
from .manifest import MANIFEST_NAME, Manifest, ShardInfo

__all__ = ["check_manifest", "check_shards", "check_table", "contradiction_error", "corruption_errors"]

_MOST = 1 << 62  # records: sums of a few such numbers fit in 64 bits

_SHARE = re.compile(r"[0-9]+(/[1-9][0-9]*)?")


def check_manifest(manifest: Manifest, where: str) -> None:
    """Hold what `dataset.json` says against itself.

    Args:
        manifest: as it was read.
        where: it was, for the error.

    Raises:
        DatasetError: it contradicts itself.
    """
    problems = (*_of_schema(manifest), *_of_splits(manifest), *_of_generations(manifest))
    if problems:
        raise contradiction_error(where, problems[0])


def check_table(manifest: Manifest, shards: Sequence[ShardInfo], where: str) -> None:
    """Hold the rows of the table against each other, and against the names that `dataset.json` knows.

    Raises:
        DatasetError: a row cannot be of this dataset.
    """
    if strange := set(map(attrgetter("split"), shards)).difference(manifest.splits):
        raise contradiction_error(where, f"it has shards of split {min(strange)!r}, unknown to {MANIFEST_NAME}")
    others = (MANIFEST_NAME, manifest.shards_path, *manifest.files)
    names = {*others, *map(attrgetter("path"), shards), *map(attrgetter("index_path"), shards)}
    if len(names) < len(others) + 2 * len(shards):
        raise contradiction_error(where, "two of its files have one name")


def check_shards(manifest: Manifest, shards: Sequence[ShardInfo], where: str) -> None:
    """Hold the rows of the table against the totals in `dataset.json`.

    Raises:
        DatasetError: a split has other shards or records than its totals say.
    """
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
    """The error of a file whose checksum is right, and whose content cannot be.

    Args:
        where: the file is.
        problem: in words.
    """
    return DatasetError(
        f"{where} is as it was written, but contradicts itself, which ringfeed's own never does: {problem}; "
        "build the dataset again"
    )


@contextmanager
def corruption_errors(where: str) -> Iterator[None]:
    """Read a file whose checksum was right: what goes wrong is that it holds other than the manifest says.

    Args:
        where: the file is.

    Raises:
        CorruptionError: in the place of what the reading of strange bytes raises.
    """
    try:
        yield
    except RingfeedError:
        raise
    except (ArithmeticError, LookupError, OSError, TypeError, ValueError, zlib.error, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the system; those of Arrow's decoders have none
            raise
        raise CorruptionError(
            f"{where} is as it was written, but not what {MANIFEST_NAME} says of it: {brief(error)}; see more with: "
            "shard-dataset verify --deep, or build the dataset again"
        ) from error


def _of_schema(manifest: Manifest) -> Iterator[str]:
    schema = manifest.schema
    if manifest.compression not in COMPRESSIONS.get(manifest.shard_format, ()):
        yield f"no shards are of format {manifest.shard_format!r} and compression {manifest.compression!r}"
    if not schema.features:
        yield "it has no features"
    if schema.label is None:
        if manifest.classes != (None,):
            yield f"it has {len(manifest.classes)} classes, and no label"
    else:
        yield from _of_classes(manifest)
    for layout in (manifest.layout, *(generation.layout for generation in manifest.generations)):
        if layout is not None and not _fits(manifest, layout):
            yield "its layout is not one of its features"


def _fits(manifest: Manifest, layout: RecordLayout) -> bool:
    return manifest.shard_format == "tfrecord" and is_layout_of(layout, manifest.schema)


def _of_classes(manifest: Manifest) -> Iterator[str]:
    schema, classes = manifest.schema, list(manifest.classes)
    if schema[schema.label or ""].shape != ():
        yield f"its label {schema.label!r} is no single value"
    try:
        values = class_array(schema, classes)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        yield f"its classes are no values of its label {schema.label!r}: {brief(error)}"
        return
    if values.null_count or len(values.unique()) < len(values):
        yield "its classes do not differ"


def _of_splits(manifest: Manifest) -> Iterator[str]:
    if not manifest.splits:
        yield "it has no splits"
    features = set(manifest.schema.names)
    for name, split in manifest.splits.items():
        if re.fullmatch(r"\w+", name, re.ASCII) is None:
            yield f"{name!r} is no name of a split"
        yield from _of_counts(manifest, f"split {name!r}", split.records, split.class_counts)
        if split.records >= _MOST or not 0 <= split.shards <= split.records:
            yield f"split {name!r} has {split.records} records in {split.shards} shards"
        if set(split.statistics) != features:
            yield f"split {name!r} has statistics of other features than there are"
    for lost in manifest.lost:
        yield from _of_counts(manifest, f"what was lost of {lost.path!r}", lost.records, lost.class_counts)
    if TABLE_NAMES.fullmatch(manifest.shards_path) is None:
        yield f"{manifest.shards_path!r} is no name of a table of shards"


def _of_counts(manifest: Manifest, what: str, records: int, counts: Sequence[int]) -> Iterator[str]:
    if len(counts) != len(manifest.classes):
        yield f"{what} has counts of {len(counts)} classes, of {len(manifest.classes)}"
    elif sum(counts) != records:
        yield f"{what} has {records} records, and of its classes {sum(counts)}"


def _has_shares(options: Mapping[str, Any]) -> bool:
    """Whether an append can follow them; other options are looked at where they are taken up."""
    shares = options.get("splits")
    if not isinstance(shares, Mapping) or not {"label", "shards", "shard_bytes"} <= options.keys():
        return False
    return all(isinstance(share, str) and _SHARE.fullmatch(share) for share in shares.values())


def _of_generations(manifest: Manifest) -> Iterator[str]:
    left = Counter({name: split.records for name, split in manifest.splits.items()})
    shards_left = Counter({name: split.shards for name, split in manifest.splits.items()})
    most, most_shards = left.copy(), shards_left.copy()  # what an append found lost, it does not count
    for entry in manifest.lost:
        most[entry.split] += entry.records
        most_shards[entry.split] += 1
    records: Counter[str] = Counter()
    shards: Counter[str] = Counter()
    for options in (manifest.options, *(generation.options for generation in manifest.generations)):
        if not _has_shares(options):
            yield "its options have no shares of the splits"
    for number, generation in enumerate(manifest.generations):
        if not 0 < generation.classes <= len(manifest.classes):
            yield f"generation {number} has {generation.classes} classes, of {len(manifest.classes)}"
        if generation.records.keys() != generation.shards.keys():
            yield f"generation {number} has records and shards of different splits"
        if min((*generation.records.values(), *generation.shards.values()), default=0) < 0:
            yield f"generation {number} has a negative number of records or shards"
        shards.update(generation.shards)
        records.update(generation.records)
    for name in records.keys() | left.keys() if manifest.generations else ():
        if not left[name] <= records[name] <= most[name] or not shards_left[name] <= shards[name] <= most_shards[name]:
            yield f"its generations have written other records or shards of split {name!r} than it has"
