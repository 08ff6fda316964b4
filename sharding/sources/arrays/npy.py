"""NumPy files: `.npy`, one array each, and `.npz`, archives of these. They are streamed; no pickle is ever loaded.

- A file: the fields of a structured array are columns; a plain array is the column ``data``.
- A folder of `.npy` files: each is a column, named by its path in the folder without the ending.
- An `.npz` file: each member is a column.
- A folder of `.npz` files, or a glob of either kind: files of the same columns, one after another.
"""

from __future__ import annotations

import ast
import lzma
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import prod
from os import SEEK_END
from typing import IO, Any, ClassVar
from zipfile import BadZipFile, ZipFile

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.schema import Feature, Schema
from ringfeed.sharding.sources.base import OWN_SIZES, Part, ReadSizes, RecordSource, Reject, fail_on_bad
from ringfeed.sharding.sources.files.find import fingerprint_files, plain_name, require_files, root_of, split_chain
from ringfeed.sharding.sources.files.http_listing import decode_name
from ringfeed.sharding.sources.files.open import open_file, source_error
from ringfeed.sharding.sources.files.snapshot import SourceFile
from ringfeed.sharding.storage.storage import Storage

from .array_columns import (
    Leaf,
    batch_rows,
    differing_columns,
    fixed_feature,
    leaves_of,
    part_bounds,
    select_arrays,
    to_arrow,
)
from .url_selection import split_selection

_PLAIN = "data"  # the column of a file with one plain array
_MAX_HEADER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Array:
    """An array on storage."""

    name: str  # name of its column, or prefix of the names of its fields
    path: str  # URL of the file
    member: str  # member of the archive; empty if the file is not an archive
    data_bytes: int  # whole size of the file or the member
    dtype: np.dtype[Any]  # type of one element
    shape: tuple[int, ...]  # shape of the array; the first dimension counts records
    fortran: bool  # whether the elements are in Fortran order
    offset: int  # offset of the elements in the file or the member


@dataclass(frozen=True, slots=True, kw_only=True)
class NpySource(RecordSource):
    """A source of NumPy files; a part is a range of rows, or a whole archive, which cannot be read from its middle.

    The pieces of a part are its first row, the row after its last, and the arrays to read.
    """

    suffixes: ClassVar[tuple[str, ...]] = (".npy", ".npz")

    columns: tuple[Leaf, ...]  # columns to read
    left_out: tuple[str, ...] = ()  # names of unwanted arrays that cannot be columns

    @classmethod
    def open(
        cls,
        url: str,
        label: str | None,
        wanted: Callable[[str], bool] = lambda _: True,
        sizes: ReadSizes = OWN_SIZES,
    ) -> NpySource:
        """Read the headers; see `open_source`.

        ``::a,b`` after the URL selects columns. Unwanted ones may have any type and length.

        Raises:
            SourceError: there is no file, a file is damaged or holds Python objects, or its arrays differ in length.
        """
        files_url, picks = split_selection(url)
        files = require_files(files_url, cls.suffixes, "NumPy file")
        columns: tuple[Leaf, ...] = ()
        left_out: dict[str, None] = {}
        schema: Schema | None = None
        parts: list[Part] = []
        for where, arrays in _tables(files_url, files):
            leaves = [leaf for a in arrays if a.shape for leaf in leaves_of(a.name, a.name, a.dtype, a.shape)]
            selection = select_arrays(leaves, picks, where, wanted, fixed_feature)
            left_out |= dict.fromkeys(selection.left_out)
            if schema is None:
                columns, schema = selection.leaves, Schema(features=selection.features, label=label)
            if _places(selection.leaves, selection.features) != _places(columns, schema.features):
                raise differing_columns(where, selection.features, files[0].url, schema.features)
            holders = {leaf.holder for leaf in columns}
            parts += _parts(selection.leaves[0].rows, tuple(array for array in arrays if array.name in holders), sizes)
        assert schema is not None
        return cls(
            url=url,
            schema=schema,
            columns=columns,
            parts=tuple(parts),
            fingerprint=fingerprint_files(files, ("/".join((leaf.holder, *leaf.keys)) for leaf in columns)),
            left_out=tuple(left_out),
        )

    def labels(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.Array]:
        """Read the label's array alone, or the structured array that has it as a field."""
        start, stop, _ = part.pieces
        if self.schema.label is None:
            yield pa.nulls(stop - start)
            return
        for batch in self._read(part, self.schema.names.index(self.schema.label)):
            yield batch[0]

    def drafts(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.RecordBatch]:
        for columns in self._read(part, None):
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema.arrow)

    def sample(self, part: Part, records: int) -> pa.RecordBatch:
        start, stop, arrays = part.pieces
        head = Part(path=part.path, pieces=(start, min(stop, start + records), arrays), first_record=start)
        return next(self.drafts(head))

    def narrow(self, columns: Collection[str]) -> NpySource:
        """Return the same records with these columns alone, or with one if none exists; no others are decoded."""
        leaves = tuple(leaf for leaf in self.columns if leaf.name in columns) or self.columns[:1]
        return replace(self, columns=leaves, schema=self.schema.select([leaf.name for leaf in leaves]))

    def _read(self, part: Part, only: int | None) -> Iterator[list[pa.Array]]:
        start, stop, every = part.pieces
        columns = [(i, leaf) for i, leaf in enumerate(self.columns) if only in (None, i)]
        arrays = [array for array in every if any(leaf.holder == array.name for _, leaf in columns)]
        rows = batch_rows(sum(map(_row_bytes, arrays)))
        first = start
        with ExitStack() as stack:
            blocks = [stack.enter_context(_open_rows(array, start, stop, rows)) for array in arrays]
            for values in zip(*blocks, strict=True):
                blocks_by_array = {array.name: block for array, block in zip(arrays, values, strict=True)}
                yield [
                    to_arrow(leaf.values(blocks_by_array[leaf.holder]), self.schema.features[i], part.path, first)
                    for i, leaf in columns
                ]
                first += len(values[0])


# --- the arrays of a source ------------------------------------------------------------------------------------


def _tables(url: str, files: Sequence[SourceFile]) -> Iterator[tuple[str, list[_Array]]]:
    """Yield the URL and arrays of each set of files that hold columns of the same records."""
    root = root_of(url, [])
    folder = all(file.url.startswith(root) for file in files)
    archives = [plain_name(file.url).endswith(".npz") for file in files]
    if folder and any(archives) and not all(archives):
        raise SourceError(f"{url} holds both .npy and .npz files; name files of one kind with a glob")
    if folder and not any(archives):
        names = [decode_name(root, split_chain(file.url)[0].removeprefix(root)) for file in files]
        yield url, [_array_of(file, name[: -len(".npy")]) for file, name in zip(files, names, strict=True)]
        return
    for file, archive in zip(files, archives, strict=True):
        yield file.url, _members(file) if archive else [_array_of(file, "")]


def _array_of(file: SourceFile, name: str) -> _Array:
    with open_file(file.url) as data:
        dtype, shape, fortran, offset = _header(data, file.url)
        data_bytes = file.bytes or data.seek(0, SEEK_END)  # 0: unknown to a web server
    if not name and dtype.names is None:
        name = _PLAIN
    if not shape:
        raise SourceError(f"{file.url}: it holds a single value; a source needs an array of records")
    array = _Array(
        name=name, path=file.url, member="", data_bytes=data_bytes, dtype=dtype, shape=shape, fortran=fortran,
        offset=offset,
    )  # fmt: skip
    _check_size(array)
    return array


def _members(file: SourceFile) -> list[_Array]:
    arrays = []
    with open_file(file.url) as data, _zip_errors(file.url), ZipFile(data) as archive:
        for info in archive.infolist():
            if info.flag_bits & 1:
                raise SourceError(f"{file.url}: its member {info.filename!r} is encrypted; write it with numpy.savez")
            if not info.filename.endswith(".npy"):
                raise SourceError(
                    f"{file.url}: its member {info.filename!r} is not a .npy array; write it with numpy.savez"
                )
            with archive.open(info) as member:
                dtype, shape, fortran, offset = _header(member, f"{file.url}: {info.filename}")
            name = info.filename[: -len(".npy")]
            arrays.append(_Array(
                name=name, path=file.url, member=info.filename, data_bytes=info.file_size, dtype=dtype, shape=shape,
                fortran=fortran, offset=offset,
            ))  # fmt: skip
    for array in arrays:
        _check_size(array)
    return arrays


def _header(file: IO[bytes], path: str) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    """Read the type, the shape, whether in Fortran order, and the offset of the data; numpy.lib.format has the format.

    NumPy's public readers end at version 2, but names of fields beyond Latin-1 need version 3.
    """
    start = file.read(8)
    if len(start) < 8 or start[:6] != b"\x93NUMPY" or start[6] not in (1, 2, 3):
        raise SourceError(f"{path}: no .npy file of version 1 to 3; write it with numpy.save")
    length_bytes = 2 if start[6] == 1 else 4
    length = int.from_bytes(file.read(length_bytes), "little")
    text = file.read(length) if length <= _MAX_HEADER_BYTES else b""
    try:
        if len(text) < length or not length:
            raise ValueError("it ends inside its header")
        header = ast.literal_eval(text.decode("utf-8" if start[6] == 3 else "latin1").strip())
        dtype = np.lib.format.descr_to_dtype(header["descr"])
        shape = tuple(int(size) for size in header["shape"])
        if min(shape, default=0) < 0 or not isinstance(header["fortran_order"], bool):
            raise ValueError("its shape or order is invalid")
    except (ValueError, KeyError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise source_error(path, error, "the header is damaged; write the file again") from error
    dtype = np.dtype(object) if dtype.hasobject else dtype  # one object field makes the whole array a pickle
    fortran = header["fortran_order"] and len(shape) > 1 and prod(shape) > 0
    return dtype, shape, fortran, 8 + length_bytes + length


def _row_bytes(array: _Array) -> int:
    return prod(array.shape[1:]) * array.dtype.itemsize


def _check_size(array: _Array) -> None:
    """Check the size of an array before it is read; arrays of objects, of any size, are refused when selected."""
    wanted = array.offset + prod(array.shape) * array.dtype.itemsize
    if array.data_bytes != wanted and not array.dtype.hasobject:
        what = "is cut short" if array.data_bytes < wanted else "goes on after its last element"
        raise SourceError(f"{_name(array)}: it {what}: {array.data_bytes} bytes for {wanted}; write it again")


def _name(array: _Array) -> str:
    return f"{array.path}: {array.member}" if array.member else array.path


def _places(leaves: Sequence[Leaf], features: Sequence[Feature]) -> set[tuple[Feature, str, tuple[str, ...]]]:
    """Return the columns of a file with their places in it, in no order."""
    return {(feature, leaf.holder, leaf.keys) for leaf, feature in zip(leaves, features, strict=True)}


def _parts(rows: int, arrays: tuple[_Array, ...], sizes: ReadSizes) -> Iterator[Part]:
    if any(array.member for array in arrays):
        if rows:
            yield Part(path=arrays[0].path, pieces=(0, rows, arrays))
        return
    for start, stop in part_bounds(rows, sum(map(_row_bytes, arrays)), sizes.part_bytes):
        yield Part(path=arrays[0].path, pieces=(start, stop, arrays), first_record=start)


# --- rows ------------------------------------------------------------------------------------------------------


@contextmanager
def _open_rows(array: _Array, start: int, stop: int, rows: int) -> Iterator[Iterator[npt.NDArray[Any]]]:
    """Yield an iterator over the half-open range of rows, in blocks of up to `rows`."""
    local = Storage(array.path).local_path
    if array.fortran:
        if local is None or array.member:
            raise SourceError(
                f"{_name(array)}: the array is in Fortran order, which can only be read from a local .npy file; "
                "copy it to this machine, or save it as numpy.ascontiguousarray(x)"
            )
        mapped = np.memmap(local, array.dtype, "r", array.offset, array.shape, "F")
        yield (mapped[row : min(stop, row + rows)] for row in range(start, stop, rows))
        return
    with open_file(array.path) as file, _zip_errors(_name(array)), ExitStack() as stack:
        data: IO[bytes] = file
        if array.member:
            data = stack.enter_context(stack.enter_context(ZipFile(file)).open(array.member))
            data.read(array.offset)
        else:
            file.seek(array.offset + start * _row_bytes(array))
        yield _blocks(data, array, start, stop, rows)


def _blocks(data: IO[bytes], array: _Array, start: int, stop: int, rows: int) -> Iterator[npt.NDArray[Any]]:
    row_bytes = _row_bytes(array)
    for row in range(start, stop, rows):
        count = min(rows, stop - row)
        block = data.read(count * row_bytes)
        if len(block) < count * row_bytes:
            raise SourceError(
                f"{_name(array)}: it ends at record {row + len(block) // max(1, row_bytes)}; write it again"
            )
        if array.member and row + count == array.shape[0]:
            data.read(1)  # zipfile checks the CRC at the end of a member
        yield np.frombuffer(block, array.dtype).reshape(count, *array.shape[1:])


@contextmanager
def _zip_errors(path: str) -> Iterator[None]:
    try:
        yield
    # `zipfile` raises NotImplementedError if damage makes a member claim an unknown compression.
    except (BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError) as error:
        raise source_error(path, error, "the archive is damaged; write it again with numpy.savez") from error
    except OSError as error:
        if type(error) is not OSError or error.errno is not None:
            raise  # a store's error; bzip2's errors have no errno
        raise source_error(path, error, "the archive is damaged; write it again with numpy.savez") from error
