"""Decodes crops of JPEG files and resizes images by images.c, without TensorFlow, to the pixels of `Loader.epoch`.

JPEGs need the libjpeg-turbo that Pillow brings.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_char_p, c_int, c_int64, c_void_p
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import _imaging

_MODULE = "._images"
_MESSAGE_BYTES = 200
_BLOCK_PIXELS = 64  # a row is decoded in whole blocks, of 32 pixels at most
_DONE, _FAILED = 0, 1
_NO_PIXELS = "it ends before its pixels do, or is too large"

Pixels = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]


def can_resize() -> bool:
    """Whether images.c was compiled; `resize` must not be called otherwise."""
    return _library is not None


def can_decode_jpeg() -> bool:
    """Whether Pillow's libjpeg-turbo was found, too; the other functions must not be called otherwise."""
    return _finds_jpeg


def jpeg_sides(data: bytes) -> Int64 | None:
    """Height and width of a JPEG file, int64 [2]; None if it has four colours, which `decode_jpeg` does not decode.

    Raises:
        ValueError: it has no header that libjpeg can read.
    """
    sides = np.empty(2, np.int64)
    message = ctypes.create_string_buffer(_MESSAGE_BYTES)
    result = _kernels().ringfeed_jpeg_sides(data, len(data), sides.ctypes.data, message)
    _check(result, message)
    return sides if result == _DONE else None


def decode_jpeg(data: bytes, channels: int, scale: int, window: Int64) -> Pixels:
    """A window of a JPEG file whose sides are divided by a scale, as `tf.io.decode_and_crop_jpeg` decodes it.

    Args:
        data: the file.
        channels: 1 or 3.
        scale: 1, 2, 4 or 8.
        window: top, left, height and width in the scaled image, int64 [4].

    Raises:
        ValueError: the file is damaged, or the window does not lie in it.
    """
    if channels not in (1, 3) or (window < (0, 0, 1, 1)).any():
        raise ValueError(f"no window {window.tolist()} of {channels} channels can be decoded")
    sides = jpeg_sides(data)
    assert sides is not None
    row = np.empty((-(-int(sides[1]) // scale) + _BLOCK_PIXELS) * channels, np.uint8)
    pixels = np.empty((int(window[2]), int(window[3]), channels), np.uint8)
    window = np.ascontiguousarray(window, np.int64)
    message = ctypes.create_string_buffer(_MESSAGE_BYTES)
    result = _kernels().ringfeed_decode_jpeg(
        data, len(data), channels, scale, window.ctypes.data, row.ctypes.data, row.size, pixels.ctypes.data, message
    )
    _check(result, message)
    return pixels


def resize(pixels: Pixels, size: Sequence[int]) -> npt.NDArray[np.float32]:
    """A uint8 image [height, width, channels] resized to two sides: float32, as `operations.resize_operation`."""
    pixels = np.ascontiguousarray(pixels, np.uint8)
    if pixels.ndim != 3 or min(*pixels.shape, *size) < 1:
        raise ValueError(f"an image must have [height, width, channels], got {pixels.shape} to resize to {size}")
    source, target = np.array(pixels.shape, np.int64), np.array(size, np.int64)
    resized = np.empty((*size, pixels.shape[2]), np.float32)
    places = [array.ctypes.data for array in (pixels, source, target, resized)]
    if not _kernels().ringfeed_resize(*places):
        raise MemoryError("no memory to resize an image")
    return resized


def _check(result: int, message: Any) -> None:
    if result == _FAILED:
        raise ValueError(message.value.decode(errors="replace") or _NO_PIXELS)


def _kernels() -> Any:
    if _library is None:
        raise RuntimeError("images.c was not compiled; check can_resize() first")
    return _library


def _load() -> ctypes.CDLL | None:
    spec = find_spec(_MODULE, __package__)
    if spec is None or spec.origin is None:
        return None
    try:
        library = ctypes.CDLL(spec.origin)
    except OSError:  # built for another machine's C library
        return None
    for name, *arguments in (
        ("find_jpeg_library", c_char_p),
        ("jpeg_sides", c_char_p, c_int64, c_void_p, c_char_p),
        ("decode_jpeg", c_char_p, *[c_int64] * 3, *[c_void_p] * 2, c_int64, c_void_p, c_char_p),
        ("resize", *[c_void_p] * 4),
    ):
        function = getattr(library, f"ringfeed_{name}")
        function.restype, function.argtypes = c_int, arguments
    return library


_library = _load()
_finds_jpeg = _library is not None and bool(_library.ringfeed_find_jpeg_library(_imaging.__file__.encode()))
