"""Which format an image file has, by its first bytes; nothing is decoded."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["image_formats"]

_HEAD_BYTES = 12
_STARTS = {
    b"\xff\xd8\xff": "jpeg",
    b"\x89PNG\r\n\x1a\n": "png",
    b"GIF8": "gif",
    b"BM": "bmp",
    b"II*\0": "tiff",
    b"MM\0*": "tiff",
}


def image_formats(files: pa.BinaryArray) -> pa.StringArray:
    """The format of each file: ``jpeg``, ``png``, ``gif``, ``bmp``, ``tiff``, ``webp``, or empty if it is another.

    >>> image_formats(pa.array([b"GIF89a...", b"RIFF\\0\\0\\0\\0WEBPVP8 ", None, b"?"], pa.binary())).to_pylist()
    ['gif', 'webp', None, '']
    """
    heads = pc.binary_slice(files, 0, _HEAD_BYTES).dictionary_encode()
    return pa.array(map(_format, heads.dictionary.to_pylist()), pa.string()).take(heads.indices)


def _format(head: bytes) -> str:
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    return next((name for start, name in _STARTS.items() if head.startswith(start)), "")
