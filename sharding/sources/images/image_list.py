"""Lists of images: a table of any kind with a column of paths, and what it says of each image in other columns.

A plain text of one path a line (`.txt`, `.lst`) is one, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...errors import SourceError
from ...schema import Feature, Schema
from ...storage.urls import normalize_url
from ..base import BadRecord, Part, Reject, Source, fail_on_bad
from ..files.find import plain_name, resolve_relative
from ..files.record_places import record_places
from .image_files import IMAGE_FEATURES, ImageCheck, file_sizes, find_bad_files, image_fault, read_images
from .path_list import LINE_SUFFIXES, LineSource

__all__ = ["URL", "ImageListSource", "missing_path_record"]

_PATH_NAMES = ("image", "path", "file", "filename", "file_name")
_OWN_SIZES = ("height", "width")  # the images' own; what a list says of them is not taken over
_SAMPLE_FILES = 16
URL = "\0url"  # a column of the drafts, null where a record names no image; no table has such a name


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageListSource:
    """A source of the images that a table names; its parts are the table's.

    The records: ``image`` (the file's bytes), ``height``, ``width``, the table's other columns, and ``path`` as it
    stands in the table: relative to the table's folder, absolute on this machine, or a URL.
    """

    url: str
    table: Source
    path_column: str
    schema: Schema

    @classmethod
    def open(cls, url: str, label: str | None, open_table: Callable[[str, str | None], Source]) -> ImageListSource:
        """Open the table.

        Args:
            url: of the table.
            label: one of its columns.
            open_table: opens any other source by its URL and label.

        Raises:
            SourceError: it has no column of paths, or several, or the label is that column.
        """
        table: Source = (LineSource.open if plain_name(url).endswith(LINE_SUFFIXES) else open_table)(url, label)
        path_column = _path_column(table.schema, url)
        if label == path_column:
            raise SourceError(f"{url}: the column {label!r} names the images; the label has to be another")
        if label in _OWN_SIZES:
            raise SourceError(f"{url}: {label!r} is the images' own here; give the list's column another name")
        others = [feature for feature in table.schema.features if feature.name not in (path_column, *_OWN_SIZES)]
        features = (*IMAGE_FEATURES, *others, Feature(name="path", dtype="string"))
        return cls(url=url, table=table, path_column=path_column, schema=Schema(features=features, label=label))

    @property
    def parts(self) -> tuple[Part, ...]:
        """Of the table."""
        return tuple(self.table.parts)

    @property
    def fingerprint(self) -> str:
        """Of the table; that the images stay as they are is not looked at."""
        return self.table.fingerprint

    def labels(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.Array]:
        """The table's; no image is opened."""
        return self.table.labels(part, reject)

    def drafts(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.RecordBatch]:
        """The table's records, and the folder that their paths are relative to; no image is opened."""
        for batch in self.table.drafts(part, reject):
            yield self._draft(batch, part.path)

    def sample(self, part: Part, records: int) -> pa.RecordBatch:
        """The first few: their images are to be opened one by one."""
        return self._draft(self.table.sample(part, min(records, _SAMPLE_FILES)), part.path)

    def _draft(self, batch: pa.RecordBatch, table: str) -> pa.RecordBatch:
        """With every path in full, in a column beside it."""
        batch = self.table.complete(batch)
        paths = batch.column(self.path_column).to_pylist()
        urls = pa.array([_locate(table, path) if path else None for path in paths], pa.string())
        names = [name for name in self.schema.names if name not in ("image", *_OWN_SIZES, "path")]
        columns = [batch.column(name) for name in names]
        return pa.RecordBatch.from_arrays([*columns, batch.column(self.path_column), urls], names=[*names, "path", URL])

    def complete(self, drafts: pa.RecordBatch) -> pa.RecordBatch:
        """Read the files, and check that each is a whole image."""
        urls = drafts.column(URL)
        if urls.null_count:
            fail_on_bad(missing_path_record(self.url, ""))
        columns = read_images(urls.to_pylist())
        columns |= {name: drafts.column(name) for name in self.schema.names if name not in columns}
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema.arrow)

    def late_bytes(self, part: Part, drafts: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """The files' sizes, asked of the file system: no image is opened."""
        urls = drafts.column(URL)
        if urls.null_count:
            fail_on_bad(missing_path_record(part.path, ""))
        return file_sizes(urls.to_pylist())

    def places(self, part: Part, positions: npt.NDArray[np.int64], rejected: Sequence[BadRecord]) -> list[str]:
        """In the table."""
        return record_places(self.table, part, positions, rejected)

    def check(self, part: Part, reject: Reject, fault: ImageCheck = image_fault) -> Iterator[pa.Array]:
        """Read the files and look at each; by default, as `complete` will."""
        first = 0
        passed_over: list[BadRecord] = []  # what is wrong with the table's own records was said with its labels
        for batch in self.drafts(part, passed_over.append):
            urls = batch.column(URL)
            nameless = np.flatnonzero(urls.is_null().to_numpy(zero_copy_only=False))
            files: list[str | BadRecord] = urls.to_pylist()
            if len(nameless):
                told = self.places(part, nameless + first, passed_over)
                for i, place in zip(nameless.tolist(), told, strict=True):
                    files[i] = missing_path_record(part.path, place)
            for positions in find_bad_files(files, None, reject, fault):
                yield pa.compute.add(positions, first)
            first += batch.num_rows


def _path_column(schema: Schema, url: str) -> str:
    """The one of a known name; or the only one, as of a plain text of one path a line."""
    found = [name for name in schema.names if name in _PATH_NAMES]
    if not found and len(schema.names) == 1:
        found = list(schema.names)
    if not found:
        raise SourceError(f"{url} has no column of paths; name it one of {', '.join(_PATH_NAMES)}")
    if len(found) > 1:
        raise SourceError(f"{url} has several columns of paths ({', '.join(found)}); keep one")
    feature = schema[found[0]]
    if (feature.dtype, feature.shape) != ("string", ()):
        raise SourceError(f"{url}: the column {feature.name!r} holds {feature.dtype} values, no paths of images")
    return feature.name


def _locate(table: str, path: str) -> str:
    return normalize_url(path, "a path") if path.startswith("/") or "://" in path else resolve_relative(table, path)


def missing_path_record(url: str, place: str) -> BadRecord:
    """A record with no path, or an empty one."""
    return BadRecord(path=url, place=place, reason="a record names no image")
