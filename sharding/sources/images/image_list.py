"""Lists of images: tables of any kind with a column of paths, or text files of one path a line (`.txt`, `.lst`)."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.schema import Feature, Schema
from ringfeed.sharding.sources.base import BadRecord, Part, RecordSource, Reject, Source, fail_on_bad
from ringfeed.sharding.sources.files.find import fingerprint_files, plain_name, require_files
from ringfeed.sharding.sources.files.open import open_file
from ringfeed.sharding.sources.files.record_places import record_places

from .image_files import IMAGE_FEATURES, ImageCheck, file_sizes, find_bad_files, image_fault, read_images
from .image_locator import ImageLocator

_PATH_NAMES = ("image", "path", "file", "filename", "file_name")
_OWN_SIZES = ("height", "width")  # measured from the images; columns of these names in the list are ignored
_SAMPLE_FILES = 16
_BLOCK_BYTES, _LINE_BYTES = 4 << 20, 1 << 20
URL = "\0url"  # column of the drafts, null where a record names no image; the zero byte keeps its name apart


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageListSource:
    """A source of the images that a table names; its parts are the table's.

    The columns are ``image`` (the file's bytes), ``height``, ``width``, the table's other columns, and ``path`` as
    written in the table: relative to the table's folder, absolute on this machine, or a URL. Whoever wrote the table
    may be another one than who builds, so files outside of its folder need the latter's consent.
    """

    suffixes: ClassVar[tuple[str, ...]] = ()

    url: str
    table: Source  # source of the list
    path_column: str  # the table's column of paths
    schema: Schema
    images_from: tuple[str, ...] = ()  # folders, besides the table's own, that it may name files in

    @classmethod
    def open(
        cls,
        url: str,
        label: str | None,
        open_table: Callable[[str, str | None], Source],
        images_from: tuple[str, ...] = (),
    ) -> ImageListSource:
        """Open the table with `open_table`, a function of URL and label; see `open_source`.

        Raises:
            SourceError: the table has no column of paths, or several, or the label is that column.
        """
        table: Source = (LineSource.open if plain_name(url).endswith(LineSource.suffixes) else open_table)(url, label)
        path_column = _path_column(table.schema, url)
        if label == path_column:
            raise SourceError(f"{url}: the column {label!r} names the images; choose another one as the label")
        if label in _OWN_SIZES:
            raise SourceError(f"{url}: {label!r} is measured from the images; rename the list's column")
        others = [feature for feature in table.schema.features if feature.name not in (path_column, *_OWN_SIZES)]
        features = (*IMAGE_FEATURES, *others, Feature(name="path", dtype="string"))
        return cls(
            url=url,
            table=table,
            path_column=path_column,
            schema=Schema(features=features, label=label),
            images_from=images_from,
        )

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(self.table.parts)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the table; changes of the images do not show in it."""
        return self.table.fingerprint

    def labels(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.Array]:
        """Read the table's labels; no image is opened."""
        return self.table.labels(part, reject)

    def drafts(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.RecordBatch]:
        """Read the table's records, and resolve their paths; no image is opened."""
        for batch in self.table.drafts(part, reject):
            yield self._draft(batch, part.path)

    def sample(self, part: Part, records: int) -> pa.RecordBatch:
        """Return the first drafts: only a few, as each image costs a request."""
        return self._draft(self.table.sample(part, min(records, _SAMPLE_FILES)), part.path)

    def _draft(self, batch: pa.RecordBatch, table: str) -> pa.RecordBatch:
        """Add a column of the images' full URLs."""
        batch = self.table.complete(batch)
        paths = batch.column(self.path_column).to_pylist()
        locator = ImageLocator(table, self.images_from)
        urls = pa.array([locator.locate(path) if path else None for path in paths], pa.string())
        names = [name for name in self.schema.names if name not in ("image", *_OWN_SIZES, "path")]
        columns = [batch.column(name) for name in names]
        return pa.RecordBatch.from_arrays([*columns, batch.column(self.path_column), urls], names=[*names, "path", URL])

    def complete(self, drafts: pa.RecordBatch) -> pa.RecordBatch:
        """Read the images, and check that each is whole."""
        urls = drafts.column(URL)
        if urls.null_count:
            fail_on_bad(missing_path_record(self.url, ""))
        columns = read_images(urls.to_pylist())
        columns |= {name: drafts.column(name) for name in self.schema.names if name not in columns}
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema.arrow)

    def late_bytes(self, part: Part, drafts: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Ask the file system for the files' sizes; no image is opened."""
        urls = drafts.column(URL)
        if urls.null_count:
            fail_on_bad(missing_path_record(part.path, ""))
        return file_sizes(urls.to_pylist())

    def places(self, part: Part, positions: npt.NDArray[np.int64], rejected: Sequence[BadRecord]) -> list[str]:
        """Return the places of records in the table; see `record_places`."""
        return record_places(self.table, part, positions, rejected)

    def check(self, part: Part, reject: Reject, fault: ImageCheck = image_fault) -> Iterator[pa.Array]:
        first = 0
        skipped: list[BadRecord] = []  # bad records of the table itself: its labels report them
        for batch in self.drafts(part, skipped.append):
            urls = batch.column(URL)
            nameless = np.flatnonzero(urls.is_null().to_numpy(zero_copy_only=False))
            files: list[str | BadRecord] = urls.to_pylist()
            if len(nameless):
                places = self.places(part, nameless + first, skipped)
                for i, place in zip(nameless.tolist(), places, strict=True):
                    files[i] = missing_path_record(part.path, place)
            for positions in find_bad_files(files, None, reject, fault):
                yield pa.compute.add(positions, first)
            first += batch.num_rows


def _path_column(schema: Schema, url: str) -> str:
    """Return the column of paths: one of a known name, or the only column."""
    candidates = [name for name in schema.names if name in _PATH_NAMES]
    if not candidates and len(schema.names) == 1:
        candidates = list(schema.names)
    if not candidates:
        raise SourceError(f"{url} has no column of paths; name it one of {', '.join(_PATH_NAMES)}")
    if len(candidates) > 1:
        raise SourceError(f"{url} has several columns of paths ({', '.join(candidates)}); keep one")
    feature = schema[candidates[0]]
    if (feature.dtype, feature.shape) != ("string", ()):
        raise SourceError(f"{url}: the column {feature.name!r} holds {feature.dtype} values, not paths of images")
    return feature.name


def missing_path_record(url: str, place: str) -> BadRecord:
    """Return the bad record of a list that has no path, or an empty one."""
    return BadRecord(path=url, place=place, reason="a record names no image")


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSource(RecordSource):
    """A source of lines: the column ``path`` holds each line that is not empty. A part is a file."""

    suffixes: ClassVar[tuple[str, ...]] = (".txt", ".lst")

    @classmethod
    def open(cls, url: str, label: str | None) -> LineSource:
        """List the files; raises a SourceError if there is no file, or a label is asked for."""
        files = require_files(url, cls.suffixes, "text file")
        return cls(
            url=url,
            schema=Schema(features=(Feature(name="path", dtype="string"),), label=label),
            parts=tuple(Part(path=file.url) for file in files),
            fingerprint=fingerprint_files(files),
        )

    def labels(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.Array]:
        """Return a null for each record."""
        for batch in self.drafts(part):
            yield pa.nulls(batch.num_rows)

    def drafts(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.RecordBatch]:
        """Read the lines."""
        number, mark = 1, BOM_UTF8
        with open_file(part.path) as file:
            while block := file.read(_BLOCK_BYTES):
                rest = file.readline(_LINE_BYTES)
                if len(rest) == _LINE_BYTES and not rest.endswith(b"\n"):
                    raise SourceError(f"{part.path}: a line is longer than {_LINE_BYTES} bytes; write a path a line")
                lines = (block + rest).removeprefix(mark).split(b"\n")
                mark = b""
                texts = [_decode(part.path, number + i, line) for i, line in enumerate(lines)]
                number += len(lines) - 1
                yield pa.RecordBatch.from_arrays([pa.array(filter(None, texts), pa.string())], schema=self.schema.arrow)


def _decode(path: str, number: int, line: bytes) -> str:
    try:
        return line.removesuffix(b"\r").decode()
    except UnicodeDecodeError as error:
        raise SourceError(f"{path}: line {number} is not UTF-8; convert the file first") from error
