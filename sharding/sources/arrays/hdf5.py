"""HDF5 files: datasets of equal length are columns: all, or those selected by ``file.h5::/group`` or ``::/a,/b``.

A dataset in a group is named ``group/name``, a field of a compound dataset ``name/field``. Scalar datasets and soft
links are skipped. Data in other files (external links, external storage, virtual datasets) is refused: a missing file
would read as zeros.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import lcm, prod
from types import ModuleType
from typing import IO, Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...compute.batches import BATCH_BYTES
from ...errors import RingfeedError, SourceError
from ...messages import brief
from ...schema import Feature, Schema
from ...storage.storage import Storage
from ..base import SKIP_REMEDY, BadRecord, Part, RecordSource, Reject, fail_on_bad
from ..files.find import fingerprint_files, require_files
from ..files.open import open_file, source_error
from .array_columns import (
    Leaf,
    batch_rows,
    fixed_feature,
    leaves_of,
    part_bounds,
    select_arrays,
    to_arrow,
    unsupported_array,
)
from .url_selection import split_selection

__all__ = ["Hdf5Source"]

_VARIABLE_BYTES = 1 << 16  # assumed size of a variable-length value, until some were read
_CACHE_BYTES = 64 << 20  # cache of a column's chunks, so that a chunk across two batches is decompressed once
_BUFFER_BYTES = 1 << 20  # read-ahead of remote files: HDF5 reads metadata in small pieces
_MAX_ALIGN_ROWS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """A feature, and the dataset, and fields in it, that hold its values."""

    feature: Feature
    dataset: str
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hdf5Source(RecordSource):
    """A source of HDF5 files; a part is a range of rows, of whole chunks where chunks are small enough.

    The pieces of a part are the bounds of its half-open range of rows.

    Attributes:
        columns: columns to read.
        checked: all columns, even if the source was narrowed: a record is bad if any of its values is damaged.
        left_out: names of unwanted datasets and groups that cannot be columns.
    """

    suffixes: ClassVar[tuple[str, ...]] = (".h5", ".hdf5")

    columns: tuple[_Column, ...]
    checked: tuple[_Column, ...]
    left_out: tuple[str, ...] = ()

    @classmethod
    def open(cls, url: str, label: str | None, wanted: Callable[[str], bool] = lambda _: True) -> Hdf5Source:
        """Read the files' descriptions of their datasets; see `open_source`.

        ``::/group`` or ``::/a,/b`` after the URL selects datasets. Unwanted ones may have any type and length.

        Raises:
            SourceError: there is no file, a file is damaged, datasets differ in length or have types that no feature
                holds, or the files' columns differ; or h5py is not installed.
        """
        files_url, picks = split_selection(url)
        files = require_files(files_url, cls.suffixes, "HDF5 file")
        columns: tuple[_Column, ...] = ()
        left_out: dict[str, None] = {}
        parts: list[Part] = []
        for file in files:
            with _open(file.url) as root:
                all_leaves = list(_leaves(root, picks))
                if not all(any(_related(leaf.name, pick) for leaf in all_leaves) for pick in picks):
                    all_leaves = list(_leaves(root, ()))  # for the error, which lists them
                selection = select_arrays(all_leaves, picks, file.url, wanted, _feature)
                leaves = selection.leaves
                left_out |= dict.fromkeys(selection.left_out)
                found = tuple(map(_column, leaves, selection.features))
                columns = columns or found
                if found != columns:
                    raise SourceError(
                        f"{file.url}: its datasets differ from those of {files[0].url}; name files of one kind with a "
                        "glob, or select common datasets with ::/NAME,..."
                    )
                bounds = part_bounds(leaves[0].rows, sum(map(_row_bytes, leaves)), _align(root, found))
                parts += [Part(path=file.url, pieces=rows, first_record=rows[0]) for rows in bounds]
        return cls(
            url=url,
            schema=Schema(features=tuple(column.feature for column in columns), label=label),
            columns=columns,
            parts=tuple(parts),
            fingerprint=fingerprint_files(files, ("/".join((column.dataset, *column.keys)) for column in columns)),
            checked=columns,
            left_out=tuple(left_out),
        )

    def labels(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.Array]:
        """Read the label's dataset alone, unless records may be rejected."""
        if reject is not fail_on_bad:
            for batch in self.drafts(part, reject):
                yield pa.nulls(len(batch)) if self.schema.label is None else batch.column(self.schema.label)
        elif self.schema.label is None:
            yield pa.nulls(part.pieces[1] - part.pieces[0])
        else:
            for (column,) in _read(part, [self.columns[self.schema.names.index(self.schema.label)]]):
                yield column

    def drafts(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.RecordBatch]:
        """Read the records; if bad ones are skipped, read all rows once before to find them."""
        for rows in [part] if reject is fail_on_bad else _readable(part, self.checked, reject):
            for columns in _read(rows, self.columns):
                yield pa.RecordBatch.from_arrays(columns, schema=self.schema.arrow)

    def sample(self, part: Part, records: int) -> pa.RecordBatch:
        """Read the first rows."""
        start, stop = part.pieces
        head = Part(path=part.path, pieces=(start, min(stop, start + records)), first_record=start)
        found = pa.Table.from_batches(self.drafts(head), self.schema.arrow).combine_chunks().to_batches()
        return found[0] if found else self.schema.empty

    def narrow(self, columns: Collection[str]) -> Hdf5Source:
        """Return the same records with these columns alone, or with one if none exists; no others are read."""
        kept = tuple(column for column in self.columns if column.feature.name in columns) or self.columns[:1]
        return replace(self, columns=kept, schema=self.schema.select([column.feature.name for column in kept]))


# --- what a file holds -----------------------------------------------------------------------------------------


def _library() -> ModuleType:
    try:
        return importlib.import_module("h5py")
    except ImportError as error:
        raise SourceError("HDF5 files need h5py; install it with: pip install 'ringfeed[hdf5]'") from error


class _Raw(io.RawIOBase):
    """A file of fsspec with `readinto`, which HDF5 needs and not every client has."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._file.seek(offset, whence)
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


@contextmanager
def _open(path: str, remedy: str = "write it again with gzip") -> Iterator[Any]:
    """Open a file, and yield its root group.

    Raises:
        SourceError: it is damaged or not an HDF5 file, or uses a compression that h5py lacks.
    """
    h5py = _library()
    with open_file(path) as file:
        local = Storage(path).local_path  # HDF5 reads local files itself, without Python in between
        try:
            opened = io.BufferedReader(_Raw(file), _BUFFER_BYTES) if local is None else local
            with h5py.File(opened, "r", locking=False) as root:
                yield root
        except RingfeedError:
            raise
        except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            remedy = f"the file is damaged, is not HDF5, or uses a compression that h5py lacks; {remedy}"
            raise source_error(path, error, remedy) from error


def _leaves(root: Any, picks: Sequence[str]) -> Iterator[Leaf]:
    """Yield every array of a file that has a dimension, or of the picked groups."""
    h5py = _library()
    groups, seen = [("", root)], set()
    while groups:
        prefix, group = groups.pop()
        inner = []
        for key in group:
            if isinstance(key, bytes):
                shown = prefix + key.decode(errors="backslashreplace")
                yield _no_column(shown, f"the name {shown!r} is not UTF-8; rename it")
                continue
            name = prefix + key
            if picks and not any(_related(name, pick) for pick in picks):
                continue
            link = group.get(key, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                yield _no_column(name, f"{name!r} is a link to another file; choose others with ::/NAME,...")
            if not isinstance(link, h5py.HardLink):
                continue
            item = group[key]
            address = h5py.h5o.get_info(item.id).addr
            if isinstance(item, h5py.Group) and address not in seen:
                seen.add(address)  # a group may contain itself
                inner.append((f"{name}/", item))
            elif isinstance(item, h5py.Dataset) and item.shape:
                if problem := _problem(name, item):
                    yield _no_column(name, problem)
                else:
                    yield from leaves_of(name, name, item.dtype, item.shape)
        groups += reversed(inner)


def _problem(name: str, dataset: Any) -> str:
    """Return why a dataset cannot be a column whatever its type, or an empty string."""
    if dataset.is_virtual or dataset.external:
        return f"the data of {name!r} lie in other files; copy them into one, or choose others with ::/NAME,..."
    try:
        _ = dataset.dtype
    except TypeError as error:
        return f"{name!r} holds values of a type that NumPy lacks ({error}); store it as another"
    return ""


def _related(name: str, pick: str) -> bool:
    """Whether a name is a picked one, or inside of it, or around it."""
    return name == pick or name.startswith(f"{pick}/") or pick.startswith(f"{name}/")


def _no_column(name: str, problem: str) -> Leaf:
    return Leaf(name=name, holder=name, keys=(), dtype=np.dtype(object), shape=(), rows=0, problem=problem)


def _column(leaf: Leaf, feature: Feature) -> _Column:
    return _Column(feature=feature, dataset=leaf.holder, keys=leaf.keys)


def _feature(leaf: Leaf, path: str) -> Feature:
    h5py = _library()
    if h5py.check_string_dtype(leaf.dtype) is not None and 0 not in leaf.shape:
        return Feature(name=leaf.name, dtype="string", shape=leaf.shape)
    element = h5py.check_vlen_dtype(leaf.dtype)
    if element is None:
        if leaf.dtype.hasobject:
            raise unsupported_array(leaf, path, "references")
        return fixed_feature(leaf, path)
    element = np.dtype(element)
    if leaf.shape == () and h5py.check_string_dtype(element) is not None and element.hasobject:
        return Feature(name=leaf.name, dtype="string", shape=(None,))
    if leaf.shape or element.kind not in "biuf":
        inner = "texts or lists" if element.hasobject else element
        shape = f" in records of shape {leaf.shape}" if leaf.shape else ""
        raise unsupported_array(leaf, path, f"lists of {inner}{shape}")
    if not element.isnative:  # h5py 3.14 reads their bytes as native ones
        raise SourceError(f"{path}: {leaf.name!r} holds lists of big-endian numbers; store them little-endian")
    return Feature(name=leaf.name, dtype=fixed_feature(replace(leaf, dtype=element), path).dtype, shape=(None,))


def _row_bytes(leaf: Leaf) -> int:
    return prod(leaf.shape) * _VARIABLE_BYTES if leaf.dtype.hasobject else leaf.row_bytes


def _chunk_rows(dataset: Any) -> int:
    return dataset.chunks[0] if dataset.chunks else 1


def _align(root: Any, columns: Sequence[_Column]) -> int:
    """Return the rows after which a chunk of every column ends; if too many, the rows of the largest chunk."""
    rows = [_chunk_rows(root[column.dataset]) for column in columns]
    return common if (common := lcm(*rows)) <= _MAX_ALIGN_ROWS else max(rows)


# --- its rows --------------------------------------------------------------------------------------------------


def _read(part: Part, columns: Sequence[_Column]) -> Iterator[list[pa.Array]]:
    """Read columns of a part in batches of rows: of whole chunks where these are small enough."""
    with _open(part.path, f"write it again with gzip, or {SKIP_REMEDY}") as root:
        datasets = {name: _dataset(root, name) for name in dict.fromkeys(column.dataset for column in columns)}
        align = _align(root, columns)
        row_bytes: float = sum(_estimate(dataset) for dataset in datasets.values())
        variable = any(dataset.dtype.hasobject for dataset in datasets.values())
        start, stop = part.pieces
        while start < stop:
            end = min(stop, start + batch_rows(row_bytes))
            if end < stop and end - end % align > start:
                end -= end % align
            rows = {name: dataset[start:end] for name, dataset in datasets.items()}
            arrays = [_to_arrow(rows[column.dataset], column, part.path, start) for column in columns]
            if variable:
                row_bytes = max(1.0, sum(array.nbytes for array in arrays) / (end - start))
            yield arrays
            start = end


def _readable(part: Part, columns: Sequence[_Column], reject: Reject) -> Iterator[Part]:
    """Yield the readable ranges of rows of a part; the rows of a damaged chunk of any column are bad."""
    good: list[tuple[int, int]] = []
    with _open(part.path) as root:
        datasets = [_dataset(root, name) for name in dict.fromkeys(column.dataset for column in columns)]
        align, (first, stop) = _align(root, columns), part.pieces
        step = max(align, batch_rows(sum(map(_estimate, datasets))) // align * align)
        todo = [(start, min(stop, start + step)) for start in range(first, stop, step)][::-1]
        while todo:
            start, end = todo.pop()
            try:
                for dataset in datasets:
                    dataset[start:end]
            except (OSError, RuntimeError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                chunks = -(-(end - start) // align)
                if chunks > 1:
                    middle = start + chunks // 2 * align
                    todo += [(middle, end), (start, middle)]
                    continue
                reason = f"it lies in a damaged chunk ({brief(error)})"
                for row in range(start, end):
                    reject(BadRecord(path=part.path, place=f"record {row}", reason=reason, remedy="write it again"))
            else:
                good.append((good.pop()[0] if good and good[-1][1] == start else start, end))
    for start, end in good:
        yield Part(path=part.path, pieces=(start, end), first_record=start)


def _estimate(dataset: Any) -> float:
    elements: int = prod(dataset.shape[1:])
    return float(elements * (_VARIABLE_BYTES if dataset.dtype.hasobject else dataset.dtype.itemsize))


def _dataset(root: Any, name: str) -> Any:
    """Open a dataset with a cache for a row of chunks, of up to `_CACHE_BYTES`."""
    h5py = _library()
    dataset = root[name]
    if not dataset.chunks:
        return dataset
    band_bytes = _chunk_rows(dataset) * prod(dataset.shape[1:]) * dataset.dtype.itemsize
    access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
    access.set_chunk_cache(10_007, max(BATCH_BYTES // 16, min(_CACHE_BYTES, 2 * band_bytes)), 1.0)
    return h5py.Dataset(h5py.h5d.open(root.id, name.encode(), access))


def _to_arrow(rows: npt.NDArray[Any], column: _Column, path: str, first_record: int) -> pa.Array:
    for key in column.keys:
        rows = rows[key]
    if column.feature.shape != (None,):
        return to_arrow(rows, column.feature, path, first_record)
    values = np.concatenate([*rows, np.empty(0, rows[0].dtype if len(rows) else np.int8)])
    return to_arrow(values, column.feature, path, first_record, [len(row) for row in rows])
