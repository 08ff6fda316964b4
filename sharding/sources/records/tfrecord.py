"""TFRecord files of `tf.train.Example`, streamed without TensorFlow, with every checksum checked."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, ClassVar

import numpy as np
import pyarrow as pa

from ringfeed.sharding.compute.batches import BATCH_ROWS
from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.formats.example_columns import ParsedExamples, parse_examples
from ringfeed.sharding.formats.tfrecord import HEADER_BYTES, FrameBlock, FrameDamage, iterate_frames, starts_with_header
from ringfeed.sharding.schema import Feature, Schema
from ringfeed.sharding.sources.base import (
    NO_FEATURES,
    OWN_SIZES,
    BadRecord,
    Part,
    ReadSizes,
    RecordSource,
    Reject,
    fail_on_bad,
    ignore_bad,
)
from ringfeed.sharding.sources.files.find import fingerprint_files, has_pattern, list_files, plain_name
from ringfeed.sharding.sources.files.open import open_file, size_if_seekable
from ringfeed.sharding.sources.files.snapshot import SourceFile

from .example_features import FeatureTypes, column_of

_SUFFIXES = tuple(f".{name}{ending}" for name in ("tfrecord", "tfrecords", "tfrec") for ending in ("", ".gz", ".zlib"))
_NUMBERED = re.compile(r"-\d{3,}-of-\d{3,}$")  # many writers name shards so, without an ending
_BLOCK_BYTES = 4 << 20  # decoded numbers may take eight times as much
_SAMPLE_BYTES = 1 << 20
_PART_BYTES = 64 << 20
_READ_BYTES = 16 << 20  # read at most so much at a time: a damaged length must not allocate gigabytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TFRecordSource(RecordSource):
    """A source of TFRecord files; a part is a run of records of about 64 MiB, or a compressed file.

    Each feature is a column, null in records that lack it. Its type is int64, float32, string if all values are UTF-8,
    or else binary, marked as images if all values start like one. It is a scalar if each record has one value, a list
    of fixed length if each has the same number, and else a variable-length list.

    The pieces of a part are the offsets of its first record and of its end; None: the end of the file.

    Attributes:
        declared: features that the user declared, by name.
        block_bytes: bytes to read at a time.
    """

    suffixes: ClassVar[tuple[str, ...]] = _SUFFIXES

    declared: Mapping[str, Feature]  # features that the user declared, by name
    block_bytes: int = _BLOCK_BYTES  # bytes to read at a time

    @classmethod
    def open(
        cls,
        url: str,
        label: str | None,
        features: Mapping[str, Feature] = NO_FEATURES,
        reject: Reject = fail_on_bad,
        sizes: ReadSizes = OWN_SIZES,
    ) -> TFRecordSource:
        """Read all files once to infer the features, and to find where parts begin; see `open_source`.

        The files of a folder end in one of `suffixes`, or are numbered like ``train-00000-of-00010``. `labels` and
        `drafts` also reject records whose values do not fit a declared feature.

        Raises:
            SourceError: there is no file or no record, a feature has several types, or a declared one is missing.
        """
        files = _find(url)
        types = FeatureTypes(features)
        damages: list[BadRecord] = []

        def note(record: BadRecord) -> None:
            reject(record)
            damages[:] = damages or [record]

        parts = tuple(part for file in files for part in _survey(file, types, note, sizes))
        if types.empty:
            raise SourceError(str(damages[0]) if damages else f"{url} holds no records: the files are empty")
        return cls(
            url=url,
            schema=Schema(features=types.features(url), label=label),
            declared=dict(features),
            block_bytes=sizes.block_bytes or _BLOCK_BYTES,
            parts=parts,
            fingerprint=fingerprint_files(files),
        )

    def labels(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.Array]:
        """Read the label, and decode no other features but the declared ones, whose values may not fit."""
        label = self.schema.label
        wanted = {*self.declared, label}
        features = tuple(feature for feature in self.schema.features if feature.name in wanted)
        for columns, rows in self._columns(part, reject, features, self.block_bytes):
            yield pa.nulls(rows) if label is None else columns[[f.name for f in features].index(label)]

    def drafts(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.RecordBatch]:
        for columns, _ in self._columns(part, reject, self.schema.features, self.block_bytes):
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema.arrow)

    def sample(self, part: Part, records: int) -> pa.RecordBatch:
        """Read the head of a part; the passes over all records report the bad ones."""
        for columns, _ in self._columns(part, ignore_bad, self.schema.features, _SAMPLE_BYTES):
            return pa.RecordBatch.from_arrays(columns, schema=self.schema.arrow).slice(0, records)
        return self.schema.empty

    def _columns(
        self, part: Part, reject: Reject, features: tuple[Feature, ...], block_bytes: int
    ) -> Iterator[tuple[list[pa.Array], int]]:
        """Yield columns of the records that fit, and their number."""
        with _open(part) as stream:
            for block, parsed in _parse(stream, part, reject, block_bytes):
                good = np.ones(len(parsed.kept), bool)
                columns = []
                for feature in features:
                    column, wrong = column_of(feature, parsed.columns.get(feature.name, ()), len(good))
                    if wrong and feature.name not in self.declared:
                        raise SourceError(f"{part.path}: the file changed while it was read; build again")
                    for row in sorted(set(wrong) & set(np.flatnonzero(good).tolist())):
                        reject(_bad(part, block, int(parsed.kept[row]), wrong[row]))
                        good[row] = False
                    columns.append(column)
                if not good.all():
                    columns = [column.filter(pa.array(good)) for column in columns]
                yield columns, int(good.sum())


def _find(url: str) -> list[SourceFile]:
    files = list_files(url, ("",))
    named = [file for file in files if plain_name(file.url).endswith(_SUFFIXES) or _NUMBERED.search(file.url)]
    if not named and (has_pattern(url) or list_files(url, ())):  # the URL names the files themselves
        named = files
    if not named:
        raise SourceError(f"there is no TFRecord file ({', '.join(_SUFFIXES)}, NAME-00000-of-00010) at {url}")
    return named


def _survey(file: SourceFile, types: FeatureTypes, reject: Reject, sizes: ReadSizes) -> Iterator[Part]:
    """Read all records of a file to widen the types, and yield its parts."""
    whole = Part(path=file.url, pieces=(0, None))
    has_records = False

    def note(record: BadRecord) -> None:
        nonlocal has_records
        has_records = True
        reject(record)

    starts = [(0, 0)]
    with _open(whole) as stream:
        for block, parsed in _parse(stream, whole, note, sizes.block_bytes or _BLOCK_BYTES):
            has_records = True
            types.add(parsed, file.url, block.numbers[parsed.kept])
            while stream.splittable:
                first = int(np.searchsorted(block.offsets, starts[-1][0] + (sizes.part_bytes or _PART_BYTES)))
                if first == len(block.offsets):
                    break
                starts.append((int(block.offsets[first]), int(block.numbers[first])))
    if has_records:
        ends = [offset for offset, _ in starts[1:]]
        for (offset, number), end in zip(starts, [*ends, None], strict=True):
            yield Part(path=file.url, pieces=(offset, end), first_record=number)


def _parse(
    stream: _Stream | _Inflated, part: Part, reject: Reject, block_bytes: int
) -> Iterator[tuple[FrameBlock, ParsedExamples]]:
    """Yield blocks of at most `BATCH_ROWS` records, and the contents of those that are Examples."""

    def damaged(damage: FrameDamage) -> None:
        place = f"record {damage.number} at offset {damage.offset}"
        reject(BadRecord(path=part.path, place=place, reason=damage.reason))

    blocks = iterate_frames(
        stream.read, damaged, offset=part.pieces[0], number=part.first_record, block_bytes=block_bytes
    )
    for long in blocks:
        for low in range(0, len(long.starts), BATCH_ROWS):
            block = long.slice(low, low + BATCH_ROWS)
            parsed = parse_examples(block.data, block.starts, block.lengths)
            for row, reason in parsed.bad.items():
                reject(_bad(part, block, row, f"it is no tf.train.Example: {reason}"))
            yield block, parsed


def _bad(part: Part, block: FrameBlock, row: int, reason: str) -> BadRecord:
    place = f"record {block.numbers[row]} at offset {block.offsets[row]}"
    return BadRecord(path=part.path, place=place, reason=reason)


@contextmanager
def _open(part: Part) -> Iterator[_Stream | _Inflated]:
    """Open a part. Whether a file is compressed shows in its first bytes; its name may mislead."""
    start, end = part.pieces
    with open_file(part.path, None) as file:
        if start:
            file.seek(start)
            yield _Stream(file, limit=None if end is None else end - start)
            return
        splittable = size_if_seekable(file) is not None
        head = file.read(HEADER_BYTES)
        gzipped, zipped = head[:2] == b"\x1f\x8b", head[:1] == b"\x78" and int.from_bytes(head[:2], "big") % 31 == 0
        if (gzipped or zipped) and not starts_with_header(head):
            yield _Inflated(_Stream(file, head))
        else:
            yield _Stream(file, head, limit=end, splittable=splittable)


class _Stream:
    """Reads on from the current position of a file, after a head that was read before."""

    def __init__(
        self, file: IO[bytes], head: bytes = b"", *, limit: int | None = None, splittable: bool = False
    ) -> None:
        self._file, self._head, self._left = file, head, limit
        self.splittable = splittable

    def read(self, count: int) -> bytes:
        """Return some bytes; none at the end."""
        count = min(count, _READ_BYTES if self._left is None else min(self._left, _READ_BYTES))
        pieces, self._head = [self._head[:count]], self._head[count:]
        missing = count - len(pieces[0])
        while missing and (piece := self._file.read(missing)):
            pieces.append(piece)
            missing -= len(piece)
        if self._left is not None:
            self._left -= count - missing
        return b"".join(pieces)


class _Inflated:
    """Decompresses gzip or zlib data piece by piece, and several gzip members one after another."""

    splittable = False

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self._inflater = zlib.decompressobj(wbits=47)
        self._pending = b""
        self._problem = ""
        self._ended = False

    def read(self, count: int) -> bytes:
        """Return some bytes; none at the end.

        Raises:
            EOFError: the compressed data is damaged or cut short; all bytes before that were returned.
        """
        while not self._problem:
            if not self._pending:
                self._pending = self._stream.read(1 << 20)
                self._ended = not self._pending
            if self._inflater.eof:
                self._pending = self._pending.lstrip(b"\0")  # gzip allows padding
                if not self._pending and self._ended:
                    return b""
                if not self._pending:
                    continue
                self._inflater = zlib.decompressobj(wbits=47)
            try:
                piece = self._inflater.decompress(self._pending, count)
            except zlib.error as error:
                self._problem = f"the compressed data is damaged ({error})"
                break
            self._pending = self._inflater.unused_data if self._inflater.eof else self._inflater.unconsumed_tail
            if piece:
                return piece
            if self._ended and not self._inflater.eof:
                self._problem = "the compressed file is cut short"
        raise EOFError(self._problem)
