"""HDF5 files: datasets of equal length are columns: all, or those selected by ``file.h5::/group`` or ``::/a,/b``.

A dataset in a group is named ``group/name``, a field of a compound dataset ``name/field``. Scalar datasets and soft
links are skipped. Data in other files (external links, external storage, virtual datasets) is refused: a missing file
would read as zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from math import lcm, prod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ringfeed.sharding.compute.batches import BATCH_BYTES
from ringfeed.sharding.messages import brief
from ringfeed.sharding.schema import Feature, Schema
from ringfeed.sharding.sources.base import (
    OWN_SIZES,
    SKIP_REMEDY,
    BadRecord,
    Part,
    ReadSizes,
    RecordSource,
    Reject,
    fail_on_bad,
)
from ringfeed.sharding.sources.files.find import fingerprint_files, require_files
from ringfeed.sharding.sources.files.inflation import check_held

from .array_columns import Leaf, batch_rows, differing_columns, part_bounds, select_arrays, to_arrow
from .hdf5_files import are_nested, feature_of, find_leaves, load_h5py, open_hdf5
from .url_selection import split_selection

_VARIABLE_BYTES = 1 << 16  # assumed size of a variable-length value, until some were read
_CACHE_BYTES = 64 << 20  # cache of a column's chunks, so that a chunk across two batches is decompressed once
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
    """

    suffixes: ClassVar[tuple[str, ...]] = (".h5", ".hdf5")

    columns: tuple[_Column, ...]  # columns to read
    # All columns, even if the source was narrowed: a record is bad if any of its values is damaged
    checked: tuple[_Column, ...]
    left_out: tuple[str, ...] = ()  # names of unwanted datasets and groups that cannot be columns

    @classmethod
    def open(
        cls,
        url: str,
        label: str | None,
        wanted: Callable[[str], bool] = lambda _: True,
        sizes: ReadSizes = OWN_SIZES,
    ) -> Hdf5Source:
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
            with open_hdf5(file.url) as root:
                all_leaves = list(find_leaves(root, picks))
                if not all(any(are_nested(leaf.name, pick) for leaf in all_leaves) for pick in picks):
                    all_leaves = list(find_leaves(root, ()))  # for the error, which lists them
                selection = select_arrays(all_leaves, picks, file.url, wanted, feature_of)
                leaves = selection.leaves
                left_out |= dict.fromkeys(selection.left_out)
                selected = tuple(
                    _Column(feature=feature, dataset=leaf.holder, keys=leaf.keys)
                    for leaf, feature in zip(leaves, selection.features, strict=True)
                )
                columns = columns or selected
                if selected != columns:
                    features = [column.feature for column in columns]
                    raise differing_columns(file.url, selection.features, files[0].url, features)
                for column in selected:
                    _check_chunks(file.url, root[column.dataset])
                row_bytes = sum(map(_row_bytes, leaves))
                bounds = part_bounds(leaves[0].rows, row_bytes, sizes.part_bytes, _align(root, selected))
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
        start, stop = part.pieces
        head = Part(path=part.path, pieces=(start, min(stop, start + records)), first_record=start)
        batches = pa.Table.from_batches(self.drafts(head), self.schema.arrow).combine_chunks().to_batches()
        return batches[0] if batches else self.schema.empty

    def narrow(self, columns: Collection[str]) -> Hdf5Source:
        """Return the same records with these columns alone, or with one if none exists; no others are read."""
        kept = tuple(column for column in self.columns if column.feature.name in columns) or self.columns[:1]
        return replace(self, columns=kept, schema=self.schema.select([column.feature.name for column in kept]))


def _row_bytes(leaf: Leaf) -> int:
    return prod(leaf.shape) * _VARIABLE_BYTES if leaf.dtype.hasobject else leaf.row_bytes


def _chunk_rows(dataset: Any) -> int:
    return dataset.chunks[0] if dataset.chunks else 1


def _check_chunks(path: str, dataset: Any) -> None:
    """Refuse chunks, which HDF5 decompresses as a whole, of far more bytes than the dataset takes in its file."""
    if dataset.chunks and not dataset.dtype.hasobject and dataset.id.get_storage_size():
        check_held(path, "chunk", dataset.id.get_storage_size(), prod(dataset.chunks) * dataset.dtype.itemsize)


def _align(root: Any, columns: Sequence[_Column]) -> int:
    """Return the rows after which a chunk of every column ends; if too many, the rows of the largest chunk."""
    rows = [_chunk_rows(root[column.dataset]) for column in columns]
    return common if (common := lcm(*rows)) <= _MAX_ALIGN_ROWS else max(rows)


# --- its rows --------------------------------------------------------------------------------------------------


def _read(part: Part, columns: Sequence[_Column]) -> Iterator[list[pa.Array]]:
    """Read columns of a part in batches of rows: of whole chunks where these are small enough."""
    with open_hdf5(part.path, f"write it again with gzip, or {SKIP_REMEDY}") as root:
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
    with open_hdf5(part.path) as root:
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
    h5py = load_h5py()
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
