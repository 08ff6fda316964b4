"""Files of tables, read by column: all that Parquet, Arrow IPC and ORC sources share. Not here: any one format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import ClassVar, TypeVar

import pyarrow as pa

from ...compute.arrow_casts import can_become, declared_column
from ...compute.batches import BATCH_ROWS, sliced
from ...errors import ConfigError, RangesError, RingfeedError, SourceError
from ...messages import brief
from ...schema import Feature, Schema
from ...storage.storage import Storage
from ..base import NO_FEATURES, SKIP_REMEDY, BadRecord, CompleteDrafts, Part, Reject, fail_on_bad, ignore_bad
from ..files.find import SourceFile, fingerprint_files, require_files
from ..files.hive_partitions import Partitions, find_partitions
from ..files.http_listing import lacks_ranges
from ..files.open import open_file, translate_errors
from .structs import ElsewhereError, Path, fields_of, flattened, place_of, told_images

__all__ = ["PART_BYTES", "TableSource", "checked", "open_table", "plain_schema", "runs"]

_NAMES_SHOWN = 8
PART_BYTES = 64 << 20  # about so much data makes a part, if its rows do not first
Self = TypeVar("Self", bound="TableSource")


class _DamagedError(SourceError):
    """What a file holds makes no sense."""


@contextmanager
def _telling_to_pass_over() -> Iterator[None]:
    try:
        yield
    except _DamagedError as error:
        raise _DamagedError(f"{error}, or {SKIP_REMEDY}") from error.__cause__


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource(CompleteDrafts, ABC):
    """A source of files that hold tables of one schema, and perhaps more columns in the names of their folders.

    Attributes:
        kind: of the files, for messages.
        suffixes: of their names.
        partitions: the columns that the folders name; the last of the schema.
        narrowed_from: the columns in the files, where the schema has fewer by now: damage in any of them costs records.
        left_out: columns that no feature can hold, and that were not wanted.
        given: the features that columns are given which have none, or not the same in all files.
        paths: of the columns that are fields of structs.
    """

    kind: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    reads_fields: ClassVar[bool] = False  # whether `read` can be asked for a field of a struct, by its dotted name

    url: str
    schema: Schema
    parts: tuple[Part, ...]
    fingerprint: str
    partitions: Partitions
    narrowed_from: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    given: Mapping[str, Feature] = field(default_factory=dict)
    paths: Mapping[str, Path] = field(default_factory=dict)

    @classmethod
    @abstractmethod
    def inspect(cls, file: SourceFile) -> tuple[pa.Schema, Sequence[Part]]:
        """The schema of a file and its parts, from its head or footer."""

    @abstractmethod
    def count(self, part: Part) -> int:
        """Records in a part."""

    @abstractmethod
    def read(self, part: Part, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The columns of a part, in any order, in batches of any size."""

    def blocks(self, part: Part) -> Iterator[tuple[Part, int]]:
        """What damage makes unreadable together, as parts, and the records in each: by default the whole part."""
        yield part, self.count(part)

    def head(self, part: Part, columns: Sequence[str], records: int) -> Iterator[pa.RecordBatch]:
        """As `read`, by a reader that wants no more than the first so many records."""
        return self.read(part, columns)

    @classmethod
    def open(
        cls: type[Self],
        url: str,
        label: str | None,
        features: Mapping[str, Feature] = NO_FEATURES,
        wanted: Callable[[str], bool] = lambda _: True,
    ) -> Self:
        """Read the heads or footers of all files.

        Args:
            url: of a file, a folder or a glob.
            label: the column of the classes, or None.
            features: of columns, by name; used for those that have none of their own, or not the same in all files.
            wanted: whether a column is, by its name; others may have any type.

        Raises:
            SourceError: there is no file, one is damaged, their schemas or partition keys differ, or no feature can
                hold a column.
            ConfigError: none is left that is wanted.
        """
        files = require_files(url, cls.suffixes, f"{cls.kind} file")
        parts: list[Part] = []
        given: dict[str, Feature] = {}
        first: pa.Schema | None = None
        for file in files:
            whole, found = cls.inspect(file)
            schema, dropped, paths = _flat(whole, wanted)
            if first is None:
                first, left_out, paths_in_first = schema, dropped, paths
            told = _declared(schema, first, features)
            _check_alike(schema, first, told, file.url, files[0].url)
            if paths != paths_in_first:
                raise SourceError(f"{file.url}: its structs are other columns in {files[0].url}; write both alike")
            given |= told
            parts += found
        assert first is not None
        texts = [name for name, feature in features.items() if feature.dtype == "string"]
        partitions = find_partitions(url, [file.url for file in files], texts).without(first.names)
        typed = [*Schema(features=tuple(given.values())).arrow, *(f for f in first if f.name not in given)]
        left_out += tuple(field.name for field in typed if not (wanted(field.name) or _feature(field)))
        by_name = {field.name: field for field in typed}
        fields = [by_name[name] for name in first.names if name not in left_out]
        if left_out and not fields:
            raise ConfigError(f"{url}: no column is left; leave fewer out")
        if label in (None, *first.names, *partitions.names):  # else that is the first to be told
            _check_features(fields)
        return cls(
            url=url,
            schema=Schema.from_arrow(pa.schema([*fields, *partitions.fields]), label),
            parts=tuple(parts),
            fingerprint=fingerprint_files(files, (str(partitions.values(file.url)) for file in files)),
            partitions=partitions,
            left_out=left_out,
            given=given,
            paths=paths_in_first,
        )

    def labels(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.Array]:
        """The label column alone; none is read where there is no label, or a folder names it."""
        label = self.schema.label
        if reject is not fail_on_bad:
            for batch in self.drafts(part, reject):
                yield pa.nulls(len(batch)) if label is None else batch.column(label)
        elif label is None:
            yield pa.nulls(self.count(part))
        elif label in self.partitions.names:
            rows = self.count(part)
            for start in range(0, rows, BATCH_ROWS):
                yield self.partitions.column(label, part.path, min(BATCH_ROWS, rows - start))
        else:
            for batch in self._bounded(part, [label]):
                yield self.schema[label].conform(self._cast(part, batch).column(label))

    def drafts(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.RecordBatch]:
        """The records; they are complete. Where some may be bad, each block is read once more before, as a whole."""
        for block in [part] if reject is fail_on_bad else self._readable(part, reject):
            for batch in self._bounded(block, self._in_files):
                yield self._conformed(block, batch)

    def sample(self, part: Part, records: int) -> pa.RecordBatch:
        """The first batch of the first block that can be read, cut short; whoever reads all tells what is wrong."""
        with _telling_to_pass_over():
            try:
                batch = next(self._read(part, self._in_files, records), None)
            except _DamagedError:
                block = next(self._readable(part, ignore_bad), None)
                if block is None:
                    raise
                batch = next(self._read(block, self._in_files, records), None)
        return self._conformed(part, batch).slice(0, records)

    def narrow(self: Self, columns: Collection[str]) -> Self:
        """The same records with these columns alone; no others are read."""
        names = self.narrowed_from or tuple(self._in_files)
        return replace(self, schema=self.schema.only(columns), narrowed_from=names)

    @property
    def _in_files(self) -> list[str]:
        return [name for name in self.schema.names if name not in self.partitions.names]

    def _readable(self, part: Part, reject: Reject) -> Iterator[Part]:
        """The blocks of a part that can be read; the records of the others are bad."""
        for block, records in self.blocks(part):
            try:
                for _ in self._read(block, self.narrowed_from or self._in_files):
                    pass
            except _DamagedError as error:
                reason = f"it lies in a damaged block of {records} ({brief(error.__cause__ or error)})"
                for number in range(block.first_record, block.first_record + records):
                    reject(BadRecord(path=part.path, place=f"record {number}", reason=reason, remedy="write it again"))
            else:
                yield block

    def _conformed(self, part: Part, batch: pa.RecordBatch | None) -> pa.RecordBatch:
        if batch is None:
            return self.schema.empty
        return self.schema.conform(self.partitions.append(self._cast(part, batch), part.path))

    def _cast(self, part: Part, batch: pa.RecordBatch) -> pa.RecordBatch:
        for i, name in enumerate(batch.schema.names):
            if name in self.given:
                what = f"{part.path}: column {name!r} as {self.given[name].dtype}"
                batch = batch.set_column(i, name, declared_column(batch.column(i), self.given[name], what))
        return batch

    def _bounded(self, part: Part, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        with _telling_to_pass_over():
            for batch in self._read(part, columns):
                yield from sliced(batch)

    def _read(self, part: Part, columns: Sequence[str], head: int | None = None) -> Iterator[pa.RecordBatch]:
        """As `read`, or `head`, of columns that may be fields of the file's."""
        places = [place_of(name, self.paths) for name in columns]
        names = list(dict.fromkeys(".".join(place) if self.reads_fields else place[0] for place in places))
        batches = self.read(part, names) if head is None else self.head(part, names, head)
        return self._flattened(part, batches, columns) if self.paths else batches

    def _flattened(
        self, part: Part, batches: Iterator[pa.RecordBatch], columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            try:
                yield flattened(batch, columns, self.paths)
            except ElsewhereError as error:
                raise SourceError(f"{part.path}: {error}") from error


def _flat(schema: pa.Schema, wanted: Callable[[str], bool]) -> tuple[pa.Schema, tuple[str, ...], dict[str, Path]]:
    """A file's schema without structs; the structs that are not wanted as a whole; and the paths of others' fields."""
    found = [entry for field in schema for entry in fields_of(field, wanted)]
    left_out = tuple(field.name for field, path in found if path is None)
    paths = {field.name: path for field, path in found if path and path[1:]}
    return pa.schema([field for field, path in found if path]), left_out, paths


def _declared(schema: pa.Schema, first: pa.Schema, features: Mapping[str, Feature]) -> dict[str, Feature]:
    """Of the features given, those of columns that have none of their own, or another than in the first file."""
    found = {}
    for name, feature in features.items():
        if schema.names.count(name) != 1 or first.names.count(name) != 1:
            continue
        ours, theirs = schema.field(name), first.field(name)
        needed = _feature(ours) is None or _feature(ours) != _feature(theirs)
        if needed and can_become(ours.type, feature) and can_become(theirs.type, feature):
            found[name] = feature
    return found


def _check_alike(schema: pa.Schema, first: pa.Schema, given: Collection[str], path: str, first_path: str) -> None:
    """Schemas are alike if their columns, in whatever order, are read as the same features, or are given one.

    Raises:
        SourceError: names a column that differs.
    """
    if schema.equals(first):
        return
    ours, theirs = ({field.name: field for field in fields} for fields in (schema, first))
    remedy = ""
    for name in [*ours, *theirs]:
        if name not in ours or name not in theirs:
            problem = f"only one of the two has a column {name!r}"
        elif name not in given and _feature(ours[name]) != _feature(theirs[name]):
            problem = f"column {name!r} is {ours[name].type} here and {theirs[name].type} there"
            remedy = ", or say by --cast or --schema what both are to be"
        else:
            continue
        raise SourceError(
            f"{path}: its schema differs from that of {first_path} ({problem}); cast one to the other{remedy}"
        )


def _check_features(fields: Sequence[pa.Field]) -> None:
    odd = [field for field in fields if _feature(field) is None]
    if not odd:
        return
    others = ", ".join(repr(field.name) for field in odd[1:_NAMES_SHOWN]) + ", ..." * (len(odd) > _NAMES_SHOWN)
    also = others and f" (nor those of {others})"
    raise SourceError(
        f"column {odd[0].name!r} has type {odd[0].type}, which no feature can hold{also}; "
        "leave it out by the first --drop-columns or --select, give it a type by --cast (decimals, nulls) or --schema "
        "(lists of lists of one shape, too), or convert it to numbers, strings, bytes or lists of them before"
    )


def _feature(field: pa.Field) -> Feature | None:
    """Of its type; None: it has none."""
    try:
        return Feature.from_arrow(field.remove_metadata())
    except SourceError:
        return None


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """A schema without the metadata of the file but for what tells of images, once its names are found to be text.

    Raises:
        UnicodeDecodeError: one is no UTF-8.
    """
    list(schema.names)
    return told_images(schema)


def checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch, once its offsets and its text are found sound: Arrow's readers take both on trust.

    Raises:
        pa.ArrowInvalid: an offset lies beyond the data, or a string is no UTF-8.
    """
    batch.validate(full=True)
    return batch


def runs(rows: Sequence[int], sizes: Sequence[int], part_rows: int, part_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Put blocks of a file together to parts: first block, end, and number of the first record of each.

    A part ends with the block that brings it to `part_rows` or `part_bytes`.

    >>> list(runs([5, 5, 5, 5, 5], [1, 1, 9, 1, 1], part_rows=10, part_bytes=8))
    [(0, 2, 0), (2, 3, 10), (3, 5, 15)]
    """
    starts = [0]
    held_rows = held_bytes = 0
    for block, (block_rows, block_bytes) in enumerate(zip(rows, sizes, strict=True), start=1):
        held_rows, held_bytes = held_rows + block_rows, held_bytes + block_bytes
        if held_rows >= part_rows or held_bytes >= part_bytes or block == len(rows):
            starts.append(block)
            held_rows = held_bytes = 0
    for start, stop in pairwise(starts):
        yield start, stop, sum(rows[:start])


@contextmanager
def open_table(path: str, kind: str, *, mapped: bool = False, read_ahead: bool = False) -> Iterator[pa.NativeFile]:
    """Open a file of tables; what Arrow finds wrong with it then names the file.

    Args:
        path: of the file.
        kind: of the file, for errors.
        mapped: map it into memory if it is local.
        read_ahead: it is read from start to end, not here and there.

    Raises:
        SourceError: it is damaged.
        StorageError: the store refuses.
    """
    with open_file(path, read_ahead=read_ahead) as file:
        local = Storage(path).local_path  # Arrow reads what is local by itself, without a way through Python
        try:
            if local is None:
                yield pa.PythonFile(file, "r")
            else:
                yield pa.memory_map(str(local)) if mapped else pa.OSFile(str(local))
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if isinstance(error, RingfeedError) or (isinstance(error, OSError) and error.errno is not None):
                raise
            if lacks_ranges(error):
                raise RangesError.of(path) from error
            remedy = f"the file is damaged or no {kind}; write it again"
            if "Exceeded size limit" in str(error):
                remedy = f"{remedy}, or its footer is larger than Arrow reads: write fewer columns, or fewer row groups"
            raise _DamagedError(str(translate_errors(path, error, remedy))) from error
