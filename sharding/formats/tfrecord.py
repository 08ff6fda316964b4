"""TFRecord framing of serialised messages, and the way back: lengths and masked CRC-32C around each record.

The frame is that of tensorflow/core/lib/io/record_writer.h: uint64 length, uint32 masked CRC of the length, the
payload, uint32 masked CRC of the payload; little-endian.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import CorruptionError
from .example import join_binary

__all__ = [
    "FOOTER_BYTES", "HEADER_BYTES", "compress", "decompress", "frame_matrix", "frame_records", "iterate_records",
    "mask_crcs", "record_headers",
]  # fmt: skip

HEADER_BYTES = 12
FOOTER_BYTES = 4
_MASK_DELTA = np.uint32(0xA282EAD8)


def frame_records(messages: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Put each message into a TFRecord frame.

    Args:
        messages: one payload a record.

    Returns:
        One framed record a payload; its data buffer is the file, its offsets are the records' offsets in it.
    """
    if not len(messages):
        return _rows(np.empty((0, HEADER_BYTES + FOOTER_BYTES), np.uint8))
    offsets = np.frombuffer(messages.buffers()[1], np.int64)[messages.offset : messages.offset + len(messages) + 1]
    data = (messages.buffers()[2] or pa.py_buffer(b"")).slice(offsets[0], offsets[-1] - offsets[0]).to_pybytes()
    lengths = np.diff(offsets)
    payloads = (data[start:end] for start, end in pairwise((offsets - offsets[0]).tolist()))
    footers = _masked_crcs(payloads, len(lengths))
    return join_binary([_rows(record_headers(lengths)), messages, _rows(footers)])


def frame_matrix(matrix: npt.NDArray[np.uint8]) -> pa.LargeBinaryArray:
    """Put messages of one length into TFRecord frames, in place: no byte of them is copied.

    Args:
        matrix: uint8 [records, HEADER_BYTES + length + FOOTER_BYTES], with the messages in the middle.

    Returns:
        As `frame_records`.
    """
    length = matrix.shape[1] - HEADER_BYTES - FOOTER_BYTES
    cells = struct.iter_unpack(f"{HEADER_BYTES}x{length}s{FOOTER_BYTES}x", matrix.reshape(-1).data)
    footers = _masked_crcs(chain.from_iterable(cells), len(matrix))
    matrix[:, :HEADER_BYTES] = record_headers(np.array([length]))
    matrix[:, -FOOTER_BYTES:] = footers
    return _rows(matrix)


def _masked_crcs(payloads: Iterable[bytes], count: int) -> npt.NDArray[np.uint8]:
    """The masked CRC of each payload, little-endian: uint8 [count, 4]."""
    crcs = np.fromiter(map(google_crc32c.value, payloads), np.uint32, count)
    return mask_crcs(crcs)


def mask_crcs(crcs: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
    """CRCs as they stand in a file, masked and little-endian: uint8 [records, 4]."""
    return _mask(crcs).astype("<u4").reshape(-1, 1).view(np.uint8)


def record_headers(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Length and masked CRC of the length: uint8 [records, 12]."""
    unique, inverse = np.unique(lengths, return_inverse=True)
    crcs = _masked_crcs((int(n).to_bytes(8, "little") for n in unique), len(unique))
    return np.hstack([lengths.astype("<u8").reshape(-1, 1).view(np.uint8), crcs[inverse]])


def _mask(crcs: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    return ((crcs >> np.uint32(15)) | (crcs << np.uint32(17))) + _MASK_DELTA


def _rows(matrix: npt.NDArray[np.uint8]) -> pa.LargeBinaryArray:
    offsets = np.arange(len(matrix) + 1, dtype=np.int64) * matrix.shape[1]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(matrix).reshape(-1))]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(matrix), buffers)


def iterate_records(data: bytes, path: str) -> Iterator[tuple[int, bytes]]:
    """Offset and payload of each record of a whole TFRecord file; every CRC is checked.

    Raises:
        CorruptionError: a CRC is wrong or the file ends inside a record; names the record and its offset.
    """
    position = record = 0
    while position < len(data):
        where = f"{path}: record {record} at offset {position}"
        header = data[position : position + HEADER_BYTES]
        if len(header) < HEADER_BYTES or not _matches(header[:8], header[8:]):
            raise CorruptionError(f"{where}: the length is damaged")
        length = int.from_bytes(header[:8], "little")
        start = position + HEADER_BYTES
        payload = data[start : start + length]
        if len(payload) < length or not _matches(payload, data[start + length : start + length + FOOTER_BYTES]):
            raise CorruptionError(f"{where}: the content is damaged or cut short")
        yield position, payload
        position = start + length + FOOTER_BYTES
        record += 1


def _matches(payload: bytes, masked: bytes) -> bool:
    crc = np.array([google_crc32c.value(payload)], np.uint32)
    return len(masked) == 4 and _mask(crc)[0] == int.from_bytes(masked, "little")


def compress(data: bytes | memoryview, compression: str) -> bytes | memoryview:
    """Compress a whole file as `tf.data.TFRecordDataset(compression_type=...)` expects it: none, gzip or zlib."""
    if compression == "gzip":
        return gzip.compress(data, compresslevel=6, mtime=0)
    return zlib.compress(data, 6) if compression == "zlib" else data


def decompress(data: bytes, compression: str) -> bytes:
    """The inverse of `compress`."""
    return zlib.decompress(data, wbits=47) if compression in ("gzip", "zlib") else data
