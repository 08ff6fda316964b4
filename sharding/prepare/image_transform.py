"""Resize and encode images (`--resize`, `--encode`) when their shard is assembled."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO

import numpy as np
from PIL import Image

from ringfeed.sharding.errors import ConfigError, SourceError
from ringfeed.sharding.formats.images.sizes import error_text
from ringfeed.sharding.sources.base import SKIP_REMEDY
from ringfeed.sharding.sources.images.image_files import image_fault

_QUALITIES = {"jpeg": 90, "webp": 80, "png": None}
_THREADS = 4  # Pillow releases the GIL while it decodes, resizes and encodes
_MAX_SIDE = 1 << 15  # longest side that can be asked for, in pixels
_MAX_NEW_SIDE = 65500  # longest side of a new image, in pixels: the limit of JPEG
_KEPT = {"JPEG": "jpeg", "MPO": "jpeg", "WEBP": "webp"}  # formats that a resized image stays in; any other becomes PNG
_ORIENTATION = 0x0112  # the EXIF tag; _TURNS maps its values, except 1, to the turn that makes the image upright
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # fmt: skip
_SWAPPING = (5, 6, 7, 8)  # values that swap width and height
_CONVERTED = ("CMYK", "HSV", "LAB", "YCbCr")  # modes that become RGB, so their colour profile does not apply
_MAX_GREY = 65535  # PNG has 16 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Size of resized images in pixels: of the shorter side, keeping the ratio (`height` None), or of both sides.

    >>> from ringfeed.sharding.prepare import parse_size
    >>> parse_size("224x160")
    Size(width=224, height=160)
    """

    width: int
    height: int | None = None

    def __str__(self) -> str:
        return str(self.width) if self.height is None else f"{self.width}x{self.height}"

    def of(self, width: int, height: int) -> tuple[int, int]:
        """The new width and height of an image.

        >>> Size(width=256).of(1000, 500), Size(width=32, height=16).of(1000, 500)
        ((512, 256), (32, 16))
        """
        if self.height is not None:
            return self.width, self.height
        short = min(width, height)
        return max(1, round(width * self.width / short)), max(1, round(height * self.width / short))


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """Format of stored images: ``jpeg``, ``png`` or ``webp``; the lossy ones with a quality from 1 to 100.

    >>> from ringfeed.sharding.prepare import parse_encoding
    >>> parse_encoding("jpeg:90")
    Encoding(form='jpeg', quality=90)
    """

    form: str
    quality: int | None = None

    def __str__(self) -> str:
        return self.form if self.quality is None else f"{self.form}:{self.quality}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOptions:
    """Transformation of images: a size, an encoding, or both.

    >>> from ringfeed.sharding.prepare import Size
    >>> ImageOptions(size=Size(width=256)).size.width
    256
    """

    size: Size | None = None
    encoding: Encoding | None = None

    @property
    def spec(self) -> str:
        """The options as on the command line."""
        flags = {"--resize": self.size, "--encode": self.encoding}
        return " ".join(f"{flag} {value}" for flag, value in flags.items() if value is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformedImage:
    """A transformed image."""

    data: bytes  # bytes of the file
    # `width`, `height`: size in pixels
    width: int
    height: int
    sizes_before: tuple[tuple[int, int], tuple[int, int]]  # width and height of the original as stored, and upright


def parse_size(text: str) -> Size:
    """Parse a size from the command line.

    Raises:
        ConfigError: the text is not a size.

    >>> parse_size("256"), parse_size("640x480")
    (Size(width=256, height=None), Size(width=640, height=480))
    """
    match = re.fullmatch(r"([0-9]{1,6})(?:x([0-9]{1,6}))?", text.strip())
    sides = [int(side) for side in match.groups() if side] if match else []
    if not sides or not all(1 <= side <= _MAX_SIDE for side in sides):
        raise ConfigError(
            f"a size must be the shorter side in pixels, such as 256, or WIDTHxHEIGHT, each from 1 to {_MAX_SIDE}, "
            f"got {text!r}"
        )
    return Size(width=sides[0], height=sides[1] if len(sides) > 1 else None)


def parse_encoding(text: str) -> Encoding:
    """Parse a format from the command line.

    Raises:
        ConfigError: the text is not a format.

    >>> parse_encoding("jpeg:85"), parse_encoding("webp")
    (Encoding(form='jpeg', quality=85), Encoding(form='webp', quality=80))
    """
    form, colon, quality = text.strip().lower().partition(":")
    form = "jpeg" if form == "jpg" else form
    if form not in _QUALITIES or (colon and (form == "png" or not _is_quality(quality))):
        raise ConfigError(
            f"an encoding must be jpeg:QUALITY, webp:QUALITY (1 to 100, as in jpeg:90) or png, got {text!r}"
        )
    return Encoding(form=form, quality=int(quality) if colon else _QUALITIES[form])


def _is_quality(text: str) -> bool:
    return text.isdecimal() and text.isascii() and 1 <= int(text) <= 100


def transform_all(
    images: list[bytes | None], options: ImageOptions, name: Callable[[int], str]
) -> Iterator[TransformedImage | None]:
    """Transform images, a few at a time; the result for each does not depend on the others.

    Args:
        images: image files; None stays None.
        name: returns the name, for errors, of the image at an index.

    Raises:
        SourceError: an image is damaged, or cannot be transformed as asked.
    """

    def one(number: int) -> TransformedImage | None:
        data = images[number]
        if data is None:
            return None
        try:
            return _transform(data, options)
        except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error, ...
            raise SourceError(f"{name(number)}: the image {_unfit(error)}; fix it, or {SKIP_REMEDY}") from error

    with ThreadPoolExecutor(_THREADS) as threads:
        yield from threads.map(one, range(len(images)))


def fault_of_prepared(data: bytes | memoryview, options: ImageOptions) -> str | None:
    """What keeps an image from being transformed, as far as decoding shows; None if nothing does."""
    if (fault := image_fault(data)) is not None:
        return fault
    try:
        _decode(data, options)
    except Exception as error:
        return _unfit(error)
    return None


def _unfit(error: Exception) -> str:
    return f"cannot be prepared ({error_text(error)[:200]})"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decoded:
    """A decoded image and how to transform it; `pixels` is None if its file stays unchanged."""

    pixels: Image.Image | None
    size: tuple[int, int]
    sizes_before: tuple[tuple[int, int], tuple[int, int]]
    turn: Image.Transpose | None
    encoding: Encoding
    profile: bytes | None


def _decode(data: bytes | memoryview, options: ImageOptions) -> _Decoded:
    with Image.open(BytesIO(data)) as opened:
        stored = opened.size
        known = _KEPT.get(opened.format or "", "png")
        encoding = options.encoding or Encoding(form=known, quality=_QUALITIES[known])
        orientation = opened.getexif().get(_ORIENTATION, 1)
        turn, turned = _TURNS.get(orientation), orientation in _SWAPPING
        is_upright = turn is None
        if opened.format == "TIFF":  # Pillow turns these on loading, and reports the turned size
            turn, turned = None, False
        upright = stored[::-1] if turned else stored
        size = upright if options.size is None else options.size.of(*upright)
        if max(size) > _MAX_NEW_SIDE:
            raise ValueError(f"it would have {size[0]} x {size[1]} pixels; a side may have at most {_MAX_NEW_SIDE}")
        pixels = profile = None
        if options.encoding is not None or not is_upright or size != stored:
            if options.size is not None:  # JPEG decodes to 1/2, 1/4 or 1/8 of the size, several times as fast
                wide, high = size[::-1] if turned else size
                opened.draft(None, (2 * wide, 2 * high))
            profile = _profile(opened, encoding)
            pixels = _plain(opened)
    return _Decoded(
        pixels=pixels, size=size, sizes_before=(stored, upright), turn=turn, encoding=encoding, profile=profile
    )


def _transform(data: bytes, options: ImageOptions) -> TransformedImage:
    decoded = _decode(data, options)
    width, height = decoded.size
    image = decoded.pixels
    if image is not None:
        image = image if decoded.turn is None else image.transpose(decoded.turn)
        image = image if image.size == decoded.size else image.resize(decoded.size, Image.Resampling.LANCZOS)
        data = _encoded(image, decoded.encoding, decoded.profile)
    return TransformedImage(data=data, width=width, height=height, sizes_before=decoded.sizes_before)


def _profile(image: Image.Image, encoding: Encoding) -> bytes | None:
    """The colour profile, if it also applies to the new image."""
    profile: bytes | None = image.info.get("icc_profile")
    if not profile or image.mode in _CONVERTED:
        return None
    return None if encoding.form == "webp" and profile[16:20] == b"GRAY" else profile  # WebP has no grey


def _plain(image: Image.Image) -> Image.Image:
    """The image in a mode that can be resized: L, LA, RGB, RGBA, or I for 16-bit grey."""
    if image.mode == "F":
        raise ValueError("its pixels are floats")
    if image.mode.startswith("I"):
        grey = image.convert("I")
        pixels = np.asarray(grey)
        low, high = int(pixels.min()), int(pixels.max())
        if not 0 <= low <= high <= _MAX_GREY:
            raise ValueError(f"its grey values range from {low} to {high}, beyond 16 bits")
        return grey
    if image.has_transparency_data:
        return image.convert("LA" if image.mode in ("L", "LA", "La") else "RGBA")
    return image.convert("L" if image.mode in ("1", "L") else "RGB")


def _encoded(image: Image.Image, encoding: Encoding, profile: bytes | None) -> bytes:
    if image.mode == "I":
        grey = np.clip(np.asarray(image), 0, _MAX_GREY)  # Lanczos may overshoot
        image = Image.fromarray(grey.astype(np.uint16) if encoding.form == "png" else (grey // 257).astype(np.uint8))
    if encoding.form == "jpeg" and image.mode in ("LA", "RGBA"):  # JPEG has no transparency: paste on white
        canvas = Image.new("RGBA", image.size, "white")
        canvas.alpha_composite(image.convert("RGBA"))
        image = canvas.convert(image.mode.removesuffix("A"))
    image.info = {}  # some encoders would store it: comments, resolutions
    out = BytesIO()
    if encoding.quality is None:
        image.save(out, encoding.form, icc_profile=profile)
    else:
        image.save(out, encoding.form, icc_profile=profile, quality=encoding.quality)
    return out.getvalue()
