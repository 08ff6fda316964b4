"""Frames serialised messages as TFRecords, and reads them back: lengths and masked CRC-32C around each record.

The frame is that of tensorflow/core/lib/io/record_writer.h: uint64 length, uint32 masked CRC of the length, the
payload, uint32 masked CRC of the payload; little-endian.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, pairwise

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ringfeed.sharding.compute import kernels
from ringfeed.sharding.compute.arrays import Bools, Int64, Integers, UInt8
from ringfeed.sharding.errors import CorruptionError

from .arrow_binary import binary_rows, data_of, join_binary, offsets_of

HEADER_BYTES = 12
FOOTER_BYTES = 4
MAX_RECORD_BYTES = 1 << 30  # longer records are damage to a reader that holds whole records
_KNOWN_HEADERS = 1 << 14  # lengths whose checksums are computed only once
_MASK_DELTA = 0xA282EAD8
_WORD = 0xFFFF_FFFF


def frame_records(messages: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Put each message into a TFRecord frame.

    Returns:
        The frames; the data buffer is the file, and the offsets are the frames' offsets in it.
    """
    if not len(messages):
        return binary_rows(np.empty((0, HEADER_BYTES + FOOTER_BYTES), np.uint8))
    offsets = offsets_of(messages)
    data = data_of(messages).slice(offsets[0], offsets[-1] - offsets[0]).to_pybytes()
    lengths = np.diff(offsets)
    payloads = (data[start:end] for start, end in pairwise((offsets - offsets[0]).tolist()))
    footers = _masked_crcs(payloads, len(lengths))
    return join_binary([binary_rows(record_headers(lengths)), messages, binary_rows(footers)])


def frame_matrix(matrix: UInt8) -> pa.LargeBinaryArray:
    """Put messages of one length into TFRecord frames in place, without copying them.

    Args:
        matrix: messages with margins, uint8 [records, HEADER_BYTES + length + FOOTER_BYTES].

    Returns:
        The frames, like `frame_records`.
    """
    if kernels.are_compiled():
        kernels.frame_rows(matrix)
        return binary_rows(matrix)
    footers = _matrix_footers(matrix)
    matrix[:, :HEADER_BYTES] = record_headers(np.array([matrix.shape[1] - HEADER_BYTES - FOOTER_BYTES]))
    matrix[:, -FOOTER_BYTES:] = footers
    return binary_rows(matrix)


def frames_are_intact(data: pa.Buffer, lengths: Integers) -> bool:
    """Whether bytes are frames of the given lengths with correct checksums of lengths and payloads.

    Args:
        lengths: length of each frame in bytes; at least one frame.
    """
    content = np.frombuffer(data, np.uint8)
    ends = np.cumsum(lengths, dtype=np.int64)
    if len(content) != ends[-1] or lengths.min() < HEADER_BYTES + FOOTER_BYTES:
        return False
    if kernels.are_compiled():
        return kernels.first_bad_frame(content, ends) == len(ends)
    if lengths.min() == lengths.max():
        matrix = content.reshape(len(lengths), -1)
        headers, footers, crcs = matrix[:, :HEADER_BYTES], matrix[:, -FOOTER_BYTES:], _matrix_footers(matrix)
    else:
        starts = ends - lengths
        headers = content[starts[:, None] + np.arange(HEADER_BYTES)]
        footers = content[ends[:, None] - np.arange(FOOTER_BYTES, 0, -1)]
        bounds = zip((starts + HEADER_BYTES).tolist(), (ends - FOOTER_BYTES).tolist(), strict=True)
        crcs = _masked_crcs((data[start:end] for start, end in bounds), len(lengths))
    payloads = lengths.astype(np.int64) - (HEADER_BYTES + FOOTER_BYTES)
    return np.array_equal(headers, record_headers(payloads)) and np.array_equal(footers, crcs)


def _matrix_footers(matrix: UInt8) -> UInt8:
    length = matrix.shape[1] - HEADER_BYTES - FOOTER_BYTES
    cells = struct.iter_unpack(f"{HEADER_BYTES}x{length}s{FOOTER_BYTES}x", matrix.reshape(-1).data)
    return _masked_crcs(chain.from_iterable(cells), len(matrix))


def _masked_crcs(payloads: Iterable[bytes], count: int) -> UInt8:
    """The masked CRC of each payload, little-endian, uint8 [count, 4]."""
    crcs = np.fromiter(map(google_crc32c.value, payloads), np.uint32, count)
    return masked(crcs).astype("<u4").reshape(-1, 1).view(np.uint8)


def record_headers(lengths: Int64) -> UInt8:
    """Frame headers: length and masked CRC of the length, uint8 [records, 12]."""
    unique, inverse = np.unique(lengths, return_inverse=True)
    crcs = _masked_crcs(chain.from_iterable(struct.iter_unpack("8s", unique.astype("<u8").data)), len(unique))
    return np.hstack([lengths.astype("<u8").reshape(-1, 1).view(np.uint8), crcs[inverse]])


def masked(crcs: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """CRCs masked as the format demands: rotated, plus a constant."""
    return ((crcs >> np.uint32(15)) | (crcs << np.uint32(17))) + np.uint32(_MASK_DELTA)


def masked_crc(payload: bytes) -> bytes:
    """The masked CRC of one payload as stored in a file."""
    crc = int(google_crc32c.value(payload))
    return (((crc >> 15 | crc << 17) + _MASK_DELTA) & _WORD).to_bytes(FOOTER_BYTES, "little")


def iterate_records(data: bytes, path: str) -> Iterator[tuple[int, bytes]]:
    """Yield offset and payload of each record of a whole TFRecord file, with every CRC checked.

    Raises:
        CorruptionError: a CRC is wrong, or the file ends inside a record; names the record and its offset.
    """
    position = record = 0
    while position < len(data):
        where = f"{path}: record {record} at offset {position}"
        header = data[position : position + HEADER_BYTES]
        if not starts_with_header(header):
            raise CorruptionError(f"{where}: the length is damaged")
        length = int.from_bytes(header[:8], "little")
        start = position + HEADER_BYTES
        payload = data[start : start + length]
        if len(payload) < length or masked_crc(payload) != data[start + length : start + length + FOOTER_BYTES]:
            raise CorruptionError(f"{where}: the content is damaged or cut short")
        yield position, payload
        position = start + length + FOOTER_BYTES
        record += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameBlock:
    """Some intact records of a TFRecord file."""

    data: bytes  # bytes of the file, with each payload's footer after it
    starts: Int64  # start of each payload in `data`, int64
    lengths: Int64  # length of each payload
    offsets: Int64  # offset of each frame in the (decompressed) file
    numbers: Int64  # number of each record in the file, with damaged records counted

    def slice(self, start: int, stop: int) -> FrameBlock:
        """The records of a half-open range."""
        arrays = (self.starts, self.lengths, self.offsets, self.numbers)
        starts, lengths, offsets, numbers = (array[start:stop] for array in arrays)
        return FrameBlock(data=self.data, starts=starts, lengths=lengths, offsets=offsets, numbers=numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameDamage:
    """A damaged record of a TFRecord file."""

    number: int  # number of the record in the file
    offset: int  # offset of its frame in the (decompressed) file
    reason: str  # what is wrong
    final: bool = False  # whether the records after it cannot be located


def iterate_frames(
    read: Callable[[int], bytes],
    damaged: Callable[[FrameDamage], None],
    *,
    offset: int = 0,
    number: int = 0,
    block_bytes: int,
) -> Iterator[FrameBlock]:
    """Yield the records of a TFRecord stream in blocks, with every checksum checked.

    Args:
        read: returns up to the given number of bytes, none at the end of the file; raises EOFError with the reason if
            the file is cut short.
        damaged: called for each damaged record, which is skipped if it returns.
        block_bytes: bytes to read at a time; a longer record is read whole, up to `MAX_RECORD_BYTES`.
    """
    data, wanted, cut_short = b"", block_bytes, ""
    frames: dict[bytes, int] = {}
    while True:
        try:
            chunk = read(wanted)
        except EOFError as error:
            chunk, cut_short = b"", str(error)
        data = data + chunk if data else chunk
        starts, lengths, position, missing = _walk(data, frames)
        numbers = np.arange(number, number + len(starts))
        number += len(starts)
        good = _check_payloads(data, starts, lengths)
        for bad in np.flatnonzero(~good).tolist():
            at = int(starts[bad]) - HEADER_BYTES
            reason = "the content is damaged: its checksum is wrong"
            damaged(FrameDamage(number=int(numbers[bad]), offset=offset + at, reason=reason))
        if good.any():
            starts, lengths, numbers = starts[good], lengths[good], numbers[good]
            yield FrameBlock(
                data=data, starts=starts, lengths=lengths, offsets=starts - HEADER_BYTES + offset, numbers=numbers
            )
        offset += position
        data = data[position:]
        if missing < 0:
            reason = "the length is damaged, so that the records after it cannot be located"
            damaged(FrameDamage(number=number, offset=offset, reason=reason, final=True))
            return
        if missing > MAX_RECORD_BYTES and chunk and _skip(read, missing, block_bytes):
            size = len(data) + missing
            reason = f"the record has {size:,} bytes, more than the limit of {MAX_RECORD_BYTES:,}"
            damaged(FrameDamage(number=number, offset=offset, reason=reason))
            offset, number, data, missing = offset + size, number + 1, b"", 0
        elif missing > MAX_RECORD_BYTES or not chunk:
            if data or cut_short:
                reason = cut_short or "the file ends within the record"
                damaged(FrameDamage(number=number, offset=offset, reason=reason, final=True))
            return
        wanted = max(block_bytes, missing)


def _walk(data: bytes, frames: dict[bytes, int]) -> tuple[Int64, Int64, int, int]:
    """Start and length of each whole payload, the position after the last frame, and the bytes missing for the next.

    The last is -1 if the next length is damaged. `frames` caches the frame sizes of valid headers.
    """
    positions = [0]
    position = missing = 0
    while position < len(data):
        header = data[position : position + HEADER_BYTES]
        frame = frames.get(header)
        if frame is None:
            if len(header) < HEADER_BYTES:
                missing = HEADER_BYTES - len(header)
                break
            if not starts_with_header(header):
                missing = -1
                break
            frame = HEADER_BYTES + int.from_bytes(header[:8], "little") + FOOTER_BYTES
            if len(frames) < _KNOWN_HEADERS:
                frames[header] = frame
        position += frame
        if position > len(data):
            missing = position - len(data)
            break
        positions.append(position)
    bounds = np.array(positions, np.int64)
    return bounds[:-1] + HEADER_BYTES, np.diff(bounds) - (HEADER_BYTES + FOOTER_BYTES), positions[-1], missing


def _check_payloads(data: bytes, starts: Int64, lengths: Int64) -> Bools:
    """Whether each payload matches its checksum."""
    ends = starts + lengths
    payloads = (data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True))
    crcs = np.fromiter(map(google_crc32c.value, payloads), np.uint32, len(starts))
    footers = np.ndarray((max(0, len(data) - FOOTER_BYTES + 1),), "<u4", data, 0, (1,))
    good: Bools = masked(crcs) == footers[ends]
    return good


def _skip(read: Callable[[int], bytes], count: int, block_bytes: int) -> bool:
    """Skip some bytes; returns whether the file had as many."""
    with suppress(EOFError):
        while count and (got := len(read(min(count, block_bytes)))):
            count -= got
    return not count


def starts_with_header(head: bytes) -> bool:
    """Whether bytes begin with a length and its checksum, as other files do only by chance."""
    return len(head) >= HEADER_BYTES and masked_crc(head[:8]) == head[8:HEADER_BYTES]


def compressor(compression: str) -> zlib._Compress | None:
    """A gzip or zlib compressor as `tf.data.TFRecordDataset(compression_type=...)` expects it, or None for ``none``."""
    wbits = {"gzip": 31, "zlib": 15}.get(compression)
    return None if wbits is None else zlib.compressobj(6, wbits=wbits)


def compress(data: bytes | memoryview, compression: str) -> bytes | memoryview:
    """Compress a whole file as `compressor` does."""
    stream = compressor(compression)
    return data if stream is None else stream.compress(data) + stream.flush()


def decompress(data: bytes, compression: str) -> bytes:
    """The inverse of `compress`."""
    return zlib.decompress(data, wbits=47) if compression in ("gzip", "zlib") else data
