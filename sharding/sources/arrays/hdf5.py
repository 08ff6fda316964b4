"""HDF5 files: datasets of one length are columns: all, or those picked with ``file.h5::/group`` or ``::/a,/b``.

A dataset in a group is named ``group/name``, a field of a compound one ``name/field``. A single value is no column and
is passed over, as are names that are links to other names. What lies in other files (external links, external storage,
virtual datasets) is refused: a missing file would read as zeros.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import lcm, prod
from types import ModuleType
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...compute.batches import BATCH_BYTES
from ...errors import RingfeedError, SourceError
from ...messages import brief
from ...schema import Feature, Schema
from ...storage.storage import Storage
from ..base import SKIP_REMEDY, BadRecord, CompleteDrafts, Part, Reject, fail_on_bad
from ..files.find import fingerprint_files, require_files
from ..files.open import open_file, translate_errors
from .array_columns import Leaf, batch_rows, choose, fixed_feature, leaves_of, no_feature, part_bounds, to_arrow
from .url_selection import split_selection

__all__ = ["SUFFIXES", "Hdf5Source"]

SUFFIXES = (".h5", ".hdf5")
_VARIABLE_BYTES = 1 << 16  # a value of variable length is taken for so large until some were read
_CACHE_BYTES = 64 << 20  # of a column's chunks, so that none is decompressed twice where a batch ends inside it
_BUFFER_BYTES = 1 << 20  # of a file that is not local: HDF5 reads what describes the data in small pieces
_MAX_ALIGN_ROWS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """A feature, and the dataset and fields in it that hold its values."""

    feature: Feature
    dataset: str
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hdf5Source(CompleteDrafts):
    """A source of HDF5 files; a part is a run of rows, of whole chunks where chunks are small enough.

    The pieces of a part are its first row and the one after its last. Damage in any of the `checked` columns costs
    records: those of the files, also where the schema has fewer by now.
    """

    url: str
    schema: Schema
    columns: tuple[_Column, ...]
    parts: tuple[Part, ...]
    fingerprint: str
    checked: tuple[_Column, ...]
    left_out: tuple[str, ...] = ()

    @classmethod
    def open(cls, url: str, label: str | None, wanted: Callable[[str], bool] = lambda _: True) -> Hdf5Source:
        """Read what the files say of their datasets.

        Args:
            url: of a file, a folder or a glob; ``::/group`` or ``::/a,/b`` after it picks what is in the files.
            label: the column of the classes.
            wanted: whether a column is, by its name; others may have any type and length.

        Raises:
            SourceError: there is no file, one is damaged, datasets differ in length or have types that no feature
                holds, or the files' columns differ; or h5py is not installed.
        """
        files_url, picks = split_selection(url)
        files = require_files(files_url, SUFFIXES, "HDF5 file")
        columns: tuple[_Column, ...] = ()
        left_out: dict[str, None] = {}
        parts: list[Part] = []
        for file in files:
            with _open(file.url) as root:
                there = list(_leaves(root, picks))
                if not all(any(_related(leaf.name, pick) for leaf in there) for pick in picks):
                    there = list(_leaves(root, ()))  # for the error, which lists them
                chosen = choose(there, picks, file.url, wanted, _feature)
                leaves = chosen.leaves
                left_out |= dict.fromkeys(chosen.left_out)
                found = tuple(map(_column, leaves, chosen.features))
                columns = columns or found
                if found != columns:
                    raise SourceError(
                        f"{file.url}: its datasets differ from those of {files[0].url}; name files of one kind by a "
                        "glob, or choose what they share with ::/NAME,..."
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
        """The label's dataset alone."""
        if reject is not fail_on_bad:
            for batch in self.drafts(part, reject):
                yield pa.nulls(len(batch)) if self.schema.label is None else batch.column(self.schema.label)
        elif self.schema.label is None:
            yield pa.nulls(part.pieces[1] - part.pieces[0])
        else:
            for (column,) in _read(part, [self.columns[self.schema.names.index(self.schema.label)]]):
                yield column

    def drafts(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.RecordBatch]:
        """The records; they are complete. Where some may be bad, all rows are read once more before."""
        for rows in [part] if reject is fail_on_bad else _readable(part, self.checked, reject):
            for columns in _read(rows, self.columns):
                yield pa.RecordBatch.from_arrays(columns, schema=self.schema.arrow)

    def sample(self, part: Part, records: int) -> pa.RecordBatch:
        """The first rows."""
        start, stop = part.pieces
        head = Part(path=part.path, pieces=(start, min(stop, start + records)), first_record=start)
        found = pa.Table.from_batches(self.drafts(head), self.schema.arrow).combine_chunks().to_batches()
        return found[0] if found else self.schema.empty

    def narrow(self, columns: Collection[str]) -> Hdf5Source:
        """The same records with these columns alone, or with one; no others are read."""
        kept = tuple(column for column in self.columns if column.feature.name in columns) or self.columns[:1]
        return replace(self, columns=kept, schema=self.schema.select([column.feature.name for column in kept]))


# --- what a file holds -----------------------------------------------------------------------------------------


def _library() -> ModuleType:
    try:
        return importlib.import_module("h5py")
    except ImportError as error:
        raise SourceError("HDF5 files need h5py; install it with: pip install 'ringfeed[hdf5]'") from error


class _Raw(io.RawIOBase):
    """A file of fsspec as HDF5 needs it: not every client's has `readinto`."""

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
    """The root group of a file.

    Raises:
        SourceError: it is damaged or no HDF5 file, or uses a compression that h5py lacks.
    """
    h5py = _library()
    with open_file(path) as file:
        local = Storage(path).local_path  # HDF5 reads what is local by itself, without a way through Python
        try:
            opened = io.BufferedReader(_Raw(file), _BUFFER_BYTES) if local is None else local
            with h5py.File(opened, "r", locking=False) as root:
                yield root
        except RingfeedError:
            raise
        except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            remedy = f"the file is damaged, no HDF5, or compressed in a way that h5py lacks; {remedy}"
            raise translate_errors(path, error, remedy) from error


def _leaves(root: Any, picks: Sequence[str]) -> Iterator[Leaf]:
    """Every array of a file with a dimension, or of what is picked of it."""
    h5py = _library()
    groups, seen = [("", root)], set()
    while groups:
        prefix, group = groups.pop()
        inner = []
        for key in group:
            if isinstance(key, bytes):
                shown = prefix + key.decode(errors="backslashreplace")
                yield _no_column(shown, f"the name {shown!r} is no UTF-8; rename it")
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
                seen.add(address)  # a group may hold itself
                inner.append((f"{name}/", item))
            elif isinstance(item, h5py.Dataset) and item.shape:
                if problem := _problem(name, item):
                    yield _no_column(name, problem)
                else:
                    yield from leaves_of(name, name, item.dtype, item.shape)
        groups += reversed(inner)


def _problem(name: str, dataset: Any) -> str:
    """Why a dataset is no column, as far as it shows without its type; or empty."""
    if dataset.is_virtual or dataset.external:
        return f"the data of {name!r} lie in other files; copy them into one, choose others with ::/NAME,..."
    try:
        _ = dataset.dtype
    except TypeError as error:
        return f"{name!r} holds values of a type that NumPy lacks ({error}); store it as another"
    return ""


def _related(name: str, pick: str) -> bool:
    """Whether something may be picked, or hold what is."""
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
            raise no_feature(leaf, path, "references")
        return fixed_feature(leaf, path)
    element = np.dtype(element)
    if leaf.shape == () and h5py.check_string_dtype(element) is not None and element.hasobject:
        return Feature(name=leaf.name, dtype="string", shape=(None,))
    if leaf.shape or element.kind not in "biuf":
        inner = "texts or lists" if element.hasobject else element
        raise no_feature(leaf, path, f"lists of {inner}{f' in records of shape {leaf.shape}' if leaf.shape else ''}")
    if not element.isnative:  # h5py 3.14 takes their bytes for native ones
        raise SourceError(f"{path}: {leaf.name!r} holds lists of big-endian numbers; store them little-endian")
    return Feature(name=leaf.name, dtype=fixed_feature(replace(leaf, dtype=element), path).dtype, shape=(None,))


def _row_bytes(leaf: Leaf) -> int:
    return prod(leaf.shape) * _VARIABLE_BYTES if leaf.dtype.hasobject else leaf.row_bytes


def _chunk_rows(dataset: Any) -> int:
    return dataset.chunks[0] if dataset.chunks else 1


def _align(root: Any, columns: Sequence[_Column]) -> int:
    """Rows after which a chunk of every column ends; of the largest chunks, where that is too many."""
    rows = [_chunk_rows(root[column.dataset]) for column in columns]
    return common if (common := lcm(*rows)) <= _MAX_ALIGN_ROWS else max(rows)


# --- its rows --------------------------------------------------------------------------------------------------


def _read(part: Part, columns: Sequence[_Column]) -> Iterator[list[pa.Array]]:
    """The columns of a part, some rows at a time: whole chunks where they are small enough."""
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
    """The runs of rows of a part that can be read; those of a chunk that cannot be are bad, whatever the column."""
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
    """With a cache for the chunks that a row lies in, where they are no larger than `_CACHE_BYTES`."""
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
