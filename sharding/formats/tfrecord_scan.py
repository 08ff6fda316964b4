"""Scans damaged TFRecord files: which records are intact, and where each lies.

A frame is a length, its masked CRC, the payload and its masked CRC. If an index or a fixed layout gives the positions
of the frames, a damaged frame hides no other; otherwise the next frame is found by the CRC of its length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import google_crc32c
import numpy as np
import numpy.typing as npt

from ringfeed.sharding.compute.arrays import Bools, UInt8

from .tfrecord import FOOTER_BYTES, HEADER_BYTES, masked, masked_crc, starts_with_header

Bounds = Sequence[tuple[int, int]]  # [offset, stop) of each frame

_SEARCH_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A frame, or a gap in which one or more frames are lost."""

    record: int | None  # number of the record; None after a gap with an unknown number of records
    offset: int  # offset of the first byte in the (decompressed) file
    stop: int  # offset after the last byte
    problem: str = ""  # what is wrong; empty if the frame is intact
    readable: bool = True  # whether the payload matches its CRC, even if the length is damaged

    @property
    def payload(self) -> slice:
        """The range of the payload in the file."""
        return slice(self.offset + HEADER_BYTES, self.stop - FOOTER_BYTES)


def scan_frames(data: memoryview, bounds: Bounds | None, search_bytes: int = _SEARCH_BYTES) -> Iterator[Frame]:
    """Yield every frame of a file, intact or not.

    Args:
        data: bytes of the file, decompressed as far as possible.
        bounds: bounds of all frames as written, or None if unknown.
        search_bytes: bytes that are searched at a time for the frame after a damaged length.
    """
    if bounds is None:
        yield from _follow(data, search_bytes)
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


def _follow(data: memoryview, search_bytes: int) -> Iterator[Frame]:
    record: int | None = 0
    offset = 0
    while offset < len(data):
        stop = _stop_of(data, offset)
        if stop is None:
            following = _find_frame(data, offset + 1, search_bytes)
            problem = "has a damaged length" if following < len(data) else "is cut short or has a damaged length"
            yield Frame(record=record, offset=offset, stop=following, problem=problem, readable=False)
            record, offset = None, following
            continue
        yield _check(data, record, offset, stop)
        record, offset = None if record is None else record + 1, stop


def _stop_of(data: memoryview, offset: int) -> int | None:
    """End of the frame at `offset`, by its length; None if that is damaged or the file ends earlier."""
    header = bytes(data[offset : offset + HEADER_BYTES])
    if not starts_with_header(header):
        return None
    stop = offset + HEADER_BYTES + int.from_bytes(header[:8], "little") + FOOTER_BYTES
    return stop if stop <= len(data) else None


def _find_frame(data: memoryview, start: int, search_bytes: int) -> int:
    """Offset of the first intact frame from `start` on, or the file's size if there is none."""
    for block in range(start, len(data) - HEADER_BYTES + 1, search_bytes):
        window = np.frombuffer(data[block : block + search_bytes + HEADER_BYTES - 1], np.uint8)
        for place in np.flatnonzero(_is_header(window)).tolist():
            stop = _stop_of(data, block + place)
            if stop is not None and _check(data, None, block + place, stop).readable:
                return block + int(place)
    return len(data)


def _is_header(window: UInt8) -> Bools:
    """For each position of a window, whether eight bytes and their masked CRC begin there."""
    places = len(window) - HEADER_BYTES + 1
    crcs = np.full(places, google_crc32c.value(bytes(8)), np.uint32)
    for position in range(8):
        crcs ^= _BYTE_CRCS[position][window[position : position + places]]
    stored = np.lib.stride_tricks.sliding_window_view(window[8:], 4)[:places].copy().view("<u4")[:, 0]
    return np.asarray(masked(crcs) == stored)


def _byte_crcs(position: int) -> npt.NDArray[np.uint32]:
    """The change that each value of one byte among eight makes to the CRC of eight zeros."""
    zero = google_crc32c.value(bytes(8))
    values = (google_crc32c.value(bytes(position) + bytes([b]) + bytes(7 - position)) ^ zero for b in range(256))
    return np.fromiter(values, np.uint32, 256)


_BYTE_CRCS = [_byte_crcs(position) for position in range(8)]


def _header(length: int) -> bytes:
    encoded = length.to_bytes(8, "little")
    return encoded + masked_crc(encoded)
