"""Finds images that EXIF says to turn or mirror for display, without decoding them."""

from __future__ import annotations

import struct

_START_BYTES = 64  # where EXIF begins in a JPEG: first, or after JFIF's 18 bytes
_EXIF_BYTES = 4096  # enough for the first directory, and for what a PNG holds before its pixels
_ORIENTATION = 0x0112


def is_rotated(data: bytes | memoryview) -> bool:
    """Whether a JPEG, PNG or WebP file has an EXIF orientation other than upright.

    EXIF is sought where the standards and Pillow put it: at the start of a JPEG, before the pixels of a PNG, and at the
    end of a WebP.
    """
    head = bytes(data[:_START_BYTES])
    if head.startswith(b"\xff\xd8"):
        place = head.find(b"Exif\0\0") + 6
        return place > 5 and _turns(bytes(data[place : place + _EXIF_BYTES]))
    if head.startswith(b"\x89PNG"):
        head = bytes(data[:_EXIF_BYTES])
        place = head.find(b"eXIf") + 4
        return place > 3 and _turns(head[place:])
    if head[12:16] == b"VP8X" and head[20] & 8:
        tail = bytes(data[-_EXIF_BYTES:])
        place = tail.rfind(b"EXIF") + 8
        return place > 7 and _turns(tail[place:].removeprefix(b"Exif\0\0"))
    return False


def _turns(tiff: bytes) -> bool:
    return 1 < _orientation(tiff) <= 8


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
