"""The records of a damaged TFRecord file, one by one: which are intact, where each lies, and what can be put right.

A frame is a length, its masked CRC, the payload and its masked CRC. Where an index or a fixed layout tells the frames'
places, a damaged frame hides no other; elsewhere the next frame is searched for by the CRC of its length.

A CRC is linear, so a single flipped bit leaves a trace in it that tells which bit it was:
`repair_frames` turns it back. Whether that was the fault is for the caller to prove, by the checksum of the whole file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import google_crc32c
import numpy as np
import numpy.typing as npt

from .tfrecord import FOOTER_BYTES, HEADER_BYTES, masked, masked_crc, starts_with_header, unmasked

__all__ = ["Frame", "repair_frames", "scan_frames"]

Bounds = Sequence[tuple[int, int]]  # [offset, stop) of each frame

_WORD = 0xFFFFFFFF
_SEARCH_BYTES = 1 << 20
_MEND_BYTES = 16 << 20  # of a record whose flipped bit is searched for: 0.4 us a byte
_MEND_RECORDS = 16  # of a file


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A frame, or the place where one or more should be.

    Attributes:
        record: its number; None after a gap with an unknown number of records.
        offset: of its first byte in the (decompressed) file.
        stop: offset of the byte after it.
        problem: what is wrong with it; empty if nothing is.
        readable: whether the payload is as it was written, as its CRC tells; the length may be wrong even so.
    """

    record: int | None
    offset: int
    stop: int
    problem: str = ""
    readable: bool = True

    @property
    def payload(self) -> slice:
        """Where the message lies in the file."""
        return slice(self.offset + HEADER_BYTES, self.stop - FOOTER_BYTES)


def scan_frames(data: memoryview, bounds: Bounds | None) -> Iterator[Frame]:
    """Every frame of a file, intact or not.

    Args:
        data: of the file, decompressed as far as it can be.
        bounds: of all frames that were written, if they are known.
    """
    if bounds is None:
        yield from _follow(data)
        return
    for record, (offset, stop) in enumerate(bounds):
        yield _check(data, record, offset, stop)


def _check(data: memoryview, record: int | None, offset: int, stop: int) -> Frame:
    header = bytes(data[offset : offset + HEADER_BYTES])
    payload = bytes(data[offset + HEADER_BYTES : stop - FOOTER_BYTES])
    footer = bytes(data[stop - FOOTER_BYTES : stop])
    readable = masked_crc(payload) == footer
    problem = ""
    if stop > len(data):
        problem = "is cut short" if header else "is missing"
    elif header != _header(stop - offset - HEADER_BYTES - FOOTER_BYTES):
        problem = "has a damaged length"
    elif not readable:
        problem = "has damaged content"
    return Frame(record=record, offset=offset, stop=stop, problem=problem, readable=readable)


def _follow(data: memoryview) -> Iterator[Frame]:
    record: int | None = 0
    offset = 0
    while offset < len(data):
        stop = _stop_of(data, offset)
        if stop is None:
            following = _find_frame(data, offset + 1)
            problem = "has a damaged length" if following < len(data) else "is cut short or has a damaged length"
            yield Frame(record=record, offset=offset, stop=following, problem=problem, readable=False)
            record, offset = None, following
            continue
        yield _check(data, record, offset, stop)
        record, offset = None if record is None else record + 1, stop


def _stop_of(data: memoryview, offset: int) -> int | None:
    """Where the frame at `offset` ends by its own length; None if that is damaged, or the file ends before."""
    header = bytes(data[offset : offset + HEADER_BYTES])
    if not starts_with_header(header):
        return None
    stop = offset + HEADER_BYTES + int.from_bytes(header[:8], "little") + FOOTER_BYTES
    return stop if stop <= len(data) else None


def _find_frame(data: memoryview, start: int) -> int:
    """The first offset from `start` on at which a whole intact frame begins; the file's size if there is none."""
    for block in range(start, len(data) - HEADER_BYTES + 1, _SEARCH_BYTES):
        window = np.frombuffer(data[block : block + _SEARCH_BYTES + HEADER_BYTES - 1], np.uint8)
        for place in np.flatnonzero(_is_header(window)).tolist():
            stop = _stop_of(data, block + place)
            if stop is not None and _check(data, None, block + place, stop).readable:
                return block + int(place)
    return len(data)


def _is_header(window: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """For each place of a window, whether eight bytes and the masked CRC of them begin there."""
    places = len(window) - HEADER_BYTES + 1
    crcs = np.full(places, google_crc32c.value(bytes(8)), np.uint32)
    for position in range(8):
        crcs ^= _BYTE_CRCS[position][window[position : position + places]]
    stored = np.lib.stride_tricks.sliding_window_view(window[8:], 4)[:places].copy().view("<u4")[:, 0]
    return np.asarray(masked(crcs) == stored)


def _byte_crcs(position: int) -> npt.NDArray[np.uint32]:
    """What each value of one byte of eight adds to the CRC of eight zeros."""
    zero = google_crc32c.value(bytes(8))
    values = (google_crc32c.value(bytes(position) + bytes([b]) + bytes(7 - position)) ^ zero for b in range(256))
    return np.fromiter(values, np.uint32, 256)


_BYTE_CRCS = [_byte_crcs(position) for position in range(8)]


# --- putting right ---------------------------------------------------------------------------------------------


def repair_frames(data: memoryview, bounds: Bounds) -> bytes | None:
    """The likeliest original of a file: lengths and CRCs written anew, and one flipped bit a payload turned back.

    Args:
        data: of the file, decompressed; as long as it was.
        bounds: of all frames.

    Returns:
        What may be the original, or None if too many records are damaged for it.
    """
    bad = [frame for frame in scan_frames(data, bounds) if frame.problem]
    if len(bad) > _MEND_RECORDS:
        return None
    result = bytearray(data)
    for frame in bad:
        payload = bytes(data[frame.payload])
        if not frame.readable:
            payload = _mend_payload(payload, int.from_bytes(data[frame.stop - FOOTER_BYTES : frame.stop], "little"))
        result[frame.offset : frame.stop] = _header(len(payload)) + payload + masked_crc(payload)
    return bytes(result)


def _mend_payload(payload: bytes, stored: int) -> bytes:
    """The payload that differs in one bit and has the stored CRC; as it is if there is none: the CRC is damaged."""
    expected = int.from_bytes(masked_crc(payload), "little")
    if (expected ^ stored).bit_count() == 1 or len(payload) > _MEND_BYTES:
        return payload
    trace = unmasked(expected) ^ unmasked(stored)
    for position in range(len(payload) - 1, -1, -1):
        if trace in _BIT_TRACES:
            mended = bytearray(payload)
            mended[position] ^= _BIT_TRACES[trace]
            return bytes(mended)
        trace = _REVERSE[trace >> 24] ^ (trace << 8 & _WORD)  # the trace of the same bit, one byte nearer to the end
    return payload


def _linear_crc(value: int) -> int:
    """CRC of one byte without the inversions before and after: what makes it linear."""
    return int(google_crc32c.value(bytes([value])) ^ google_crc32c.value(b"\0"))


_TABLE = [_linear_crc(value) for value in range(256)]
_BIT_TRACES = {_TABLE[1 << bit]: 1 << bit for bit in range(8)}  # of the last byte's bits
_REVERSE = {entry >> 24: entry << 8 & _WORD | value for value, entry in enumerate(_TABLE)}


def _header(length: int) -> bytes:
    encoded = length.to_bytes(8, "little")
    return encoded + masked_crc(encoded)
