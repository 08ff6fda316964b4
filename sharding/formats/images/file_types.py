"""Detects the formats of image files by their first bytes, without decoding.

Tested in tests/sharding/formats/images/test_statistics.py.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

BMP_GREYS = bytes(value for grey in range(256) for value in (grey, grey, grey, 0))  # the palette of a grey BMP
_BMP_MASKS = bytes.fromhex("0000ff00 00ff0000 ff000000")  # red, green and blue in the order of bytes B, G, R

_HEAD_BYTES = 12
_HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_STARTS = {
    b"\xff\xd8\xff": "jpeg",
    b"\x89PNG\r\n\x1a\n": "png",
    b"GIF8": "gif",
    b"BM": "bmp",
    b"II*\0": "tiff",
    b"MM\0*": "tiff",
}


def image_formats(files: pa.BinaryArray) -> pa.StringArray:
    """The format of each file: ``jpeg``, ``png``, ``gif``, ``bmp``, ``bmp-palette``, ``bmp-other``, ``tiff``,
    ``webp``, or empty.

    ``bmp-palette`` is a BMP with a palette of colours, which TensorFlow would read as greys; ``bmp-other`` has 16 bits,
    other masks or an old header, which it would take for other colours.

    >>> image_formats(pa.array([b"GIF89a...", b"RIFF\\0\\0\\0\\0WEBPVP8 ", None, b"?"], pa.binary())).to_pylist()
    ['gif', 'webp', None, '']
    """
    heads = pc.binary_slice(files, 0, _HEAD_BYTES).dictionary_encode()
    formats = pa.array(map(_format, heads.dictionary.to_pylist()), pa.string()).take(heads.indices)
    is_bmp = pc.equal(formats, "bmp")
    if not pc.any(is_bmp).as_py():
        return formats
    return pc.replace_with_mask(formats, is_bmp, pa.array(map(_bitmap, files.filter(is_bmp).to_pylist()), pa.string()))


def unreadable_format(data: bytes | memoryview) -> str:
    """The name of a format that neither Pillow nor TensorFlow decodes; empty for others.

    >>> unreadable_format(b"\\0\\0\\0\\x18ftypheic"), unreadable_format(b"GIF89a")
    ('HEIC', '')
    """
    head = bytes(data[:_HEAD_BYTES])
    if head[4:8] == b"ftyp" and head[8:12] in _HEIC_BRANDS:
        return "HEIC"
    return "JPEG XL" if head.startswith((b"\xff\n", b"\0\0\0\x0cJXL ")) else ""


def _format(head: bytes) -> str:
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    return next((name for start, name in _STARTS.items() if head.startswith(start)), "")


def _bitmap(data: bytes) -> str:
    header = int.from_bytes(data[14:18], "little")
    bits, method = int.from_bytes(data[28:30], "little"), int.from_bytes(data[30:34], "little")
    if header == 12:  # the header of OS/2, which TensorFlow takes for another
        return "bmp-palette" if int.from_bytes(data[24:26], "little") <= 8 else "bmp-other"
    if bits <= 8:
        return "bmp" if bits == 8 and method == 0 and data[14 + header :].startswith(BMP_GREYS) else "bmp-palette"
    is_plain = method == 0 and bits in (24, 32)
    return "bmp" if is_plain or (method == 3 and bits == 32 and data[54:66] == _BMP_MASKS) else "bmp-other"
