"""Reads the sizes of many JPEG files at once, by walking the headers of all in lockstep.

Files with unusual headers are left to `sizes.py`. No pixels are decoded.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
_START, _END, _SCAN = (0xFF, 0xD8), (0xFF, 0xD9), 0xDA
_FRAMES = (0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF)
_LEAST_BYTES = 12  # of a file, and between a segment's start and the file's end; shorter ones are left to `sizes.py`
_SEGMENTS = 64  # at most, before the pixels: cameras write about 20

_OTHER, _FRAME, _PIXELS, _STRANGE = range(4)  # kinds of segments
_KINDS = np.full(256, _OTHER, np.uint8)
_KINDS[:0xC0], _KINDS[0xD0:0xDA], _KINDS[0xFF] = _STRANGE, _STRANGE, _STRANGE
_KINDS[list(_FRAMES)], _KINDS[_SCAN] = _FRAME, _PIXELS


def plain_jpeg_sizes(data: npt.NDArray[np.uint8], bounds: Int64) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """Height and width of each file that is a JPEG with usual headers and an end-of-image marker.

    Args:
        data: the files, end to end.
        bounds: boundaries of the files, int64 [files + 1].

    Returns:
        Sizes, int32 [files, 2], and whether each is known, bool [files]; unknown sizes are meaningless.
    """
    starts, ends = bounds[:-1], bounds[1:]
    sizes = np.zeros((len(starts), 2), np.int32)
    known = np.zeros(len(starts), bool)
    files = np.flatnonzero(ends - starts >= _LEAST_BYTES)
    files = files[_is_pair(data, starts[files], _START) & _is_pair(data, ends[files] - 2, _END)]
    positions = starts[files] + 2
    for _ in range(_SEGMENTS):
        if not len(files):
            break
        kinds = _KINDS[data[positions + 1]]
        kinds[data[positions] != 0xFF] = _STRANGE
        at_pixels = files[kinds == _PIXELS]
        known[at_pixels] = sizes[at_pixels, 0] > 0
        frame = np.flatnonzero(kinds == _FRAME)
        kinds[frame[~_read_frames(data, positions[frame], sizes, files[frame])]] = _STRANGE
        on = kinds <= _FRAME
        files, positions = files[on], positions[on]
        positions = positions + 2 + _big_endian(data, positions + 2)
        inside = positions + _LEAST_BYTES <= ends[files]
        files, positions = files[inside], positions[inside]
    return sizes, known


def _read_frames(
    data: npt.NDArray[np.uint8], positions: Int64, sizes: npt.NDArray[np.int32], files: Int64
) -> npt.NDArray[np.bool_]:
    """Store the sizes in frame headers; returns which headers are usual and the first of their file."""
    first = sizes[files, 0] == 0
    sides = np.stack([_big_endian(data, positions + 5), _big_endian(data, positions + 7)], axis=1)
    sizes[files] = sides
    components = data[positions + 9]
    colours = (components == 1) | (components == 3) | (components == 4)
    plain: npt.NDArray[np.bool_] = first & (data[positions + 4] == 8) & colours & sides.all(axis=1)
    return plain


def _is_pair(data: npt.NDArray[np.uint8], positions: Int64, pair: tuple[int, int]) -> npt.NDArray[np.bool_]:
    result: npt.NDArray[np.bool_] = (data[positions] == pair[0]) & (data[positions + 1] == pair[1])
    return result


def _big_endian(data: npt.NDArray[np.uint8], positions: Int64) -> Int64:
    """The big-endian 16-bit number at each position."""
    return data[positions].astype(np.int64) << 8 | data[positions + 1]
