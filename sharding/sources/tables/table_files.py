"""Base of the Parquet, Arrow IPC and ORC sources: tables united by the names of their columns, read by column."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import ClassVar, TypeVar

import pyarrow as pa

from ringfeed.sharding.compute.arrow_casts import cast_column, cast_to_feature
from ringfeed.sharding.compute.batches import BATCH_ROWS, slice_batch
from ringfeed.sharding.errors import ConfigError, RangesError, RingfeedError, SourceError
from ringfeed.sharding.messages import brief
from ringfeed.sharding.schema import Feature, Schema
from ringfeed.sharding.sources.base import (
    NO_FEATURES,
    OWN_SIZES,
    SKIP_REMEDY,
    BadRecord,
    Part,
    ReadSizes,
    RecordSource,
    Reject,
    fail_on_bad,
    ignore_bad,
)
from ringfeed.sharding.sources.files.find import fingerprint_files, require_files
from ringfeed.sharding.sources.files.hive_partitions import Partitions, find_partitions
from ringfeed.sharding.sources.files.http_listing import lacks_ranges
from ringfeed.sharding.sources.files.inflation import impossible_claim
from ringfeed.sharding.sources.files.open import open_file, source_error
from ringfeed.sharding.sources.files.snapshot import SourceFile
from ringfeed.sharding.storage.storage import Storage

from .categories import agreed_categories
from .held_ranges import HeldRanges
from .schema_union import unite_schemas
from .structs import Path, UnreadableColumnError, flatten_structs, path_to_read
from .table_schemas import check_features, class_names, decimal_features, feature_of

_PART_ROWS, _PART_BYTES = 1 << 18, 64 << 20
Self = TypeVar("Self", bound="TableSource")


class _DamagedError(SourceError):
    """A file is damaged, so its block may be skipped."""


@contextmanager
def _suggest_skipping() -> Iterator[None]:
    try:
        yield
    except _DamagedError as error:
        raise _DamagedError(f"{error}, or {SKIP_REMEDY}") from error.__cause__


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource(RecordSource):
    """A source of tables united by the names of their columns; folder names may hold partition keys, more columns.

    The pieces of a part are its blocks, which damage makes unreadable as a whole, each with the number of its records.
    """

    kind: ClassVar[str]  # name of the format, for messages
    reads_fields: ClassVar[bool] = False  # whether `read` takes the dotted name of a struct's field

    partitions: Partitions  # columns from folder names, the last of the schema
    repeated: Partitions  # partition keys that the files hold as columns, too, which must agree
    # Names of all columns in the files, if the source was narrowed: a record is bad if any of its values is damaged
    narrowed_from: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()  # unwanted columns that no feature can hold
    # `declared`, `promoted`, `missing`, `paths`: see `SchemaUnion`
    declared: Mapping[str, Feature] = field(default_factory=dict)
    promoted: Mapping[str, pa.DataType] = field(default_factory=dict)
    missing: Mapping[str, frozenset[str]] = field(default_factory=dict)
    paths: Mapping[str, Path] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()  # see `NamedClassesSource`
    unit: str = "ns"  # unit that times are read in, where the format leaves it to its reader

    @classmethod
    @abstractmethod
    def inspect(cls, file: SourceFile, sizes: ReadSizes) -> tuple[pa.Schema, Sequence[Part]]:
        """Return the schema of a file and its parts, from its head or footer."""

    @classmethod
    def settle(
        cls, schemas: Sequence[tuple[str, pa.Schema]], wanted: Callable[[str], bool]
    ) -> tuple[list[tuple[str, pa.Schema]], str]:
        """Return the schemas, and the `unit` of times that they are in, if the format leaves it to its reader."""
        return list(schemas), "ns"

    @abstractmethod
    def read(self, part: Part, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read columns of a part, in any order, in batches of any size."""

    def count(self, part: Part) -> int:
        """Return the number of records of a part."""
        return sum(records for _, records in part.pieces)

    def blocks(self, part: Part) -> Iterator[tuple[Part, int]]:
        """Yield the blocks that damage makes unreadable as a whole, with their records."""
        first = part.first_record
        for block, records in part.pieces:
            yield Part(path=part.path, pieces=((block, records),), first_record=first), records
            first += records

    def head(self, part: Part, columns: Sequence[str], records: int) -> Iterator[pa.RecordBatch]:
        """Read the first records, as `read` does, and as little else as the format allows; fewer if they are large."""
        return self.read(part, columns)

    @classmethod
    def open(
        cls: type[Self],
        url: str,
        label: str | None,
        features: Mapping[str, Feature] = NO_FEATURES,
        wanted: Callable[[str], bool] = lambda _: True,
        sizes: ReadSizes = OWN_SIZES,
    ) -> Self:
        """Read the heads or footers of all files; see `open_source`.

        Declared features apply to columns that have none of their own, or not the same in all files.

        Raises:
            SourceError: there is no file, a file is damaged, a wanted column has no common type in all files, partition
                keys differ, or no feature can hold a wanted column.
            ConfigError: no wanted column is left.
        """
        files = require_files(url, cls.suffixes, f"{cls.kind} file")
        schemas: list[tuple[str, pa.Schema]] = []
        parts: list[Part] = []
        for file in files:
            schema, file_parts = cls.inspect(file, sizes)
            schemas.append((file.url, schema))
            parts += file_parts
        schemas, unit = cls.settle(schemas, wanted)
        names_of_numbers, features = _names_of_numbers(schemas, label, features)
        union = unite_schemas(schemas, wanted, features)
        names = [field.name for field in union.fields]
        texts = [name for name, feature in features.items() if feature.dtype == "string"]
        keys = find_partitions(url, [file.url for file in files], texts)
        _check_columns_of_keys(keys.names, union.missing)
        partitions = keys.without(names)
        typed = {field.name: field for field in Schema(features=tuple(union.declared.values())).arrow}
        fields = [typed.get(field.name) or agreed_categories(field, schemas, features) for field in union.fields]
        odd = [field.name for field in fields if not (wanted(field.name) or feature_of(field))]
        fields = [field for field in fields if field.name not in odd]
        if (odd or union.left_out) and not fields:
            raise ConfigError(f"{url}: no column is left; leave fewer out")
        if label in (None, *names, *partitions.names):  # else `Schema` reports the missing label first
            check_features(fields)
        return cls(
            url=url,
            schema=Schema.from_arrow(pa.schema([*fields, *partitions.fields]), label),
            parts=tuple(parts),
            fingerprint=fingerprint_files(files, (str(partitions.values(file.url)) for file in files)),
            partitions=partitions,
            repeated=keys.only(names),
            left_out=(*union.left_out, *odd),
            declared=union.declared,
            promoted=union.promoted,
            missing=union.missing,
            paths=union.paths,
            class_names=names_of_numbers,
            unit=unit,
        )

    def labels(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.Array]:
        """Read the label column alone, or none if folders name the label, unless records may be rejected."""
        label = self.schema.label
        if reject is not fail_on_bad:
            for batch in self.drafts(part, reject):
                yield pa.nulls(len(batch)) if label is None else batch.column(label)
        elif label is None:
            yield pa.Array.from_buffers(pa.null(), self.count(part), [None])  # `pa.nulls` takes time for each row
        elif label in self.partitions.names:
            rows = self.count(part)
            for start in range(0, rows, BATCH_ROWS):
                yield self.partitions.column(label, part.path, min(BATCH_ROWS, rows - start))
        else:
            for batch in self._bounded(part, [label]):
                yield self.schema[label].conform(self._cast(part, batch).column(label))

    def drafts(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.RecordBatch]:
        """Read the records; if bad ones are skipped, read each block once before, with all its columns."""
        for block in [part] if reject is fail_on_bad else self._readable(part, reject):
            for batch in self._bounded(block, self._in_files):
                yield self._conformed(block, batch)

    def sample(self, part: Part, records: int) -> pa.RecordBatch:
        """Read the head of the first readable block; the passes over all records report the bad ones."""
        with _suggest_skipping():
            try:
                batch = next(self._read(part, self._in_files, records), None)
            except _DamagedError:
                block = next(self._readable(part, ignore_bad), None)
                if block is None:
                    raise
                batch = next(self._read(block, self._in_files, records), None)
        batch = None if batch is None else next(slice_batch(batch), batch)
        return self._conformed(part, batch).slice(0, records)

    def narrow(self: Self, columns: Collection[str]) -> Self:
        """Return the same records with these columns alone; no others are read."""
        names = self.narrowed_from or tuple(self._in_files)
        return replace(self, schema=self.schema.only(columns), narrowed_from=names)

    @property
    def _in_files(self) -> list[str]:
        return [name for name in self.schema.names if name not in self.partitions.names]

    def _readable(self, part: Part, reject: Reject) -> Iterator[Part]:
        """Yield the readable blocks of a part; the records of the others are bad."""
        for block, records in self.blocks(part):
            try:
                for _ in self._read(block, self.narrowed_from or self._in_files):
                    pass
            except _DamagedError as error:
                reason = f"it lies in a damaged block of {records} ({brief(error.__cause__ or error)})"
                numbers = () if reject is ignore_bad else range(block.first_record, block.first_record + records)
                for number in numbers:  # damage may claim billions
                    reject(BadRecord(path=part.path, place=f"record {number}", reason=reason, remedy="write it again"))
            else:
                yield block

    def _conformed(self, part: Part, batch: pa.RecordBatch | None) -> pa.RecordBatch:
        if batch is None:
            return self.schema.empty
        try:
            return self.schema.conform(self.partitions.append(self._cast(part, batch), part.path))
        except pa.ArrowInvalid as error:  # values of a dictionary, repeated beyond 2 GiB
            raise source_error(
                part.path, error, "write it again in smaller batches, or without dictionaries"
            ) from error

    def _cast(self, part: Part, batch: pa.RecordBatch) -> pa.RecordBatch:
        missing = self.missing.get(part.path, ())
        for i, name in enumerate(batch.schema.names):
            if name in missing:
                continue
            if name in self.repeated.names:
                self.repeated.check(name, batch.column(i), part.path)
            if name in self.declared:
                what = f"{part.path}: column {name!r} as {self.declared[name].dtype}"
                batch = batch.set_column(i, name, cast_to_feature(batch.column(i), self.declared[name], what))
            elif name in self.promoted:
                what = f"{part.path}: column {name!r} as {self.promoted[name]}, as other files need it"
                batch = batch.set_column(i, name, cast_column(batch.column(i), self.promoted[name], what))
        return batch

    def _bounded(self, part: Part, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        with _suggest_skipping():
            for batch in self._read(part, columns):
                yield from slice_batch(batch)

    def _read(self, part: Part, columns: Sequence[str], head: int | None = None) -> Iterator[pa.RecordBatch]:
        """Read columns, or their first `head` records, including columns that are fields of structs.

        Columns that the file lacks are nulls.
        """
        missing = self.missing.get(part.path, frozenset())
        present = [name for name in columns if name not in missing]
        if columns and not present:
            rows = self.count(part)
            for start in range(0, rows, BATCH_ROWS):
                yield self._with_missing(columns, None, min(BATCH_ROWS, rows - start))
            return
        paths = [path_to_read(name, self.paths) for name in present]
        names = list(dict.fromkeys(".".join(path) if self.reads_fields else path[0] for path in paths))
        batches = self.read(part, names) if head is None else self.head(part, names, head)
        if self.paths:
            batches = self._flatten(part, batches, present)
        for batch in batches:
            yield batch if len(present) == len(columns) else self._with_missing(columns, batch, batch.num_rows)

    def _with_missing(self, columns: Sequence[str], batch: pa.RecordBatch | None, rows: int) -> pa.RecordBatch:
        """Return the columns of a batch, and nulls for those that it lacks."""
        kinds = {feature.name: feature.arrow_type for feature in self.schema.features}
        filled = [
            batch.column(name)
            if batch is not None and name in batch.schema.names
            else pa.nulls(rows, kinds.get(name, pa.null()))
            for name in columns
        ]
        return pa.RecordBatch.from_arrays(filled, names=list(columns))

    def _flatten(
        self, part: Part, batches: Iterator[pa.RecordBatch], columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            try:
                yield flatten_structs(batch, columns, self.paths)
            except UnreadableColumnError as error:
                raise SourceError(f"{part.path}: {error}") from error


def check_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Check the offsets and text of a batch, which Arrow's readers trust, and return the batch.

    Raises:
        pa.ArrowInvalid: an offset lies beyond the data, or a string is not UTF-8.
    """
    batch.validate(full=True)
    return batch


def part_limits(sizes: ReadSizes) -> tuple[int, int]:
    """Return the rows and the bytes at which a part ends."""
    return sizes.part_rows or _PART_ROWS, sizes.part_bytes or _PART_BYTES


def group_blocks(rows: Sequence[int], stored_bytes: Sequence[int], sizes: ReadSizes) -> Iterator[tuple[int, int, int]]:
    """Group blocks of a file into parts; yield the first block, the end, and the first record's number of each part.

    A part ends with the block that brings it to `part_rows` or `part_bytes`: by default 262,144 rows or 64 MiB.

    >>> list(group_blocks([5, 5, 5, 5, 5], [1, 1, 9, 1, 1], ReadSizes(part_rows=10, part_bytes=8)))
    [(0, 2, 0), (2, 3, 10), (3, 5, 15)]
    """
    part_rows, part_bytes = part_limits(sizes)
    starts = [0]
    held_rows = held_bytes = 0
    for block, (block_rows, block_bytes) in enumerate(zip(rows, stored_bytes, strict=True), start=1):
        held_rows, held_bytes = held_rows + block_rows, held_bytes + block_bytes
        if held_rows >= part_rows or held_bytes >= part_bytes or block == len(rows):
            starts.append(block)
            held_rows = held_bytes = 0
    for start, stop in pairwise(starts):
        yield start, stop, sum(rows[:start])


@contextmanager
def open_table(
    path: str, kind: str, *, mapped: bool = False, read_ahead: bool = False, held: bool = False
) -> Iterator[pa.NativeFile]:
    """Open a file of tables; errors that Arrow raises in the body then name the file.

    Args:
        path: path or URL of the file.
        kind: name of the format, for errors.
        mapped: whether to map a local file into memory.
        read_ahead: whether the file is read from start to end, not at random.
        held: whether what was read of a file in a store is held until it is closed, to be read again.

    Raises:
        SourceError: the file is damaged.
        StorageError: the store refuses.
    """
    with open_file(path, read_ahead=read_ahead) as file:
        local = Storage(path).local_path  # Arrow reads local files itself, without Python in between
        try:
            if local is None:
                yield pa.PythonFile(HeldRanges(file) if held else file, "r")
            else:
                yield pa.memory_map(str(local)) if mapped else pa.OSFile(str(local))
        except MemoryError as error:
            if (claim := impossible_claim(error)) is None:
                raise
            raise _DamagedError(
                f"{path} claims a buffer of {claim:,} bytes, more than this machine's memory; the file is damaged or "
                f"not {kind}; write it again"
            ) from error
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if isinstance(error, RingfeedError) or (isinstance(error, OSError) and error.errno is not None):
                raise
            if lacks_ranges(error):
                raise RangesError.of(path) from error
            remedy = f"the file is damaged or not {kind}; write it again"
            if "Exceeded size limit" in str(error):
                remedy = f"{remedy}, or its footer is larger than Arrow reads: write fewer columns, or fewer row groups"
            raise _DamagedError(str(source_error(path, error, remedy))) from error


def _names_of_numbers(
    schemas: Sequence[tuple[str, pa.Schema]], label: str | None, features: Mapping[str, Feature]
) -> tuple[tuple[str, ...], dict[str, Feature]]:
    """Return the names of the label's numbers, if the files have some, and the features that are left to declare.

    A label declared as numbers keeps them; one that has names is not declared. Decimals are, as what loses nothing.
    """
    declared = None if label is None else features.get(label)
    names = class_names(schemas, label) if declared is None or not declared.numeric else ()
    left = {name: feature for name, feature in features.items() if not names or name != label}
    return names, {**decimal_features(schema for _, schema in schemas), **left}


def _check_columns_of_keys(keys: Sequence[str], missing: Mapping[str, Collection[str]]) -> None:
    """Check that files have a column named as a partition key either all or none; `missing` is by file."""
    for name in keys:
        if lacking := next((path for path, names in missing.items() if name in names), None):
            raise SourceError(
                f"{lacking} has no column {name!r}, but other files have one beside the folders of this name; write it "
                "to all files or to none"
            )
