"""Finds images that EXIF says to turn or mirror for display, without decoding them."""

from __future__ import annotations

import struct

__all__ = ["is_rotated"]

_HEAD_BYTES = 4096  # cameras write EXIF first; PNG's writers put it before the pixels
_ORIENTATION = 0x0112


def is_rotated(data: bytes | memoryview) -> bool:
    """Whether a JPEG, PNG or WebP file has an EXIF orientation other than upright.

    Looks for EXIF in the first 4 KiB, and for that of WebP at the end of the file.
    """
    head = bytes(data[:_HEAD_BYTES])
    if head.startswith(b"\xff\xd8"):
        place, size = head.find(b"Exif\0\0"), 6
    elif head.startswith(b"\x89PNG"):
        place, size = head.find(b"eXIf"), 4
    elif head[12:16] == b"VP8X" and head[20] & 8:
        head = bytes(data[-_HEAD_BYTES:])
        place, size = head.rfind(b"EXIF"), 8
        size += 6 * head.startswith(b"Exif\0\0", place + size)
    else:
        return False
    return place >= 0 and 1 < _orientation(head[place + size :]) <= 8


def _orientation(tiff: bytes) -> int:
    """The orientation in the first directory of TIFF tags; 1, upright, without one."""
    order = "<" if tiff.startswith(b"II") else ">"
    try:
        (first,) = struct.unpack_from(f"{order}I", tiff, 4)
        (entries,) = struct.unpack_from(f"{order}H", tiff, first)
        for place in range(first + 2, first + 2 + 12 * entries, 12):
            tag, _, _, value = struct.unpack_from(f"{order}HHIH", tiff, place)
            if tag == _ORIENTATION:
                return int(value)
    except struct.error:  # it ends before
        pass
    return 1
