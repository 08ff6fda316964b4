"""IDX files, the format of MNIST: a file of images and one of labels, read in step; both may be gzipped."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import IO, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ringfeed.sharding.compute.batches import BATCH_ROWS
from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.schema import Feature, Schema
from ringfeed.sharding.sources.base import Part, RecordSource, Reject, fail_on_bad
from ringfeed.sharding.sources.files.find import base_name, fingerprint_files, list_files, resolve_relative
from ringfeed.sharding.sources.files.open import MissingFileError, open_file

from .array_columns import batch_rows

_DTYPES = {0x08: "uint8", 0x09: "int8", 0x0B: "int16", 0x0C: "int32", 0x0D: "float32", 0x0E: "float64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class IdxSource(RecordSource):
    """A source of pairs of IDX files; a part is a pair. The records: ``image`` and the label."""

    suffixes: ClassVar[tuple[str, ...]] = ("-ubyte", "-ubyte.gz", ".idx", ".idx.gz")

    @classmethod
    def open(cls, url: str, label: str | None) -> IdxSource:
        """Read the headers; see `open_source`.

        The URL names one file of images or several. Each one's labels lie in the same folder, in a file named alike:
        ``images`` becomes ``labels``, and ``idx3`` or other dimensions ``idx1``.

        Raises:
            SourceError: a file of images has no labels, is not an IDX file, or the two differ in length.
        """
        urls = [file.url for file in list_files(url, cls.suffixes)]
        images = [path for path in urls if "images" in base_name(path)]
        if not images:
            raise SourceError(f"there is no IDX file of images (such as train-images-idx3-ubyte.gz) at {url}")
        twice = [path for path in images if path.endswith(".gz") and path.removesuffix(".gz") in images]
        if twice:
            raise SourceError(
                f"{twice[0]} and its decompressed copy {twice[0].removesuffix('.gz')} are both there; remove one"
            )
        parts = tuple(Part(path=path, pieces=(_labels_of(path),)) for path in images)
        kinds = {_check_pair(part) for part in parts}
        paths = [path for part in parts for path in (part.path, *part.pieces)]
        if len(kinds) > 1:
            raise SourceError(f"the IDX files at {url} hold images of different types or shapes: {sorted(kinds)}")
        (dtype, shape, label_dtype) = kinds.pop()
        features = (Feature(name="image", dtype=dtype, shape=shape), Feature(name=label or "label", dtype=label_dtype))
        return cls(
            url=url,
            schema=Schema(features=features, label=label or "label"),
            parts=parts,
            fingerprint=fingerprint_files([file for path in paths for file in list_files(path, cls.suffixes)]),
        )

    def labels(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.Array]:
        """Read the file of labels alone."""
        for values in _read(part.pieces[0], BATCH_ROWS):
            yield pa.array(values)

    def drafts(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.RecordBatch]:
        """Read the images and their labels."""
        image, _ = self.schema.features
        rows = batch_rows(prod(image.fixed_shape or ()) * np.dtype(image.dtype).itemsize)
        for images, labels in zip(_read(part.path, rows), _read(part.pieces[0], rows), strict=True):
            flat = pa.FixedSizeListArray.from_arrays(pa.array(images.reshape(-1)), prod(images.shape[1:]))
            yield pa.RecordBatch.from_arrays([flat, pa.array(labels)], schema=self.schema.arrow)


def _labels_of(path: str) -> str:
    return resolve_relative(path, re.sub(r"idx\d", "idx1", base_name(path).replace("images", "labels")))


def _check_pair(part: Part) -> tuple[str, tuple[int, ...], str]:
    try:
        with open_file(part.path) as images, open_file(part.pieces[0]) as labels:
            dtype, (records, *shape) = _header(images, part.path)
            label_dtype, label_shape = _header(labels, part.pieces[0])
    except MissingFileError as error:
        raise SourceError(f"{part.path} has no labels: expected them in {part.pieces[0]}") from error
    if not shape:
        raise SourceError(f"{part.path}: the file has one dimension in all, but each image needs at least one")
    if not 0 < prod(shape) < 1 << 31:
        raise SourceError(
            f"{part.path}: images of shape {tuple(shape)} are empty, or hold more than 2^31 values; write it again"
        )
    if label_shape != (records,):
        raise SourceError(f"{part.path} holds {records} images, {part.pieces[0]} has shape {label_shape}")
    return dtype, tuple(shape), label_dtype


def _header(file: IO[bytes], path: str) -> tuple[str, tuple[int, ...]]:
    """Read the element type and the shape: two zero bytes, type, dimensions; each dimension as a big-endian uint32."""
    head = file.read(4)
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _DTYPES or not head[3]:
        raise SourceError(f"{path}: no IDX file; it must start with 00 00, an element type and the dimensions")
    sizes = file.read(4 * head[3])
    if len(sizes) < 4 * head[3]:
        raise SourceError(f"{path}: the file ends inside its header")
    return _DTYPES[head[2]], struct.unpack(f">{head[3]}I", sizes)


def _read(path: str, block_rows: int) -> Iterator[npt.NDArray[np.generic]]:
    """Yield blocks of rows, [up to `block_rows`, ...], in the machine's byte order."""
    with open_file(path) as file:
        dtype, (records, *shape) = _header(file, path)
        row_bytes = prod(shape) * np.dtype(dtype).itemsize
        for start in range(0, records, block_rows):
            rows = min(block_rows, records - start)
            data = file.read(rows * row_bytes)
            if len(data) < rows * row_bytes:
                raise SourceError(f"{path}: the file ends at record {start + len(data) // row_bytes} of {records}")
            if start + rows == records and file.read(1):
                raise SourceError(f"{path}: the file goes on after its {records} records")
            values = np.frombuffer(data, np.dtype(dtype).newbyteorder(">")).reshape(rows, *shape)
            yield values.astype(dtype, copy=False)
