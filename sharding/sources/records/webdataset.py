"""WebDataset archives: tar files whose members of the same name, except for the extension, are a record."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ringfeed.sharding.compute.batches import BATCH_BYTES
from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.schema import Schema
from ringfeed.sharding.sources.base import BadRecord, Part, RecordSource, Reject, fail_on_bad, ignore_bad
from ringfeed.sharding.sources.files.find import fingerprint_files, list_files
from ringfeed.sharding.sources.files.snapshot import SourceFile
from ringfeed.sharding.sources.text.doubtful_text import warn_of_spellings

from .tar import SUFFIXES, Member, TarDamage, TarReader, open_tar
from .webdataset_members import MemberType, MemberTypes, extension_of

_KEY = "__key__"
_BATCH_ROWS = 4096
_MAX_RECORD_BYTES = 1 << 30
_MAX_BAD = 100_000  # an archive with more bad records is refused
_MAX_NAMES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WebDatasetSource(RecordSource):
    """A source of tar archives; a part is an archive.

    The columns are ``__key__``, the members' name, and one for each extension, or for each entry of a JSON object
    (``json.width``, ``json.box.x``).

    The pieces of a part are the bad records that the first pass found, by number: `labels` skips most bytes, and would
    miss some of them.
    """

    suffixes: ClassVar[tuple[str, ...]] = SUFFIXES

    types: tuple[MemberType, ...]  # types of the members that are read

    @classmethod
    def open(cls, url: str, label: str | None, wanted: Callable[[str], bool] = lambda _: True) -> WebDatasetSource:
        """Read all archives once to infer the types of their members; see `open_source`.

        Images (jpg and jpeg, png, webp, gif, bmp) stay as they are. cls, id and index are integers, or text if any of
        them is no integer, or if it is the label and an integer is spelled in two ways, such as 1 and 01; spaces and
        line ends around them are no part of them. txt, text and caption are text. The values of a JSON object become
        columns of a type that holds all of them, or else of their JSON text. npy is a tensor if all arrays are alike.
        All others are bytes.

        The URL may have braces, such as ``train-{000000..000099}.tar``. Members of unwanted extensions are bytes.

        Raises:
            SourceError: there is no archive, or no archive has a record.
        """
        files = [file for name in expand_braces(url) for file in list_files(name, cls.suffixes)]
        if not files:
            raise SourceError(f"there is no tar archive ({', '.join(cls.suffixes)}) at {url}")
        inferred = MemberTypes(wanted, label)
        parts = tuple(_survey(file, inferred) for file in files)
        types = inferred.types()
        if not types:
            fault = next((str(bad) for part in parts for _, bad in part.pieces), "")
            raise SourceError(fault or f"{url} holds no records: no archive has a member with an extension")
        if label is not None and inferred.label_spellings:
            warn_of_spellings(url, label, inferred.label_spellings)
        fields = [pa.field(_KEY, pa.string()), *(column for kind in types for column in kind.columns)]
        return cls(
            url=url,
            schema=Schema.from_arrow(pa.schema(fields), label),
            types=types,
            parts=parts,
            fingerprint=fingerprint_files(files),
        )

    def labels(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.Array]:
        """Read the label's members alone; where the store can seek, others are skipped unread."""
        label = self.schema.label
        for records in _batched(_good(part, reject, [kind for kind in self.types if label in kind.columns.names])):
            if label is None:
                yield pa.nulls(len(records))
            else:
                yield self._columns(part, records, [label])[0]

    def drafts(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.RecordBatch]:
        for records in _batched(_good(part, reject, self.types)):
            yield self._batch(part, records)

    def sample(self, part: Part, records: int) -> pa.RecordBatch:
        """Read the head of an archive; the passes over all records report the bad ones."""
        head = islice(_good(part, ignore_bad, self.types), records)
        return self._batch(part, next(_batched(head), []))

    def narrow(self, columns: Collection[str]) -> WebDatasetSource:
        """Return the same records with these columns alone, or with their keys if none exists."""
        types = tuple(kind for kind in self.types if not set(columns).isdisjoint(kind.columns.names))
        names = [name for name in self.schema.names if name in columns] or [_KEY]
        return replace(self, types=types, schema=self.schema.select(names))

    def places(self, part: Part, positions: npt.NDArray[np.int64], rejected: Sequence[BadRecord]) -> list[str]:
        """Return the numbers, keys and offsets of records; see `record_places`."""
        wanted = set(positions.tolist())
        return [record.place for i, record in enumerate(_good(part, ignore_bad, ())) if i in wanted]

    def _batch(self, part: Part, records: list[_Record]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(self._columns(part, records, self.schema.names), schema=self.schema.arrow)

    def _columns(self, part: Part, records: list[_Record], names: Sequence[str]) -> list[pa.Array]:
        columns = {}
        if _KEY in names:
            columns[_KEY] = pa.array([record.key.decode() for record in records], pa.string())
        try:
            for kind in self.types:
                if set(kind.columns.names) & set(names):
                    arrays = kind.decode([record.contents.get(kind.extension) for record in records])
                    columns.update(zip(kind.columns.names, arrays, strict=True))
        except (TypeError, ValueError) as error:  # Arrow's are ValueErrors too
            raise _changed(part) from error
        return [self.schema[name].conform(columns[name]) for name in names]


def expand_braces(url: str) -> list[str]:
    """Expand ranges of numbers and alternatives in braces, as a shell does.

    Raises:
        SourceError: they expand to more than a million names.

    >>> expand_braces("s3://b/{train,test}-{08..10}.tar")[:4]
    ['s3://b/train-08.tar', 's3://b/train-09.tar', 's3://b/train-10.tar', 's3://b/test-08.tar']
    """
    names, rest = [""], url
    while match := re.search(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}", rest):
        first, last, words = match.groups()
        if words is None:
            if len(names) * (abs(int(last) - int(first)) + 1) > _MAX_NAMES:
                raise SourceError(f"the braces in {url} expand to more than {_MAX_NAMES:,} names")
            step = 1 if int(first) <= int(last) else -1
            width = max((len(text) for text in (first, last) if text[0] == "0"), default=0)
            choices = [f"{number:0{width}d}" for number in range(int(first), int(last) + step, step)]
        else:
            choices = words.split(",")
        names = [name + rest[: match.start()] + choice for name in names for choice in choices]
        rest = rest[match.end() :]
    return [name + rest for name in names]


# --- records of an archive ----------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Record:
    """Consecutive members of one name."""

    number: int  # number of the record in the archive
    offset: int  # offset of its first member
    key: bytes  # name of its members
    contents: dict[str, bytes] = field(default_factory=dict)  # contents of the wanted members, by extension
    extensions: set[str] = field(default_factory=set)
    bytes: int = 0  # size of all members
    fault: str = ""  # why the record is bad; empty: it is not

    def take(self, member: Member, extension: str, archive: TarReader, wanted: Container[str] | None) -> None:
        """Add a member; the members of a bad record are not read."""
        self.bytes += member.size
        if member.sparse:
            self.fault = self.fault or f"its .{extension} is stored sparse; write the archive without --sparse"
        elif extension in self.extensions:
            self.fault = self.fault or f"it has two members .{extension}"
        elif self.bytes > _MAX_RECORD_BYTES:
            self.fault = self.fault or f"it is of more than the {_MAX_RECORD_BYTES:,} bytes that are taken on"
        self.extensions.add(extension)
        if self.fault:
            self.contents.clear()
        elif wanted is None or extension in wanted:
            self.contents[extension] = archive.read()

    @property
    def place(self) -> str:
        """The place of the record in the archive."""
        name = self.key.decode(errors="backslashreplace")[:100]
        return f"record {self.number} ({name!r}) at offset {self.offset}"

    def bad(self, path: str) -> BadRecord:
        """Return the record as a `BadRecord`."""
        return BadRecord(path=path, place=self.place, reason=self.fault)


def _split(name: bytes) -> tuple[bytes, str]:
    """Return the key and the extension of a member; no extension: it belongs to no record."""
    folder, slash, base = name.rpartition(b"/")
    stem, dot, _ = base.partition(b".")
    if not stem or not dot:  # hidden, such as macOS's ._x.jpg, or with no extension
        return b"", ""
    return folder + slash + stem, extension_of(base.decode(errors="backslashreplace"))


def _records(path: str, wanted: Container[str] | None) -> Iterator[_Record]:
    """Yield all records, bad ones too; damage of the archive ends it with a bad record that describes the damage."""
    number = 0
    record: _Record | None = None
    with open_tar(path) as archive:
        try:
            for member in archive:
                key, extension = _split(member.name)
                if not extension:
                    continue
                if record is None or key != record.key:
                    if record is not None:
                        yield record
                        number += 1
                    record = _Record(number=number, offset=member.offset, key=key)
                    record.fault = "" if _is_text(member.name) else "its name is not UTF-8"
                record.take(member, extension, archive, wanted)
        except TarDamage as damage:
            fault = f"{damage}, at offset {damage.offset}; neither this record nor what follows can be trusted"
            start = damage.offset if record is None else record.offset
            yield _Record(number=number, offset=start, key=b"" if record is None else record.key, fault=fault)
            return
    if record is not None:
        yield record


def _is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def _survey(file: SourceFile, types: MemberTypes) -> Part:
    """Read every record of an archive to widen the types; return the part with the bad records."""
    bad: list[tuple[int, BadRecord]] = []
    for record in _records(file.url, None):
        if not record.fault:
            try:
                types.add(record.contents)
            except ValueError as error:
                record.fault = str(error)
        if record.fault:
            bad.append((record.number, record.bad(file.url)))
            if len(bad) > _MAX_BAD:
                raise SourceError(f"{file.url}: more than {_MAX_BAD:,} records are bad; the first: {bad[0][1]}")
    return Part(path=file.url, pieces=tuple(bad))


def _good(part: Part, reject: Reject, types: Sequence[MemberType]) -> Iterator[_Record]:
    """Yield the records that were good in the first pass, with the members of some types."""
    bad = dict(part.pieces)
    for record in _records(part.path, {kind.extension for kind in types}):
        if rejected := bad.pop(record.number, None):
            reject(rejected)
        elif record.fault:
            raise _changed(part)
        else:
            yield record
    if bad:
        raise _changed(part)


def _batched(records: Iterator[_Record]) -> Iterator[list[_Record]]:
    batch: list[_Record] = []
    size = 0
    for record in records:
        batch.append(record)
        size += sum(map(len, record.contents.values()))
        if len(batch) == _BATCH_ROWS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _changed(part: Part) -> SourceError:
    return SourceError(f"{part.path}: the archive changed while it was read; build again")
